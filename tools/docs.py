"""Writes docs/commands.md and docs/states.md from the code: `python tools/docs.py` (`make docs`).

The test suite fails where a file is not what this would write. What the code says is not repeated here.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from gpu_scheduler.cli.parser import program
from gpu_scheduler.cli.program import PROGRAM
from gpu_scheduler.core.states import CHANGES, JobState, Outcome

ROOT = Path(__file__).resolve().parents[1]

STATES = {
    JobState.HELD: "waits for a person: `hold`, an attempt that was interrupted, `[hold]` on its line",
    JobState.QUEUED: "waits for GPUs, for its turn, or for the time of its next launch; `why` says which",
    JobState.STARTING: "has GPUs, and its runner is on its way; no command of it has begun",
    JobState.RUNNING: "a runner has claimed the attempt and watches over its command",
    JobState.STOPPING: "was told to end; SIGTERM has gone out, SIGKILL follows after the grace",
    JobState.FINISHED: "has an outcome and holds no GPU; `retry` queues it once more",
}
OUTCOMES = {
    Outcome.COMPLETED: "its command exited with 0, and the process that waited for it saw that",
    Outcome.FAILED: "its command exited with another code or by a signal, or could not be started at all",
    Outcome.TIMED_OUT: "it reached its time limit and was ended",
    Outcome.CANCELLED: "a person ended it, or took it out of the queue",
    Outcome.PREEMPTED: "it was ended to make room; the job is held",
    Outcome.INTERRUPTED: "its runner is gone without a result, or the machine ended; the job is held",
    Outcome.NOT_STARTED: "the launch failed before its command began; tried again a limited number of times",
    Outcome.ENDED: "an adopted process is gone, and its exit code cannot be known",
    Outcome.SKIPPED: "never started, because a job that it depends on failed",
}

#: Facts about all commands that no single help text can hold.
ABOUT_COMMANDS = """\
JOB is a number or a name; where several jobs may be named, also a range such as `5-9`. A name means the only
open job that has it, else the one that ended last. If several open jobs have it, the command does nothing and
lists them.

All commands but `start` also work while no scheduler runs: a `pause` or `retry` then takes effect at the next
start (before the first start, `pause` writes the state file), and `cancel` ends a running job at once.

They exit with 0 when done, 1 if the request failed, 2 for a mistake in the invocation, 4 if the state of the
GPUs cannot be read. [running.md](running.md#running-a-file-to-its-end) has the exit code of `start --drain`.

After `source <(./scheduler.py completion bash)` bash completes commands for `./scheduler.py` and
`gpu-scheduler`."""
#: Facts about one command that are too long for its help.
NOTES = {
    "start": "[running.md](running.md) explains the options, and the files that `start` reads and writes.",
    "add": "Options that are named like attributes mean the same, see "
    "[jobs-file.md](jobs-file.md#attributes); `--gpus-count` is the attribute `gpus`. A script becomes a CSV "
    "line with correct quotes.",
    "lint": "Also warns of lines that will disappoint: a program that does not exist, `conda activate`, more "
    "processes than GPUs. `add` and the log give the same warnings. Exits with 1 if a line is malformed.",
    "status": "Fits the terminal; a pipe gets whole lines. Jobs that wait for the same thing share a line "
    "(`20 jobs wait for half a GPU: 12-31`).",
    "why": "For a job that failed: the reason, what to do, and the end of its log.",
    "cancel": "Each job gets SIGTERM, and SIGKILL after 10 s or `--grace`.",
    "stop": "If no scheduler runs, it brings the state file up to date.",
}


def commands() -> str:
    """docs/commands.md."""
    top = program()
    out = [
        "# Commands",
        "",
        _made_by("the command line's own parser"),
        "",
        f"`{PROGRAM}` is the installed name; from a clone, `python scheduler.py` is the same program.",
        "",
        "Before or after the name of a command:",
        "",
        *_options(top),
        "",
        "Every command also takes `--help`.",
        "",
        ABOUT_COMMANDS,
    ]
    for name, parser in _subparsers(top).items():
        own = {action.dest for action in top._actions}
        description = (parser.description or "").strip()
        out += ["", f"## {name}", "", description, "", "```", _usage(parser), "```"]
        if name in NOTES:
            out += ["", NOTES[name]]
        table = list(_options(parser, own))
        out += ["", *table] if table else []
        example = re.search(r"^Example: (.*)", parser.epilog or "", re.DOTALL)
        if example:
            out += ["", f"Example: `{example[1].strip()}`"]
    return "\n".join(out) + "\n"


def states() -> str:
    """docs/states.md."""
    arrows = [f"    {old} --> {new}" for old in JobState for new in JobState if new in CHANGES[old]]
    return "\n".join(
        [
            "# States and outcomes",
            "",
            _made_by("the table in `gpu_scheduler/core/states.py`, which nothing else overrides"),
            "",
            "A job is in one of six states. What became of it is its outcome, which is kept apart.",
            "",
            "```mermaid",
            "stateDiagram-v2",
            f"    [*] --> {JobState.QUEUED}",
            f"    [*] --> {JobState.HELD}",
            f"    [*] --> {JobState.FINISHED}: a new line with [cancel]",
            *arrows,
            "```",
            "",
            "| state | meaning | may be followed by |",
            "| --- | --- | --- |",
            *(
                f"| `{state}` | {STATES[state]} | "
                f"{', '.join(f'`{new}`' for new in JobState if new in CHANGES[state])} |"
                for state in JobState
            ),
            "",
            "Any other change is refused inside the scheduler with the history of the job.",
            "",
            "| outcome | of an attempt or its job |",
            "| --- | --- |",
            *(f"| `{outcome}` | {OUTCOMES[outcome]} |" for outcome in Outcome),
            "",
        ]
    )


def _made_by(what: str) -> str:
    return f"Generated by `make docs` from {what}; the test suite compares the two."


def _subparsers(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _usage(parser: argparse.ArgumentParser) -> str:
    # The plain formatter: the width of a terminal and colours have no place in a file.
    formatter = argparse.HelpFormatter(parser.prog, width=100)
    formatter.add_usage(parser.usage, parser._actions, parser._mutually_exclusive_groups, prefix="")
    return formatter.format_help().strip()


def _options(parser: argparse.ArgumentParser, without: Collection[str] = ()) -> Iterator[str]:
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
        text = (action.help or "").replace("%(default)s", str(action.default)).replace("|", "\\|")
        if action.choices is not None:
            text = f"{', '.join(f'`{choice}`' for choice in action.choices)}: {text}"
        yield f"| {_name(action)} | {text} |"


def _name(action: argparse.Action) -> str:
    value = action.metavar if isinstance(action.metavar, str) else None
    if not action.option_strings:
        return f"`{value or action.dest}`".replace("|", "\\|")
    if value is None and action.nargs != 0:
        value = action.dest.upper()
    names = []
    for name in action.option_strings:
        takes = f" {value}" if value and name.startswith("--") else ""
        names.append(f"`{name}{takes}`")
    return ", ".join(names).replace("|", "\\|")


PAGES = {"commands.md": commands, "states.md": states}


def main() -> int:
    """Write the pages; tells which of them changed."""
    for name, page in PAGES.items():
        path = ROOT / "docs" / name
        text = page()
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"docs/{name} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
