"""Checks the health of the machine and of the scheduler's files: storage, old sessions, `doctor`."""
