"""Engines: cluster schedulers on which jobs can run, and the agent that keeps the attempts there."""
