"""Benchmarks. They print times but never fail because of them, because they run on shared machines."""
