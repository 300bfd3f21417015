CREATE TABLE hosts (
    id TEXT PRIMARY KEY, label TEXT NOT NULL, renewed_at INTEGER NOT NULL, expires_at INTEGER NOT NULL, suspect TEXT
) WITHOUT ROWID;

CREATE TABLE sessions (
    id TEXT PRIMARY KEY, agent TEXT NOT NULL, key TEXT NOT NULL, host TEXT, epoch INTEGER NOT NULL,
    revision INTEGER NOT NULL, seq INTEGER NOT NULL, taken_at INTEGER NOT NULL, created_at INTEGER NOT NULL,
    terminated_at INTEGER
) WITHOUT ROWID;

CREATE TABLE states (session TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL);

CREATE TABLE fibers (
    id TEXT PRIMARY KEY, session TEXT NOT NULL, name TEXT NOT NULL, kind TEXT NOT NULL, version INTEGER NOT NULL,
    args BLOB, key TEXT, host TEXT, epoch INTEGER NOT NULL, steps BLOB, stash BLOB, attempt INTEGER NOT NULL,
    stalled INTEGER NOT NULL, attempted_at INTEGER NOT NULL, started_at INTEGER NOT NULL, parked BLOB
) WITHOUT ROWID;
CREATE INDEX fibers_by_session ON fibers (session);
CREATE INDEX fibers_by_host ON fibers (host) WHERE parked IS NULL;
CREATE UNIQUE INDEX fibers_by_key ON fibers (session, key) WHERE key IS NOT NULL;

CREATE TABLE ended (
    id TEXT PRIMARY KEY, session TEXT NOT NULL, name TEXT NOT NULL, key TEXT, outcome TEXT NOT NULL, value BLOB,
    error TEXT, started_at INTEGER NOT NULL, ended_at INTEGER NOT NULL, expires_at INTEGER NOT NULL
);
CREATE INDEX ended_by_session ON ended (session, ended_at);
CREATE INDEX ended_by_key ON ended (session, key) WHERE key IS NOT NULL;
CREATE INDEX ended_by_expiry ON ended (expires_at);

CREATE TABLE ops (
    id TEXT NOT NULL, session TEXT NOT NULL, fiber TEXT NOT NULL, scope TEXT NOT NULL, step INTEGER NOT NULL,
    kind TEXT NOT NULL, effect TEXT NOT NULL, args BLOB NOT NULL, handle BLOB, cursor BLOB, opened_at INTEGER NOT NULL,
    key_until INTEGER, chunks INTEGER NOT NULL, outcome TEXT, result BLOB, settled_at INTEGER,
    PRIMARY KEY (fiber, scope, step)
) WITHOUT ROWID;
CREATE INDEX ops_unsettled ON ops (id) WHERE settled_at IS NULL;
CREATE INDEX ops_unsettled_by_session ON ops (session) WHERE settled_at IS NULL;

CREATE TABLE chunks (op TEXT NOT NULL, n INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (op, n)) WITHOUT ROWID;

CREATE TABLE alarms (
    id TEXT PRIMARY KEY, session TEXT NOT NULL, kind TEXT NOT NULL, method TEXT NOT NULL, args BLOB NOT NULL,
    spec BLOB NOT NULL, key TEXT, due_at INTEGER NOT NULL, created_at INTEGER NOT NULL
);
CREATE INDEX alarms_by_due ON alarms (due_at);
CREATE INDEX alarms_by_session ON alarms (session, due_at);

CREATE TABLE events (
    session TEXT NOT NULL, seq INTEGER NOT NULL, type TEXT NOT NULL, body BLOB NOT NULL, at INTEGER NOT NULL,
    PRIMARY KEY (session, seq)
) WITHOUT ROWID;

CREATE TABLE inbox (
    n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, session TEXT NOT NULL, kind TEXT NOT NULL,
    body BLOB NOT NULL, at INTEGER NOT NULL
);
CREATE INDEX inbox_by_session ON inbox (session, n);
