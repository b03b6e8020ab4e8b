"""Rows into tables, JSON and words: values in, text out. Nothing is read or decided here."""
