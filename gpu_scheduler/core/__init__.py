"""The decisions, as pure functions of values. This code uses no files, clocks, processes, GPUs or SQL."""
