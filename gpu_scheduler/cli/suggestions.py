"""Suggests what to type in place of words that are misspelt, or that belong to Slurm or another program.

Each suggestion is a command or an option that works when it is pasted, apart from words in capitals.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
from collections.abc import Sequence
from difflib import get_close_matches
from shutil import which

from gpu_scheduler.cli.commands import COMMANDS
from gpu_scheduler.core.jobsfile import attributes
from gpu_scheduler.core.jobsfile.compose import sbatch_options
from gpu_scheduler.core.jobsfile.job_line import SHELL_ENDINGS

#: What stands for the words that the user typed behind a command.
_JOBS, _SCRIPT, _COMMAND = "JOB…", "SCRIPT…", "COMMAND"
_JOB_SET_OPTIONS = ("--all", "--failed")
#: Commands of other programs and options of task-spooler, with the equivalent command of this program.
_SYNONYMS = {
    **dict.fromkeys(("list", "ls", "ps", "queue", "squeue", "qstat", "jobs", "-l"), "status"),
    "watch": "status --watch",
    **dict.fromkeys(("sacct", "history"), "status --all"),
    "sinfo": "gpus",
    "scontrol": "show JOB` or `hold JOB",
    "update": "set JOB KEY=VALUE", "help": "--help", "version": "--version",
    **dict.fromkeys(("sbatch", "qsub", "bsub", "enqueue"), f"submit {_SCRIPT}"),
    **dict.fromkeys(("srun", "salloc"), f"run -- {_COMMAND}"),
    **dict.fromkeys(("kill", "rm", "remove", "delete", "scancel", "qdel", "-k", "-r"), f"cancel {_JOBS}"),
    **dict.fromkeys(("rerun", "restart", "requeue"), f"retry {_JOBS}"),
    **dict.fromkeys(("-i", "-s", "-o"), f"show {_JOBS}"),
    "-c": f"logs {_JOBS} -f", "-t": f"logs {_JOBS} -f -n 10", "sattach": f"attach {_JOBS}",
    "-C": "clear", "-K": "stop", "-w": f"wait {_JOBS}", "-u": f"priority {_JOBS} 0",
}  # fmt: skip
#: What `run` and `wait`, which use no queue, offer in place of an attribute of a job.
_OF_RUN = {
    "vram": "--mb M", "share": "--mb M", "gpus": "--count N", "allowed": "--allowed LIST",
    "name": "submit --name NAME", "timeout": "--timeout S` (of the wait) or `-- timeout 2h COMMAND",
    "after": "wait JOB` first, or `submit --after JOB",
}  # fmt: skip
_OF_WAIT = {**_OF_RUN, "name": "wait JOB", "timeout": "--timeout S", "after": "wait JOB"}
#: Options of sbatch that no attribute equals, with what to do instead.
_NO_ATTRIBUTES = {
    "wrap": f"did you mean `submit -- {_COMMAND}`?",
    **dict.fromkeys(("output", "o", "error", "e"), "leave it out, because `logs JOB` prints a job's output"),
}
#: Options of `add` that `submit` does not have, or that mean something else there.
_OF_ADD = ("--gpus", "--gpus-count", "--args", "--output-file")
_QUOTES = "(put quotes around a name or value that contains a space)"
#: Maximum number of options that an error lists if no option resembles the given one.
_MAX_OPTIONS = 5
#: Similarity from which on a word counts as misspelt.
_SIMILAR = 0.7


def meant_commands(word: str, behind: Sequence[str]) -> list[str]:
    """Returns the commands that a user may mean who typed `word` in place of one; behind: the words after it.

    A suggestion keeps the names of jobs, the script or the command, and what the options of sbatch mean.
    """
    if word in ("ts", "tsp"):
        if behind and not behind[0].startswith("-"):
            return [f"submit -- {shlex.join(behind)}"]
        word, behind = (behind or ["-l"])[0], behind[1:]
    if word == "scontrol" and behind:
        word, behind = behind[0], [one for one in behind[1:] if one != "job"]
    if word not in _SYNONYMS:
        run = [f"submit -- {shlex.join([word, *behind])}"] if behind and which(word) else []
        near = get_close_matches(word, COMMANDS, 1, _SIMILAR)
        return [shlex.join([one, *behind]) for one in near] + run
    form = _SYNONYMS[word]
    if _JOBS in form:
        names = [one.removeprefix("--name=") for one in behind]
        words = [one for one in names if one in _JOB_SET_OPTIONS or not one.startswith("-")]
        if {"-u", "--user", "--me"}.intersection(one.partition("=")[0] for one in behind):
            words = ["--all"]
        return [form.replace(_JOBS, shlex.join(words) or _JOBS)]
    if any(one.partition("=")[0] == "--wrap" for one in behind):
        return [f"submit -- {_COMMAND}"]
    placeholder, is_first = (_SCRIPT, os.path.isfile) if _SCRIPT in form else (_COMMAND, which)
    at = next((index for index, one in enumerate(behind) if is_first(one)), len(behind))
    own = _own_options(shlex.join(behind[:at])) if _SCRIPT in form else ""
    return [form.replace(placeholder, f"{own} {shlex.join(behind[at:]) or placeholder}".strip())]


def _own_options(text: str) -> str:
    """Returns the options of `submit` that equal options of sbatch, as one types them into a shell."""
    same, _, words = sbatch_options(f"#SBATCH {text}")
    for key, value in same.items():
        words += [f"--{key}", value]
    for kind, jobs in re.findall(r"(?:--dependency|-d)[= ]after(ok|any):([0-9:]+)", text):
        words += [f"--after{'-any' if kind == 'any' else ''}", jobs.replace(":", ",")]
    return shlex.join(words)


def correction(words: Sequence[str], rest: Sequence[str], script: str | None, jobs_file: str | None) -> str:
    """Returns what to write in place of the words `rest`, which a command does not accept.

    words: the words from the command on; script: the script of `add`; jobs_file: the jobs file, if it was
    given in place of a command.
    """
    command, word = words[0], rest[0]
    if jobs_file is not None and jobs_file.endswith((*SHELL_ENDINGS, ".py")):
        return (
            f"; `{shlex.join(['submit', jobs_file, *words[1:]])}` runs a script with its arguments as one job"
        )
    if command == "add":
        return _correction_of_add(words, rest, script)
    if foreign := _foreign_option(words, word):
        return foreign
    if command == "submit":
        return "; options of `submit` come before the script, and those of the script after it"
    if not word.startswith("-"):
        if jobs_file is not None:
            return f" (the jobs file is {jobs_file}; a scheduler accepts only one jobs file)"
        if command == "start":
            name = " ".join(rest) if os.path.isfile(" ".join(rest)) else word
            return f" (use `--jobs-file {shlex.quote(name)}` to name a jobs file)"
        of_command = [f"one {one.metavar}" for one in _arguments_of(command) if not one.option_strings]
        return f"; `{command}` accepts {' and '.join(of_command) or 'only options'} {_QUOTES}"
    given = word.partition("=")[0]
    options = _options_of(command)
    if near := get_close_matches(given, options, 1, _SIMILAR):
        return f"; did you mean `{near[0]}`?"
    nearest = get_close_matches(given, [one for one in options if one[:2] == "--"], _MAX_OPTIONS, 0.0)
    more = "" if len(nearest) < _MAX_OPTIONS else ", and others"
    return f"; `{command}` accepts {', '.join(nearest)}{more}"


def _correction_of_add(words: Sequence[str], rest: Sequence[str], script: str | None) -> str:
    """Says where to put words that `add` does not accept: into --args, after `--`, or behind `submit`."""
    own = list(words[1:])
    for one in (script, *rest):
        if one in own:
            own.remove(one)
    is_behind = script is not None and words.index(script) < words.index(rest[0])
    example, text = 'as in `add train.py --args "--lr 3"`', shlex.join([*own, script or "", *rest])
    if script is not None and is_behind:
        if not script.endswith(".py"):
            program = ["bash"] if script.endswith(SHELL_ENDINGS) else []
            command = shlex.join(["add", *own, "--", *program, script, *rest])
            quotes = "" if os.path.isfile(script) else f" {_QUOTES}"
            return f"; put a command after `--`: `{command}`{quotes}"
        example = f"`{shlex.join(['add', *own, script])} --args {quoted_value(rest)}`"
    elif foreign := _foreign_option(words, rest[0]):
        return foreign
    option = rest[0].partition("=")[0]
    if near := get_close_matches(option, _options_of("add"), 1, 0.8):
        return f"; did you mean `{near[0]}`? Pass the script's own arguments with --args: {example}"
    elsewhere = ""
    if option in _options_of("submit"):
        elsewhere = f"; {option} is an option of `submit`, which queues a job without a jobs file"
    elif is_behind and not any(one.partition("=")[0] in _OF_ADD for one in own):
        elsewhere = f"; or queue it without a jobs file: `submit {text}`"
    return f"; pass the script's own arguments with --args: {example}{elsewhere}"


def quoted_value(words: Sequence[str]) -> str:
    """Returns the words as one option value, quoted so that it can be typed into a shell."""
    text = shlex.join(words)
    return shlex.quote(text) if any(special in text for special in '"$`\\!') else f'"{text}"'


def _foreign_option(words: Sequence[str], option: str) -> str:
    """Returns a suggestion for an option that a command lacks; "" if it is unclear what the user means."""
    command, name = words[0], option.partition("=")[0].lstrip("-")
    has_queue = command in ("add", "submit")
    if not option.startswith("-") or not (has_queue or command in ("run", "wait")):
        return ""
    if has_queue and name in _NO_ATTRIBUTES:
        return f"; {_NO_ATTRIBUTES[name]}"
    if name in attributes.NEEDLESS:
        return f"; {attributes.NOT_NEEDED}"
    # `add` has suggestions of its own for misspelt options.
    rows = attributes.meant_attributes(name, may_be_misspelt=command == "submit")
    if has_queue:
        value = [one for one in words[words.index(option) + 1 :][:1] if "=" not in option and one[:1] != "-"]
        own = _own_options(" ".join([option, *value]))
        forms = [own] if own else [f"--{row.key} {row.form or ''}".rstrip() for row in rows]
    else:
        table = _OF_RUN if command == "run" else _OF_WAIT
        forms = [table[key] for key in [row.key for row in rows] or [name] if key in table]
    if command == "add":  # where --gpus means the GPUs that the job may use
        forms = [form.replace("--gpus ", "--gpus-count ") for form in forms]
    return f"; did you mean {' or '.join(f'`{form}`' for form in forms)}?" if forms else ""


def _arguments_of(command: str) -> list[argparse.Action]:
    parser = argparse.ArgumentParser(add_help=False)
    COMMANDS[command].declare(parser)
    return parser._actions


def _options_of(command: str) -> list[str]:
    own = [option for action in _arguments_of(command) for option in action.option_strings]
    return [*own, "--state-file", "--data-dir"]
