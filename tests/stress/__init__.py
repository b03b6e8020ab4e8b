"""Stress tests, which kill processes at random and check the traces that the jobs themselves wrote."""
