"""The store: one SQLite database per state file, and the JSON state file beside its data directory."""
