"""A script that pretends to work; what it is called with is up to the test."""

import sys

print("done", sys.argv[1:])
