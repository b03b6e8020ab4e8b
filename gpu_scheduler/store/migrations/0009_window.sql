-- That the Screen window of an attempt was closed is told once.

ALTER TABLE attempt ADD COLUMN window_closed INTEGER NOT NULL DEFAULT 0;
