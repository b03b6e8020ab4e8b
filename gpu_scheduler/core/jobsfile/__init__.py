"""The jobs file: its grammar, the difference between two readings, and when a change takes effect."""
