"""Formats values as tables, JSON and text. The functions read no files and make no decisions."""
