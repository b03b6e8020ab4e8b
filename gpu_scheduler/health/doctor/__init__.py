"""Checks this machine or a job for problems, one small function per check.

The checks read files, run programs with a timeout, and change nothing.
"""
