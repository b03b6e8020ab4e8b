"""The managed GPUs: reads them at intervals, and finds the attempt to which each process on them belongs."""
