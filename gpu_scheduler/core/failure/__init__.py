"""Explains why a job failed, from its exit code and from the errors in its log."""
