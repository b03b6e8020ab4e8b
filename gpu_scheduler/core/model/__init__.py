"""Values that every room shares: states, job specification, GPU sample, attempt status.

Imports only `core.text`.
"""
