"""The messages between the scheduler and the process that forks runners (`fork_server`)."""

from __future__ import annotations

#: The answers of the fork server, one byte each. An errno follows REFUSED.
READY, FORKED, REFUSED = b"!", b"+", b"-"
#: The two placeholders with which the fork server is started: the token in its environment, and the number of
#: bytes for a command line in its arguments. The kernel shows at most one page (4096 bytes) of a replaced
#: command line.
NO_TOKEN = "-" * 32
TITLE_BYTES = 4096
