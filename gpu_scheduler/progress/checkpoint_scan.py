"""Finds the checkpoints of a job in its output folder, and those that match its attribute `checkpoints`.

No other folder is searched, because it may contain those of other runs, and nothing that is older than the
first attempt of the job counts. A folder that cannot be read counts as empty.
"""

from __future__ import annotations

import errno
import glob
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from gpu_scheduler.core.command.program_folder import program_folder
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.progress.checkpoint_names import (
    CheckpointKind,
    CheckpointName,
    matched_name,
    parse_name,
)
from gpu_scheduler.core.progress.run_options import output_option
from gpu_scheduler.core.text.quoting import mark_expansions

#: The folders in an output folder in which TRL and PyTorch Lightning save.
_INNER_FOLDERS = ("completions", "checkpoints", "lightning_logs/version_*/checkpoints")
#: Maximum number of names to examine in a folder, and of files that match a pattern.
_MAX_NAMES = 10_000
#: The file that the Hugging Face Trainer writes last into a checkpoint.
_TRAINER_STATE = "trainer_state.json"
#: Seconds by which the kernel's clock for file times may lag the wall clock: one tick at 100 Hz, doubled.
_FILE_CLOCK_LAG_S = 0.02
_MAX_STEPS = re.compile(rb'"max_steps": (\d{1,15})\b')


class FoundCheckpoint(NamedTuple):
    """A checkpoint. path: absolute; saved_at: in wall seconds; total: the number of steps of the whole run,
    None if it does not say; is_whole: whether its own content shows that it is complete.
    """

    path: str
    name: CheckpointName
    saved_at: float
    total: float | None
    is_whole: bool


def scan_checkpoints(spec: JobSpec, since_wall: float | None) -> list[FoundCheckpoint]:
    """Returns the checkpoints that were saved at or after this time, oldest first. None means all."""
    candidates = dict(_named_in_output(spec))
    candidates.update(_matching(spec))
    found = (_examine(path, name) for path, name in candidates.items())
    since = float("-inf") if since_wall is None else since_wall - _FILE_CLOCK_LAG_S
    recent = (one for one in found if one is not None and one.saved_at >= since)
    return sorted(recent, key=lambda one: (one.saved_at, one.name.step or 0.0, one.path))


def newest_complete(found: list[FoundCheckpoint]) -> FoundCheckpoint | None:
    """Returns the newest complete checkpoint from which a job can resume; None if there is none.

    found: oldest first. A checkpoint is complete if its content shows it or a newer one of its kind exists.
    """
    newer_kinds: set[CheckpointKind] = set()
    for one in reversed(found):
        if one.name.kind is CheckpointKind.COMPLETIONS:
            continue
        if one.is_whole or one.name.kind in newer_kinds:
            return one
        newer_kinds.add(one.name.kind)
    return None


def _named_in_output(spec: JobSpec) -> Iterator[tuple[str, CheckpointName]]:
    command = None if spec.command is None else mark_expansions(spec.command)
    written = output_option(replace(spec, command=command))[1]
    if not written or "\0" in written:
        return  # only a shell knows which folder this is
    folder = path_in_program_folder(spec, written)
    if folder is None:
        return
    inner = (glob.iglob(os.path.join(glob.escape(folder), each)) for each in _INNER_FOLDERS)
    for each in (folder, *(path for paths in inner for path in paths)):
        try:
            with os.scandir(each) as entries:
                for entry in islice(entries, _MAX_NAMES):
                    name = parse_name(entry.name)
                    if name is not None:
                        yield os.path.normpath(entry.path), name
        except OSError:
            continue


def path_in_program_folder(spec: JobSpec, path: str) -> str | None:
    """Returns a path of the job's program as an absolute path; None if its folder is not known."""
    path = os.path.expanduser(path)
    if os.path.isabs(path):
        return path
    folder = program_folder(spec)
    return None if folder is None else os.path.join(os.path.expanduser(folder), path)


def _matching(spec: JobSpec) -> Iterator[tuple[str, CheckpointName]]:
    pattern = spec.checkpoints
    if not pattern or "\0" in pattern:
        return
    for path in islice(_expand(os.path.join(glob.escape(spec.cwd), os.path.expanduser(pattern))), _MAX_NAMES):
        whole = os.path.normpath(path)
        yield whole, matched_name(os.path.basename(whole))


def _expand(pattern: str) -> Iterator[str]:
    """Yields the paths that match a pattern.

    The first `**` stands for a folder and the folders in it, up to _MAX_NAMES names. Unlike that of `glob`,
    it follows no links, because they may form endless loops. Any other `**` is the same as `*`.
    """
    base, recursive, rest = pattern.partition("/**/")
    if not recursive:
        yield from glob.iglob(pattern)
        return
    names = 0
    for root in glob.iglob(base + "/"):
        for folder, folders, files in os.walk(root):
            names += len(folders) + len(files)
            if names > _MAX_NAMES:
                return
            folders[:] = [name for name in folders if not name.startswith(".")]
            yield from glob.iglob(os.path.join(glob.escape(folder), rest))


def _examine(path: str, name: CheckpointName) -> FoundCheckpoint | None:
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            return _examine_folder(path, name, status.st_mtime)
        if not stat.S_ISREG(status.st_mode) or name.kind is CheckpointKind.TRAINER:
            return None
        return FoundCheckpoint(path, name, status.st_mtime, None, _is_whole_zip(path))
    except OSError:
        return None


def _examine_folder(path: str, name: CheckpointName, modified_at: float) -> FoundCheckpoint | None:
    if name.kind not in (CheckpointKind.TRAINER, CheckpointKind.PATTERN):
        return None
    try:
        with open(os.path.join(path, _TRAINER_STATE), "rb", opener=_open_at_once) as file:
            status = os.fstat(file.fileno())
            file.seek(max(0, status.st_size - 4096))
            end = file.read().rstrip()
    except OSError:
        return FoundCheckpoint(path, name, modified_at, None, False)
    totals = _MAX_STEPS.findall(end)
    total = float(totals[-1]) if totals and int(totals[-1]) else None
    return FoundCheckpoint(path, name, status.st_mtime, total, end.endswith(b"}"))


def _open_at_once(path: str, flags: int) -> int:
    """Opens a regular file. Never waits for the other end of a FIFO. Raises OSError."""
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "is not a regular file", path)


def _is_whole_zip(path: str) -> bool:
    """Returns whether a file is a ZIP file with a directory at its end, as `torch.save` writes."""
    import zipfile  # only jobs with such checkpoints need it

    with open(path, "rb", opener=_open_at_once) as file:
        return file.read(4) == b"PK\x03\x04" and zipfile.is_zipfile(file)
