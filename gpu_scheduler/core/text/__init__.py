"""Text processing: quoting, strict JSON, secrets and terminal escapes.

Imports no other package of this project.
"""
