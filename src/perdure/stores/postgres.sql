-- What Postgres needs beside `queries.sql`, or in the place of a query there: several hosts write at once.

-- name: session_settings
-- How this connection behaves: durable on return, and never waiting for ever. Also what the database is like.
SELECT set_config('statement_timeout', :statement, false), set_config('lock_timeout', :lock, false),
       set_config('idle_in_transaction_session_timeout', :idle, false),
       set_config('default_transaction_isolation', 'read committed', false),
       set_config('synchronous_commit',
                  CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, false),
       current_setting('server_encoding'), current_setting('fsync');

-- name: schema_exists
-- Whether this database was ever prepared.
SELECT to_regclass('perdure_schema') IS NOT NULL;

-- name: schema_version
-- The version of the schema.
SELECT max(version) FROM perdure_schema;

-- name: migration_settings
-- A long step must not be cut, and is waited for.
SELECT set_config('lock_timeout', :patience, true), set_config('statement_timeout', '0', true);

-- name: wait_for_migrations
-- One host at a time prepares a database; the others wait here.
SELECT pg_advisory_xact_lock(hashtext('perdure'), hashtext(current_schema()));

-- name: create_schema_table
-- Where the version stands.
CREATE TABLE IF NOT EXISTS perdure_schema (version BIGINT NOT NULL);

-- name: forget_schema_version
-- Before the new one is noted.
DELETE FROM perdure_schema;

-- name: note_schema_version
-- The schema is at this version from here on.
INSERT INTO perdure_schema (version) VALUES (:version);

-- name: tick
-- The database's clock. It never runs behind what it has said before, on whatever machine the database
-- runs now: set back, it goes on at half speed until the wall clock has caught up.
UPDATE clock SET wall = machine.now,
                 said = GREATEST(machine.now, clock.said + GREATEST(0, machine.now - clock.wall) / 2)
FROM (SELECT CAST(floor(extract(epoch FROM clock_timestamp()) * 1000) AS BIGINT) AS now) AS machine
RETURNING clock.said;

-- name: listen
-- Hear when another host has put something in.
LISTEN perdure;

-- name: lock_session
-- Before it is decided who owns a session: the next statement sees what this one waited for.
SELECT 1 FROM sessions WHERE id = :session FOR NO KEY UPDATE;

-- name: standing
-- After an unknown outcome: which commits of this epoch have landed. Waits for one that is still landing.
SELECT epoch, revision, seq FROM sessions WHERE id = :session FOR NO KEY UPDATE;

-- name: put_input
-- Accepted is durable (P1): inserted by whichever process took the request, without a lease. The session
-- cannot end meanwhile.
INSERT INTO inbox (id, session, kind, body, at)
SELECT :id, sessions.id, :kind, :body, :at FROM sessions
WHERE sessions.id = :session AND sessions.terminated_at IS NULL FOR SHARE
ON CONFLICT (id) DO NOTHING RETURNING id;

-- name: expired
-- Ended fibers past their retention, but not those that another host forgets just now.
SELECT id FROM ended WHERE expires_at <= :now ORDER BY expires_at LIMIT :limit FOR UPDATE SKIP LOCKED;

-- name: forget_hosts
-- Dead hosts that nothing refers to. One that has only fallen silent may still come back and open a fiber.
DELETE FROM hosts WHERE id IN (
    SELECT id FROM hosts WHERE expires_at <= :before
    AND NOT EXISTS (SELECT 1 FROM fibers WHERE fibers.host = hosts.id) FOR UPDATE SKIP LOCKED
);
