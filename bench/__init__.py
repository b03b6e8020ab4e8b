"""Benchmarks. They print times but check none of them, because they run on shared machines."""
