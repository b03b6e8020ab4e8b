"""Reads the progress of jobs: their logs, their checkpoints, and the files in which they report it."""
