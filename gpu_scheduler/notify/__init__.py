"""Tells people of the ends of jobs."""
