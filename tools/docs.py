"""Generates docs/api.md, commands.md and states.md from the code: `python tools/docs.py` (`make docs`).

The test suite fails if a page differs from the generated text. It contains only texts that are not already
in the code.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from gpu_scheduler.cli.commands import GROUPS
from gpu_scheduler.cli.parser import build_parser
from gpu_scheduler.cli.program import PROGRAM
from gpu_scheduler.core.model.states import ATTEMPT_TRANSITIONS, TRANSITIONS, AttemptState, JobState, Outcome
from gpu_scheduler.show.location import Location
from gpu_scheduler.web.app import create_app
from gpu_scheduler.web.operations import Context

State = TypeVar("State", JobState, AttemptState)
ROOT = Path(__file__).resolve().parents[1]

STATES = {
    JobState.HELD: (
        "waits for `release` after a `hold` or `[hold]` on its line, or for `resume --job`, `retry` or"
        " `recover` after an interrupted or preempted attempt"
    ),
    JobState.QUEUED: (
        "waits for other jobs, GPUs, its turn, or the time of its next launch; `why` shows the reason"
    ),
    JobState.STARTING: "has GPUs, and the scheduler is launching its runner; its command has not begun",
    JobState.RUNNING: "a runner has claimed the attempt and supervises its command",
    JobState.STOPPING: "is being stopped: it was sent SIGTERM, and SIGKILL follows after the grace period",
    JobState.FINISHED: "has an outcome and keeps no GPU; `retry` queues it again",
}
ATTEMPT_STATES = {
    AttemptState.STARTING: "has GPUs and is being launched; no runner has claimed it yet",
    AttemptState.RUNNING: "a runner has claimed it and supervises its command",
    AttemptState.STOPPING: "was asked to end and has not ended yet",
    AttemptState.ORPHANED: "its runner died without a result; the scheduler is ending its processes",
    AttemptState.ENDED: "has an outcome, but keeps its GPUs until all of its processes are gone",
    AttemptState.RELEASED: "has released its GPUs, but their memory is not free yet",
    AttemptState.CLOSED: "is over: the memory of its GPUs is free, or 60 s have passed since their release",
}
OUTCOMES = {
    Outcome.COMPLETED: "its command exited with code 0, and its runner recorded this",
    Outcome.FAILED: "its command exited with another code, was ended by a signal, or could not be started",
    Outcome.TIMED_OUT: "it reached its time limit and was stopped",
    Outcome.CANCELLED: "the user stopped it or removed it from the queue",
    Outcome.PREEMPTED: "`preempt` stopped it (it is held), or a job of higher priority (it is queued)",
    Outcome.INTERRUPTED: "its runner died without a result, or the machine went down; the job is held",
    Outcome.NOT_STARTED: "the launch failed before the command began; it is retried a few times",
    Outcome.ENDED: "it was an adopted process, which has ended; its exit code cannot be known",
    Outcome.SKIPPED: "it never started, because a job that it depends on failed",
}

#: Facts that apply to all commands and therefore do not belong in any one help text.
ABOUT_COMMANDS = """\
JOB is the number or the name of a job. Commands that accept several jobs also accept ranges such as `5-9`.
If several jobs have the same name, the name refers to the only one that has not finished or, if all of them
have finished, to the one that finished last. If several of them have not finished, the command lists these
jobs and does nothing else.

Except for `start`, every command works with or without a running scheduler. Without one, a `pause` or
`retry` takes effect at the next start, and `cancel` ends a running job at once. Before the first start,
`pause` writes to the state file.

The exit code is 0 for success, 1 if the request failed, 2 for a usage error, and 4 if the GPUs cannot be
read. [running.md](running.md#running-a-file-to-its-end) describes the exit codes of `start --drain`, and
[run.md](run.md#exit-codes) those of `run` and `wait`.

To enable completion in bash for `./scheduler.py` and `gpu-scheduler`, run
`source <(./scheduler.py completion bash)`."""
#: Facts about single commands that are too long for a help text.
NOTES = {
    "start": "[running.md](running.md) explains these options and the files that `start` reads and writes.",
    "add": "An option with the name of an attribute sets that attribute (see"
    " [jobs-file.md](jobs-file.md#attributes)); `--gpus-count` sets the attribute `gpus`. For a script, `add`"
    " appends a correctly quoted CSV line.",
    "lint": "`lint` also warns of likely mistakes, such as a program that does not exist, a line that runs"
    " `conda activate`, or more processes than GPUs. `add` and the log give the same warnings. The exit code"
    " is 1 if a line is malformed.",
    "submit": "An option with the name of an attribute sets that attribute (see"
    " [jobs-file.md](jobs-file.md#attributes)). [running.md](running.md#jobs-without-a-jobs-file) explains"
    " which words are the script's, how a script is run, and the exit codes of `--wait`.",
    "import": "[migrating.md](migrating.md#coming-from-gpuq) describes what becomes of each key.",
    "status": "On a terminal, lines are cut to its width; in a pipe, they are printed in full. Jobs that wait"
    " for the same reason share a line, such as `20 jobs wait for half a GPU: 12-31`.",
    "why": "For a job that failed, `why` shows the reason, what to do about it, and the end of the log.",
    "wait": "The options other than `--job` and `--timeout` concern GPUs ([run.md](run.md));"
    " [running.md](running.md#jobs-without-a-jobs-file) explains `--job`.",
    "run": "[run.md](run.md) explains how GPUs are chosen, the exit codes, and what a claim is.",
    "cancel": "Each job receives SIGTERM and then, after 10 s or the time given by `--grace`, SIGKILL.",
    "stop": "If no scheduler is running, `stop` still brings the state file up to date.",
}


def commands() -> str:
    """Returns the text of docs/commands.md."""
    top = build_parser()
    out = [
        "# Commands",
        "",
        _generated_note("the parser of the command line"),
        "",
        f"The installed program is called `{PROGRAM}`. In a clone, run `python3 scheduler.py` instead.",
        "",
        "These options may come before or after the name of a command:",
        "",
        *_argument_table(top),
        "",
        "Every command also accepts `--help`.",
        "",
        ABOUT_COMMANDS,
    ]
    common = {action.dest for action in top._actions}
    parsers = _subparsers(top)
    for title, names in GROUPS.items():
        out += ["", f"## {title[0].upper()}{title[1:]}"]
        for name in names:
            out += _command_section(name, parsers[name], common)
    return "\n".join(out) + "\n"


def _command_section(name: str, parser: argparse.ArgumentParser, common: Collection[str]) -> list[str]:
    """Returns the lines about one command. common: options that all commands have, which are left out."""
    description = (parser.description or "").strip()
    out = ["", f"### {name}", "", description, "", "```", _usage(parser), "```"]
    if name in NOTES:
        out += ["", NOTES[name]]
    table = list(_argument_table(parser, common))
    out += ["", *table] if table else []
    example = re.search(r"^Example: (.*)", parser.epilog or "")
    return [*out, "", f"Example: `{example[1].strip()}`"] if example else out


_FIRST_JOB_STATES = (JobState.QUEUED, JobState.HELD, f"{JobState.FINISHED}: a new line with [cancel]")
ATTEMPTS = """\
Each launch of a job is an attempt, which has states of its own. A job is `starting`, `running` or `stopping`
while it has an attempt without an outcome; its next attempt starts once the previous one is `released`."""


def states() -> str:
    """Returns the text of docs/states.md."""
    return "\n".join(
        [
            "# States and outcomes",
            "",
            _generated_note(
                "the tables in `gpu_scheduler/core/model/states.py`, the only definition of the states"
            ),
            "",
            "A job is in one of six states. Its outcome shows how it ended and is separate from its state.",
            "",
            *_diagram(_FIRST_JOB_STATES, TRANSITIONS),
            "",
            *_state_table(STATES, TRANSITIONS),
            "",
            ATTEMPTS,
            "",
            *_diagram([AttemptState.STARTING], ATTEMPT_TRANSITIONS),
            "",
            *_state_table(ATTEMPT_STATES, ATTEMPT_TRANSITIONS),
            "",
            "The scheduler refuses any other change with an error that shows the history of the job.",
            "",
            "| outcome | meaning for an attempt or its job |",
            "| --- | --- |",
            *(f"| `{outcome}` | {OUTCOMES[outcome]} |" for outcome in Outcome),
            "",
        ]
    )


def _diagram(first: Sequence[object], transitions: Mapping[State, Collection[State]]) -> list[str]:
    return [
        "```mermaid",
        "stateDiagram-v2",
        *(f"    [*] --> {state}" for state in first),
        *(
            f"    {old} --> {new}"
            for old, after in transitions.items()
            for new in transitions
            if new in after
        ),
        *(f"    {state} --> [*]" for state, after in transitions.items() if not after),
        "```",
    ]


def _state_table(meanings: Mapping[State, str], transitions: Mapping[State, Collection[State]]) -> list[str]:
    return [
        "| state | meaning | may be followed by |",
        "| --- | --- | --- |",
        *(
            f"| `{state}` | {meanings[state]} | "
            f"{', '.join(f'`{new}`' for new in transitions if new in after) or 'nothing'} |"
            for state, after in transitions.items()
        ),
    ]


def _generated_note(what: str) -> str:
    return f"`make docs` generates this page from {what}. A test checks that the page is up to date."


def _subparsers(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _usage(parser: argparse.ArgumentParser) -> str:
    # Use the plain formatter on one line, because the page must not depend on the colours or width of a
    # terminal, nor on how the version of argparse breaks lines.
    formatter = argparse.HelpFormatter(parser.prog, width=10_000)
    formatter.add_usage(parser.usage, parser._actions, parser._mutually_exclusive_groups, prefix="")
    text = formatter.format_help().strip()
    in_brackets = re.sub(r"\[(?:[^\[\]]|\[[^\[\]]*\])*\]", lambda found: found[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(
        in_brackets, 98, subsequent_indent=" " * (len(parser.prog) + 1),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return "\n".join(lines).replace("\0", " ")


def _argument_table(parser: argparse.ArgumentParser, without: Collection[str] = ()) -> Iterator[str]:
    shown = [
        action
        for action in parser._actions
        if not isinstance(action, (argparse._SubParsersAction, argparse._HelpAction))
        and action.dest not in without
        and action.help is not argparse.SUPPRESS
    ]
    if shown:
        yield "| argument | meaning |"
        yield "| --- | --- |"
    for action in shown:
        text = ((action.help or "") % vars(action)).replace("|", "\\|")
        yield f"| {_argument_name(action)} | {text} |"


def _argument_name(action: argparse.Action) -> str:
    value = action.metavar if isinstance(action.metavar, str) else None
    if not action.option_strings:
        return f"`{value or action.dest}`".replace("|", "\\|")
    if value is None and action.choices is not None:
        value = f"{{{','.join(action.choices)}}}"
    elif value is None and action.nargs != 0:
        value = action.dest.upper()
    names = []
    for name in action.option_strings:
        takes = f" {value}" if value and name.startswith("--") else ""
        names.append(f"`{name}{takes}`")
    return ", ".join(names).replace("|", "\\|")


ABOUT_API = """\
The REST API lets people submit and follow jobs from a notebook or a script, without a login shell on the
machine. It is a front end like the command line: it reads and writes the same store, gives the same
answers, and works without a running scheduler. The header `X-Scheduler` of a reply is `up` or `down`.

**Whoever may submit a job can run any program as the user who runs the scheduler.** Give tokens only to
people whom you would give your password.

```bash
pip install "gpu-job-scheduler[api]"         # in a clone: .venv/bin/pip install -e ".[api]"
gpu-scheduler start --screen --serve         # the scheduler, and the API on http://127.0.0.1:8000
gpu-scheduler serve --port 8000              # the API alone
```

## Who may use it

By default, the API listens only on this machine. There, requests need no token if they come from a process
of the user who runs the API; requests of other users and, if root runs it or the kernel does not say whose a
connection is (as gVisor), all requests need one. If `--host` names another address, every request needs a
token, also from this machine. Without `--tls-cert` and `--tls-key`, tokens then travel in the clear; an SSH
tunnel needs neither:

```bash
gpu-scheduler token create alice             # prints the token, once
ssh -L 8000:127.0.0.1:8000 box               # on the laptop
curl -H "Authorization: Bearer $TOKEN" http://localhost:8000/queue
```

On a machine with other users, send a token to `127.0.0.1` and not to `localhost`, which may also mean `::1`,
where another user could listen.

`token create --read-only` makes a token that changes nothing and sees neither arguments nor environment
values nor logs, and no reason that quotes them. With `--logs`, it also sees logs, which begin with the
command line, and `why`. `--days 30` limits the life of a token, and `token revoke` ends it, and its open
streams within 10 s.

A request that a proxy has passed on needs a token. Requests with another `Host` than `localhost`, `127.0.0.1`
or `[::1]` and the port, those from a page of another site, and changes that are not `application/json` are
refused; `--allowed-host NAME[:PORT]` accepts another name. A body may have 1 MiB and take 30 s, and a caller
may make 20 changes a second and have 32 streams open; the exchange of a link has no limit.

## A session

```bash
curl -X POST http://localhost:8000/jobs -H "Content-Type: application/json" \\
    -d '{{"model_script": "train_lora.py", "gpu_memory_mb": 16000, "num_gpus": 1, "priority": 100}}'
curl http://localhost:8000/gpus
curl http://localhost:8000/queue
```

The script is looked up in the folder in which `serve` or `start` was started, or that `--dir` names. Each
post is a new job; a client that may repeat a post sends a header `Idempotency-Key` of its own choice, so
that for a day the same key and body mean the same job. With priority 0 (CRITICAL), a job takes the GPUs of
running jobs of lower priority, unless `--no-preempt` is set. `status` is `queued`, `running`, `completed`
or `failed`; `state` and `outcome` say more ([states.md](states.md)), and `state` is `infeasible` for a job
that fits no GPU.

{troubles}

## Errors and answers

Errors are `application/problem+json` with the members `title`, `status` and `detail`. The short routes
`/jobs`, `/queue` and `/gpus`, which suffice for a simple script, answer with `detail` alone. 422 is a wrong
value, with the sentence that the command line prints. 409 is a change that the state of the jobs does not
allow. 202 means that the scheduler has not answered within 2 seconds, or is down; then the change takes
effect at the next `start`. `GET /api/v1/requests/ID` gives the answer later. 503 means that the store or the
driver
cannot be used.

`GET /api/v1/events` and `.../log/stream` are server-sent events. A client that reconnects sends the last id
as the header `Last-Event-ID`; an event `reset` means that events are missing, so the client reads the page
again.

## Routes

The objects in the replies are those of [json.md](json.md)."""
#: Troubles that users of such services know, with what to do here.
TROUBLES = {
    "`NVMLError_LibraryNotFound`": "`GET /gpus` answers 503 and names what is missing; `gpu-scheduler doctor`"
    " checks the driver",
    "Redis connection refused": "the API uses no Redis",
    "a job is queued forever": "`GET /api/v1/jobs/ID/why` says why; `state: infeasible` means that it fits no"
    " GPU",
    "a preempted job does not start again": "its GPUs are used again once their memory is free;"
    " [running.md](running.md#preempting-and-resuming-jobs) shows how a script saves its work on SIGTERM",
    "open log files, `/tmp/train_ID.log`": "`gpu-scheduler logs ID` or `GET /api/v1/jobs/ID/log` reads the"
    " log of a job; the API keeps none open",
    "`uvicorn scheduler_api:app`": "`gpu-scheduler start --serve`, or `gpu-scheduler serve`",
}


def api() -> str:
    """Returns the text of docs/api.md."""
    document = create_app(Context(Location(), "/", "api:local")).openapi()
    routes = [(f"{method.upper()} {path}", one) for path, methods in document["paths"].items()
              for method, one in methods.items()]  # fmt: skip
    everywhere = set.intersection(*(set(route["responses"]) for _, route in routes))
    note = _generated_note("the OpenAPI document, `/api/v1/openapi.json`")
    troubles = "\n".join(
        [
            "| trouble | what to do |",
            "| --- | --- |",
            *(f"| {key} | {one} |" for key, one in TROUBLES.items()),
        ]
    )
    out = ["# The REST API", "", note, "", ABOUT_API.format(troubles=troubles), ""]
    out += [f"Every route may answer {', '.join(sorted(everywhere))}.", ""]
    out += ["| route | values | further replies |", "| --- | --- | --- |"]
    for name, route in routes:
        values = [_value_name(one["name"], one["schema"], required=one.get("required", False))
                  for one in route.get("parameters", ()) if one["in"] != "path"]  # fmt: skip
        for content in route.get("requestBody", {}).get("content", {}).values():
            schema = document["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]
            required = schema.get("required", ())
            fields = schema["properties"].items()
            values += [_value_name(key, one, required=key in required) for key, one in fields]
        codes = ", ".join(sorted(set(route["responses"]) - everywhere))
        out.append(f"| `{name}` | {', '.join(values)} | {codes} |")
    return "\n".join(out) + "\n"


def _value_name(name: str, schema: Mapping[str, object], *, required: bool) -> str:
    """Formats a parameter or a field of a body, with its default."""
    default = schema.get("default")
    if required or default in (None, [], {}):
        return f"`{name}` (required)" if required else f"`{name}`"
    return f"`{name}` = {json.dumps(default)}"


PAGES = {"api.md": api, "commands.md": commands, "states.md": states}


def main() -> int:
    """Writes the pages that have changed and prints their names."""
    for name, page in PAGES.items():
        path = ROOT / "docs" / name
        text = page()
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"docs/{name} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
