-- Why a job with `gone` set is not started: its line is malformed now, missing, or changed a moment ago.

ALTER TABLE job ADD COLUMN line_wait TEXT;                            -- LineWait as JSON; NULL: nothing of its line
