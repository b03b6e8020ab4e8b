-- The items that this store has taken from a Redis queue.

CREATE TABLE taken_item (
    redis_id TEXT NOT NULL,
    fence    TEXT NOT NULL,                         -- random; each claim of an item has its own
    job_id   INTEGER NOT NULL,
    score    TEXT NOT NULL,                         -- in the queue, as Redis prints it
    record   TEXT NOT NULL,                         -- when it was claimed, as JSON
    arguments TEXT,                                 -- those of `redis-submit`, as JSON; NULL: none
    state    TEXT NOT NULL,                         -- 'open', 'ended' (written back) or 'gone' (another box may have it)
    written  TEXT,                                  -- what was last written back, as JSON; NULL: nothing
    status   TEXT,                                  -- that of a job that was forgotten since; NULL: it is that of the job
    set_at   REAL NOT NULL,                         -- when the state was set, in seconds since 1970
    PRIMARY KEY (redis_id, fence)
) WITHOUT ROWID;
CREATE INDEX taken_item_job ON taken_item (job_id);
CREATE INDEX taken_item_open ON taken_item (job_id) WHERE state = 'open';
