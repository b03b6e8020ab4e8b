"""`token`: creates, lists and revokes the tokens of the API."""

from __future__ import annotations

import json
import time
from argparse import Namespace

from gpu_scheduler.cli.program import location_of, print_message
from gpu_scheduler.cli.standard_streams import print_done
from gpu_scheduler.errors import UsageError
from gpu_scheduler.web.tokens import Token, Tokens

#: The options that only one action accepts.
_ACTION_OF = {"read_only": "create", "logs": "create", "days": "create", "json": "list"}


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
        print_message(
            f"token {options.name} is shown only this once; send it as `Authorization: Bearer TOKEN`"
        )
        if not options.read_only:
            print_message("whoever has a token that may change things can run code as the owner")
    return 0


def _print_list(tokens: Tokens, *, as_json: bool) -> None:
    found, valid = tokens.all(), tokens.valid()
    if as_json:
        rows = [
            {
                "name": one.name, "read_only": one.read_only, "logs": one.logs, "created": one.created,
                "expires": one.expires, "expired": one not in valid,
            }
            for one in found
        ]  # fmt: skip
        print(json.dumps({"tokens": rows}, indent=2))
        return
    for one in found:
        print(f"{one.name:<20} {_rights(one):<16} {_when(one, is_valid=one in valid)}")
    if not found:
        print_message("there are no tokens; `token create NAME` makes one")


def _rights(token: Token) -> str:
    return ("read-only, logs" if token.logs else "read-only") if token.read_only else "changes"


def _when(token: Token, *, is_valid: bool) -> str:
    if token.expires is None:
        return "never expires"
    day = time.strftime("%Y-%m-%d %H:%M", time.localtime(token.expires))
    return f"expires {day}" if is_valid else f"expired {day}"
