"""The agent of an engine: submits the attempts of one store, and carries files between their two folders.

It is a companion of `start`, and the only program that runs the commands of the engine or looks at the shared
folder, so that neither of them ever holds up the loop. It keeps nothing that a restart would lose.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from gpu_scheduler.attempts.folder import (
    ENGINE_FILE,
    GIVE_UP_FILE,
    KILL_FILE,
    is_prepared,
    link_new,
    write_file,
)
from gpu_scheduler.attempts.launch import PROGRESS_VARIABLE
from gpu_scheduler.core.model.job import ActiveAttempt
from gpu_scheduler.core.scheduling.facts import EngineAnswer, EngineState
from gpu_scheduler.core.scheduling.needs import LlmConfig, engine_request
from gpu_scheduler.engines.engine import (
    NAME_PREFIX,
    Engine,
    EngineJob,
    EngineUnavailableError,
    Order,
    RefusedError,
    Resources,
)
from gpu_scheduler.engines.steps import SUBMIT_AGAIN_S, Memory, Seen, Step, next_steps
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.runner import folder as files
from gpu_scheduler.store.pending_groups import engine_specs, set_engine_state
from gpu_scheduler.store.store import Store

log = logging.getLogger(__name__)

#: Seconds between two looks at the engine and the shared folder, and at the store in between.
LOOK_S, _STORE_S = 2.0, 0.2
#: Seconds after which the engine is asked again for its jobs. Administrators dislike frequent queries.
_ASK_S = 10.0
#: Seconds after which the engine is asked again whether it can ever run jobs with given resources; and if it
#: has said no, which Slurm also does while its nodes restart.
_ASK_AGAIN_S, _ASK_REFUSED_S = 600.0, 60.0
#: Seconds that a look may take until it puts off what else it has to ask the engine.
_LATE_S = 20.0
#: Seconds for which the folder of a dead attempt is kept. The runner kills its command after ten minutes.
_OLD_S = 7 * 86_400.0
#: Largest file of a runner, apart from its log.
_MAX_BYTES = 1 << 20
#: Largest piece of a log that one look copies, so that one job cannot hold up the others.
_PIECE_BYTES = 4 << 20
#: What the engine and the guard write; and the files that the agent copies into the local folder.
_ENGINE_LOG = "engine.log"
_FROM_RUNNER = (_ENGINE_LOG, "runner.err", "progress", "withdrawn", "claim", "result")
#: The file in the local folder that names the shared folder, and the record of the owner of all of these.
_SUBMITTED, _OWNER = "submitted", "owner.json"


class _Place(NamedTuple):
    """The token of an attempt, its local folder and its shared folder."""

    token: str
    local: Path
    there: Path


class SharedFolder:
    """The folder of one store on the file system that it shares with the nodes. path: DIR/STORE-ID."""

    def __init__(self, path: Path, owner: Mapping[str, str]) -> None:
        self.path = path
        self._owner = dict(owner)

    def claim(self, *, is_new: bool = True) -> None:
        """Makes the folder, and takes it for this store.

        is_new: whether it may be missing. Raises SchedulerError if it is missing or another store has it.
        """
        record = self.path / _OWNER
        if not is_new and not record.exists():
            # In an empty folder, no attempt has begun, so those that have ended would run again.
            raise SchedulerError(
                f"{record} is missing: is it mounted? To begin with an empty folder, name another --slurm-dir"
            )
        self.path.mkdir(mode=0o700, exist_ok=True)
        mine = json.dumps(self._owner)
        try:
            link_new(self.path, _OWNER, mine.encode())
            known = files.parse_object(record.read_bytes()) or {}
            # This store was moved, with the program that checks for copies looking on.
            was_here = {**known, "folder": ""} == {**self._owner, "folder": ""}
            if was_here and not os.path.exists(str(known.get("folder"))):
                write_file(self.path, _OWNER, mine.encode())
                known = self._owner
        except OSError as error:
            raise SchedulerError(f"{record} cannot be used: {error}") from None
        if known != self._owner:
            raise SchedulerError(
                f"{self.path} belongs to the store in {known.get('folder')} on {known.get('host')}, of which"
                f" this one is a copy, or which was moved; if that store is gone, write this to {record}:"
                f" {mine}"
            )

    def attempts(self) -> list[Path]:
        """Returns the folders of all attempts; none if they cannot be listed now."""
        try:
            return [one for one in self.path.iterdir() if not one.name.startswith(".") and one.is_dir()]
        except OSError:
            return []


def copy_runner(folder: Path) -> Path:
    """Copies the runner to the shared folder, once for each version. Returns the path of its start script.

    Jobs that wait in the engine keep the version with which they were submitted.
    """
    source = Path(files.__file__).parent
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(source.glob("*.py"))))
    target = folder / f"runner-{digest.hexdigest()[:16]}" / "runner"
    if not target.exists():
        made = folder / f".runner-{secrets.token_hex(8)}"
        made.mkdir(mode=0o700)  # not by copytree, which would also make a folder that is not mounted
        shutil.copytree(source, made / "runner", ignore=shutil.ignore_patterns("__pycache__"))
        try:
            made.rename(target.parent)
        except OSError:  # another agent was faster
            shutil.rmtree(made)
            if not target.exists():
                raise
    return target / "start.py"


class EngineAgent:
    """The agent of one store and one engine. scale: divides all times, for tests."""

    def __init__(
        self,
        name: str,
        store: Store,
        engine: Engine,
        shared: SharedFolder,
        llm_config: Callable[[], LlmConfig],
        *,
        scale: float = 1.0,
    ) -> None:
        self._name, self._store, self._engine, self._shared = name, store, engine, shared
        self._llm_config = llm_config
        self._scale = scale
        self._memories: dict[str, Memory] = {}
        #: When the engine was last asked to cancel which jobs; when a submission failed last.
        self._cancelled_at: dict[str, float] = {}
        self._put_off_at = -math.inf
        #: The jobs of the engine, and when it was asked for them; None if it is to be asked at the next look.
        self._jobs: Mapping[str, EngineJob] | None = None
        self._asked_at = 0.0
        #: What the engine says of resources, with the time at which it said so.
        self._answers: dict[Resources, tuple[float, EngineAnswer]] = {}
        self._problem: str | None = None
        #: The problems of this look with the engine or the shared folder, and those of single attempts.
        self._problems: list[str] = []
        self._complaints: set[tuple[str, str]] = set()
        #: When this look began.
        self._began = 0.0
        self._log_limit = 0
        self._version: int | None = None

    def run(self) -> None:
        """Works until the process is asked to end."""
        while True:
            self.look()
            self._wait(LOOK_S / self._scale)

    def _wait(self, seconds: float) -> None:
        """Waits for the next look, or until the store has other open attempts than at the last one."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(_STORE_S, left))
            version = self._store.db.data_version
            if version != self._version:
                self._version = version
                if {one.token for one in self._open_attempts()} != self._memories.keys():
                    return

    def _open_attempts(self) -> list[ActiveAttempt]:
        every = self._store.active_attempts()
        return [one for one in every if one.executor == self._name and one.state.is_open]

    def look(self) -> None:
        """Does all that is due now. The engine and the shared folder may be away for any time."""
        attempts, now = self._open_attempts(), time.monotonic()
        self._memories = {one.token: self._memories.get(one.token, Memory()) for one in attempts}
        again_s = SUBMIT_AGAIN_S / self._scale
        self._cancelled_at = {key: at for key, at in self._cancelled_at.items() if now - at < again_s}
        self._complaints = {one for one in self._complaints if one[0] in self._memories}
        self._problems, self._began = [], now
        self._log_limit = self._store.recorded_options().log_limit_mib * 2**20
        with self._noted():
            os.stat(self._shared.path / _OWNER)
        jobs = self._known_jobs() if attempts or self._shared.attempts() else {}
        due: list[_Place] = []
        for one in attempts:
            with self._noted():  # results, logs and requests to stop do not wait for the engine
                due += self._look_at(one, jobs)
        # Last, and the one that was tried last comes last, because the engine may not take one for days.
        for place in sorted(due, key=lambda one: self._memories[one.token].submitted_at or 0.0):
            if now - self._put_off_at < again_s or self._is_late():
                break
            with self._noted(), self._apart(place):
                if not self._submit(place):
                    self._put_off_at = now
        answers: dict[str, EngineAnswer] = {}
        if jobs is not None:
            self._clean_up(jobs)
            answers = self._ask_about_groups()
        self._report(EngineState(next(iter(self._problems), None), answers))

    def _known_jobs(self) -> Mapping[str, EngineJob] | None:
        """Returns the jobs of the engine, which may be a few seconds old; None if it does not answer.

        They are never older than the last submission or cancel.
        """
        now = time.monotonic()
        if self._jobs is None or now - self._asked_at >= _ASK_S / self._scale:
            self._jobs, self._asked_at = None, now
            with self._noted():
                self._jobs = self._engine.jobs()
        return self._jobs

    def _cancel(self, token: str) -> None:
        """Cancels a job, unless the engine was asked for that some seconds ago."""
        if token not in self._cancelled_at and not self._is_late():
            self._jobs = None
            self._engine.cancel(token)
            self._cancelled_at[token] = self._began

    def _is_late(self) -> bool:
        """Returns whether the engine has taken so long in this look that no more is asked of it now."""
        return time.monotonic() - self._began > _LATE_S

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """Notes an error of the engine, or of folders that all attempts need, and goes on."""
        try:
            yield
        except (EngineUnavailableError, OSError) as error:
            self._problems.append(_text(error))

    @contextmanager
    def _apart(self, place: _Place) -> Iterator[None]:
        """Shows an error about the files of one attempt as its reason, and goes on with the others."""
        try:
            yield
        except OSError as error:
            said = place.token, _text(error)
            if said not in self._complaints:
                self._complaints.add(said)
                log.warning("%s: attempt %s: %s", self._name, *said)
                self._write(place, reason=said[1])

    def _report(self, state: EngineState) -> None:
        """Records what keeps the agent from the engine, and from time to time that the agent works."""
        if state.problem is not None and state.problem != self._problem:
            log.warning("%s: %s", self._name, state.problem)
        self._problem = state.problem
        if set_engine_state(self._store, self._name, replace(state, at=time.time())):
            self._store.data_dir.ring_doorbell()

    def _look_at(self, attempt: ActiveAttempt, jobs: Mapping[str, EngineJob] | None) -> list[_Place]:
        """Does what is due for one attempt, except for its submission. Returns its place if that is due.

        jobs: those of the engine; None if it does not answer.
        """
        local, token = self._store.data_dir.attempt_folder(attempt), attempt.token
        if not is_prepared(local):
            return []  # the loop has not completed it yet
        submitted, began = _read(local / _SUBMITTED), time.monotonic()
        there = self._shared.path / token if submitted is None else Path(os.fsdecode(submitted))
        place, memory = _Place(token, local, there), self._memories[token]
        if submitted is not None and memory.submitted_at is None:
            memory = replace(memory, submitted_at=began)  # by an earlier agent
        # Without an answer of both, nothing is concluded, and what was counted begins anew.
        job_at = None if memory.job_at is None else began
        self._memories[token] = replace(memory, heartbeat_at=None, job_at=job_at)
        seen = None
        with self._apart(place):
            seen = self._carry(attempt, place)
        if seen is None:
            return []
        if jobs is None:
            if seen.gives_up and not seen.has_claim:
                self._void(place, "")  # the claim decides, so this does not wait for the engine
            return []
        now = time.monotonic()
        seen = replace(seen, job=jobs.get(token), took_s=now - began)
        plan = next_steps(seen, memory, now, self._scale)
        for step in plan.steps:
            if step is Step.CANCEL:
                self._cancel(token)
            elif step is Step.VOID:
                words = (plan.reason, _last_line(place.there / _ENGINE_LOG)) if plan.reason else ()
                self._void(place, "; ".join(filter(None, words)), is_cancelled=plan.is_cancelled)
            elif step is not Step.SUBMIT:
                state = "dead" if step is Step.DECLARE_DEAD else "gone"
                self._write_job(place, seen.job, state)
        self._memories[token] = plan.memory
        if Step.SUBMIT not in plan.steps:
            return []
        if memory.submitted_at is not None and self._asked_at < self._began:
            self._jobs = None  # whose answer may be older than the one that was lost
            return []
        return [place]

    # The two folders of an attempt.

    def _carry(self, attempt: ActiveAttempt, place: _Place) -> Seen:
        """Copies what is new in both directions. Returns what the two folders show. Raises OSError."""
        _, local, there = place
        known, beat = _read(local / "claim"), None
        found: dict[str, bytes | None] = {}
        if there.exists():
            # A client of NFS forgets which files were missing as soon as the folder changes.
            (there / ".look").touch()
            (there / ".look").unlink(missing_ok=True)
            # The claim is read before the result: a runner that is dead then publishes nothing any more.
            found = {name: _read(there / name) for name in _FROM_RUNNER}
            self._carry_stop(local, there, found["withdrawn"])
            # The log is complete once the result is there, so the rest of it comes first.
            with self._apart(place):
                self._carry_log(attempt, there, is_complete=found["result"] is not None)
            for name, data in found.items():
                if data is not None and data != _read(local / name):
                    write_file(local, name, data)
            beat = _read(there / "heartbeat")
        else:
            os.stat(there.parent / _OWNER)  # raises OSError if the file system is not there either
        claim = files.parse_object(found.get("claim") or b"") or files.parse_object(known or b"") or {}
        return Seen(
            has_claim=bool(claim), is_void=bool(claim.get("void")),
            has_result=files.parse_object(_read(local / "result") or b"") is not None,
            heartbeat=int(beat) if beat and beat.strip().isdigit() else None,
            gives_up=(local / GIVE_UP_FILE).exists(), kills=(local / KILL_FILE).exists(),
        )  # fmt: skip

    def _carry_stop(self, local: Path, there: Path, withdrawn: bytes | None) -> None:
        """Passes the newest request to stop on, unless the runner has withdrawn just this one."""
        stop = _read(local / "stop")
        if stop is None:
            return
        if stop == withdrawn:
            # As if the runner had renamed it here. If the loop replaces it just now, it writes it again.
            write_file(local, "withdrawn", stop)
            (local / "stop").unlink(missing_ok=True)
        elif stop != _read(there / "stop"):
            write_file(there, "stop", stop)

    def _carry_log(self, attempt: ActiveAttempt, there: Path, *, is_complete: bool) -> None:
        """Copies the new part of the log, at most a piece of it unless it is complete.

        A log that reaches its limit is written anew from its middle on, and is then shorter than it was. The
        whole of it is copied then, and once more at the end.
        """
        if attempt.log is None:
            return
        with (
            suppress(FileNotFoundError),
            (there / "log").open("rb") as source,
            os.fdopen(os.open(attempt.log, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC), "r+b") as target,
        ):
            known, size = target.seek(0, os.SEEK_END), os.fstat(source.fileno()).st_size
            if size < known or (is_complete and 0 < self._log_limit < 2 * size):
                known = target.seek(0)
            source.seek(known)
            left = size - known if is_complete or known == 0 else min(size - known, _PIECE_BYTES)
            while left > 0 and (piece := source.read(min(left, _PIECE_BYTES))):
                left -= target.write(piece)
            target.truncate()

    def _submit(self, place: _Place) -> bool:
        """Submits an attempt. Returns False if the engine takes no jobs now, or its answer was lost.

        Raises OSError.
        """
        token, local, there = place
        self._memories[token] = replace(self._memories[token], submitted_at=time.monotonic())
        self._jobs = None
        there.mkdir(mode=0o700, exist_ok=True)
        (there / "log").touch(0o600)  # the runner only appends
        spec = files.read_spec(local)
        write_file(there, "command.sh", (local / "command.sh").read_bytes())
        write_file(there, "spec.json", json.dumps(shared_spec(spec, there)).encode("ascii"))
        write_file(local, _SUBMITTED, os.fsencode(there))
        try:
            self._engine.submit(Order(token, str(there), Resources(**spec["engine_request"])))
        except RefusedError as error:
            self._void(place, str(error))
        except EngineUnavailableError as error:
            self._write(place, state="pending", reason=f"not submitted: {error}")
            return False
        return True

    def _void(self, place: _Place, reason: str, *, is_cancelled: bool = False) -> None:
        """Claims the attempt so that no runner can, unless one has; the next look shows who was first."""
        token, local, there = place
        there.mkdir(mode=0o700, exist_ok=True)
        said = f"{self._name.capitalize()}: {reason}" if reason else None
        cause = "cancelled" if is_cancelled else None
        claim = {"token": token, "void": True, "reason": said, "cause": cause, "nonce": secrets.token_hex(8)}
        link_new(there, "claim", json.dumps(claim).encode("ascii"))
        data = _read(there / "claim")
        if data is not None:
            write_file(local, "claim", data)

    def _write_job(self, place: _Place, job: EngineJob | None, other: str) -> None:
        """Writes the job of the engine into the file `engine`. other: the state if that is not the job's."""
        found = {} if job is None else {"native_id": job.native_id, "node": job.node, "reason": job.reason}
        self._write(place, **found, state=other if job is None or other == "dead" else job.state)

    def _write(self, place: _Place, **values: str) -> None:
        """Writes the file `engine`, if these values change it."""
        known = _read(place.local / ENGINE_FILE) or b""
        first = {"token": place.token, "state": "pending", "native_id": "", "node": "", "reason": ""}
        data = json.dumps({**first, **(files.parse_object(known) or {}), **values}).encode("ascii")
        if data != known:
            write_file(place.local, ENGINE_FILE, data)

    def _clean_up(self, jobs: Mapping[str, EngineJob]) -> None:
        """Cancels jobs of ours that no open attempt needs, and removes the folders of ended attempts."""
        for folder in self._shared.attempts():
            if folder.name not in self._memories:
                with suppress(OSError, EngineUnavailableError):
                    self._clean(folder, jobs.get(folder.name))

    def _clean(self, folder: Path, job: EngineJob | None) -> None:
        has_result, may_end = (folder / "result").exists(), job is not None and job.state != "ended"
        # One that has a result and is pending was requeued. One that runs is about to end.
        is_requeued = job is not None and job.state == "pending"
        if may_end and (is_requeued or not has_result):
            if folder.name not in self._cancelled_at:
                log.info(
                    "cancelling %s, whose attempt has ended or is unknown here", NAME_PREFIX + folder.name
                )
            self._cancel(folder.name)
        elif not may_end and (has_result or b'"void"' in (_read(folder / "claim") or b"") or _is_old(folder)):
            # First what a runner needs, so that none can begin in what is left.
            (folder / "spec.json").unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)

    # Whether the engine can ever run the queued jobs.

    def _ask_about_groups(self) -> dict[str, EngineAnswer]:
        """Returns the engine's answers for the resource specs of all queued jobs, by their keys."""
        answers: dict[str, EngineAnswer] = {}
        now = time.monotonic()
        for spec in engine_specs(self._store, self._name):
            resources = Resources(**engine_request(spec, self._llm_config()))
            at, answer = self._answers.get(resources, (-math.inf, None))
            again_s = _ASK_S
            if answer is not None and answer.is_final:
                again_s = _ASK_AGAIN_S if answer.problem is None else _ASK_REFUSED_S
            if now - at >= again_s / self._scale and not self._is_late():
                try:
                    answer = EngineAnswer(self._engine.problem(resources))
                except EngineUnavailableError as error:
                    answer = EngineAnswer(str(error), is_final=False)
                self._answers[resources] = now, answer
            if answer is not None:
                answers[spec.key()] = answer
        return answers


def shared_spec(spec: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Returns spec.json as the runner on a node needs it: its log and its progress file are in its folder."""
    env = {**spec["env"], PROGRESS_VARIABLE: str(folder / "progress")}
    return {**spec, "env": env, "log": None if spec["log"] is None else str(folder / "log")}


def owner_of(store: Store, store_id: str) -> dict[str, str]:
    """Returns the record that identifies the owner of a shared folder."""
    return {"store": store_id, "host": socket.gethostname(), "folder": str(store.data_dir.folder)}


def _read(path: Path) -> bytes | None:
    """Returns the content of a file; None if there is none, or if a job has put something else there."""
    fd = files.open_file(str(path))
    if not isinstance(fd, int):
        return None
    try:
        is_file = stat.S_ISREG(os.fstat(fd).st_mode)
        return os.read(fd, _MAX_BYTES) if is_file else None
    finally:
        os.close(fd)


def _is_old(folder: Path) -> bool:
    """Returns whether nothing has been written to a folder for days, so that no runner can be alive."""
    with suppress(OSError):
        times = [path.lstat().st_mtime for path in (folder, *folder.iterdir())]
        return 0 < max(times) < time.time() - _OLD_S
    return False


def _last_line(path: Path) -> str:
    lines = (_read(path) or b"").decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""


def _text(error: OSError | EngineUnavailableError) -> str:
    said = str(error)
    if isinstance(error, OSError):
        said = f"{error.filename or 'the shared folder'}: {error.strerror}"
    return said.encode("utf-8", "backslashreplace").decode()
