"""A script that stands for real work. Each test chooses its arguments."""

import sys

print("done", sys.argv[1:])
