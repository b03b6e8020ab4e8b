"""The runner, the small process around every attempt, and the functions that read and write its folder.

Imports the standard library only. This file has no imports at all, because the runner starts through it.
"""
