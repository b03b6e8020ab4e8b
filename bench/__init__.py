"""Benchmarks. They assert nothing about times, because they run on shared machines."""
