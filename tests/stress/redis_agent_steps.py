"""Runs the program, but kills or stops it at a step: python -m tests.stress.redis_agent_steps COMMAND…

The program is an agent or a scheduler. There is a step before each command to Redis is sent, after it was
sent, and after its answer was read, before and after each commit to the store, and at each failpoint of the
scheduler. A step is named after its moment and the command, the script or the function that commits. The
environment has the rest:

AGENT_STEP: the step; AGENT_SIGNAL: the number of the signal that the program sends itself when it first
reaches the step; AGENT_STEPS: a file to which each name is added when the step is first reached.
AGENT_UNCONFIRMED, a negative control: jobs start although Redis was not asked to confirm their claims; that
they run is not written back, so that other boxes may take them.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from typing import Any

from redis.connection import AbstractConnection

from gpu_scheduler.config import StartOptions
from gpu_scheduler.daemon import service
from gpu_scheduler.redis_queue import queue as scripts
from tests.stress.commit_steps import step_at_commits

UNCONFIRMED = "AGENT_UNCONFIRMED"
STEP, SIGNAL, STEPS = "AGENT_STEP", "AGENT_SIGNAL", "AGENT_STEPS"


def _digest(script: bytes) -> str:
    return hashlib.sha1(script, usedforsecurity=False).hexdigest()


#: The names of the scripts by the digests under which Redis knows them.
_SCRIPTS = {
    _digest(text.encode()): name
    for name, text in vars(scripts).items()
    if str(text).startswith(scripts._COMMON)
}

_wanted, _signal = os.environ.get(STEP, ""), int(os.environ.get(SIGNAL, "9"))
_pid = os.getpid()
_seen: set[str] = set()
_steps = os.environ.get(STEPS)
_send, _read = AbstractConnection.send_packed_command, AbstractConnection.read_response
_run = service.run
#: The command that each connection sent last.
_last: dict[int, str] = {}


def _step(name: str) -> None:
    if os.getpid() != _pid or name in _seen:
        return
    _seen.add(name)
    if _steps is not None:
        with open(_steps, "a", encoding="utf-8") as out:
            out.write(f"{name}\n")
    if name == _wanted:
        os.kill(_pid, _signal)


def _step_at_commit(moment: str) -> None:
    # The frames between are those of the transaction and of its context manager.
    _step(f"{moment} of {sys._getframe(3).f_code.co_name}")


def _run_with_steps(options: StartOptions, **others: Any) -> int:
    return _run(options, _step, **others)


def name_of(command: Any) -> str:
    """Returns the name of the first of these packed commands."""
    raw = command if isinstance(command, bytes) else b"".join(command)
    words = re.findall(rb"\$\d+\r\n(.*?)\r\n(?=[$*]|$)", raw[:4000], re.DOTALL)
    name = words[0].decode(errors="replace").upper() if words else "?"
    if name in ("EVAL", "EVALSHA") and len(words) > 1:
        digest = words[1].decode() if name == "EVALSHA" else _digest(words[1])
        return f"script {_SCRIPTS.get(digest, digest[:6])}"
    return name


def _stepping_send(self: AbstractConnection, command: Any, *args: Any, **words: Any) -> Any:
    name = name_of(command)
    _last[id(self)] = name
    _step(f"before {name}")
    found = _send(self, command, *args, **words)  # type: ignore[no-untyped-call]
    _step(f"sent {name}")
    return found


def _stepping_read(self: AbstractConnection, *args: Any, **words: Any) -> Any:
    found = _read(self, *args, **words)
    _step(f"after {_last.get(id(self), '?')}")
    return found


if __name__ == "__main__":
    AbstractConnection.send_packed_command = _stepping_send  # type: ignore[method-assign]
    AbstractConnection.read_response = _stepping_read  # type: ignore[method-assign]
    service.run = _run_with_steps  # type: ignore[assignment]
    step_at_commits(_step_at_commit)
    if UNCONFIRMED in os.environ:
        scripts.CONFIRM = "return 1"
        scripts.WRITE_BACK = f"if ARGV[5] == '0' then return 1 end {scripts.WRITE_BACK}"
    from gpu_scheduler.cli import main

    sys.exit(main(sys.argv[1:]))
