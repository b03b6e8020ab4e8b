-- Preemptions, checkpoints, adopted processes and reservations.

-- The open cancel or preemption of a job, until the end of its attempt is recorded or it is withdrawn. NULL: none.
ALTER TABLE job RENAME COLUMN cancel_cause TO stop_cause;
ALTER TABLE job RENAME COLUMN cancel_grace_s TO stop_grace_s;
ALTER TABLE job ADD COLUMN stop_on_timeout TEXT;    -- 'kill' or 'withdraw'
ALTER TABLE job ADD COLUMN stop_id TEXT;            -- id that the files `stop` and `withdrawn` repeat
ALTER TABLE job ADD COLUMN stop_signal TEXT;        -- name of the signal that asks the command to end
ALTER TABLE job ADD COLUMN stop_next_state TEXT;    -- state of a preempted job afterwards: 'held' or 'queued'
ALTER TABLE job ADD COLUMN stop_preemptor INTEGER;  -- job for which it is preempted; NULL: by the user
UPDATE job SET stop_on_timeout = 'kill', stop_id = '', stop_signal = 'TERM', stop_next_state = 'held'
    WHERE stop_cause IS NOT NULL;

ALTER TABLE job ADD COLUMN checkpoint TEXT;         -- newest complete one at its last end; Checkpoint as JSON
ALTER TABLE job ADD COLUMN resume_from TEXT;        -- Checkpoint with which its next attempt starts; NULL: without one
ALTER TABLE job ADD COLUMN adopted TEXT;            -- AdoptedProcess that the job is, as JSON; NULL: an ordinary job

ALTER TABLE attempt ADD COLUMN resumed_from TEXT;   -- Checkpoint with which it started, as JSON
ALTER TABLE attempt ADD COLUMN watched_pid INTEGER; -- process that its runner watches; NULL: the runner starts one
ALTER TABLE attempt ADD COLUMN watched_ticks INTEGER;                       -- its start, in kernel ticks since boot
ALTER TABLE attempt ADD COLUMN preempted_for INTEGER;                       -- job for which it was preempted
ALTER TABLE attempt ADD COLUMN follows_preemption INTEGER NOT NULL DEFAULT 0; -- 1: the attempt before was preempted

CREATE TABLE reservation (                          -- a GPU that is kept for a queued job
    job_id INTEGER NOT NULL REFERENCES job (id),
    gpu    TEXT NOT NULL,
    PRIMARY KEY (job_id, gpu)
) WITHOUT ROWID;
-- A job that has started, ended or been held needs no reservation any more.
CREATE TRIGGER reservation_ended AFTER UPDATE OF state ON job
WHEN old.state = 'queued' AND new.state <> 'queued' BEGIN
    DELETE FROM reservation WHERE job_id = new.id;
END;

-- An adopted process already runs, so it is not in the queue.
DROP INDEX job_queue;
CREATE INDEX job_queue ON job (spec_key, source_missing, priority, position, id)
    WHERE state = 'queued' AND unmet_parents = 0 AND adopted IS NULL;
CREATE INDEX job_to_watch ON job (id) WHERE state = 'queued' AND adopted IS NOT NULL;
