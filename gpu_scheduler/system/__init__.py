"""Operating-system helpers: safe file reads, /proc, resource shortages, outside programs."""
