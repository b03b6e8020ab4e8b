"""The managed GPUs: probes, sampling, and which attempt owns each process."""
