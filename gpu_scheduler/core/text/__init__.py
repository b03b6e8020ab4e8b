"""Text processing: parsing it, making it safe to show, formatting times and sizes.

This package imports no other package of this project.
"""
