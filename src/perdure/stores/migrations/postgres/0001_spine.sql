-- Keys are compared byte by byte (COLLATE "C"): the same order as on SQLite, and whatever locale a server has.

CREATE TABLE clock (wall BIGINT NOT NULL, said BIGINT NOT NULL);
INSERT INTO clock VALUES (0, 0);

CREATE TABLE hosts (
    id TEXT COLLATE "C" PRIMARY KEY, label TEXT NOT NULL, renewed_at BIGINT NOT NULL, expires_at BIGINT NOT NULL,
    suspect TEXT COLLATE "C"
);

CREATE TABLE sessions (
    id TEXT COLLATE "C" PRIMARY KEY, agent TEXT NOT NULL, key TEXT NOT NULL, host TEXT COLLATE "C", epoch BIGINT NOT NULL,
    revision BIGINT NOT NULL, seq BIGINT NOT NULL, taken_at BIGINT NOT NULL, created_at BIGINT NOT NULL,
    terminated_at BIGINT
) WITH (fillfactor = 50);

CREATE TABLE states (session TEXT COLLATE "C" PRIMARY KEY, value BYTEA NOT NULL, version BIGINT NOT NULL);

CREATE TABLE fibers (
    id TEXT COLLATE "C" PRIMARY KEY, session TEXT COLLATE "C" NOT NULL, name TEXT NOT NULL, kind TEXT NOT NULL,
    version BIGINT NOT NULL, args BYTEA, key TEXT COLLATE "C", host TEXT COLLATE "C", epoch BIGINT NOT NULL, steps BYTEA,
    stash BYTEA, attempt BIGINT NOT NULL, stalled BIGINT NOT NULL, attempted_at BIGINT NOT NULL,
    started_at BIGINT NOT NULL, parked BYTEA
);
CREATE INDEX fibers_by_session ON fibers (session);
CREATE INDEX fibers_by_host ON fibers (host) WHERE parked IS NULL;
CREATE UNIQUE INDEX fibers_by_key ON fibers (session, key) WHERE key IS NOT NULL;

CREATE TABLE ended (
    id TEXT COLLATE "C" PRIMARY KEY, session TEXT COLLATE "C" NOT NULL, name TEXT NOT NULL, key TEXT COLLATE "C",
    outcome TEXT NOT NULL, value BYTEA, error TEXT, started_at BIGINT NOT NULL, ended_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);
CREATE INDEX ended_by_session ON ended (session, ended_at);
CREATE INDEX ended_by_key ON ended (session, key) WHERE key IS NOT NULL;
CREATE INDEX ended_by_expiry ON ended (expires_at);

CREATE TABLE ops (
    id TEXT COLLATE "C" NOT NULL, session TEXT COLLATE "C" NOT NULL, fiber TEXT COLLATE "C" NOT NULL,
    scope TEXT COLLATE "C" NOT NULL, step BIGINT NOT NULL, kind TEXT NOT NULL, effect TEXT NOT NULL, args BYTEA NOT NULL,
    handle BYTEA, cursor BYTEA, opened_at BIGINT NOT NULL, key_until BIGINT, chunks BIGINT NOT NULL, outcome TEXT,
    result BYTEA, settled_at BIGINT,
    PRIMARY KEY (fiber, scope, step)
);
CREATE INDEX ops_unsettled ON ops (id) WHERE settled_at IS NULL;
CREATE INDEX ops_unsettled_by_session ON ops (session) WHERE settled_at IS NULL;

CREATE TABLE chunks (op TEXT COLLATE "C" NOT NULL, n BIGINT NOT NULL, data BYTEA NOT NULL, PRIMARY KEY (op, n));

CREATE TABLE alarms (
    id TEXT COLLATE "C" PRIMARY KEY, session TEXT COLLATE "C" NOT NULL, kind TEXT NOT NULL, method TEXT NOT NULL,
    args BYTEA NOT NULL, spec BYTEA NOT NULL, key TEXT COLLATE "C", due_at BIGINT NOT NULL, created_at BIGINT NOT NULL
);
CREATE INDEX alarms_by_due ON alarms (due_at);
CREATE INDEX alarms_by_session ON alarms (session, due_at);

CREATE TABLE events (
    session TEXT COLLATE "C" NOT NULL, seq BIGINT NOT NULL, type TEXT NOT NULL, body BYTEA NOT NULL, at BIGINT NOT NULL,
    PRIMARY KEY (session, seq)
);

CREATE TABLE inbox (
    n BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id TEXT COLLATE "C" NOT NULL UNIQUE,
    session TEXT COLLATE "C" NOT NULL, kind TEXT NOT NULL, body BYTEA NOT NULL, at BIGINT NOT NULL
);
CREATE INDEX inbox_by_session ON inbox (session, n);

-- Other hosts hear at once of what they may take up: an input, a fiber that was given up, a host that has left.

CREATE FUNCTION perdure_notify() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('perdure', '');
    RETURN NULL;
END $$;

CREATE TRIGGER notify_of_input AFTER INSERT ON inbox FOR EACH ROW EXECUTE FUNCTION perdure_notify();

CREATE TRIGGER notify_of_hand_over AFTER UPDATE OF host ON fibers FOR EACH ROW
WHEN (OLD.host IS NOT NULL AND NEW.host IS NULL AND NEW.parked IS NULL) EXECUTE FUNCTION perdure_notify();

CREATE TRIGGER notify_of_leaving AFTER UPDATE OF expires_at ON hosts FOR EACH ROW
WHEN (NEW.expires_at = 0) EXECUTE FUNCTION perdure_notify();
