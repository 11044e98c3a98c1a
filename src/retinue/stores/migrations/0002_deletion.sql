-- Deleted sessions, whose ids no later event may use again. `meta` also holds the highest position that a deletion
-- took away (`position`) and the master switch (`switch`: `on` or `off`; no row is `on`).

CREATE TABLE deleted (
    session_id TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;

CREATE INDEX outputs_of_session ON outputs (session_id);

-- A body as bytes: a row whose text is no text any more is still a row, beside others that can be read.
DROP VIEW session_rows;
CREATE VIEW session_rows AS
SELECT
    s.number, s.session_id, s.is_root, s.is_open, CAST(s.body AS BLOB) AS body,
    (SELECT e.time FROM events e WHERE e.session_id = s.session_id ORDER BY e.seq DESC LIMIT 1) AS updated_at,
    (SELECT max(e.seq) FROM events e WHERE e.session_id = s.session_id) AS stored_events
FROM sessions s;

DROP VIEW run_rows;
CREATE VIEW run_rows AS
SELECT
    r.number, r.run_id, r.session_id, r.parent_id, r.root_id, r.is_open, CAST(r.body AS BLOB) AS body,
    CASE WHEN r.in_queue THEN
        (SELECT count(*) FROM runs q WHERE q.root_id = r.root_id AND q.in_queue AND q.number <= r.number)
    END AS queue_position
FROM runs r;

PRAGMA user_version = 2;
