"""Killing things at random, and counting from what the jobs themselves wrote."""
