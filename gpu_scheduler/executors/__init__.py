"""Executors that start runners on this machine: direct ones, and ones inside GNU Screen sessions."""
