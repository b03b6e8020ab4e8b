-- The compute mode lets only one process use the GPU; the GPU uses the memory of the machine.
ALTER TABLE gpu ADD COLUMN exclusive INTEGER NOT NULL DEFAULT 0;
ALTER TABLE gpu ADD COLUMN unified   INTEGER NOT NULL DEFAULT 0;
