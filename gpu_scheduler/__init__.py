"""GPU Job Scheduler: runs every line of a jobs file once, on the right GPU."""

__version__ = "0.1.0"
