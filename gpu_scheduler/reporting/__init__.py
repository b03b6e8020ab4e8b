"""Writes what the running scheduler reports: log lines, journal, status board, console output."""
