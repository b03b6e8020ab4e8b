"""A script that simulates work; the test chooses its arguments."""

import sys

print("done", sys.argv[1:])
