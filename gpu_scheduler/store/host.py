"""Which host a record belongs to: there alone can locks and processes be judged, so it alone may write."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_MACHINE_ID = ("/etc/machine-id", "/var/lib/dbus/machine-id")


@dataclass(frozen=True)
class Host:
    """A host. name: what it is called; machine: a digest of its machine-id, None where it has none."""

    name: str
    machine: str | None = None

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
        name, machine = (value.get("name"), value.get("machine")) if isinstance(value, dict) else (None, None)
        if not isinstance(name, str) or not (machine is None or isinstance(machine, str)):
            return None
        return cls(name, machine)


def this_host() -> Host:
    """The host that this process runs on."""
    return Host(os.uname().nodename, _machine())


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


def read_host(path: Path) -> Host | None:
    """The host that a file names; None where there is no such file, or it is none of ours."""
    try:
        return Host.from_object(json.loads(path.read_bytes()))
    except (OSError, ValueError):
        return None


def write_host(path: Path, host: Host) -> None:
    """Let the file name this host, at once and whole. Raises OSError."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps(host.to_object()) + "\n", "utf-8")
    fresh.replace(path)
