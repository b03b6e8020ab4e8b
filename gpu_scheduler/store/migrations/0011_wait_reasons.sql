-- Why the jobs of one resource spec wait, as a value. It is found again in the first round.

DROP TABLE waiting;
CREATE TABLE waiting (
    ask    TEXT PRIMARY KEY,
    reason TEXT NOT NULL                        -- WaitReason as JSON
) WITHOUT ROWID;
UPDATE wish SET answer = NULL;                  -- RequestAnswer as JSON; NULL: none yet, or none that is read
UPDATE job SET line_wait = NULL;                -- WaitReason as JSON; NULL: nothing about its line
UPDATE gpu SET fault = NULL;                    -- GpuFault as JSON; NULL: none
