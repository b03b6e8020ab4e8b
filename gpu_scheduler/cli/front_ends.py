"""The commands that open the queue to programs, machines and people: `serve`, `mcp`, `notify`, `top` …"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from gpu_scheduler.cli.commands import REDIS_SUBMIT, declare
from gpu_scheduler.cli.program import location_of, print_done, print_message
from gpu_scheduler.config import NOTIFY_VARIABLE, REDIS_URL_VARIABLE
from gpu_scheduler.errors import SchedulerError, UsageError, missing_package
from gpu_scheduler.web.tokens import Tokens

if TYPE_CHECKING:
    from gpu_scheduler.redis_queue.queue import Queue


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
        from gpu_scheduler.show.store_access import create_missing_store

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


def link(options: Namespace) -> int:
    """Prints a link to the web page, which is valid once, for five minutes."""
    from gpu_scheduler.web.server import address_of

    if not sys.stdout.isatty():
        raise UsageError("a link is a secret, so it is only printed on a terminal")
    location = location_of(options)
    print(f"{address_of(location)}/#link={Tokens(location.resolve().folder).create_link()}")
    print_message("this link is valid once, for five minutes; who opens it can run code as you")
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

    token = None if options.token_file is None else _token_in(options.token_file)
    queue = {} if options.url else {"state_file": options.state_file, "data_dir": options.data_dir}
    build(Client(options.url, token, **queue), allow_changes=options.allow_changes).run("stdio")
    return 0


def _token_in(name: str, *, is_private: bool = False) -> str:
    """Returns the token in a file. Raises UsageError, if `is_private`, also if others may read the file."""
    try:
        with open(name, encoding="ascii") as file:
            if is_private and os.fstat(file.fileno()).st_mode & 0o077:
                raise ValueError(f"other users may use it; run `chmod 600 {shlex.quote(name)}`")
            return file.read().strip()
    except (OSError, ValueError) as error:
        raise UsageError(f"--token-file {name}: {error}") from None


def top(options: Namespace) -> int:
    """Shows the queue on the terminal until q. Raises UsageError without a terminal on which it can draw."""
    streams = all(one.isatty() for one in (sys.stdin, sys.stdout, sys.stderr))
    if not streams or os.environ.get("TERM") == "dumb":
        this = "TERM is dumb" if streams else "its input or output is not a terminal"
        raise UsageError(
            f"`top` needs a terminal on which it can draw, but {this}; use `status --watch` or, in a pipe,"
            " `status --json`"
        )
    if options.token_file is not None and not options.url:
        raise UsageError("--token-file belongs to --url")
    try:
        from gpu_scheduler.top import run
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] != "textual":
            raise
        raise missing_package("`top` needs another package, `status --watch` none", "top", error) from None
    from gpu_scheduler.client import Client

    if options.url:
        token = None if options.token_file is None else _token_in(options.token_file, is_private=True)
        return run(Client(options.url, token), None)

    def attach(job: int) -> None:
        import subprocess

        from gpu_scheduler.cli.logs import target_of

        target = target_of(options, job)
        subprocess.run([target.program, "-x", target.session], env=target.environment, check=False)

    return run(Client(state_file=options.state_file, data_dir=options.data_dir), attach)


_HANGING_S = 5.0
_SUBMIT_OPTIONS = ("--gpu-memory-mb", "--num-gpus", "--priority", "--env", "--redis")


def _queue_of(options: Namespace) -> Queue:
    from gpu_scheduler.redis_queue.queue import DEFAULT_URL, Queue
    from gpu_scheduler.show.store_access import open_store

    url = options.redis or os.environ.get(REDIS_URL_VARIABLE)
    if not url:
        try:
            with open_store(location_of(options), read_only=True) as store:
                url = store.recorded_options().redis
        except SchedulerError:
            pass
    return Queue(url or DEFAULT_URL)


def _begin_companion(options: Namespace, name: str, problem: str) -> Path:
    """Begins a process that `start` also runs, one for each queue. Returns the state file.

    problem: the error if another one runs.
    """
    import logging

    from gpu_scheduler.system import own_process

    own_process.begin(options.until_eof, _HANGING_S)
    home = location_of(options).resolve()
    home.create()
    own_process.lock_file(home.folder / f"{name}.lock", problem)
    logging.basicConfig(format=f"%(asctime)s %(levelname)-7s {name}: %(message)s", level=logging.INFO)
    return home.state_file


def redis_agent(options: Namespace) -> int:
    """Takes jobs from a queue in Redis until SIGTERM or Ctrl-C. Returns 0."""
    from gpu_scheduler.redis_queue.agent import Agent

    queue = _queue_of(options)
    state_file = _begin_companion(options, "redis-agent", "another agent takes jobs for this queue already")
    os.environ.pop(REDIS_URL_VARIABLE, None)
    print_message(
        f"taking jobs from {queue.url} for {state_file}\nwhoever can write to this Redis runs code as you"
    )
    Agent(
        location_of(options), queue, os.path.abspath(options.dir or "."), options.requeue_silent_after
    ).run()
    return 0


def engine_agent(options: Namespace) -> int:
    """Submits jobs to the engine that the last `start` named, until SIGTERM or Ctrl-C. Returns 0."""
    from gpu_scheduler.engines.start import make_agent
    from gpu_scheduler.show.store_access import open_store

    _begin_companion(options, "engine-agent", "another agent runs for this queue already")
    with open_store(location_of(options)) as store:
        make_agent(store).run()
    return 0


def notify(options: Namespace) -> int:
    """Tells receivers of the ends of jobs until SIGTERM or Ctrl-C. Returns 0."""
    from gpu_scheduler.notify.delivery import Delivery, Receiver, check_urls, follow, newest_event

    urls = [*options.to, *_urls_in(options.to_file)]
    urls = list(dict.fromkeys(urls or os.environ.get(NOTIFY_VARIABLE, "").split()))
    os.environ.pop(NOTIFY_VARIABLE, None)
    receivers = [Receiver(number, url) for number, url in enumerate(urls, 1)]
    if options.shell_command:
        receivers.append(Receiver(len(urls) + 1, options.shell_command, is_command=True))
    if not receivers:
        raise UsageError(f"name a receiver: --to URL, --to-file FILE, ${NOTIFY_VARIABLE} or --command CMD")
    if urls and options.until_eof is None:  # `start` has checked them
        check_urls(urls)
    state_file = _begin_companion(options, "notify", "another `notify` runs for this queue already")
    location = location_of(options)
    print_message(f"reporting {', '.join(sorted(options.on))} of {state_file} to {len(receivers)} receivers")
    after = newest_event(location) if options.after is None else options.after
    follow([Delivery(one, location, options.on, options.name, after) for one in receivers])
    return 1


def _urls_in(file: str | None) -> list[str]:
    """Returns the URLs in a private file. Raises UsageError if others may read or write it."""
    from gpu_scheduler.system.safe_file import FileProblem, read

    if file is None:
        return []
    found = read(file)
    if isinstance(found, FileProblem):
        raise UsageError(f"--to-file {file} {found}")
    if found.status.st_mode & 0o077:
        raise UsageError(f"--to-file {file} is open to other users; `chmod 600` it")
    lines = map(str.strip, found.data.decode(errors="replace").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def redis_submit(options: Namespace) -> int:
    """Adds an item to the queue and prints its id."""
    from gpu_scheduler.redis_queue.queue import Arguments, new_item

    words, count = options.arguments, 0
    while count < len(words) and words[count].partition("=")[0] in _SUBMIT_OPTIONS:
        count += 1 if "=" in words[count] else 2
    after_script = argparse.ArgumentParser(prog="redis-submit", allow_abbrev=False)
    declare(after_script, REDIS_SUBMIT)
    after_script.parse_args(words[:count], options)
    options.arguments = words[count:]
    if options.gpu_memory_mb is None:
        raise UsageError("--gpu-memory-mb is missing; it is the memory that the script needs on each GPU")
    script = os.path.expanduser(options.script)
    item = new_item(script, options.gpu_memory_mb, options.num_gpus, options.priority)
    env = tuple((name, value) for name, _, value in (one.partition("=") for one in options.env or ()))
    queue = _queue_of(options)
    with queue.reachable():
        queue.submit(item, Arguments(tuple(options.arguments), os.getcwd(), env))
        for text in queue.warnings():
            print_message(text)
    print_done(item.job_id)
    return 0


def redis_queue(options: Namespace) -> int:
    """Shows the queue, or changes its items."""
    if options.action not in (None, "accept-loss") and not options.ids:
        raise UsageError(f"name the items to {options.action}")
    if options.action == "accept-loss" and options.ids:
        raise UsageError("accept-loss concerns all items; name none")
    queue, code = _queue_of(options), 0
    with queue.reachable():
        if options.action == "accept-loss":
            print_done(queue.accept_loss())
        elif options.action is None:
            from gpu_scheduler.core.text.formatting import masked_json

            found = queue.listing()
            print(masked_json(found, 2) if options.json else _text(found))
        for item in options.ids:
            try:
                done = queue.cancel(item) if options.action == "cancel" else queue.again(item, options.action)
                print_done(f"item {item}: {done}")
            except SchedulerError as error:
                print_message(str(error))
                code = error.exit_code
    return code


def _text(found: dict[str, Any]) -> str:
    from gpu_scheduler.core.text.formatting import format_duration, safe_text

    lines = [f"{found['length']} waiting at {found['url']}"]
    if not found["open"]:
        away = [str(one.get("host") or key) for key, one in found["boxes"].items() if not one["reported"]]
        lines.append(
            f"Redis was restarted; claims wait until {', '.join(away)} has reported, or for"
            " `redis-queue accept-loss`"
            if away
            else "no box takes items yet; begin with `start --redis` on one"
        )
    elif found["opens_in_s"]:
        lines.append(f"the queue has just opened; items start in {format_duration(found['opens_in_s'])}")
    for key, box in found["boxes"].items():
        known = (
            f"{box['host']}  GPUs of {', '.join(map(str, box.get('gpus', ())))} MiB"
            if "host" in box
            else "has not reported yet"
        )
        lines.append(f"box {key}  {known}")
        lines += [
            f"  {item} also runs there, although it was given to another box"
            for item in box.get("second", ())
        ]
    for row in found["claims"]:
        where = f"on {row['host'] or row['box']}"
        if row["silent_s"] is not None:
            where += f", silent for {format_duration(row['silent_s'])}"
        if not row["has_job"]:
            where += ", which has lost its job; `redis-queue requeue` gives it back"
        state = (row["status"] or "no record") if row["confirmed"] else "not confirmed"
        lines.append(f"{row['id']:<14} {state:<14} {where}")
    for row in found["waiting"]:
        text = row.get("problem") or f"priority {row['priority']}  {row['script']}"
        if row["fits"] is False:
            text += f"  (fits no box: needs {row['num_gpus']} GPUs of {row['memory_mb']} MiB)"
        text += "".join(f"  (cannot run on {host}: {why})" for host, why in sorted(row["lacking"].items()))
        state = "waiting" if row.get("status", "queued") == "queued" else f"as {row['status']}"
        lines.append(f"{row['id']:<14} {state:<14} {text}")
    lines += [f"{row['id']:<14} {'set aside':<14} {row['reason']}" for row in found["rejected"]]
    return "\n".join(map(safe_text, lines))
