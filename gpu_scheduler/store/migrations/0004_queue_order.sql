-- Queue order: overtaken jobs, reservations for them, run times and forecasts.

-- When the job last began to wait for GPUs: when it was queued, or when the last of its parents finished.
ALTER TABLE job RENAME COLUMN bypassed_at TO queued_at;
UPDATE job SET queued_at = created_at;

-- The place of the job in the queue at this start. NULL: a watcher, because an adopted process never queues.
ALTER TABLE attempt ADD COLUMN queue_priority INTEGER;
ALTER TABLE attempt ADD COLUMN queue_position INTEGER;

-- When the GPU was last resumed, became managed, or recovered from a fault. NULL: before this schema.
ALTER TABLE gpu ADD COLUMN usable_since REAL;

-- A reservation by queue order has an expected start and a number of overtakes; that of a preemption has neither.
ALTER TABLE reservation ADD COLUMN start_at REAL;
ALTER TABLE reservation ADD COLUMN overtakes INTEGER;

CREATE TABLE run_time (                             -- completed attempts that started from the beginning
    id             INTEGER PRIMARY KEY,
    workload_class TEXT NOT NULL,                   -- [program, llm] as JSON, from needs.workload_class_of
    identity       TEXT NOT NULL,
    at             REAL NOT NULL,
    seconds        REAL NOT NULL
);
CREATE INDEX run_time_class ON run_time (workload_class, id);
-- The measurements name the classes of earlier attempts, but not the attempts. Equal seconds identify them.
WITH completed AS MATERIALIZED (
    SELECT job.identity, attempt.ended_at, attempt.ended_at - attempt.started_at AS seconds
    FROM attempt JOIN job ON job.id = attempt.job_id
    WHERE attempt.outcome = 'completed' AND attempt.resumed_from IS NULL AND job.checkpoint IS NULL
)
INSERT INTO run_time (workload_class, identity, at, seconds)
SELECT measurement.workload_class, completed.identity, measurement.at, measurement.seconds
FROM measurement JOIN completed ON completed.seconds = measurement.seconds
    AND completed.ended_at BETWEEN measurement.at - 3600.0 AND measurement.at + 1.0
WHERE measurement.outcome = 'completed' AND measurement.seconds > 0
GROUP BY measurement.id ORDER BY measurement.id;

CREATE TABLE gpu_time (                             -- GPU-seconds in each hour of wall time
    hour            INTEGER PRIMARY KEY,            -- hours since 1970
    delivered_s     REAL NOT NULL,                  -- allocated to attempts
    reserved_idle_s REAL NOT NULL                   -- not allocated, on GPUs reserved by queue order
);

CREATE TABLE forecast (                             -- the first forecast of each job
    job_id   INTEGER PRIMARY KEY REFERENCES job (id),
    made_at  REAL NOT NULL,
    start_at REAL NOT NULL,
    end_at   REAL NOT NULL
);

-- A job with parents begins to wait for GPUs when the last of them finishes.
DROP TRIGGER parent_finished;
CREATE TRIGGER parent_finished AFTER UPDATE OF state ON job
WHEN new.state = 'finished' AND old.state <> 'finished' BEGIN
    UPDATE job SET
        unmet_parents = unmet_parents - 1,
        queued_at = coalesce(new.finished_at, queued_at)
    WHERE id IN (SELECT job_id FROM dependency WHERE parent_id = new.id AND kind = 'finished');
    UPDATE job SET
        unmet_parents = unmet_parents - (new.outcome IN ('completed', 'ended')),
        failed_parents = failed_parents + (new.outcome NOT IN ('completed', 'ended')),
        queued_at = coalesce(new.finished_at, queued_at)
    WHERE id IN (SELECT job_id FROM dependency WHERE parent_id = new.id AND kind = 'completed');
END;
