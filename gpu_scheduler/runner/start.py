"""The start script of runners, of the fork server and of guards, run by `python -I -S`.

With an attempt folder as its argument, the process becomes the runner of the attempt; with `--forks`, it
becomes the fork server; with `--guard` and an attempt folder, it becomes the guard of the attempt. The script
appends the package's folder to the end of the module path, so that it does not hide other modules.
"""

import sys

sys.path.append(__file__.rpartition("/")[0].rpartition("/")[0])
if sys.argv[1] == "--forks":
    __import__("runner.fork_server").fork_server.main()
elif sys.argv[1] == "--guard":
    __import__("runner.guard").guard.main(sys.argv[2])
else:
    __import__("runner.supervise").supervise.main(sys.argv[-1])
