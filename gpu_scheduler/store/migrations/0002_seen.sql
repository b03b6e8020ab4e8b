-- What was seen of running jobs and of GPUs: processes on GPUs that a job was not given, and what the last
-- sample listed on each GPU, so that readers judge a GPU by the same values as the scheduler.

ALTER TABLE attempt ADD COLUMN strays TEXT NOT NULL DEFAULT '[]';  -- JSON list of [UUID, pid], each GPU once
ALTER TABLE gpu ADD COLUMN processes TEXT;                         -- JSON list of [pid, MiB, graphics only]; NULL: not listed
ALTER TABLE gpu ADD COLUMN loads TEXT NOT NULL DEFAULT '[]';       -- JSON list of the last loads, percent, the newest last
