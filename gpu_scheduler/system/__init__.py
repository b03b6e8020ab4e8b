"""Helpers for the operating system: safe file access, /proc, resource shortages and external programs."""
