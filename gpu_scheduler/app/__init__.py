"""Queries and commands that every front end uses, with typed arguments and results."""
