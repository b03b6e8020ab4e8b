"""Executors that start runners on this machine, either directly or inside GNU Screen sessions."""
