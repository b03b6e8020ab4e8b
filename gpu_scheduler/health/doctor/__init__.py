"""Checks this machine or a job for problems, with one small function per check.

The checks read files and run programs with a timeout. They change nothing.
"""
