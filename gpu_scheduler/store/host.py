"""Reads and writes the file that records which host owns a store.

Only that host can check the store's locks and processes, so only that host may write to the store. Readers
never see an incomplete file. If two hosts create the file at the same moment, exactly one of them succeeds.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from gpu_scheduler.core.text import strict_json
from gpu_scheduler.system.safe_file import read_json_bytes

_MACHINE_ID = ("/etc/machine-id", "/var/lib/dbus/machine-id")


@dataclass(frozen=True)
class Host:
    """A host.

    name: its host name; machine: a digest of its machine-id, or None if it has no machine-id; data_dir: the
    data directory on that host, or None if the host file is in that directory.
    """

    name: str
    machine: str | None = None
    data_dir: str | None = None

    def is_same_machine(self, other: Host) -> bool:
        """Returns whether the machine-ids are equal or, if one is unknown, whether the host names are equal.

        The machine-id does not change when a host is renamed.
        """
        if self.machine is not None and other.machine is not None:
            return self.machine == other.machine
        return self.name == other.name


def this_host(data_dir: str | None = None) -> Host:
    """Returns the host on which this process runs."""
    return Host(os.uname().nodename, _machine_digest(), data_dir)


def _machine_digest() -> str | None:
    for path in _MACHINE_ID:
        try:
            text = Path(path).read_text("ascii").strip()
        except (OSError, ValueError):
            continue
        if text and text != "uninitialized":
            # The id itself must not be published (machine-id(5)).
            return hashlib.sha256(f"gpu_scheduler {text}".encode()).hexdigest()[:32]
    return None


def parse_host_file(path: Path) -> Host:
    """Returns the host that a file names. Raises OSError, and ValueError if the file does not name a host."""
    value = strict_json.parse(strict_json.decode(read_json_bytes(path, trust=True)))
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError("the file does not name a host")
    more = [value.get("machine"), value.get("data_dir")]
    if not all(one is None or isinstance(one, str) for one in more):
        raise ValueError("the file does not name a host")
    return Host(value["name"], *more)


def read_host(path: Path) -> Host | None:
    """Returns the host that a file names, or None if the file is missing or invalid."""
    try:
        return parse_host_file(path)
    except (OSError, ValueError):
        return None


def write_host(path: Path, host: Host) -> None:
    """Atomically replaces the file with one that names this host. Raises OSError."""
    from gpu_scheduler.system.atomic_file import replace_file  # needed only by `start`

    replace_file(path, _file_text(host), synced=True)


def claim_host(path: Path, host: Host) -> None:
    """Creates the file for this host unless it exists. Raises OSError.

    Read the file afterwards to find out which host it names.
    """
    from gpu_scheduler.system.atomic_file import create_file

    # The name is random, because the same pid may occur on several hosts that share the folder.
    fresh = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    create_file(fresh, _file_text(host), synced=True)
    with suppress(FileExistsError):
        try:
            os.link(fresh, path)
        except FileExistsError:
            pass
        except OSError:  # the file system does not support hard links
            create_file(path, _file_text(host), synced=True)
        finally:
            fresh.unlink(missing_ok=True)


def _file_text(host: Host) -> bytes:
    return f"{json.dumps(asdict(host))}\n".encode()
