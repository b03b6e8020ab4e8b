"""Text processing: quoting, strict JSON, secrets and terminal escapes.

This package imports no other package of this project.
"""
