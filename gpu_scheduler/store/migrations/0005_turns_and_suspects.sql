-- The compute mode lets only one process use the GPU; the GPU uses the memory of the machine.
ALTER TABLE gpu ADD COLUMN exclusive INTEGER NOT NULL DEFAULT 0;
ALTER TABLE gpu ADD COLUMN unified   INTEGER NOT NULL DEFAULT 0;

-- Suspect GPUs.

-- Why the GPU is suspect, as it is shown; Suspicion as JSON. Rounds derive it anew from the attempts. NULL: it is not.
ALTER TABLE gpu ADD COLUMN suspicion TEXT;
CREATE INDEX allocation_gpu ON allocation (gpu, attempt_id);
