"""Measurements. Nothing here asserts anything on a clock: the machines they run on are shared."""
