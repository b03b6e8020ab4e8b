"""Suggests what to type in place of a command or an option of Slurm or of another program."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Sequence

_JOBS, _SCRIPT, _COMMAND = "JOB…", "SCRIPT…", "COMMAND…"
_JOB_SET_OPTIONS = ("--all", "--failed")
#: Commands of other programs, with the equivalent command of this program.
_SYNONYMS = {
    **dict.fromkeys(("list", "ls", "ps", "queue", "squeue", "jobs"), "status"),
    **dict.fromkeys(("top", "watch"), "status --watch"),
    **dict.fromkeys(("sacct", "history"), "status --all"),
    "sinfo": "gpus",
    "scontrol": f"show {_JOBS}",
    **dict.fromkeys(("sbatch", "qsub", "enqueue"), f"submit {_SCRIPT}"),
    **dict.fromkeys(("srun", "salloc"), f"run -- {_COMMAND}"),
    **dict.fromkeys(("kill", "rm", "remove", "delete", "scancel"), f"cancel {_JOBS}"),
    **dict.fromkeys(("rerun", "restart", "requeue"), f"retry {_JOBS}"),
}
#: What `run` and `wait`, which use no queue, offer in place of an attribute of a job.
_WITHOUT_QUEUE = {
    "vram": "--mb M", "gpus": "--count N", "allowed": "--allowed LIST", "name": "submit --name NAME",
    "timeout": "-- timeout 2h COMMAND", "after": "wait JOB && gpu-scheduler run",
}  # fmt: skip

_OF_WAIT = ("vram", "gpus", "allowed")


def meant_commands(word: str, behind: Sequence[str], commands: Collection[str]) -> list[str]:
    """Returns the commands that a user may mean who typed `word` in place of one; behind: the words after it.

    A suggestion keeps the names of jobs, the script or the command, and drops the other program's options.
    """
    if word in _SYNONYMS:
        return [_with_words(word, behind, commands)]
    import shutil
    from difflib import get_close_matches

    near = get_close_matches(word, commands, 1)
    return near + ([f"submit -- {shlex.join([word, *behind])}"] if behind and shutil.which(word) else [])


def _with_words(word: str, behind: Sequence[str], commands: Collection[str]) -> str:
    verb, _, placeholder = _SYNONYMS[word].rpartition(" ")
    words = [one for one in behind if one in _JOB_SET_OPTIONS or not one.startswith("-")]
    if word == "scontrol" and words:
        if words[0] in commands or words[0] == "requeue":
            verb = words.pop(0).replace("requeue", "retry")
        words = [one for one in words if one != "job"]
    if placeholder == _SCRIPT:
        words = list(
            behind[next((at for at, one in enumerate(behind) if os.path.isfile(one)), len(behind)) :]
        )
    if placeholder == _COMMAND and len(words) < len(behind):  # which words are the values of its options?
        words = []
    if placeholder not in (_JOBS, _SCRIPT, _COMMAND):
        return _SYNONYMS[word]
    return f"{verb} {shlex.join(words) or placeholder}"


def foreign_option(command: str, option: str) -> str:
    """Returns a suggestion for an option that a command lacks; "" if it is unclear what the user means."""
    from gpu_scheduler.core.jobsfile import attributes

    name, has_queue = option.partition("=")[0].lstrip("-"), command in ("add", "submit")
    if not option.startswith("-") or not (has_queue or command in ("run", "wait")):
        return ""
    keys = attributes.FOREIGN_NAMES.get(name)
    if keys is None and command != "add":  # `add` has suggestions of its own for misspelt options
        keys = attributes.meant_attributes(name) if has_queue else (name,) if name in _WITHOUT_QUEUE else None
    if keys == () and name in attributes.FOREIGN_NAMES:
        return f"; {attributes.NOT_NEEDED}"
    if not has_queue:  # `wait` executes no command that could have a time limit, a name or a condition
        forms = [_WITHOUT_QUEUE[key] for key in keys or () if command == "run" or key in _OF_WAIT]
    else:
        forms = [f"--{key} {attributes.ATTRIBUTE_HELP[key][0] or ''}".rstrip() for key in keys or ()]
    if command == "add":  # where --gpus means the GPUs that the job may use
        forms = [form.replace("--gpus N", "--gpus-count N") for form in forms]
    return f"; did you mean {' or '.join(f'`{form}`' for form in forms)}?" if forms else ""
