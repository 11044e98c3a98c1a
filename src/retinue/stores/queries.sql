-- Every statement the SQLite store runs, beside its migrations. A block begins with its name.

-- name: version
PRAGMA user_version;

-- name: sqlite
SELECT sqlite_version();

-- name: quick_check
PRAGMA quick_check(1);

-- name: count_tables
SELECT count(*) FROM sqlite_schema;

-- name: has_meta
SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'meta';

-- name: application
SELECT value FROM meta WHERE key = 'application';

-- name: set_up_writer
-- FULL syncs the write-ahead log at every commit; fullfsync makes that reach the disk on macOS too.
PRAGMA synchronous = FULL;
PRAGMA fullfsync = ON;
PRAGMA checkpoint_fullfsync = ON;
PRAGMA journal_size_limit = 67108864;
-- What is deleted is overwritten, not only let go.
PRAGMA secure_delete = ON;

-- name: use_wal
PRAGMA journal_mode = WAL;

-- name: set_up_reader
PRAGMA query_only = ON;

-- name: begin
BEGIN IMMEDIATE;

-- name: commit
COMMIT;

-- name: rollback
ROLLBACK;

-- name: position
SELECT max(
    coalesce((SELECT max(position) FROM events), 0),
    coalesce((SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'position'), 0)
);

-- name: switch
SELECT value FROM meta WHERE key = 'switch';

-- name: is_deleted
SELECT 1 FROM deleted WHERE session_id = :session_id;

-- name: last_seq
SELECT max(seq) FROM events WHERE session_id = :session_id;

-- name: add_event
INSERT INTO events (position, session_id, root_id, seq, time, type, body) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: put_session
INSERT INTO sessions (session_id, is_root, is_open, body) VALUES (?, ?, ?, ?)
ON CONFLICT (session_id) DO UPDATE SET is_root = excluded.is_root, is_open = excluded.is_open, body = excluded.body;

-- name: put_run
INSERT INTO runs (run_id, session_id, parent_id, root_id, is_open, in_queue, body) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (run_id) DO UPDATE SET
    session_id = excluded.session_id, parent_id = excluded.parent_id, root_id = excluded.root_id,
    is_open = excluded.is_open, in_queue = excluded.in_queue, body = excluded.body;

-- name: add_blob
INSERT INTO blobs (digest, data) VALUES (?, ?) ON CONFLICT (digest) DO NOTHING;

-- name: add_output
INSERT INTO outputs (output_id, session_id, text) VALUES (?, ?, ?);

-- name: put_meta
INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- name: add_deleted
INSERT INTO deleted (session_id) VALUES (?) ON CONFLICT (session_id) DO NOTHING;

-- name: delete_events
DELETE FROM events WHERE session_id = ?;

-- name: delete_session
DELETE FROM sessions WHERE session_id = ?;

-- name: delete_outputs
DELETE FROM outputs WHERE session_id = ?;

-- name: delete_runs
DELETE FROM runs WHERE parent_id = ?;

-- name: read
SELECT session_id, root_id, seq, position, time, type, CAST(body AS BLOB) FROM events
WHERE session_id = :session_id AND seq > :after ORDER BY seq LIMIT :limit;

-- name: tail
SELECT session_id, root_id, seq, position, time, type, CAST(body AS BLOB) FROM events
WHERE position > :after ORDER BY position LIMIT :limit;

-- name: tail_of_tree
SELECT session_id, root_id, seq, position, time, type, CAST(body AS BLOB) FROM events
WHERE root_id = :root_id AND position > :after ORDER BY position LIMIT :limit;

-- name: session
SELECT number, body, updated_at, stored_events FROM session_rows WHERE session_id = :session_id;

-- name: sessions
SELECT number, body, updated_at, stored_events FROM session_rows
WHERE number < :before ORDER BY number DESC LIMIT :limit;

-- name: sessions_of_roots
SELECT number, body, updated_at, stored_events FROM session_rows
WHERE is_root AND number < :before ORDER BY number DESC LIMIT :limit;

-- name: sessions_open
SELECT number, body, updated_at, stored_events FROM session_rows
WHERE is_open AND (is_root OR NOT :roots_only) AND number < :before ORDER BY number DESC LIMIT :limit;

-- name: run
SELECT number, body, queue_position FROM run_rows WHERE run_id = :run_id;

-- name: damaged_run
SELECT CAST(run_id AS BLOB), CAST(session_id AS BLOB), CAST(parent_id AS BLOB), CAST(root_id AS BLOB) FROM runs
WHERE number = :number;

-- name: runs
SELECT number, body, queue_position FROM run_rows WHERE number > :after ORDER BY number LIMIT :limit;

-- name: runs_open
SELECT number, body, queue_position FROM run_rows
WHERE is_open AND (:root_id IS NULL OR root_id = :root_id)
    AND (:parent_id IS NULL OR parent_id = :parent_id) AND (:session_id IS NULL OR session_id = :session_id)
    AND number > :after ORDER BY number LIMIT :limit;

-- name: runs_of_tree
SELECT number, body, queue_position FROM run_rows
WHERE root_id = :root_id AND number > :after ORDER BY number LIMIT :limit;

-- name: runs_of_parent
SELECT number, body, queue_position FROM run_rows
WHERE parent_id = :parent_id AND (:root_id IS NULL OR root_id = :root_id)
    AND number > :after ORDER BY number LIMIT :limit;

-- name: runs_of_session
SELECT number, body, queue_position FROM run_rows
WHERE session_id = :session_id AND (:root_id IS NULL OR root_id = :root_id)
    AND (:parent_id IS NULL OR parent_id = :parent_id) AND number > :after ORDER BY number LIMIT :limit;

-- name: blob
SELECT data FROM blobs WHERE digest = :digest;

-- name: output
SELECT output_id, session_id, text FROM outputs WHERE output_id = :output_id;
