"""Replays traces of jobs through the decisions of the scheduler, on a virtual clock."""
