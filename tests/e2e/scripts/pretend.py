"""A stand-in for a script that does real work. Each test passes it different arguments."""

import sys

print("done", sys.argv[1:])
