-- Queue order: overtaken jobs, reservations for them, run times and forecasts.

-- When the job last began to wait for GPUs: when it was queued, or when the last of its parents finished.
ALTER TABLE job RENAME COLUMN bypassed_at TO queued_at;
-- When it was submitted, or submitted again by a retry or a repeated line.
ALTER TABLE job ADD COLUMN submitted_at REAL;
UPDATE job SET queued_at = created_at, submitted_at = created_at;

-- The place of the job in the queue at this start. NULL: a watcher, because an adopted process never queues.
ALTER TABLE attempt ADD COLUMN queue_priority INTEGER;
ALTER TABLE attempt ADD COLUMN queue_position INTEGER;
ALTER TABLE attempt ADD COLUMN submitted_at REAL;           -- that of its job at this start

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
-- So does a job whose last unmet parent is removed from its dependencies.
CREATE TRIGGER dependency_removed BEFORE DELETE ON dependency BEGIN
    UPDATE job SET queued_at = (julianday('now') - 2440587.5) * 86400.0
    WHERE id = old.job_id AND unmet_parents = 1 AND coalesce(
        (SELECT parent.state <> 'finished'
                OR (old.kind = 'completed' AND parent.outcome NOT IN ('completed', 'ended'))
         FROM job AS parent WHERE parent.id = old.parent_id), 1);
END;

-- The newest change to the startable jobs of each pending group. Ids are never reused, so a reader that knows the
-- newest id finds every later change. Rows are deleted and inserted again, because the conflict clause of the
-- statement that fires a trigger would replace that of an INSERT in the trigger.
CREATE TABLE group_change (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    spec_key TEXT NOT NULL UNIQUE
);
CREATE TRIGGER group_job_inserted AFTER INSERT ON job
WHEN new.state = 'queued' AND new.unmet_parents = 0 AND new.adopted IS NULL BEGIN
    DELETE FROM group_change WHERE spec_key = new.spec_key;
    INSERT INTO group_change (spec_key) VALUES (new.spec_key);
END;
CREATE TRIGGER group_job_changed AFTER UPDATE OF
    spec_key, identity, spec, priority, position, state, source_missing, not_before_boot, boot_id, unmet_parents,
    adopted, queued_at
ON job WHEN
    (old.state = 'queued' AND old.unmet_parents = 0 AND old.adopted IS NULL)
    OR (new.state = 'queued' AND new.unmet_parents = 0 AND new.adopted IS NULL)
BEGIN
    DELETE FROM group_change WHERE spec_key IN (old.spec_key, new.spec_key);
    INSERT INTO group_change (spec_key) SELECT old.spec_key UNION SELECT new.spec_key;
END;
-- A queued job whose last attempt still holds its GPUs cannot start.
CREATE TRIGGER group_attempt_changed AFTER UPDATE OF state ON attempt
WHEN new.state <> old.state AND 'ended' IN (old.state, new.state) BEGIN
    DELETE FROM group_change
        WHERE spec_key IN (SELECT spec_key FROM job WHERE id = new.job_id AND state = 'queued');
    INSERT INTO group_change (spec_key) SELECT spec_key FROM job WHERE id = new.job_id AND state = 'queued';
END;
-- A job that preempts others is not placed with its group.
CREATE TRIGGER group_reservation_inserted AFTER INSERT ON reservation WHEN new.start_at IS NULL BEGIN
    DELETE FROM group_change WHERE spec_key IN (SELECT spec_key FROM job WHERE id = new.job_id);
    INSERT INTO group_change (spec_key) SELECT spec_key FROM job WHERE id = new.job_id;
END;
CREATE TRIGGER group_reservation_deleted AFTER DELETE ON reservation WHEN old.start_at IS NULL BEGIN
    DELETE FROM group_change WHERE spec_key IN (SELECT spec_key FROM job WHERE id = old.job_id);
    INSERT INTO group_change (spec_key) SELECT spec_key FROM job WHERE id = old.job_id;
END;
