"""Feeds the store: every source of jobs and requests inserts them here, and changes nothing else."""
