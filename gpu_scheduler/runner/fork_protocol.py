"""The messages between the scheduler and the process that forks runners (`fork_server`)."""

from __future__ import annotations

#: Answers to a request; an errno follows REFUSED.
READY, FORKED, REFUSED = b"!", b"+", b"-"
#: The process is started with room for a token in its environment, and with room for a command in its
#: arguments, of which the kernel shows at most one page.
NO_TOKEN = "-" * 32
TITLE_BYTES = 4096
