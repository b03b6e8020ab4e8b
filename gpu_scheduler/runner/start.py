"""What `python -I -S` is given: imports the cached modules; their folder is put last, to shadow nothing."""

import sys

sys.path.append(__file__.rpartition("/")[0].rpartition("/")[0])
__import__("runner.supervise").supervise.main()
