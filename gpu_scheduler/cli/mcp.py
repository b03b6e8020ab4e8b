"""`mcp`: offers the queue to assistants on stdin and stdout."""

from __future__ import annotations

import shlex
import sys
from argparse import Namespace
from pathlib import Path

from gpu_scheduler.errors import UsageError


def mcp(options: Namespace) -> int:
    """Answers the requests of an assistant until stdin ends."""
    try:
        from gpu_scheduler.mcp_server import build
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        python = shlex.quote(sys.executable)
        raise UsageError(f"`mcp` needs another package: {python} -m pip install 'mcp>=2.3,<3'") from None
    from gpu_scheduler.client import Client

    token = None
    if options.token_file is not None:
        try:
            token = Path(options.token_file).read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            raise UsageError(f"--token-file {options.token_file}: {error}") from None
    queue = {} if options.url else {"state_file": options.state_file, "data_dir": options.data_dir}
    build(Client(options.url, token, **queue), allow_changes=options.allow_changes).run("stdio")
    return 0
