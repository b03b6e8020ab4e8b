-- The load that foreign processes make on each GPU, as judged sample by sample.

ALTER TABLE gpu ADD COLUMN foreign_loads TEXT NOT NULL DEFAULT '[]';  -- JSON list of the last ones, percent or null, the newest last
ALTER TABLE gpu ADD COLUMN foreign_load_at REAL;                      -- boot seconds of the newest sample in it
