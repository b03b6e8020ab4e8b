"""The use cases that change something: jobs, GPUs, the jobs file, the scheduler, or the claims on GPUs.

Each takes a `Location` and typed arguments, and returns a frozen value or raises an error of
`gpu_scheduler.errors`; the module also formats that value as text. No function parses a command line, reads
standard streams or prints.
"""
