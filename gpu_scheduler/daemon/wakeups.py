"""Waits for all that wakes the scheduler: file changes, ended processes, probe answers and signals.

Watches the folder of each file, because editors replace files. Other files in the folder do not wake the
scheduler.
"""

from __future__ import annotations

import errno
import logging
import os
import selectors
import signal
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from inotify_simple import INotify, flags

log = logging.getLogger(__name__)

_MASK = flags.CLOSE_WRITE | flags.MOVED_TO | flags.MOVED_FROM | flags.CREATE | flags.DELETE | flags.ATTRIB
#: The files in an attempt folder whose creation wakes the scheduler. `stop` is not among them, because the
#: scheduler writes it.
WATCHED_NAMES = ("claim", "result", "withdrawn")


class Wakeups:
    """The event sources of the scheduler. `wait` returns the keys under which they were registered.

    If the kernel allows no more file watches, logs a warning once. The scheduler then finds changes by
    polling.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._warned = False
        self._inotify: INotify | None = None
        try:
            self._inotify = INotify(nonblocking=True)
        except OSError as error:
            self._warn_of_limit(error)
        else:
            self._selector.register(self._inotify.fileno(), selectors.EVENT_READ, "files")
        self._signals, self._signal_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._signals, selectors.EVENT_READ, "signal")
        self._names: dict[int, dict[str, str]] = {}
        self._attempt_watches: dict[Path, int] = {}
        self._runners = _ProcessWatch(self._selector, "runner")
        self._claims = _ProcessWatch(self._selector, "claim")
        self._companions = _ProcessWatch(self._selector, "companion")
        signal.set_wakeup_fd(self._signal_in, warn_on_full_buffer=False)

    def close(self) -> None:
        """Closes all watches and descriptors."""
        signal.set_wakeup_fd(-1)
        for watch in (self._runners, self._claims, self._companions):
            watch.close()
        for fd in (self._signals, self._signal_in):
            os.close(fd)
        if self._inotify is not None:
            self._inotify.close()
        self._selector.close()

    def watch(self, path: Path, key: str) -> bool:
        """Watches for changes to the file with this path. Returns False if its folder cannot be watched."""
        wd = self._add_watch(path.parent, _MASK)
        if wd is None:
            return False
        self._names.setdefault(wd, {})[path.name] = key
        return True

    def watch_fd(self, fd: int, key: str) -> None:
        """Watches a descriptor for input. Call this only once per descriptor."""
        self._selector.register(fd, selectors.EVENT_READ, key)

    def watch_attempts(self, folders: Mapping[Path, int | None]) -> bool:
        """Watches exactly these attempt folders and the pids of their runners.

        Returns True if a folder is new, or if a runner cannot be watched. The caller must then observe the
        attempts again, because they may have changed before.
        """
        for folder in [f for f in self._attempt_watches if f not in folders]:
            self._remove_watch(self._attempt_watches.pop(folder))
        new = [self.watch_attempt(folder) for folder in folders if folder not in self._attempt_watches]
        return self._runners.watch({pid for pid in folders.values() if pid}) or any(new)

    def watch_attempt(self, folder: Path) -> bool:
        """Watches an attempt folder before its runner is started. Returns False if it cannot be watched."""
        if folder in self._attempt_watches:  # the folder was made again
            self._remove_watch(self._attempt_watches.pop(folder))
        wd = self._add_watch(folder, flags.MOVED_TO | flags.CREATE)
        if wd is None:
            return False
        self._attempt_watches[folder] = wd
        self._names[wd] = dict.fromkeys(WATCHED_NAMES, "attempt")
        return True

    def watch_claims(self, pids: Collection[int]) -> bool:
        """Watches exactly these processes, which claim GPUs; their end has the key "claim".

        Returns True if one cannot be watched, for example because it has ended. The caller must then read the
        claims again.
        """
        return self._claims.watch(pids)

    def watch_companions(self, pids: Collection[int]) -> None:
        """Watches exactly these companions of the scheduler; their end has the key "companion"."""
        self._companions.watch(pids)

    def wait(self, timeout_s: float | None) -> set[str]:
        """Waits for events and returns their keys. timeout_s: the maximum time to wait; None for no limit."""
        keys: set[str] = set()
        for key, _ in self._selector.select(timeout_s):
            if key.data == "files" and self._inotify is not None:
                for event in self._inotify.read(timeout=0):
                    keys |= self._keys_of(event)
            elif key.data == "signal":
                os.read(self._signals, 4096)
                keys.add("signal")
            else:
                if key.data in (self._runners.key, self._claims.key, self._companions.key):
                    self._selector.unregister(key.fd)
                keys.add(key.data)
        return keys

    def _keys_of(self, event: Any) -> set[str]:
        names = self._names.get(event.wd)
        if event.mask & flags.Q_OVERFLOW:
            return {key for known in self._names.values() for key in known.values()}
        if names is None:
            return set()
        return {names[event.name]} if event.name in names else set()

    def _remove_watch(self, wd: int) -> None:
        self._names.pop(wd, None)
        if self._inotify is None:
            return
        try:
            self._inotify.rm_watch(wd)
        except OSError:
            pass  # the folder was removed, and the kernel removed the watch with it

    def _add_watch(self, folder: Path, mask: int) -> int | None:
        if self._inotify is None:
            return None
        try:
            watch: int = self._inotify.add_watch(str(folder), mask)
            return watch
        except OSError as error:
            if error.errno == errno.ENOSPC:
                self._warn_of_limit(error)
            return None

    def _warn_of_limit(self, error: OSError) -> None:
        if not self._warned:
            limit = "watches=65536" if error.errno == errno.ENOSPC else "instances=1024"
            log.warning(
                "cannot watch files (%s), so the scheduler polls for changes; to raise the limit, run"
                " `sudo sysctl fs.inotify.max_user_%s`",
                error.strerror,
                limit,
            )
            self._warned = True


class _ProcessWatch:
    """Watches processes for their end, through pidfds that are registered under one key."""

    def __init__(self, selector: selectors.BaseSelector, key: str) -> None:
        self.key = key
        self._selector = selector
        self._pidfds: dict[int, int] = {}
        #: The processes that could not be watched at the last attempt, with the errno.
        self._unwatched: dict[int, int] = {}

    def watch(self, pids: Collection[int]) -> bool:
        """Watches exactly these processes; returns whether there is a new one that cannot be watched.

        One that has ended since a shortage kept it from being watched is new, too. The end of a process that
        is watched now wakes the scheduler, even if it has ended since it was seen.
        """
        for pid in [p for p in self._pidfds if p not in pids]:
            self._drop(pid)
        missing = [pid for pid in pids if pid not in self._pidfds]
        known, self._unwatched = self._unwatched, {}
        for pid in missing:
            error = self._add(pid)
            if error:
                self._unwatched[pid] = error
        return any(
            pid not in known or (error == errno.ESRCH and known[pid] != error)
            for pid, error in self._unwatched.items()
        )

    def close(self) -> None:
        """Ends the watch."""
        for pid in list(self._pidfds):
            self._drop(pid)

    def _add(self, pid: int) -> int:
        """Watches a process. Returns the errno if it has ended or something runs out, otherwise 0."""
        try:
            fd = os.pidfd_open(pid)
        except OSError as error:
            return error.errno or errno.EIO
        try:
            self._selector.register(fd, selectors.EVENT_READ, self.key)
        except OSError as error:
            os.close(fd)
            return error.errno or errno.EIO
        self._pidfds[pid] = fd
        return 0

    def _drop(self, pid: int) -> None:
        fd = self._pidfds.pop(pid)
        try:
            self._selector.unregister(fd)
        except (KeyError, ValueError):
            pass  # the process has ended
        os.close(fd)
