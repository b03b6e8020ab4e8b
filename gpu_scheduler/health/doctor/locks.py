"""Checks the lock folder, and lists the claims on GPUs."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gpu_scheduler.claims.foreign_claims import LOCK_FOLDER_KEY
from gpu_scheduler.claims.gpu_claims import check_writable, claims_of, lock_problem, read_gpu_locks
from gpu_scheduler.claims.lock_folder import (
    SYSTEM_FOLDER,
    VARIABLE,
    ClaimFolder,
    find_lock_folder,
    folder_problem,
)
from gpu_scheduler.core.model.finding import Check, Finding, bad, ok, warn
from gpu_scheduler.core.model.gpu import SIMULATED_UUID_PREFIX
from gpu_scheduler.core.model.gpu_claim import GpuClaim
from gpu_scheduler.core.text.formatting import count_noun, pid_text
from gpu_scheduler.errors import UsageError
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.read_only import read_meta
from gpu_scheduler.store.scheduler_lock import scheduler_pid

#: The beginnings of the UUIDs of GPUs, after which lock files are named.
_UUID_PREFIXES = ("GPU-", "MIG-", SIMULATED_UUID_PREFIX)
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
#: The mode of a lock file that several users share.
_LOCK_FILE_MODE = 0o666


def check(
    data_dir: DataDir,
    simulated: bool,
    env: Mapping[str, str] = os.environ,
    system_folder: Path = SYSTEM_FOLDER,
) -> Iterator[Finding]:
    """Yields a finding about the lock folder and, if it can be used, one about the claims in it.

    simulated: whether `start` would simulate the GPUs.
    """
    try:
        folder = find_lock_folder(env, system_folder)
    except UsageError as error:
        message, _, remedy = str(error).partition("; ")
        yield bad(Check.LOCK_FOLDER, message, remedy)
        return
    try:
        problem = folder_problem(folder)
    except OSError as error:
        remedy = f"set {VARIABLE} to a folder that you can write to"
        yield bad(Check.LOCK_FOLDER, f"{folder} cannot be used: {error.strerror}", remedy)
        return
    if problem is not None:
        yield bad(Check.LOCK_FOLDER, f"{folder} {problem.text}", problem.remedy)
        return
    path = ClaimFolder.of(folder, str(data_dir.simulation) if simulated else None).path
    yield _other_folder_of_scheduler(data_dir, path) or _users_of(
        folder, bool(env.get(VARIABLE)), system_folder
    )
    yield _claims(path)


def _other_folder_of_scheduler(data_dir: DataDir, path: Path) -> Finding | None:
    """Returns a finding if the scheduler is running and has its lock files in another folder."""
    if data_dir.other_host() is not None or scheduler_pid(data_dir.lock) is None:
        return None
    used = read_meta(data_dir.database, LOCK_FOLDER_KEY)
    if used in (None, str(path)):
        return None
    message = f"{path}, but the lock files of the running scheduler are in {used}"
    return warn(Check.LOCK_FOLDER, message, f"set {VARIABLE} to the same folder, or restart the scheduler")


def _users_of(folder: Path, is_named: bool, system_folder: Path) -> Finding:
    """Returns the finding about the users who share a usable lock folder."""
    exists = os.path.lexists(folder)
    mode = os.stat(folder).st_mode if exists else 0
    text = f"{folder}{f', named by {VARIABLE}' if is_named else ''}{'' if exists else ' (not created yet)'}"
    if is_named and folder != system_folder and os.path.lexists(system_folder):
        message = f"{text}; programs without this variable use {system_folder} and do not see the same claims"
        return warn(Check.LOCK_FOLDER, message, f"unset {VARIABLE}")
    if mode & _OTHERS_WRITE:
        users = "all users" if mode & stat.S_IWOTH else "the users of its group"
        return ok(Check.LOCK_FOLDER, f"{text}, shared by {users}")
    private = f"{text}; only your own programs see each other's claims"
    make = f"`sudo install -d -m 1777 {system_folder}`{f' and unset {VARIABLE}' if is_named else ''}"
    return ok(
        Check.LOCK_FOLDER,
        f"{private}; while no job runs, an administrator can make a folder for all users: {make}",
    )


def _claims(folder: Path) -> Finding:
    """Returns the finding about the lock files in a folder, which need not exist."""
    held: dict[str, Sequence[GpuClaim]] = {}
    try:
        names = sorted(name for name in os.listdir(folder) if name.startswith(_UUID_PREFIXES))
        is_shared = bool(os.stat(folder).st_mode & _OTHERS_WRITE)
    except FileNotFoundError:
        names, is_shared = [], False
    except OSError as error:
        return bad(
            Check.GPU_CLAIMS,
            f"{folder} cannot be read: {error.strerror}",
            f"run `chmod u+r {shlex.quote(str(folder))}`",
        )
    for name in names:
        path = folder / name
        try:
            held[name] = claims_of(read_gpu_locks(folder, name), None)
            check_writable(folder, name)
            mode = os.stat(path).st_mode
        except OSError as error:
            problem, _, remedy = lock_problem(error).partition("; ")
            return bad(Check.GPU_CLAIMS, problem, remedy or f"check the permissions of {path}")
        if is_shared and mode & _LOCK_FILE_MODE != _LOCK_FILE_MODE:
            message = f"{path} has mode {stat.S_IMODE(mode):o}, so not every user can claim this GPU"
            return bad(Check.GPU_CLAIMS, message, f"its owner must run `chmod 1666 {shlex.quote(str(path))}`")
    texts = [f"{name}: {', '.join(map(_text, claims))}" for name, claims in held.items() if claims]
    total = count_noun(sum(map(len, held.values())), "claim")
    return ok(Check.GPU_CLAIMS, f"{total} in {folder}: {'; '.join(texts)}" if texts else "none")


def _text(claim: GpuClaim) -> str:
    amount = "the whole GPU" if claim.mib is None else f"{claim.mib} MiB"
    user = f" of {claim.user}" if claim.user else ""
    return f"{pid_text(claim.pid)}{user} ({amount}{', a job' if claim.by_scheduler else ''})"
