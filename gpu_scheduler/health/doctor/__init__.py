"""Checks what could go wrong on this machine or with a job, one small function per check.

The checks read files, run programs with a timeout, and change nothing.
"""
