-- The keys of submissions over HTTP, kept for a day. Front ends write them in the transaction that inserts the jobs.

CREATE TABLE submission_key (
    caller  TEXT NOT NULL,
    route   TEXT NOT NULL,
    key     TEXT NOT NULL,
    digest  TEXT NOT NULL,                          -- of what was submitted
    job_id  INTEGER NOT NULL,                       -- the first of the jobs
    answer  TEXT NOT NULL,                          -- the first answer, as JSON
    made_at REAL NOT NULL,
    PRIMARY KEY (caller, route, key)
) WITHOUT ROWID;
CREATE INDEX submission_key_age ON submission_key (made_at);
