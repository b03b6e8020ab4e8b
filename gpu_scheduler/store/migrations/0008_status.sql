-- What a short status counts and groups by.

ALTER TABLE waiting ADD COLUMN need TEXT;                             -- JSON {field of Need: value}; NULL: not said
-- How many finished jobs did not complete costs what there are of them, not what there are in all.
CREATE INDEX job_unsuccessful ON job (outcome) WHERE state = 'finished' AND outcome <> 'completed';
