"""Decisions only: values in, values out. No file, clock, process, GPU or SQL is known here."""
