"""The scheduler process: one round, the wait between rounds, and how it starts and ends."""
