"""Launches a stored attempt: builds its command, prepares its folder and log, and starts its runner."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from msgspec.structs import replace

from gpu_scheduler.attempts.executors import Executor, Executors, LaunchError
from gpu_scheduler.attempts.folder import is_usable, prepare
from gpu_scheduler.attempts.job_logs import LogFolder, create_log
from gpu_scheduler.attempts.job_progress import PROGRESS_FILE
from gpu_scheduler.attempts.observe import attempt_ref
from gpu_scheduler.config import DATA_DIR_VARIABLE, STATE_FILE_VARIABLE, StartOptions
from gpu_scheduler.core.command.build import GIVEN_PORT, build_command, find_conda_sh, ports_for, session_name
from gpu_scheduler.core.command.shell_words import CHECKPOINT_VARIABLE, with_checkpoint
from gpu_scheduler.core.model.gpu import Gpu
from gpu_scheduler.core.model.job import ActiveAttempt, Attempt, Job
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.scheduling.needs import LlmConfig, ResourceSpec, engine_request
from gpu_scheduler.core.scheduling.placement import BEYOND_MIB, capped_claim, claimable_total
from gpu_scheduler.core.scheduling.reconcile_attempt import ENGINE_OVERTIME_S
from gpu_scheduler.core.text.formatting import safe_text
from gpu_scheduler.runner.folder import read_spec
from gpu_scheduler.store import backups
from gpu_scheduler.store.requests import LaunchContext, launch_context
from gpu_scheduler.store.store import Store
from gpu_scheduler.store.writer import StoreWriter
from gpu_scheduler.system.gpu_claims import can_be_claimed, own_claims, read_locks_of
from gpu_scheduler.system.lock_folder import VARIABLE, ClaimFolder, LockFolderError

# Determines the claims on GPUs that the runner of an attempt holds (docs/design.md, GPU claims).


def requested_claims(
    attempt: Attempt, active: Iterable[Attempt], known: Mapping[str, Gpu], folder: ClaimFolder
) -> dict[str, object] | None:
    """Returns the value of `gpu_claims` in spec.json; None if the attempt claims nothing.

    active: the active attempts, oldest first. known: all known GPUs, by UUID.

    GPUs whose UUID is unknown are left out, and so are GPUs that a process claims entirely from which this
    scheduler descends. Prepares the folder if it is missing. Raises LockFolderError if it cannot be used, and
    OSError in a shortage of open files or memory.
    """
    if not attempt.gpus:
        return None
    if not folder.path.is_dir():
        folder.prepare()
    names = [uuid for uuid in attempt.gpus if can_be_claimed(uuid)]
    locks = read_locks_of(folder.path, names).locks
    inherited = own_claims(locks)
    # An adopted process may hold a claim itself, if `run` has executed it.
    held = {uuid for uuid, found in locks.items() if attempt.watched_pid in [lock.pid for lock in found]}
    # Of two attempts that start in the same round, only the later one gives way.
    earlier = [one for one in active if one.id < attempt.id and one.state.holds_gpus]
    gpus = []
    for uuid in names:
        beside = [one.allocation_on(uuid) for one in earlier if uuid in one.gpus]
        total = known[uuid].total_mib
        mib = None if known[uuid].last.exclusive else capped_claim(attempt.allocation_on(uuid), beside, total)
        range_mib = total if mib is None else claimable_total(total)
        if mib == 0:
            # Nothing is left. A claim beyond the memory still keeps others from claiming the whole GPU.
            mib, range_mib = 1, claimable_total(total) + BEYOND_MIB
        if uuid not in inherited and uuid not in held:
            gpus.append({"name": uuid, "mib": mib, "total_mib": range_mib})
    return {"folder": str(folder.path), "gpus": gpus} if gpus else None


#: The variable that names the file in which a job can report its progress.
PROGRESS_VARIABLE = "GPU_SCHEDULER_PROGRESS"
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


class Launcher:
    """Completes the folder of an attempt and starts a runner for it.

    options: the options of `start`, with absolute paths. environment: the variables that jobs inherit unless
    they were submitted with an environment of their own. umask: the umask of the jobs.
    claim_folder: the folder in which their runners claim GPUs.
    """

    def __init__(
        self,
        store: Store,
        recorder: StoreWriter,
        executors: Executors,
        options: StartOptions,
        environment: Mapping[str, str],
        umask: int,
        logs: LogFolder,
        claim_folder: ClaimFolder,
        failpoint: Callable[[str], None] = lambda step: None,
    ) -> None:
        self.check_owner: Callable[[], None] = lambda: None
        self.before_start: Callable[[Path], object] = lambda folder: None
        self.llm_config: Callable[[], LlmConfig] = LlmConfig
        self._failpoint = failpoint
        self._logs = logs
        self._store = store
        self._recorder = recorder
        self._executors = executors
        self._options = options
        self._environment = environment
        self._umask = umask
        self._claim_folder = claim_folder
        self._ports: dict[int, int] | None = None  #: the attempt to which each port was given
        home, self._extra = store.data_dir, {VARIABLE: str(claim_folder.shared)}
        self._extra[STATE_FILE_VARIABLE] = str(home.state_file)
        if options.data_dir is not None:
            self._extra[DATA_DIR_VARIABLE] = str(home.folder)
        if options.simulated:
            self._extra["GPU_SCHEDULER_SIM"] = str(home.simulation)

    def launch(self, attempt_id: int) -> Attempt:
        """Starts a runner. Raises LaunchError with the reason, and any error that `check_owner` raises.

        Returns the attempt, with its log. Calls `before_start` with the folder.

        Calls `check_owner` after the folder is complete, so that nothing is started if another folder has
        replaced the data directory.
        """
        active = self._store.active_attempts()
        attempt = next(one for one in active if one.id == attempt_id)
        job = attempt.job
        ref = attempt_ref(self._store, attempt)
        executor = self._executors.of(ref)
        try:
            if not is_usable(ref.folder, ref.token):
                attempt = replace(attempt, log=self._prepare(attempt, active, job, executor))
            self._failpoint("folder made")
            self.check_owner()
            self.before_start(ref.folder)
            executor.launch(ref)
            return attempt
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise LaunchError(f"job {job.id} cannot be launched: {where}{error.strerror or error}") from error
        except LockFolderError as error:
            problem = f"the lock folder {error.folder} {error.problem.text}; {error.problem.remedy}"
            raise LaunchError(f"job {job.id} cannot be launched: {problem}") from error

    def _prepare(
        self, attempt: Attempt, active: Sequence[ActiveAttempt], job: Job, executor: Executor
    ) -> str | None:
        """Prepares the folder and the log of an attempt. Returns the path of the log, if it has one."""
        when = datetime.now()
        if attempt.watched_pid is not None:
            # The process writes its log itself, if it has one.
            log_of_process = job.adopted.log if job.adopted is not None else None
            self._write_folder(attempt, active, job, executor, log_of_process, when)
            return log_of_process
        log = create_log(self._logs.create(), job.id, when)
        try:
            self._write_folder(attempt, active, job, executor, str(log), when)
            return str(log)
        except BaseException:
            log.unlink(missing_ok=True)  # nothing was launched, so nothing will write the log
            raise

    def _write_folder(
        self,
        attempt: Attempt,
        active: Sequence[ActiveAttempt],
        job: Job,
        executor: Executor,
        log: str | None,
        when: datetime,
    ) -> None:
        options = self._options
        spec = _resumed_spec(attempt, job)
        known = {gpu.uuid: gpu for gpu in self._store.gpus(managed_only=False)}
        gpus = [known[uuid].index for uuid in attempt.gpus]
        request = None
        if attempt.is_on_engine:
            request = engine_request(ResourceSpec.from_key(job.spec_key), self.llm_config())
            gpus = [*range(request["gpus"])]
            # The runner ends a job whose time is over, so the engine gives it the grace period on top.
            end_s = options.grace_s + ENGINE_OVERTIME_S
            request["time_limit_s"] = None if spec.timeout_s is None else spec.timeout_s + end_s
        number, token = attempt.number, attempt.token
        context = self._context_of(job)
        submitted = context.environment
        command = build_command(
            spec, gpus, self._environment if submitted is None else submitted, token, job.id, number,
            self._conda_sh(submitted), options.cuda_ids, self._variables(attempt),
            self._port_for(attempt, active), on_engine=request is not None,
        )  # fmt: skip
        session = session_name(gpus, spec.mode, job.id) if executor.has_terminal else None
        self._recorder.record_log(attempt.id, log, session)
        header = "\n".join(
            [
                f"# job {job.id}, attempt {number}: {safe_text(job.text)}",
                f"# command: {safe_text(command.display_text)}",
                f"# environment: {safe_text(f'{command.environment_label}; folder: {spec.cwd}')}",
                f"# GPUs: {','.join(map(str, gpus)) or 'none'}; started {when:%Y-%m-%d %H:%M:%S}",
                "",
            ]
        )
        prepare(
            self._store.data_dir.attempt_folder(attempt),
            {
                "job": job.id, "attempt": number, "token": token, "boot_id": attempt.boot_id,
                "cwd": spec.cwd, "umask": self._umask, "env": command.env,
                "terminal": executor.has_terminal,
                "session": session, "log": log, "header": header, "timeout_s": spec.timeout_s,
                "term_grace_s": options.grace_s,
                "gpu_claims": requested_claims(attempt, active, known, self._claim_folder),
                "watch": _watched_process(attempt),
                "leftover_wait_s": 5.0, "background": spec.background,
                "ends_in_pipe": spec.ends_in_pipe, "ignore_hangup": spec.preempt_signal != "HUP",
                "log_limit": options.log_limit_mib * 2**20 or None,
                "engine": attempt.executor if request is not None else None,
                **({"engine_request": request} if request is not None else {}),
                backups.ORIGIN_KEY:
                    backups.origin_object(
                        attempt, job, self._store.data_dir, context.source_cwd,
                        has_own_environment=submitted is not None,
                    ),
            },
            command.command_sh,
        )  # fmt: skip

    def _variables(self, attempt: Attempt) -> Mapping[str, str]:
        """Returns the variables that the scheduler adds to the environment of an attempt."""
        folder = self._store.data_dir.attempt_folder(attempt)
        added = {**self._extra, PROGRESS_VARIABLE: str(folder / PROGRESS_FILE)}
        if attempt.resumed_from is not None:
            added[CHECKPOINT_VARIABLE] = attempt.resumed_from.path
        return added

    def _port_for(self, attempt: Attempt, active: Sequence[ActiveAttempt]) -> int | None:
        """Returns a port that is free now and that no other active attempt has; None if there is none."""
        if self._ports is None:
            self._ports = dict(self._ports_in_folders(active))
        try:
            ephemeral = int(_PORT_RANGE.read_text().split()[0])
        except (OSError, ValueError, IndexError):
            return None
        holders = {one.id for one in active if one.state.holds_gpus} - {attempt.id}
        for port in ports_for(attempt.token, ephemeral):
            if self._ports.get(port) in holders:
                continue
            # Without SO_REUSEADDR, this also refuses a port to which earlier connections linger.
            with suppress(OSError), socket.socket() as probe:
                probe.bind(("", port))
                self._ports[port] = attempt.id
                return port
        return None

    def _ports_in_folders(self, active: Iterable[Attempt]) -> Iterator[tuple[int, int]]:
        """Yields the ports that earlier schedulers have given to active attempts, with the attempts."""
        for attempt in active:
            with suppress(OSError, KeyError, ValueError):
                spec = read_spec(self._store.data_dir.attempt_folder(attempt))
                yield int(spec["env"][GIVEN_PORT]), attempt.id

    def _context_of(self, job: Job) -> LaunchContext:
        """Returns the launch context of a job. Raises LaunchError if the store has lost its environment."""
        try:
            return launch_context(self._store, job.id)
        except KeyError:
            raise LaunchError(
                f"job {job.id} cannot be launched: the store has lost its environment; submit the job again"
            ) from None

    def _conda_sh(self, submitted: Mapping[str, str] | None) -> str | None:
        """Returns the `conda.sh` for a job: the scheduler's or, failing that, the one of its submitter.

        Each launch searches again, because conda may have been installed in the meantime.
        """
        if self._options.conda_sh is not None:
            return self._options.conda_sh
        own = find_conda_sh(self._environment, _exists)
        return own or (None if submitted is None else find_conda_sh(submitted, _exists))


def _exists(path: str) -> bool:
    # Faster than os.path.exists for a missing file, and most of these files are missing.
    return os.access(path, os.F_OK)


def _resumed_spec(attempt: Attempt, job: Job) -> JobSpec:
    """Returns what the attempt runs: the job, with the path of the checkpoint from which it resumes, if any.

    Raises LaunchError if the checkpoint is gone, or if the command has no place for it any more.
    """
    checkpoint = attempt.resumed_from
    if attempt.watched_pid is None and not job.spec.can_start:
        raise LaunchError(f"job {job.id} cannot be launched: it is not known how to start it")
    if checkpoint is None:
        return job.spec
    shown = safe_text(checkpoint.path)
    remedy = f"`cancel {job.id}`, then `retry {job.id}` starts it from its beginning"
    if not os.path.exists(checkpoint.path):
        raise LaunchError(f"job {job.id} cannot resume: the checkpoint {shown} does not exist; {remedy}")
    spec = with_checkpoint(job.spec, checkpoint.path)
    if spec is None:
        raise LaunchError(f"job {job.id} cannot resume: its command has no place for {shown}; {remedy}")
    return spec


def _watched_process(attempt: Attempt) -> dict[str, object] | None:
    """Returns the value of `watch` in spec.json; None if the runner starts the command."""
    if attempt.watched_pid is None:
        return None
    return {
        "pid": attempt.watched_pid,
        "start_ticks": attempt.watched_ticks,
        "boot_id": attempt.boot_id,
        "started_at": attempt.started_at,
    }
