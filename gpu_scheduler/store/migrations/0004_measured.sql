-- What attempts declare and what they were seen to use; retries; events; what is learned from it.

ALTER TABLE attempt ADD COLUMN vram INTEGER;                          -- MiB declared on each GPU; NULL: none
ALTER TABLE attempt ADD COLUMN learned INTEGER NOT NULL DEFAULT 0;    -- vram is what its kind was seen to use
ALTER TABLE attempt ADD COLUMN whole INTEGER NOT NULL DEFAULT 0;      -- no other job of ours on its GPUs
ALTER TABLE attempt ADD COLUMN peaks TEXT NOT NULL DEFAULT '{}';      -- JSON {UUID: MiB seen}
ALTER TABLE attempt ADD COLUMN loads TEXT NOT NULL DEFAULT '{}';      -- JSON {UUID: [sum of percents, samples]}
ALTER TABLE attempt ADD COLUMN measured_boot REAL;                    -- the newest sample that is in them
ALTER TABLE attempt ADD COLUMN exceeded TEXT NOT NULL DEFAULT '[]';   -- JSON list of UUIDs warned of

ALTER TABLE job ADD COLUMN raised_mib INTEGER;                        -- its need after an OOM
ALTER TABLE job ADD COLUMN oom_used INTEGER NOT NULL DEFAULT 0;
ALTER TABLE job ADD COLUMN fail_used INTEGER NOT NULL DEFAULT 0;

ALTER TABLE gpu ADD COLUMN held TEXT NOT NULL DEFAULT '[]';           -- JSON list of [pid, start, peak MiB], foreign

-- A row of history is an event: a state that a job came to, or something else that happened ('stray',
-- 'exceeded' …), and what is known of it. job_id 0: it is about no job.
ALTER TABLE history ADD COLUMN data TEXT NOT NULL DEFAULT '{}';

CREATE TABLE measured (                                               -- one row per attempt that was measured
    id           INTEGER PRIMARY KEY,
    family       TEXT NOT NULL,                                       -- needs.family_of: [program, llm]
    at           REAL NOT NULL,
    gpus         INTEGER NOT NULL,
    peak_mib     INTEGER NOT NULL,                                    -- the largest of its GPUs'
    declared_mib INTEGER,
    seconds      REAL,
    outcome      TEXT NOT NULL
);
CREATE INDEX measured_family ON measured (family, id);

DROP TRIGGER job_inserted;
CREATE TRIGGER job_inserted AFTER INSERT ON job BEGIN
    INSERT INTO tally VALUES (new.state, 1) ON CONFLICT (state) DO UPDATE SET jobs = jobs + 1;
    INSERT INTO history VALUES (new.id, new.created_at, new.state, new.reason, '{}');
END;
