-- What a round or `status` asks of the record costs the same however many jobs wait.

DROP INDEX job_open;
CREATE INDEX job_open ON job (state, priority, place, id) WHERE state <> 'finished';
DROP INDEX job_queue;
CREATE INDEX job_queue ON job (ask, gone, priority, place, id) WHERE state = 'queued';
CREATE INDEX job_gone ON job (id) WHERE gone;
CREATE INDEX job_retry ON job (not_before_boot) WHERE state = 'queued' AND not_before_boot IS NOT NULL;
CREATE INDEX line_malformed ON line (path, position) WHERE problem IS NOT NULL;

CREATE TABLE tally (                            -- how many jobs are in each state
    state TEXT PRIMARY KEY,
    jobs  INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO tally SELECT state, count(*) FROM job GROUP BY state;

CREATE TRIGGER job_inserted AFTER INSERT ON job BEGIN
    INSERT INTO tally VALUES (new.state, 1) ON CONFLICT (state) DO UPDATE SET jobs = jobs + 1;
    INSERT INTO history VALUES (new.id, new.created_at, new.state, new.reason);
END;
CREATE TRIGGER job_moved AFTER UPDATE OF state ON job WHEN new.state <> old.state BEGIN
    UPDATE tally SET jobs = jobs - 1 WHERE state = old.state;
    INSERT INTO tally VALUES (new.state, 1) ON CONFLICT (state) DO UPDATE SET jobs = jobs + 1;
END;
