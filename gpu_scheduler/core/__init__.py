"""Makes the decisions of the scheduler with pure functions, which use no files, clocks, processes or SQL."""
