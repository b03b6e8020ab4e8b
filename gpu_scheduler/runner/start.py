"""The start script of the runner, run by `python -I -S`; appends our folder to the path, shadowing nothing.

With a folder as argument the process becomes the runner of the attempt there; with `--forks`, the fork
server.
"""

import sys

sys.path.append(__file__.rpartition("/")[0].rpartition("/")[0])
if sys.argv[1] == "--forks":
    __import__("runner.fork_server").fork_server.main()
else:
    __import__("runner.supervise").supervise.main(sys.argv[-1])
