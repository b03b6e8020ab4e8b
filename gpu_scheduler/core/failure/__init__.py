"""Explains why a job failed: GPU out-of-memory messages, the last error in a log, the explanation."""
