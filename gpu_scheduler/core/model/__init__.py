"""Values that all packages share: states, job specifications, GPU samples, attempt statuses.

Of the other packages, this one imports only `core.text`.
"""
