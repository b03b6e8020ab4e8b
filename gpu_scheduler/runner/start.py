"""What `python -I -S` is given: imports the cached modules; their folder is put last, to shadow nothing.

An argument that is a folder makes it the runner of the attempt there; `--forks`, the process that forks such.
"""

import sys

sys.path.append(__file__.rpartition("/")[0].rpartition("/")[0])
if sys.argv[1] == "--forks":
    __import__("runner.forks").forks.main()
else:
    __import__("runner.supervise").supervise.main(sys.argv[-1])
