"""Explains what the log of a job shows: why the job failed, how far it is, and when it will finish."""
