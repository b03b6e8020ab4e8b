"""Which host a record belongs to: there alone can locks and processes be judged, so it alone may write.

A file says so. It appears whole, and where two hosts make it at the same moment, one of them does.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpu_scheduler.core import jsontext
from gpu_scheduler.safefile import json_bytes

_MACHINE_ID = ("/etc/machine-id", "/var/lib/dbus/machine-id")


@dataclass(frozen=True)
class Host:
    """A host. name: what it is called; machine: a digest of its machine-id, None where it has none; record:
    the folder of the record there, where the file that names the host does not lie in it."""

    name: str
    machine: str | None = None
    record: str | None = None

    def is_same(self, other: Host) -> bool:
        """Whether both are one machine: by machine-id, which outlives a new name, else by name."""
        if self.machine is not None and other.machine is not None:
            return self.machine == other.machine
        return self.name == other.name

    def to_object(self) -> dict[str, str | None]:
        """The host as an object of JSON."""
        return asdict(self)

    @classmethod
    def from_object(cls, value: Any) -> Host | None:
        """What `to_object` made; None for anything else."""
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            return None
        more = [value.get("machine"), value.get("record")]
        return cls(value["name"], *more) if all(one is None or isinstance(one, str) for one in more) else None


def this_host(record: str | None = None) -> Host:
    """The host that this process runs on."""
    return Host(os.uname().nodename, _machine(), record)


def _machine() -> str | None:
    for path in _MACHINE_ID:
        try:
            text = Path(path).read_text("ascii").strip()
        except (OSError, ValueError):
            continue
        if text and text != "uninitialized":
            # The id itself is not for others to know (machine-id(5)).
            return hashlib.sha256(f"gpu_scheduler {text}".encode()).hexdigest()[:32]
    return None


def named_host(path: Path) -> Host:
    """The host that a file names. Raises OSError, and ValueError where it names none."""
    host = Host.from_object(jsontext.parse(jsontext.decode(json_bytes(path, trust=True))))
    if host is None:
        raise ValueError("no host")
    return host


def read_host(path: Path) -> Host | None:
    """The host that a file names; None where there is no such file, or it is none of ours."""
    try:
        return named_host(path)
    except (OSError, ValueError):
        return None


def write_host(path: Path, host: Host) -> None:
    """Let the file name this host, at once and whole, whatever it named before. Raises OSError."""
    fresh = _written(path, host)
    try:
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def claim_host(path: Path, host: Host) -> None:
    """Let the file name this host if it is not there; reading it tells which one it names. Raises OSError."""
    fresh = _written(path, host)
    try:
        os.link(fresh, path)
    except FileExistsError:
        pass
    except OSError:  # a file system without links
        _make(path, host)
    finally:
        fresh.unlink(missing_ok=True)


def _written(path: Path, host: Host) -> Path:
    # Hosts that share the folder may have the same pids.
    fresh = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    _make(fresh, host)
    return fresh


def _make(path: Path, host: Host) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return
    try:
        with open(fd, "w", encoding="utf-8") as file:
            file.write(json.dumps(host.to_object()) + "\n")
            file.flush()
            os.fsync(fd)
    except OSError:
        path.unlink(missing_ok=True)
        raise
