"""Formats values as tables, JSON and text. Reads no files and makes no decisions."""
