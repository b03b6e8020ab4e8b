"""The runner, a small process that supervises one attempt, and the functions that access an attempt folder.

This package imports only the standard library. This file imports nothing, because every runner loads it when
it starts.
"""
