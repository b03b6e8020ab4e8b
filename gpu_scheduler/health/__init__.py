"""The health of the machine and of our own files: storage, old sessions, `doctor`."""
