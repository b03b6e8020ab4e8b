"""Prepares, launches, observes and stops attempts through their folders, and sweeps their processes."""
