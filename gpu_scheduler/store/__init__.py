"""The store, which is one SQLite database for each state file, and the JSON state file itself."""
