-- Who runs an attempt is known once its claim was seen, whatever becomes of that file.

ALTER TABLE attempt ADD COLUMN runner_pid INTEGER;
ALTER TABLE attempt ADD COLUMN runner_ticks INTEGER; -- when that process began, kernel ticks since boot
