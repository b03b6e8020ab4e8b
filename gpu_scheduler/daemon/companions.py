"""Keeps child processes of the scheduler running, such as the web server of `start --serve`.

A companion that ends is started again after 1, 2, 4 … 60 s, and after 1 s if it has lived for a minute. Exit
code 2 (a wrong option, a package that is not installed) is final, because no repetition helps.

Companions end with the scheduler, even if it is killed: the standard input of each is a pipe into which only
the scheduler could write, and a companion ends itself at the end of that file (`--until-eof 0`).
"""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field

from gpu_scheduler.config import NOTIFY_VARIABLE, REDIS_URL_VARIABLE, StartOptions
from gpu_scheduler.daemon.log_output import open_main_log
from gpu_scheduler.runner.folder import TOKEN
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.system.own_process import program_words

log = logging.getLogger(__name__)

#: Seconds: the longest wait before a new start, and the life after which the next wait is the shortest.
_LONGEST_WAIT_S = _LONG_LIFE_S = 60.0
#: Seconds that companions have to end before they are killed.
_GRACE_S = 6.0
_USAGE_ERROR = 2


class Companion(Struct):
    """A command to keep running. It must end within 5 s of SIGTERM, and of the end of its standard input.

    env: variables, such as secrets, that only this command gets. due_at: the time of its next start; None if
    it runs, or ran for good. Times are in seconds since boot.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    due_at: float | None = 0.0
    started_at: float = 0.0
    wait_s: float = 0.0


def companions_of(options: StartOptions, home: DataDir, newest_event: int = 0) -> list[Companion]:
    """Returns the companions that the options of `start` ask for. newest_event: its id."""
    return [
        *_server(options, home), *_redis_agent(options, home), *_engine_agent(options, home),
        *_notifier(options, home, newest_event),
    ]  # fmt: skip


def _notifier(options: StartOptions, home: DataDir, newest_event: int) -> list[Companion]:
    if not options.notify:
        return []
    words = ["notify", "--after", str(newest_event), "--state-file", str(home.state_file), "--until-eof", "0"]
    if options.data_dir is not None:
        words += ["--data-dir", os.path.abspath(options.data_dir)]
    argv = (*program_words(), *words)
    return [Companion("notify", argv, {NOTIFY_VARIABLE: "\n".join(options.notify)})]


def _engine_agent(options: StartOptions, home: DataDir) -> list[Companion]:
    if options.slurm is None:
        return []
    words = ["engine-agent", "--state-file", str(home.state_file), "--until-eof", "0"]
    if options.data_dir is not None:
        words += ["--data-dir", os.path.abspath(options.data_dir)]
    return [Companion("engine-agent", (*program_words(), *words))]


def _redis_agent(options: StartOptions, home: DataDir) -> list[Companion]:
    if options.redis is None:
        return []
    words = ["redis-agent", "--dir", os.path.abspath("."), "--state-file", str(home.state_file)]
    words += ["--until-eof", "0"]
    if options.data_dir is not None:
        words += ["--data-dir", os.path.abspath(options.data_dir)]
    if options.requeue_silent_after is not None:
        words += ["--requeue-silent-after", f"{options.requeue_silent_after:g}"]
    argv = (*program_words(), *words)
    return [Companion("redis-agent", argv, {REDIS_URL_VARIABLE: options.redis})]


def _server(options: StartOptions, home: DataDir) -> list[Companion]:
    if options.serve is None:
        return []
    host, _, port = options.serve.rpartition(":")
    words = ["serve", "--host", host.strip("[]"), "--port", port, "--state-file", str(home.state_file)]
    words += ["--until-eof", "0", *["--as-root"] * options.as_root]
    words += ["--open-metrics"] * options.open_metrics
    words += [f"--allowed-host={name}" for name in options.allowed_host]
    for name in ("data_dir", "tls_cert", "tls_key"):
        if (path := getattr(options, name)) is not None:
            words += [f"--{name.replace('_', '-')}", os.path.abspath(path)]
    return [Companion("serve", (*program_words(), *words))]


class Companions:
    """The companions of one scheduler. They print to the main log. trust: as for the main log."""

    def __init__(self, companions: Sequence[Companion], main_log: Path, *, trust: bool = False) -> None:
        self._children = companions
        self._main_log, self._trust = main_log, trust
        # Programs that the scheduler starts inherit neither end.
        self._pipe: tuple[int, ...] = os.pipe() if companions else ()

    @property
    def pids(self) -> set[int]:
        """The pids of the companions whose end `update` has not yet noticed."""
        return {child.process.pid for child in self._children if child.process is not None}

    @property
    def due_at(self) -> float | None:
        """The time of the next start; None if none is planned."""
        return min((child.due_at for child in self._children if child.due_at is not None), default=None)

    def update(self, now: float) -> None:
        """Notices which companions have ended, and starts those that are due."""
        for child in self._children:
            if child.process is not None and (code := child.process.poll()) is not None:
                child.process = None
                how = f"exit code {code}" if code >= 0 else f"signal {-code}"
                self._plan_start(child, now, f"has ended ({how})", is_final=code == _USAGE_ERROR)
            if child.due_at is not None and now >= child.due_at:
                self._start(child, now)

    def close(self) -> None:
        """Ends all companions, and kills those that have not ended after some seconds."""
        running = [child.process for child in self._children if child.process is not None]
        for process in running:
            process.terminate()
        for fd in self._pipe:
            os.close(fd)
        end = time.monotonic() + _GRACE_S
        for process in running:
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, child: Companion, now: float) -> None:
        try:
            output = open_main_log(self._main_log, trust=self._trust)
        except OSError:
            output = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        child.started_at, child.due_at = now, None
        # If a job started this scheduler, a sweep of that job must not end the companion.
        env = {name: value for name, value in os.environ.items() if name != TOKEN} | dict(child.env)
        try:
            # In a session of its own, so that Ctrl-C in the scheduler's terminal does not reach it.
            child.process = subprocess.Popen(
                child.argv, stdin=self._pipe[0], stdout=output, stderr=output, env=env, start_new_session=True
            )
        except OSError as error:
            self._plan_start(child, now, f"cannot be started ({error.strerror})")
        else:
            if child.wait_s < _LONGEST_WAIT_S:
                text = "%s is running (pid %d); its messages are in %s"
                log.info(text, child.name, child.process.pid, self._main_log)
        finally:
            os.close(output)

    def _plan_start(self, child: Companion, now: float, problem: str, *, is_final: bool = False) -> None:
        if is_final:
            text = "%s %s and is not started again; its last message in %s says why"
            log.error(text, child.name, problem, self._main_log)
            return
        before_s = 0.0 if now - child.started_at >= _LONG_LIFE_S else child.wait_s
        child.wait_s = min(max(1.0, 2 * before_s), _LONGEST_WAIT_S)
        child.due_at = now + child.wait_s
        if before_s < _LONGEST_WAIT_S:  # from then on, every minute would fill the log
            again = (
                f"in {child.wait_s:.0f} s" if child.wait_s < _LONGEST_WAIT_S else "every minute from now on"
            )
            log.warning("%s %s and is started again %s", child.name, problem, again)
