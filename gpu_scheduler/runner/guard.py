"""The guard: the process that an engine starts. It starts the runner, and proves that its machine is alive.

A second process, the writer, writes the heartbeat into the attempt folder and reports each write that has
returned. If none has for long, others may take this machine for dead and run the job again. The guard then
kills every process of the attempt.

The file server of the folder may not answer, and every access to it then hangs in the kernel. After the
start, the guard therefore reads nothing but pipes and /proc, and waits for neither runner nor writer. Neither
it nor the writer has the token or the mark of the attempt, because the runner ends every process that has.

If the guard is killed, the standard input of the runner ends, and the runner kills the command.
"""

from __future__ import annotations

import os
import resource  # noqa: F401 - `folder.mark_of` imports it, which would hang then
import select
import sys
import time

from .child import become_subreaper, call_c
from .folder import START, TOKEN, close_inherited, exists, open_folder, read_spec, scaled, write_traceback
from .group_signals import signal_children
from .process_scan import descendants, scan, send_signal
from .termination import HUP, KILL, TERM, USR1

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
else:
    import _signal

#: Seconds between two heartbeats; without one, until the guard kills; and between two looks at the clock.
#: These looks matter after a suspension of the machine, during which the timeouts of `poll` stand still.
_BEAT_S, _SILENCE_S, _LOOK_S = 30.0, 600.0, 2.0
#: Seconds between the first two scans for processes to kill. This time then doubles, up to the second one.
_RESCAN_S, _LONGEST_RESCAN_S = 0.03, 1.0
#: The signals, besides SIGTERM, that an engine or a user may send to all processes of the engine's job.
_IGNORED = (HUP, USR1, _signal.SIGINT, _signal.SIGQUIT, _signal.SIGUSR2)
_MCL_CURRENT = 1
#: The size of a report: the time at which a write began, in nanoseconds since boot.
_REPORT_BYTES = 8


def main(path: str) -> None:
    """Guards the attempt in this folder until it has ended; never returns."""
    os.umask(0o077)
    for number in _IGNORED:
        _signal.signal(number, _signal.SIG_IGN)
    _signal.pthread_sigmask(_signal.SIG_BLOCK, (TERM,))
    status = 1
    try:
        folder = open_folder(path)
        if exists(folder, "claim"):
            os._exit(0)  # another job of the engine runs or ran the attempt, and writes the heartbeat
        guard = AttemptGuard(path, folder)
    except BaseException:  # noqa: BLE001 - any fault must leave a trace
        write_traceback(path)
        os._exit(status)
    try:
        status = guard.watch()
    finally:
        os._exit(status)  # a traceback could hang; after a fault, the runner ends the command


class AttemptGuard:
    """The guard of one attempt. The constructor starts the writer and the runner; it may raise OSError."""

    def __init__(self, path: str, folder: int) -> None:
        self._folder = folder
        self._token: str = read_spec(path)["token"]
        self._began_ns = self._last_ns = _now_ns()
        _write_heartbeat(self._folder, 0)
        become_subreaper()  # so that every process of the attempt remains below this one
        # The files of Python may be on the same server. Where the limit allows it, they stay in memory.
        call_c("mlockall", _MCL_CURRENT)
        self._poll = select.poll()
        self._start_writer()
        self._start_runner(path)

    def _start_writer(self) -> None:
        reports, end = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            os.close(reports)
            os.close(end)
            raise
        if pid == 0:
            try:
                _write_heartbeats(self._folder, end, self._began_ns)
            finally:
                os._exit(1)
        os.close(end)
        self._writer, self._reports = pid, reports
        self._poll.register(reports, select.POLLIN)

    def _start_runner(self, path: str) -> None:
        stdin, self._runner_stdin = os.pipe()
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", START, path],
            {**os.environ, TOKEN: self._token},
            file_actions=[(os.POSIX_SPAWN_DUP2, stdin, 0)],
            setsigmask=(TERM,),  # until the runner can handle it
        )
        os.close(stdin)
        self._runner = os.pidfd_open(pid)
        self._poll.register(self._runner, select.POLLIN)
        _signal.signal(TERM, self._forward)
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, (TERM,))

    def _forward(self, number: int, _frame: object) -> None:
        """Passes on a signal that only the guard may have received. The runner may get it twice."""
        try:
            _signal.pidfd_send_signal(self._runner, number)
        except ProcessLookupError:
            pass

    def watch(self) -> int:
        """Waits until the runner has ended and returns 0, or kills the attempt and returns 1."""
        while True:
            ready = dict(self._poll.poll(_ms(_LOOK_S)))
            if self._was_silent(self._reports in ready):
                self._kill_all(self._token)
                return 1
            if self._runner in ready:
                # A runner that was killed has left its command. Only processes below this one are searched:
                # with the same token, another guard may run the attempt on this machine.
                self._kill_all(None)
                return 0
            if self._reports < 0:
                try:
                    self._start_writer()
                except OSError:
                    pass  # no process or memory is left; tried again at the next look

    def _was_silent(self, has_reports: bool) -> bool:
        """Returns whether too much time has passed after a write, before the next one or until now.

        The time counts from the beginning of a write that has returned, because its answer may have come
        late. A report that comes after the silence does not hide it, for example after a suspension.
        """
        data = os.read(self._reports, 1 << 16) if has_reports else b""
        if has_reports and not data:  # the writer has ended
            self._poll.unregister(self._reports)
            os.close(self._reports)
            self._reports = -1
        reports = [data[at : at + _REPORT_BYTES] for at in range(0, len(data), _REPORT_BYTES)]
        begun_ns = [self._last_ns, *(int.from_bytes(report, "little") for report in reports)]
        self._last_ns = begun_ns[-1]
        later_ns = [*begun_ns[1:], _now_ns()]
        longest_ns = max(end - start for start, end in zip(begun_ns, later_ns, strict=True))
        return longest_ns > scaled(_SILENCE_S) * 1e9

    def _kill_all(self, token: str | None) -> None:
        """Kills the runner, the writer, and all processes below the guard or with this token or its mark.

        Repeats that until two scans in a row find none. Does not wait for the writer.
        """
        # The runner comes first, because it could publish the signal of its command as the result.
        self._forward(KILL, None)
        os.kill(self._writer, KILL)
        empty_scans, pause_s = 0, _RESCAN_S
        while empty_scans < 2:
            empty_scans += 1
            try:
                below = descendants(os.getpid())
                below.pop(self._writer, None)
                _kill(below)
                signal_children(KILL)  # those that fork and end too quickly for a scan
                # This scan comes last, because it reads the environments of processes, which may hang for one
                # that hangs in the kernel and has not got SIGKILL.
                others = {} if token is None else scan({token: None}).found.get(token, {})
                _kill(others)
                if _collect() or below or others:
                    empty_scans = 0
            except OSError:
                empty_scans = 0  # out of open files or memory
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_RESCAN_S)


def _kill(processes: dict[int, int]) -> None:
    for pid, ticks in processes.items():
        send_signal(pid, ticks, KILL)


def _collect() -> bool:
    """Collects the children that have ended; returns whether there were any."""
    collected = False
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            collected = True
    except ChildProcessError:
        pass
    return collected


def _write_heartbeats(folder: int, reports: int, began_ns: int) -> None:
    """Writes and reports heartbeats until the guard has ended. They are numbered from `began_ns`."""
    _signal.signal(TERM, _signal.SIG_IGN)
    close_inherited((0, 1, 2, folder, reports))
    guard = select.poll()
    guard.register(reports, 0)  # reports an error once nobody can read the reports
    while not guard.poll(_ms(_BEAT_S)):
        now_ns = _now_ns()
        try:
            _write_heartbeat(folder, int((now_ns - began_ns) / (scaled(_BEAT_S) * 1e9)))
        except OSError:
            continue  # not reported; the next one may succeed
        os.write(reports, now_ns.to_bytes(_REPORT_BYTES, "little"))


def _write_heartbeat(folder: int, number: int) -> None:
    """Writes the heartbeat so that every later `open` on another NFS client shows it.

    The file keeps its inode, because a client that opens a file asks the server whether this inode has
    changed, whereas it may remember for a minute to which inode a name belongs. The number has a fixed width,
    so that one request replaces it as a whole and needs no space on a full disk.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open("heartbeat", flags, 0o600, dir_fd=folder)
    try:
        os.pwrite(fd, f"{number:20}\n".encode("ascii"), 0)
        os.fsync(fd)
    finally:
        os.close(fd)  # may fail, too, if the server has not written it


def _now_ns() -> int:
    """Returns the time since boot, which goes on while the machine is suspended."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _ms(seconds: float) -> int:
    return max(1, round(scaled(seconds) * 1000))
