"""The messages between the scheduler and the process that forks runners (`fork_server`)."""

from __future__ import annotations

#: The answers of the fork server, one byte each. An errno follows REFUSED.
READY, FORKED, REFUSED = b"!", b"+", b"-"
#: The fork server is started with two placeholders: this token in its environment, and this many bytes for a
#: command line in its arguments. The kernel shows at most one page (4096 bytes) of a replaced command line.
NO_TOKEN = "-" * 32
TITLE_BYTES = 4096
