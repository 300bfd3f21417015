CREATE TABLE hosts (
    id TEXT PRIMARY KEY, label TEXT NOT NULL, renewed_at BIGINT NOT NULL, expires_at BIGINT NOT NULL, suspect TEXT
);

CREATE TABLE sessions (
    id TEXT PRIMARY KEY, agent TEXT NOT NULL, key TEXT NOT NULL, host TEXT, epoch BIGINT NOT NULL,
    revision BIGINT NOT NULL, seq BIGINT NOT NULL, taken_at BIGINT NOT NULL, created_at BIGINT NOT NULL,
    terminated_at BIGINT
);

CREATE TABLE states (session TEXT PRIMARY KEY, value BYTEA NOT NULL, version BIGINT NOT NULL);

CREATE TABLE fibers (
    id TEXT PRIMARY KEY, session TEXT NOT NULL, name TEXT NOT NULL, kind TEXT NOT NULL, version BIGINT NOT NULL,
    args BYTEA, key TEXT, host TEXT, epoch BIGINT NOT NULL, steps BYTEA, stash BYTEA, attempt BIGINT NOT NULL,
    stalled BIGINT NOT NULL, attempted_at BIGINT NOT NULL, started_at BIGINT NOT NULL, parked BYTEA
);
CREATE INDEX fibers_by_session ON fibers (session);
CREATE INDEX fibers_by_host ON fibers (host) WHERE parked IS NULL;
CREATE UNIQUE INDEX fibers_by_key ON fibers (session, key) WHERE key IS NOT NULL;

CREATE TABLE ended (
    id TEXT PRIMARY KEY, session TEXT NOT NULL, name TEXT NOT NULL, key TEXT, outcome TEXT NOT NULL, value BYTEA,
    error TEXT, started_at BIGINT NOT NULL, ended_at BIGINT NOT NULL, expires_at BIGINT NOT NULL
);
CREATE INDEX ended_by_session ON ended (session, ended_at);
CREATE INDEX ended_by_key ON ended (session, key) WHERE key IS NOT NULL;
CREATE INDEX ended_by_expiry ON ended (expires_at);

CREATE TABLE ops (
    id TEXT NOT NULL, session TEXT NOT NULL, fiber TEXT NOT NULL, scope TEXT NOT NULL, step BIGINT NOT NULL,
    kind TEXT NOT NULL, effect TEXT NOT NULL, args BYTEA NOT NULL, handle BYTEA, cursor BYTEA, opened_at BIGINT NOT NULL,
    key_until BIGINT, chunks BIGINT NOT NULL, outcome TEXT, result BYTEA, settled_at BIGINT,
    PRIMARY KEY (fiber, scope, step)
);
CREATE INDEX ops_unsettled ON ops (id) WHERE settled_at IS NULL;
CREATE INDEX ops_unsettled_by_session ON ops (session) WHERE settled_at IS NULL;

CREATE TABLE chunks (op TEXT NOT NULL, n BIGINT NOT NULL, data BYTEA NOT NULL, PRIMARY KEY (op, n));

CREATE TABLE alarms (
    id TEXT PRIMARY KEY, session TEXT NOT NULL, kind TEXT NOT NULL, method TEXT NOT NULL, args BYTEA NOT NULL,
    spec BYTEA NOT NULL, key TEXT, due_at BIGINT NOT NULL, created_at BIGINT NOT NULL
);
CREATE INDEX alarms_by_due ON alarms (due_at);
CREATE INDEX alarms_by_session ON alarms (session, due_at);

CREATE TABLE events (
    session TEXT NOT NULL, seq BIGINT NOT NULL, type TEXT NOT NULL, body BYTEA NOT NULL, at BIGINT NOT NULL,
    PRIMARY KEY (session, seq)
);

CREATE TABLE inbox (
    id TEXT PRIMARY KEY, session TEXT NOT NULL, kind TEXT NOT NULL, body BYTEA NOT NULL, at BIGINT NOT NULL
);
CREATE INDEX inbox_by_session ON inbox (session, at);
