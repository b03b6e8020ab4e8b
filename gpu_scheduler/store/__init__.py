"""The record: one SQLite database per state file, and the JSON state file beside it."""
