-- Dependencies between jobs, the environments of submitted jobs, recoveries and cleared jobs.

ALTER TABLE job ADD COLUMN unmet_parents INTEGER NOT NULL DEFAULT 0;   -- edges whose condition is not met (yet)
ALTER TABLE job ADD COLUMN failed_parents INTEGER NOT NULL DEFAULT 0;  -- those of them whose parent has finished
ALTER TABLE job ADD COLUMN environment TEXT;        -- key of its base environment; NULL: the scheduler's environment
ALTER TABLE job ADD COLUMN recoveries INTEGER NOT NULL DEFAULT 0;      -- times that `start --recover` queued it again
ALTER TABLE job ADD COLUMN cleared_at REAL;         -- when `clear` took it out of the lists

CREATE TABLE environment (                          -- the variables of submitted jobs, each set of them once
    hash      TEXT PRIMARY KEY,
    variables TEXT NOT NULL                         -- JSON object
) WITHOUT ROWID;

CREATE TABLE dependency (                           -- a job waits for a parent
    job_id    INTEGER NOT NULL,
    parent_id INTEGER NOT NULL,                     -- 0: the reference could not be resolved
    kind      TEXT NOT NULL,                        -- DependencyKind
    reference TEXT NOT NULL,                        -- the id or the name in `after` or `after-any`
    PRIMARY KEY (job_id, parent_id, kind)
) WITHOUT ROWID;
CREATE INDEX dependency_parent ON dependency (parent_id, kind, job_id);

-- A blocked job is not in the index of the queue, so no round reads it.
DROP INDEX job_queue;
CREATE INDEX job_queue ON job (spec_key, source_missing, priority, position, id)
    WHERE state = 'queued' AND unmet_parents = 0;
-- The jobs that the next round skips, and those that it queues again. Both indexes are nearly always empty.
CREATE INDEX job_to_skip ON job (id) WHERE state = 'queued' AND failed_parents > 0;
CREATE INDEX job_to_unskip ON job (id) WHERE state = 'finished' AND outcome = 'skipped' AND failed_parents = 0;
CREATE INDEX job_name ON job (name) WHERE name IS NOT NULL;

-- held_by may also be 'copy': the attempt belongs to the store of which this one is a copy.
-- `recover` and the messages about interrupted jobs read only these.
CREATE INDEX job_interrupted ON job (id) WHERE state = 'held' AND held_by = 'interrupted';
-- The lists of finished jobs leave out the cleared ones.
CREATE INDEX job_listed ON job (finished_at) WHERE state = 'finished' AND cleared_at IS NULL;
CREATE INDEX job_cleared ON job (id) WHERE cleared_at IS NOT NULL;
DROP INDEX job_unsuccessful;
CREATE INDEX job_unsuccessful ON job (outcome)
    WHERE state = 'finished' AND outcome <> 'completed' AND cleared_at IS NULL;

-- The triggers keep unmet_parents and failed_parents up to date. The condition of the kind 'finished' is met by
-- every finished parent, that of 'completed' by a parent with the outcome completed or ended
-- (core.model.job_spec).
CREATE TRIGGER dependency_inserted AFTER INSERT ON dependency BEGIN
    UPDATE job SET
        unmet_parents = unmet_parents + coalesce(
            (SELECT parent.state <> 'finished'
                    OR (new.kind = 'completed' AND parent.outcome NOT IN ('completed', 'ended'))
             FROM job AS parent WHERE parent.id = new.parent_id), 1),
        failed_parents = failed_parents + coalesce(
            (SELECT new.kind = 'completed' AND parent.state = 'finished'
                    AND parent.outcome NOT IN ('completed', 'ended')
             FROM job AS parent WHERE parent.id = new.parent_id), 0)
    WHERE id = new.job_id;
END;
CREATE TRIGGER dependency_deleted AFTER DELETE ON dependency BEGIN
    UPDATE job SET
        unmet_parents = unmet_parents - coalesce(
            (SELECT parent.state <> 'finished'
                    OR (old.kind = 'completed' AND parent.outcome NOT IN ('completed', 'ended'))
             FROM job AS parent WHERE parent.id = old.parent_id), 1),
        failed_parents = failed_parents - coalesce(
            (SELECT old.kind = 'completed' AND parent.state = 'finished'
                    AND parent.outcome NOT IN ('completed', 'ended')
             FROM job AS parent WHERE parent.id = old.parent_id), 0)
    WHERE id = old.job_id;
END;
CREATE TRIGGER parent_finished AFTER UPDATE OF state ON job
WHEN new.state = 'finished' AND old.state <> 'finished' BEGIN
    UPDATE job SET unmet_parents = unmet_parents - 1
    WHERE id IN (SELECT job_id FROM dependency WHERE parent_id = new.id AND kind = 'finished');
    UPDATE job SET
        unmet_parents = unmet_parents - (new.outcome IN ('completed', 'ended')),
        failed_parents = failed_parents + (new.outcome NOT IN ('completed', 'ended'))
    WHERE id IN (SELECT job_id FROM dependency WHERE parent_id = new.id AND kind = 'completed');
END;
CREATE TRIGGER parent_queued_again AFTER UPDATE OF state ON job
WHEN new.state <> 'finished' AND old.state = 'finished' BEGIN
    UPDATE job SET unmet_parents = unmet_parents + 1
    WHERE id IN (SELECT job_id FROM dependency WHERE parent_id = new.id AND kind = 'finished');
    UPDATE job SET
        unmet_parents = unmet_parents + (old.outcome IN ('completed', 'ended')),
        failed_parents = failed_parents - (old.outcome NOT IN ('completed', 'ended'))
    WHERE id IN (SELECT job_id FROM dependency WHERE parent_id = new.id AND kind = 'completed');
END;
