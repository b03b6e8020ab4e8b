"""The process of the scheduler: its start, its waiting, its end, and its reports."""
