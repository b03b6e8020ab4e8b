"""The commands that open the queue to other programs: `serve`, `token` and `mcp`."""

from __future__ import annotations

import json
import shlex
import sys
import time
from argparse import Namespace
from pathlib import Path

from msgspec.structs import asdict

from gpu_scheduler.cli.program import location_of, print_done, print_message
from gpu_scheduler.errors import UsageError
from gpu_scheduler.web.tokens import Tokens

#: The options that only one action accepts.
_ACTION_OF = {"read_only": "create", "logs": "create", "days": "create", "json": "list"}


def serve(options: Namespace) -> int:
    """Serves the API until SIGTERM or Ctrl-C. Returns 0."""
    from msgspec.structs import replace

    from gpu_scheduler.web.server import run

    # A server records changes and never runs rounds: its threads would hold the scheduler's lock.
    run(replace(location_of(options), runs_rounds=False), options, print_message)
    return 0


def token(options: Namespace) -> int:
    """Creates, lists or revokes tokens."""
    for option, action in _ACTION_OF.items():
        if getattr(options, option) and options.action != action:
            raise UsageError(f"--{option.replace('_', '-')} belongs to `token {action}`")
    if (options.name is None) != (options.action == "list"):
        raise UsageError("give a NAME to `create` and `revoke`, and none to `list`")
    if options.logs and not options.read_only:
        raise UsageError("--logs belongs to --read-only; other tokens always show logs")
    location = location_of(options)
    if options.action == "create":
        from gpu_scheduler.app.store_access import create_missing_store

        create_missing_store(location)
    tokens = Tokens(location.resolve().folder)
    if options.action == "list":
        _print_list(tokens, as_json=options.json)
    elif options.action == "revoke":
        tokens.revoke(options.name)
        print_done(f"token {options.name} revoked")
    else:
        given = {"read_only": options.read_only, "logs": options.logs, "days": options.days}
        print_done(tokens.create(options.name, **given))
        print_message("the token is shown only once; clients send it as their bearer token")
        if not options.read_only:
            print_message("whoever has a token that may change things can run code as the owner")
    return 0


def _print_list(tokens: Tokens, *, as_json: bool) -> None:
    valid = tokens.valid()
    rows = [{**asdict(one), "expired": one not in valid} for one in tokens.all()]
    for row in rows:
        del row["digest"]
        rights = ("read-only, logs" if row["logs"] else "read-only") if row["read_only"] else "changes"
        day = row["expires"] and time.strftime("%Y-%m-%d %H:%M", time.localtime(row["expires"]))
        end = f"{'expired' if row['expired'] else 'expires'} {day}" if day else "never expires"
        if not as_json:
            print(f"{row['name']:<20} {rights:<16} {end}")
    if as_json:
        print(json.dumps({"tokens": rows}, indent=2))
    elif not rows:
        print_message("there are no tokens; `token create NAME` makes one")


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
