-- The log is the truth. `sessions` and `runs` are projections of it: key columns, and the row itself as JSON in `body`.
-- `number` is the order of creation; cursors are made of it, so AUTOINCREMENT keeps it from being used twice.

CREATE TABLE meta (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO meta (key, value) VALUES ('application', 'retinue');

CREATE TABLE events (
    position INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL,
    root_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    time TEXT NOT NULL,
    type TEXT NOT NULL,
    body TEXT NOT NULL,
    UNIQUE (session_id, seq)
) STRICT;

CREATE INDEX events_of_tree ON events (root_id, position);

CREATE TABLE sessions (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL UNIQUE,
    is_root INTEGER NOT NULL,
    is_open INTEGER NOT NULL,
    body TEXT NOT NULL
) STRICT;

CREATE INDEX sessions_root ON sessions (number) WHERE is_root;
CREATE INDEX sessions_open ON sessions (number) WHERE is_open;

-- The end of a session's log says when it changed last, and, as seq has no gaps, how many events it holds.
CREATE VIEW session_rows AS
SELECT
    s.number, s.session_id, s.is_root, s.is_open, s.body,
    (SELECT e.time FROM events e WHERE e.session_id = s.session_id ORDER BY e.seq DESC LIMIT 1) AS updated_at,
    (SELECT max(e.seq) FROM events e WHERE e.session_id = s.session_id) AS stored_events
FROM sessions s;

CREATE TABLE runs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id TEXT NOT NULL UNIQUE,
    session_id TEXT NOT NULL,
    parent_id TEXT NOT NULL,
    root_id TEXT NOT NULL,
    is_open INTEGER NOT NULL,
    in_queue INTEGER NOT NULL,
    body TEXT NOT NULL
) STRICT;

CREATE INDEX runs_of_session ON runs (session_id, number);
CREATE INDEX runs_of_parent ON runs (parent_id, number);
CREATE INDEX runs_of_tree ON runs (root_id, number);
CREATE INDEX runs_open ON runs (number) WHERE is_open;
CREATE INDEX runs_in_queue ON runs (root_id, number) WHERE in_queue;

-- A place in the queue changes whenever another run leaves it, so it is counted when read and never stored.
CREATE VIEW run_rows AS
SELECT
    r.number, r.run_id, r.session_id, r.parent_id, r.root_id, r.is_open, r.body,
    CASE WHEN r.in_queue THEN
        (SELECT count(*) FROM runs q WHERE q.root_id = r.root_id AND q.in_queue AND q.number <= r.number)
    END AS queue_position
FROM runs r;

CREATE TABLE blobs (
    digest TEXT PRIMARY KEY,
    data BLOB NOT NULL
) STRICT;

CREATE TABLE outputs (
    output_id TEXT PRIMARY KEY,
    session_id TEXT NOT NULL,
    text TEXT NOT NULL
) STRICT;

PRAGMA user_version = 1;
