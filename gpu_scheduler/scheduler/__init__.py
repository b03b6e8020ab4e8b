"""The scheduler process: how it starts, runs rounds, waits between them, and ends."""
