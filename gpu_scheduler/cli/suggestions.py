"""Suggests what to type in place of a command or an option of Slurm or of another program."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Sequence

_JOBS, _SCRIPT, _JOB_SET_OPTIONS = "JOB…", "SCRIPT…", ("--all", "--failed")
#: Commands of other programs, with the equivalent command of this program.
_SYNONYMS = {
    **dict.fromkeys(("list", "ls", "ps", "queue", "squeue", "jobs"), "status"),
    **dict.fromkeys(("top", "watch"), "status --watch"),
    **dict.fromkeys(("sacct", "history"), "status --all"),
    "sinfo": "gpus",
    "scontrol": "show JOB` or `hold JOB",
    **dict.fromkeys(("sbatch", "qsub", "enqueue"), f"submit {_SCRIPT}"),
    **dict.fromkeys(("srun", "salloc"), "run -- COMMAND"),
    **dict.fromkeys(("kill", "rm", "remove", "delete", "scancel"), f"cancel {_JOBS}"),
    **dict.fromkeys(("rerun", "restart", "requeue"), f"retry {_JOBS}"),
}
#: What `run` and `wait`, which use no queue, offer in place of an attribute of a job.
_WITHOUT_QUEUE = {
    "vram": "--mb M", "gpus": "--count N", "allowed": "--allowed LIST", "name": "submit --name NAME",
    "timeout": "--timeout S` (of the wait) or `-- timeout 2h COMMAND",
    "after": "wait JOB && gpu-scheduler run",
}  # fmt: skip


def meant_commands(word: str, behind: Sequence[str], commands: Collection[str]) -> list[str]:
    """Returns the commands that a user may mean who typed `word` in place of one; behind: the words after it.

    A suggestion keeps the names of jobs, or the script, and drops the options of the other program.
    """
    if word not in _SYNONYMS:
        import shutil
        from difflib import get_close_matches

        run = [f"submit -- {shlex.join([word, *behind])}"] if behind and shutil.which(word) else []
        return get_close_matches(word, commands, 1) + run
    verb, _, placeholder = _SYNONYMS[word].rpartition(" ")
    words: Sequence[str] = ()
    if placeholder == _JOBS:
        words = [one for one in behind if one in _JOB_SET_OPTIONS or not one.startswith("-")]
    if placeholder == _SCRIPT:
        words = behind[next((at for at, one in enumerate(behind) if os.path.isfile(one)), len(behind)) :]
    return [f"{verb} {shlex.join(words) or placeholder}".strip()]


def foreign_option(command: str, option: str) -> str:
    """Returns a suggestion for an option that a command lacks; "" if it is unclear what the user means."""
    from gpu_scheduler.core.jobsfile import attributes

    name, has_queue = option.partition("=")[0].lstrip("-"), command in ("add", "submit")
    if not option.startswith("-") or not (has_queue or command in ("run", "wait")):
        return ""
    keys = attributes.FOREIGN_NAMES.get(name)
    if keys == ():
        return f"; {attributes.NOT_NEEDED}"
    if keys is None and command != "add":  # `add` has suggestions of its own for misspelt options
        keys = attributes.meant_attributes(name) if has_queue else (name,) if name in _WITHOUT_QUEUE else ()
    forms = [f"--{key} {attributes.ATTRIBUTE_HELP[key][0] or ''}".rstrip() for key in keys or ()]
    if not has_queue:
        forms = [_WITHOUT_QUEUE[key] for key in keys or ()]
    if command == "add":  # where --gpus means the GPUs that the job may use
        forms = [form.replace("--gpus N", "--gpus-count N") for form in forms]
    return f"; did you mean {' or '.join(f'`{form}`' for form in forms)}?" if forms else ""
