"""Scheduling decisions: facts in, actions out."""
