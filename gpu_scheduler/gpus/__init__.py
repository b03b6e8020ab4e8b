"""Reads the managed GPUs at intervals, and finds the attempt to which each process on them belongs."""
