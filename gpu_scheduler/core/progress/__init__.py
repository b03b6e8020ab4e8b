"""Derives how far a job is from its log, its checkpoints and its options, and when it will finish."""
