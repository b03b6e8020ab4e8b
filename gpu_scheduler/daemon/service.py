"""Runs the scheduler of a data directory, from checking the options of `start` to its exit code.

It runs in this process or, with `start --daemon`, in the background.
"""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import stat
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing, suppress
from pathlib import Path

from gpu_scheduler.attempts.executors import (
    DirectExecutor,
    EngineExecutor,
    Executors,
    ForkingExecutor,
    ScreenExecutor,
    screen_problem,
)
from gpu_scheduler.attempts.job_logs import LogFolder
from gpu_scheduler.config import JOBS_FILE, LLM_CONFIG, PIPE_REMEDY, STATE_FILE, StartOptions
from gpu_scheduler.core.text.formatting import pid_text
from gpu_scheduler.daemon.log_output import Console, configure_logging, open_main_log
from gpu_scheduler.daemon.main_loop import Daemon
from gpu_scheduler.daemon.restore import in_own_folder, open_store, refuse_active, refuse_unrecorded
from gpu_scheduler.errors import SchedulerError, UsageError
from gpu_scheduler.health.sessions import REFUSAL, REMEDY, old_sessions
from gpu_scheduler.health.storage import describe_store_error
from gpu_scheduler.intake.jobs_file_text import MAX_BYTES as LARGEST_JOBS_FILE
from gpu_scheduler.intake.jobs_file_text import JobsFile
from gpu_scheduler.runner.folder import close_inherited, set_mark
from gpu_scheduler.runner.process_scan import shows_own_pids
from gpu_scheduler.store import moved_or_copied
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.database import damaged_error, is_damage, newest_schema_version
from gpu_scheduler.store.inspection import inspect_store
from gpu_scheduler.store.job_lists import job_count
from gpu_scheduler.store.new_store import check_encoding, check_state_file, recorded_gpus, removed_if_new
from gpu_scheduler.store.scheduler_lock import (
    InstanceLock,
    Ownership,
    listed,
    locking_pids,
    running_schedulers,
    scheduler_pid,
)
from gpu_scheduler.store.state_file import imports_old_state_file
from gpu_scheduler.store.store import Store
from gpu_scheduler.system.gpu_claims import own_locks
from gpu_scheduler.system.lock_folder import ClaimFolder, find_lock_folder
from gpu_scheduler.system.safe_file import (
    MAX_JSON_BYTES,
    FileProblem,
    ProblemKind,
    inspect,
    writable_by_others,
)

log = logging.getLogger(__name__)

#: An environment variable. With the value "exec", every runner is started as a new program and not forked.
RUNNER_START_VARIABLE = "GPU_SCHEDULER_RUNNERS"


def run(
    options: StartOptions,
    failpoint: Callable[[str], None] = lambda step: None,
    on_ready: Callable[[], None] = lambda: None,
) -> int:
    """Runs the scheduler until it is asked to end; returns the exit code.

    on_ready: called when everything has been checked, `stop` works, and all earlier log messages have been
    printed. failpoint: called at each step of a round, for tests.
    Raises SchedulerError or a subclass if the options or the machine do not allow a start.
    """
    umask = os.umask(0o077)
    set_mark(None)  # if a job started this scheduler, a sweep of that job must not end its helpers
    home = DataDir.of(options.state_file, options.data_dir)
    warnings = check_start(options, home)
    claim_folder = claim_folder_of(options, home)
    claim_folder.prepare()
    is_new = not home.folder.exists()
    home.check_owner(take_over=options.take_over)
    warnings += map(str, home.create())
    others = running_schedulers()
    lock = _acquire_lock(home, options.take_over)
    is_new = is_new and not home.database.exists()  # `submit` may have created the store in the meantime
    console = Console()
    try:
        # All state files in a folder share one main log, `gpu_scheduler.log`.
        name = home.state_file.name
        mark = "" if name == STATE_FILE else f"[{name}] ".replace("%", "%%")
        configure_logging(home.main_log, console, mark, trust=options.trust_files)
        for warning in warnings:
            log.warning("%s", warning)
        with ExitStack() as at_end:
            with removed_if_new(home, is_new=is_new):
                store = at_end.enter_context(closing(open_store(home, options)))
                ownership = Ownership(home, lock)
                executors = _make_executors(options.screen, () if options.slurm is None else ("slurm",))
                # If the start fails, nothing is deleted, and the schema stays as an older version wrote it.
                with store.db.upgraded(), in_own_folder(store, fresh=options.fresh):
                    daemon = Daemon(
                        options, store, ownership, umask, console, failpoint, executors, claim_folder
                    )
            at_end.callback(daemon.close)
            problem = at_end.enter_context(listed(home))
            if problem is not None:
                log.warning("%s; commands in other folders do not find this queue", problem)
            for state_file, _, pid in others:
                text = "another queue of yours runs: %s, %s; both share the GPUs by claims"
                log.info(text, state_file, pid_text(pid))

            def is_up() -> None:
                console.flush()
                on_ready()

            return daemon.serve(is_up)
    except sqlite3.OperationalError as error:
        raise SchedulerError(describe_store_error(home, error)) from None
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        raise damaged_error(home.database, error) from None
    finally:
        console.close()
        lock.release()


def check_start(options: StartOptions, home: DataDir) -> list[str]:
    """Checks a start before anything is created; returns warnings. Raises SchedulerError to refuse it."""
    check_proc()
    home.check_access()
    check_store(options, home)
    warnings = check_old_sessions(options, home)
    check_paths(options)
    return warnings + check_files(options, home)


def count_jobs_to_forget(home: DataDir, *, take_over: bool = False) -> int:
    """Returns the number of jobs that `start --fresh` would forget.

    Raises SchedulerError if `start --fresh` would be refused.
    """
    home.check_access()
    if not home.folder.exists():
        return 0
    home.check_owner(take_over=take_over)
    pid = scheduler_pid(home.lock)
    if pid is not None:
        raise SchedulerError(_running_message(home, pid))
    try:
        found = inspect_store(home)
        if found.state != "whole":
            refuse_unrecorded(found)
            return len({one.job_id for one in found.folders})
        with closing(Store(home, create=True)) as store:
            # If the schema is older, `start` checks the jobs after it has upgraded the store.
            is_upgraded = store.db.schema_version == newest_schema_version()
            if is_upgraded and moved_or_copied.original_of_copy(store) is None:
                refuse_active(store)
            return job_count(store)
    except sqlite3.OperationalError as error:
        raise SchedulerError(describe_store_error(home, error)) from None


def _running_message(home: DataDir, pid: int) -> str:
    return (
        f"a scheduler is already running on {home.state_file} ({pid_text(pid)}); "
        "end it with `stop`, or choose another --state-file"
    )


def _locked_message(home: DataDir) -> str:
    pids = locking_pids(home.folder)
    if not pids:
        return (
            f"{home.folder} is locked by a program that is not visible from here, such as a scheduler in a"
            " container, or was until just now; start again when it has ended"
        )
    locker = f"another program (pid {', '.join(map(str, pids))}), which is not a scheduler"
    return (
        f"{home.folder} is locked by {locker}; start again when that program has ended, or make it lock"
        " another folder"
    )


def _acquire_lock(home: DataDir, take_over: bool) -> InstanceLock:
    """Acquires the scheduler lock, and marks the data directory as owned by this host.

    Raises SchedulerError.
    """
    try:
        lock = InstanceLock(home.lock)
        taken = lock.acquire()
        if taken:
            home.take_ownership(take_over=take_over)
    except OSError as error:
        raise SchedulerError(describe_store_error(home, error)) from None
    if not taken:
        holder = lock.holder_pid()
        lock.release()
        raise SchedulerError(_locked_message(home) if holder is None else _running_message(home, holder))
    return lock


def _make_executors(screen: bool, engines: Iterable[str]) -> Executors:
    """Returns the executors of this machine and of these engines.

    screen: whether new attempts on this machine run in Screen sessions.

    Raises SchedulerError.
    """
    if not screen:
        exec_each = os.environ.get(RUNNER_START_VARIABLE) == "exec"
        direct = DirectExecutor() if exec_each else ForkingExecutor()
        return Executors(direct, ScreenExecutor(), *map(EngineExecutor, engines))
    problem = screen_problem()
    if problem is not None:
        raise SchedulerError(f"--screen: {problem}")
    return Executors(ScreenExecutor(), DirectExecutor(), *map(EngineExecutor, engines))


# Checks of the options, files, folders and store of `start` before anything is created.


def check_proc() -> None:
    """Raises SchedulerError if /proc shows another pid namespace, because its pids must not be signalled."""
    if not shows_own_pids():
        raise SchedulerError(
            "/proc does not show the processes of this container; mount a new one"
            " (`mount -t proc proc /proc`), or add --mount-proc to `unshare --pid`"
        )


def check_paths(options: StartOptions) -> None:
    """Checks the paths that the options give. Raises UsageError with the option, the path and the remedy."""
    # The store cannot contain paths that are not valid UTF-8.
    check_encoding({
        "the working folder": os.getcwd(),
        "--state-file": options.state_file,
        "--data-dir": options.data_dir,
        "--jobs-file": options.jobs_file,
        "--llm-config": options.llm_config,
        "--log-dir": options.log_dir,
        "--conda-sh": options.conda_sh,
    })  # fmt: skip
    check_state_file(options.state_file)
    if options.jobs_file:
        _check_jobs_file(options)
    try:
        LogFolder.from_option(options.log_dir).create()
    except OSError as error:
        named = error.filename if options.log_dir is None else f"--log-dir {options.log_dir}"
        raise UsageError(f"{named}: {error.strerror}; name a folder that you own with --log-dir") from None


def claim_folder_of(options: StartOptions, data_dir: DataDir) -> ClaimFolder:
    """Returns the folder in which the runners claim GPUs, which need not exist.

    Raises UsageError if the variable that names it cannot be used.
    """
    simulation = str(data_dir.simulation) if options.simulated else None
    return ClaimFolder.of(find_lock_folder(), simulation)


def check_store(options: StartOptions, data_dir: DataDir) -> None:
    """Raises UsageError if the stored jobs ran on real GPUs and this start simulates GPUs, or vice versa.

    The options --fresh and --keep-history allow such a start.
    """
    # If a scheduler is running or another host owns the store, the start is refused later for that reason.
    busy = data_dir.other_host() is not None or scheduler_pid(data_dir.lock) is not None
    if options.fresh or options.keep_history or busy:
        return
    found = recorded_gpus(data_dir.database)
    if found is not None and found.conflicts_with(options.simulated):
        raise UsageError("\n".join(found.refusal(data_dir.folder)))


def check_old_sessions(options: StartOptions, data_dir: DataDir) -> list[str]:
    """Returns warnings about live sessions of the older scheduler.

    Raises SchedulerError if there are any and this start would import the older scheduler's state file.
    """
    now = time.time()
    sessions = [session.describe(now) for session in old_sessions()]
    if sessions and not options.ignore_old_sessions and imports_old_state_file(data_dir):
        raise SchedulerError("\n  ".join([REFUSAL, *sessions]) + f"\n{REMEDY}")
    return [f"a job of the older scheduler is still running: {session}" for session in sessions]


def _check_jobs_file(options: StartOptions) -> None:
    path = options.jobs_file
    found: object = FileProblem(ProblemKind.NOT_REGULAR)
    if path != "-":
        found = JobsFile(Path(path), trust=options.trust_files).read()
    if not isinstance(found, FileProblem):
        return
    if found.kind is not ProblemKind.MISSING:
        remedy = found.remedy or "use a text file of jobs that you can read"
        if found.kind is ProblemKind.NOT_REGULAR and not os.path.isdir(path):
            remedy = PIPE_REMEDY
        raise UsageError(f"--jobs-file {path}: {found.description}; {remedy}")
    # Without a file of the usual name, the queue consists of submitted jobs.
    has_queue = DataDir.of(options.state_file, options.data_dir).database.exists()
    if options.drain and not (path == JOBS_FILE and has_queue):
        raise UsageError(
            f"--jobs-file {path}: does not exist; --drain requires an existing file or jobs that were queued"
            " with `submit`"
        )


#: The remedy for the main log, which has no option of its own.
_MAIN_LOG_REMEDY = (
    "choose a --state-file in a folder that you own, which then has its own log, or `start --trust-files`"
)
#: The problems with a file for which `start` is refused.
_REFUSED_KINDS = (
    ProblemKind.OTHER_OWNER,
    ProblemKind.OTHER_OWNER_LINK,
    ProblemKind.WORLD_WRITABLE,
    ProblemKind.LINK,
)


def check_files(options: StartOptions, data_dir: DataDir) -> list[str]:
    """Returns warnings about files that their group can change, and about a folder that everyone can change.

    Raises UsageError for a file that other users can change and for a main log that is a link.
    """
    # The files that determine which commands run, and the main log, each with its size limit.
    files: list[tuple[Path, int | None]] = [
        (Path(os.path.abspath(options.llm_config or LLM_CONFIG)), MAX_JSON_BYTES),
        (data_dir.state_file, MAX_JSON_BYTES),
        (data_dir.main_log, None),
    ]
    if options.jobs_file:
        files.insert(0, (Path(os.path.abspath(options.jobs_file)), LARGEST_JOBS_FILE))
    shared, warnings = [], []
    for path, most in files:
        found = inspect(path, most, trust=options.trust_files, follow_links=most is not None)
        if isinstance(found, FileProblem):
            if found.kind in _REFUSED_KINDS:
                is_log = (path, found.kind) == (data_dir.main_log, ProblemKind.OTHER_OWNER)
                remedy = _MAIN_LOG_REMEDY if is_log else found.remedy
                raise UsageError(f"{path}: {found.description}; {remedy}")
        elif writable_by_others(found):
            shared.append(str(path))
    if shared:
        group, verb = ("its group", "is") if len(shared) == 1 else ("their groups", "are")
        who = "other users, so they" if options.trust_files else f"{group}, so other users"
        warnings.append(f"{', '.join(shared)} {verb} writable by {who} can run commands as you")
    folder = data_dir.folder.parent
    try:
        mode = os.stat(folder).st_mode
    except OSError:
        mode = 0
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        text = "is writable by everyone, so any user can replace the files in it: `chmod o-w` it"
        warnings.append(f"{folder} {text}")
    return warnings


# The background. The scheduler has a session of its own. It prints to the caller's terminal until it is
# ready, so that startup errors appear there, and the caller waits until then. If the scheduler ends before it
# is ready, the caller exits with the same exit code.

#: Called when the scheduler is ready: its options have been checked, and `stop` works.
ReadyCallback = Callable[[], None]


def check_background(options: StartOptions) -> None:
    """Raises UsageError if this process claims GPUs, because its claims would not reach the background."""
    folder = claim_folder_of(options, DataDir.of(options.state_file, options.data_dir))
    if own_locks(folder.path):
        raise UsageError(
            "--daemon: `run` executed this command, and its claims on GPUs would end when the scheduler goes"
            " into the background; use `run -- ... start` without --daemon"
        )


def run_in_background(
    serve: Callable[[ReadyCallback], int],
    on_ready: Callable[[int], None],
    main_log: Path,
    *,
    trust: bool = False,
) -> int:
    """Forks the scheduler process. Returns once in the caller and once in the scheduler.

    In the caller, returns 0 after the scheduler is ready and `on_ready` has been called with its pid. If the
    scheduler ends before that, returns its exit code. In the scheduler, returns its exit code when it ends.

    serve: runs the scheduler until it is asked to end, and calls its argument when the scheduler is ready.
    main_log: receives internal errors after that. trust: use main_log regardless of its owner and mode.
    """
    ready, ready_out = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(ready_out)
        return _wait_until_ready(pid, ready, on_ready)
    os.close(ready)
    return _schedule(serve, ready_out, main_log, trust=trust)


def _wait_until_ready(pid: int, ready_fd: int, on_ready: Callable[[int], None]) -> int:
    try:
        up = os.read(ready_fd, 1)
    except KeyboardInterrupt:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
        raise
    finally:
        os.close(ready_fd)
    if up:
        on_ready(pid)
        return 0
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if code >= 0 else 128 - code


def _schedule(serve: Callable[[ReadyCallback], int], ready_fd: int, main_log: Path, *, trust: bool) -> int:
    # The new session has no terminal, so that the caller's terminal may close and Ctrl-C does not reach us.
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    # The caller may have open locks, or pipes whose readers wait for EOF.
    close_inherited((0, 1, 2, ready_fd, null))
    ready = False

    def up() -> None:
        nonlocal ready
        ready = True
        # From now on, print nothing. Everything is also written to the main log or to the job logs.
        os.dup2(null, 1)
        os.dup2(_open_log(main_log, null, trust=trust), 2)
        with suppress(BrokenPipeError):  # the caller has ended
            os.write(ready_fd, b"\n")
        os.close(ready_fd)

    try:
        return serve(up)
    except Exception:
        if ready:
            log.critical("the scheduler ends because of an internal error", exc_info=True)
        raise


def _open_log(main_log: Path, fallback: int, *, trust: bool) -> int:
    """Opens the main log and returns its descriptor, so that the interpreter can write errors to it."""
    try:
        return open_main_log(main_log, trust=trust)
    except OSError:
        return fallback
