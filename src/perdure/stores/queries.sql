-- Every query of the two SQL drivers. `:name` is a parameter. A query's comment says what it is for.

-- name: fence
-- The statement that checks the epoch, and counts the commit (P3).
UPDATE sessions SET revision = revision + 1, seq = seq + :events
WHERE id = :session AND epoch = :epoch AND revision = :revision
RETURNING seq;

-- name: standing
-- After an unknown outcome: which commits of this epoch have landed.
SELECT epoch, revision, seq FROM sessions WHERE id = :session;

-- name: take
-- One statement decides who owns a session: nobody did, we did, its owner is dead, or its owner
-- has no work in it and did not take it just now.
INSERT INTO sessions (id, agent, key, host, epoch, revision, seq, taken_at, created_at)
VALUES (:session, :agent, :key, :host, 1, 0, 0, :now, :now)
ON CONFLICT (id) DO UPDATE SET host = :host, epoch = sessions.epoch + 1, taken_at = :now
WHERE sessions.host IS NULL OR sessions.host = :host
   OR NOT EXISTS (SELECT 1 FROM hosts WHERE hosts.id = sessions.host AND hosts.expires_at > :alive)
   OR (sessions.taken_at + :hold <= :now
       AND NOT EXISTS (SELECT 1 FROM fibers WHERE fibers.session = sessions.id AND fibers.parked IS NULL)
       AND NOT EXISTS (SELECT 1 FROM alarms WHERE alarms.session = sessions.id AND alarms.kind = 'keepalive'))
RETURNING id, agent, key, host, epoch, revision, seq, created_at, terminated_at;

-- name: owner
-- Who has the session, in words.
SELECT hosts.label FROM sessions JOIN hosts ON hosts.id = sessions.host WHERE sessions.id = :session;

-- name: owner_lives
-- Whether the session's owner still renews its lease.
SELECT 1 FROM sessions JOIN hosts ON hosts.id = sessions.host
WHERE sessions.id = :session AND hosts.expires_at > :now;

-- name: suspects
-- For each former host of the session's fibers: the fiber it tried out when it died.
SELECT DISTINCT hosts.id, hosts.suspect FROM fibers JOIN hosts ON hosts.id = fibers.host
WHERE fibers.session = :session AND hosts.suspect IS NOT NULL;

-- name: renew
-- A host's lease: one row per host, however many sessions it has.
INSERT INTO hosts (id, label, renewed_at, expires_at) VALUES (:host, :label, :now, :expires_at)
ON CONFLICT (id) DO UPDATE SET renewed_at = :now, expires_at = :expires_at;

-- name: retire
-- The host ends its lease itself; its row stays until no fiber refers to it.
UPDATE hosts SET expires_at = 0 WHERE id = :host;

-- name: retire_all
-- A new process holds the file's lock, so every earlier host of this file is dead.
UPDATE hosts SET expires_at = 0;

-- name: last_renewal
-- The newest time that any host has seen: the clock must not run behind it.
SELECT max(renewed_at) FROM hosts;

-- name: forget_hosts
-- Dead hosts that nothing refers to. One that has only fallen silent may still come back and open a fiber.
DELETE FROM hosts WHERE expires_at <= :before
AND NOT EXISTS (SELECT 1 FROM fibers WHERE fibers.host = hosts.id);

-- name: suspect
-- Remember whom to blame if this host dies now.
UPDATE hosts SET suspect = :fiber WHERE id = :host;

-- name: hand_over_session
-- Nobody owns the session any more.
UPDATE sessions SET host = NULL WHERE id = :session;

-- name: hand_over_fibers
-- Its fibers go on at whoever takes it; this is not an attempt.
UPDATE fibers SET host = NULL WHERE session = :session;

-- name: due_alarms
-- Sessions with a due alarm that this host may fire.
SELECT sessions.id, sessions.agent, sessions.key FROM alarms JOIN sessions ON sessions.id = alarms.session
WHERE alarms.due_at <= :now
AND NOT EXISTS (SELECT 1 FROM hosts WHERE hosts.id = sessions.host AND hosts.expires_at > :alive AND hosts.id <> :host)
GROUP BY sessions.id, sessions.agent, sessions.key ORDER BY min(alarms.due_at) LIMIT :limit;

-- name: due_handed_over
-- Sessions whose fibers were handed over.
SELECT DISTINCT sessions.id, sessions.agent, sessions.key FROM fibers JOIN sessions ON sessions.id = fibers.session
WHERE fibers.host IS NULL AND fibers.parked IS NULL
AND NOT EXISTS (SELECT 1 FROM hosts WHERE hosts.id = sessions.host AND hosts.expires_at > :alive AND hosts.id <> :host)
LIMIT :limit;

-- name: due_orphans
-- Sessions whose fibers belong to a dead host. CROSS JOIN: the dead hosts are read first, so that
-- the fibers of a live one cost nothing.
SELECT DISTINCT sessions.id, sessions.agent, sessions.key FROM hosts AS dead CROSS JOIN fibers CROSS JOIN sessions
WHERE dead.expires_at <= :alive AND dead.id <> :host
AND fibers.host = dead.id AND fibers.parked IS NULL AND sessions.id = fibers.session
AND NOT EXISTS (SELECT 1 FROM hosts WHERE hosts.id = sessions.host AND hosts.expires_at > :alive AND hosts.id <> :host)
LIMIT :limit;

-- name: due_inputs
-- Sessions with an accepted input that no other live host will take. CROSS JOIN: the inbox is read
-- first, however many sessions there are.
SELECT DISTINCT sessions.id, sessions.agent, sessions.key FROM inbox CROSS JOIN sessions
WHERE sessions.id = inbox.session
AND NOT EXISTS (SELECT 1 FROM hosts WHERE hosts.id = sessions.host AND hosts.expires_at > :alive AND hosts.id <> :host)
LIMIT :limit;

-- name: next_due_at
-- When the alarm loop must look again.
SELECT min(due_at) FROM alarms WHERE due_at > :after;

-- name: open_fiber
-- The row exists exactly as long as the fiber may be running.
INSERT INTO fibers (id, session, name, kind, version, args, key, host, epoch, steps, stash,
                    attempt, stalled, attempted_at, started_at, parked)
VALUES (:id, :session, :name, :kind, :version, :args, :key, :host, :epoch, :steps, :stash,
        :attempt, :stalled, :attempted_at, :started_at, :parked);

-- name: enter_fiber
-- The attempt is committed before the fiber is entered again.
UPDATE fibers SET name = :name, kind = :kind, version = :version, args = :args, stash = :stash, host = :host,
                  epoch = :epoch, attempt = :attempt, stalled = :stalled, attempted_at = :attempted_at, parked = NULL
WHERE id = :id;

-- name: stash
-- The checkpoint and the step counters that belong to it, in one write.
UPDATE fibers SET stash = :data, steps = :steps WHERE id = :fiber;

-- name: progress
-- Attempts without progress count from zero again.
UPDATE fibers SET stalled = 0 WHERE id = :fiber;

-- name: park_fiber
-- The fiber waits for an answer.
UPDATE fibers SET parked = :question, host = NULL WHERE id = :fiber;

-- name: unpark_fiber
-- The fiber may be entered again, by whoever owns the session.
UPDATE fibers SET parked = NULL, host = NULL WHERE id = :fiber;

-- name: close_fiber
-- The row leaves in the commit that keeps its outcome.
DELETE FROM fibers WHERE id = :fiber;

-- name: keep_ended
-- The outcome, for whoever asks later. The first one stands.
INSERT INTO ended (id, session, name, key, outcome, value, error, started_at, ended_at, expires_at)
VALUES (:id, :session, :name, :key, :outcome, :value, :error, :started_at, :ended_at, :expires_at)
ON CONFLICT (id) DO NOTHING;

-- name: settle_open_ops
-- No op outlives its fiber unsettled: a read changed nothing, anything else may have happened (P7).
UPDATE ops SET outcome = CASE WHEN effect = 'read' THEN 'cancelled' ELSE 'doubt' END,
               settled_at = CASE WHEN effect = 'read' THEN CAST(:now AS BIGINT) END
WHERE fiber = :fiber AND settled_at IS NULL;

-- name: put_op
-- Intent before effect (P5), or a recorded read. A replaced row is a read, or one with the same place and key.
INSERT INTO ops (id, session, fiber, scope, step, kind, effect, args, handle, cursor, opened_at, key_until,
                 chunks, outcome, result, settled_at)
VALUES (:id, :session, :fiber, :scope, :step, :kind, :effect, :args, :handle, :cursor, :opened_at, :key_until,
        :chunks, :outcome, :result, :settled_at)
ON CONFLICT (fiber, scope, step) DO UPDATE SET
    kind = excluded.kind, effect = excluded.effect, args = excluded.args, handle = excluded.handle,
    cursor = excluded.cursor, opened_at = excluded.opened_at, key_until = excluded.key_until,
    chunks = excluded.chunks, outcome = excluded.outcome, result = excluded.result,
    settled_at = excluded.settled_at;

-- name: hold_handle
-- The pointer to a remote run that outlives us, and how far we have read it.
UPDATE ops SET handle = :handle, cursor = :cursor WHERE fiber = :fiber AND scope = :scope AND step = :step;

-- name: count_chunk
-- How many pieces of its output an op has committed.
UPDATE ops SET chunks = :n WHERE fiber = :fiber AND scope = :scope AND step = :step;

-- name: add_chunk
-- Seen is durable (P2): a piece is stored before anyone sees it. It replaces one of an op that stood here before.
INSERT INTO chunks (op, n, data) VALUES (:op, :n, :data)
ON CONFLICT (op, n) DO UPDATE SET data = excluded.data;

-- name: settle_op
-- Settled once (P6): a settled op is left as it is.
UPDATE ops SET outcome = :outcome, result = :result, settled_at = :settled_at
WHERE fiber = :fiber AND scope = :scope AND step = :step AND settled_at IS NULL;

-- name: forget_op
-- The op is known never to have happened.
DELETE FROM ops WHERE fiber = :fiber AND scope = :scope AND step = :step;

-- name: forget_chunks
-- The pieces of an op that is forgotten or replaced.
DELETE FROM chunks WHERE op = :op;

-- name: put_alarm
-- A wake-up time; the same id is moved.
INSERT INTO alarms (id, session, kind, method, args, spec, key, due_at, created_at)
VALUES (:id, :session, :kind, :method, :args, :spec, :key, :due_at, :created_at)
ON CONFLICT (id) DO UPDATE SET method = excluded.method, args = excluded.args, spec = excluded.spec,
                               due_at = excluded.due_at;

-- name: drop_alarm
-- It fired for the last time, or was cancelled.
DELETE FROM alarms WHERE id = :id AND session = :session;

-- name: put_state
-- The agent's state, whole.
INSERT INTO states (session, value, version) VALUES (:session, :value, :version)
ON CONFLICT (session) DO UPDATE SET value = excluded.value, version = excluded.version;

-- name: append
-- One contiguous seq per session (P8).
INSERT INTO events (session, seq, type, body, at) VALUES (:session, :seq, :type, :body, :at);

-- name: take_input
-- The input leaves in the commit that acts on it.
DELETE FROM inbox WHERE id = :id;

-- name: put_input
-- Accepted is durable (P1): inserted by whichever process took the request, without a lease.
INSERT INTO inbox (id, session, kind, body, at)
SELECT :id, sessions.id, :kind, :body, :at FROM sessions WHERE sessions.id = :session AND sessions.terminated_at IS NULL
ON CONFLICT (id) DO NOTHING RETURNING id;

-- name: session
-- One session.
SELECT id, agent, key, host, epoch, revision, seq, created_at, terminated_at FROM sessions WHERE id = :session;

-- name: sessions
-- A page of all sessions, in the order of their ids.
SELECT id, agent, key, host, epoch, revision, seq, created_at, terminated_at FROM sessions
WHERE id > :after ORDER BY id LIMIT :limit;

-- name: fibers
-- The open fibers of a session.
SELECT id, session, name, kind, version, args, key, host, epoch, steps, stash, attempt, stalled,
       attempted_at, started_at, parked
FROM fibers WHERE session = :session ORDER BY started_at, id;

-- name: fiber
-- One open fiber.
SELECT id, session, name, kind, version, args, key, host, epoch, steps, stash, attempt, stalled,
       attempted_at, started_at, parked
FROM fibers WHERE id = :fiber;

-- name: fiber_by_key
-- The open fiber that was started with this key.
SELECT id, session, name, kind, version, args, key, host, epoch, steps, stash, attempt, stalled,
       attempted_at, started_at, parked
FROM fibers WHERE session = :session AND key = :key;

-- name: ended
-- The fibers that ended last.
SELECT id, session, name, key, outcome, value, error, started_at, ended_at, expires_at
FROM ended WHERE session = :session ORDER BY ended_at DESC, id LIMIT :limit;

-- name: ended_fiber
-- What became of one fiber.
SELECT id, session, name, key, outcome, value, error, started_at, ended_at, expires_at
FROM ended WHERE id = :fiber;

-- name: ended_by_key
-- What became of the fiber that was started with this key.
SELECT id, session, name, key, outcome, value, error, started_at, ended_at, expires_at
FROM ended WHERE session = :session AND key = :key ORDER BY ended_at DESC LIMIT 1;

-- name: ops_from
-- The ops of one scope from a step on: what a fiber that is entered again will ask for next.
SELECT id, session, fiber, scope, step, kind, effect, args, handle, cursor, opened_at, key_until,
       chunks, outcome, result, settled_at
FROM ops WHERE fiber = :fiber AND scope = :scope AND step >= :step ORDER BY step LIMIT :limit;

-- name: ops
-- The ops of the session's open and lately ended fibers, newest first.
SELECT ops.id, ops.session, ops.fiber, ops.scope, ops.step, ops.kind, ops.effect, ops.args, ops.handle, ops.cursor,
       ops.opened_at, ops.key_until, ops.chunks, ops.outcome, ops.result, ops.settled_at
FROM ops JOIN (SELECT id FROM fibers WHERE session = :session
               UNION ALL SELECT id FROM (SELECT id FROM ended WHERE session = :session
                                         ORDER BY ended_at DESC LIMIT :limit) AS newest) AS mine
ON mine.id = ops.fiber
ORDER BY ops.opened_at DESC, ops.fiber, ops.scope, ops.step DESC LIMIT :limit;

-- name: open_ops
-- What is in flight or in doubt.
SELECT id, session, fiber, scope, step, kind, effect, args, handle, cursor, opened_at, key_until,
       chunks, outcome, result, settled_at
FROM ops WHERE session = :session AND settled_at IS NULL ORDER BY opened_at, id;

-- name: open_op
-- One op that is in flight or in doubt.
SELECT id, session, fiber, scope, step, kind, effect, args, handle, cursor, opened_at, key_until,
       chunks, outcome, result, settled_at
FROM ops WHERE id = :op AND settled_at IS NULL;

-- name: chunks
-- What an op has streamed so far. Later numbers are left over from an op that it replaced.
SELECT data FROM chunks WHERE op = :op AND n <= :chunks ORDER BY n;

-- name: alarms
-- The alarms of a session that a person set.
SELECT id, session, kind, method, args, spec, key, due_at, created_at
FROM alarms WHERE session = :session AND kind = 'user' ORDER BY due_at, id;

-- name: due_alarms_of
-- The alarms of a session that are due.
SELECT id, session, kind, method, args, spec, key, due_at, created_at
FROM alarms WHERE session = :session AND due_at <= :now ORDER BY due_at, id;

-- name: inputs
-- What waits in the inbox, in the order of its acceptance.
SELECT id, session, kind, body, at FROM inbox WHERE session = :session ORDER BY n;

-- name: events
-- The log after a cursor.
SELECT session, seq, type, body, at FROM events WHERE session = :session AND seq > :after ORDER BY seq LIMIT :limit;

-- name: state
-- The agent's state and its version.
SELECT value, version FROM states WHERE session = :session;

-- name: expired
-- Ended fibers past their retention.
SELECT id FROM ended WHERE expires_at <= :now ORDER BY expires_at LIMIT :limit;

-- name: forget_settled_chunks
-- The streamed pieces of the settled ops of a forgotten fiber.
DELETE FROM chunks WHERE op IN (SELECT id FROM ops WHERE fiber = :fiber AND settled_at IS NOT NULL);

-- name: forget_settled_ops
-- The settled ops of a forgotten fiber; a doubt stays until someone settles it.
DELETE FROM ops WHERE fiber = :fiber AND settled_at IS NOT NULL;

-- name: forget_ended
-- Forget what became of a fiber.
DELETE FROM ended WHERE id = :fiber;
