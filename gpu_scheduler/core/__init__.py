"""Decisions as pure functions of values. Nothing here uses files, clocks, processes, GPUs or SQL."""
