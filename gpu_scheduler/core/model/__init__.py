"""Values that all packages share: states, job specifications, GPU samples, attempt statuses.

This package imports no other package except `core.text`.
"""
