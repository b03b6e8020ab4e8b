"""Stress tests: kill processes at random and judge by what the jobs themselves wrote."""
