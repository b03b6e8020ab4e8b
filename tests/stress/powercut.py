"""P1: the power is cut while jobs are submitted and run. Every acknowledged change must survive.

The data directory is on a disk image that is mounted in separate namespaces. The test stops all processes in
these namespaces, copies the image, kills everything, and mounts the copy in the same place with another boot
id. What was not flushed to the disk is lost, as after a power cut (except for torn writes).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.stress.harness import ROOT, environment, kill, pause
from tests.stress.part import Findings, Order
from tests.stress.trace import judge, number_of, outcomes_of
from tests.waiting import wait_for

_MIB = 360
#: The command that makes each file system, and its mount options.
_KINDS = {
    "ext4": (["mkfs.ext4", "-qF"], "loop"),
    "xfs": (["mkfs.xfs", "-qf"], "loop,nouuid"),
    "btrfs": (["mkfs.btrfs", "-qf"], "loop"),
}


def ext4(order: Order) -> Findings:
    """Cuts the power 20 times, with the data directory on ext4."""
    return _cuts(order, "ext4")


def xfs(order: Order) -> Findings:
    """Cuts the power 20 times, with the data directory on XFS."""
    return _cuts(order, "xfs")


def btrfs(order: Order) -> Findings:
    """Cuts the power 20 times, with the data directory on Btrfs."""
    return _cuts(order, "btrfs")


def _cuts(order: Order, kind: str) -> Findings:
    found, dice = Findings(), order.rng(kind)
    found.skipped = _cannot(order.folder, kind)
    if found.skipped is not None:
        return found
    rounds = order.scaled(20)
    found.figures = {"power cuts": rounds, "accepted": 0, "reported as ended": 0, "running at the cut": 0}
    for number in range(rounds):
        folder = order.folder / str(number)
        (folder / "disk").mkdir(parents=True)
        (folder / "out").mkdir()
        _make(folder / "image", kind)
        _live_and_cut(folder, kind, dice.uniform(0.4, 1.6), order.is_control)
        _judge(folder, kind, order.is_control, found)
        shutil.rmtree(folder)
    return found


def _cannot(folder: Path, kind: str) -> str | None:
    """Returns why this part cannot run on this machine, or None if it can."""
    if os.geteuid() != 0:
        return "only root can mount images"
    if shutil.which(_KINDS[kind][0][0]) is None:
        return f"{_KINDS[kind][0][0]} is not installed"
    _make(folder / "image", kind)
    (folder / "disk").mkdir()
    tried = subprocess.run(
        _inside(folder, kind, "image", "true"), capture_output=True, text=True, check=False
    )
    return None if tried.returncode == 0 else f"{kind} cannot be mounted: {tried.stderr.strip()}"


def _make(image: Path, kind: str) -> None:
    with open(image, "wb") as file:
        file.truncate(_MIB << 20)
    subprocess.run([*_KINDS[kind][0], str(image)], check=True, capture_output=True)


def _inside(folder: Path, kind: str, image: str, *command: str) -> list[str]:
    """Returns a command line that runs a command in new namespaces, in the root of the mounted image.

    The namespaces and the mount end with the command.
    """
    disk = folder / "disk"
    boot = folder / "boot_id"
    script = (
        f'mount -t {kind} -o {_KINDS[kind][1]} "{folder / image}" "{disk}" || exit 9\n'
        f'[ ! -e "{boot}" ] || mount --bind "{boot}" /proc/sys/kernel/random/boot_id || exit 9\n'
        f'cd "{disk}" && exec "$@"\n'
    )
    return ["unshare", "-mpf", "--mount-proc", "--kill-child", "sh", "-c", script, "sh", *command]


def _life(folder: Path, kind: str, image: str, *words: str) -> subprocess.Popen[bytes]:
    with open(folder / "out" / "output", "ab") as output:
        command = [sys.executable, "-m", "tests.stress.disk_session", *words]
        return subprocess.Popen(
            _inside(folder, kind, image, *command),
            env=environment(ROOT), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip


def _live_and_cut(folder: Path, kind: str, seconds: float, is_control: bool) -> None:
    acks = folder / "out" / "acks"
    life = _life(folder, kind, "image", "before", str(folder / "out"), *["control"] * is_control)

    def has_acks() -> bool:
        assert life.poll() is None, (folder / "out" / "output").read_text()[-2000:]
        return acks.exists() and acks.stat().st_size > 0

    try:
        wait_for(has_acks, "a first job", timeout_s=60)
        pause(seconds)
        _stop_all(life.pid)
        # From now on, no user receives an acknowledgement. The kernel may still flush more to the disk.
        subprocess.run(["cp", "--sparse=always", folder / "image", folder / "copy"], check=True)
    finally:
        for pid in _pids_inside(life.pid):
            kill(pid)
        life.kill()
        life.wait()


def _pids_inside(unshare: int) -> list[int]:
    """Returns the pids, in our own namespace, of the processes in the pid namespace that `unshare` made."""
    try:
        [init] = Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split()
        space = os.readlink(f"/proc/{init}/ns/pid")
    except (OSError, ValueError):
        return []
    found = []
    for path in Path("/proc").iterdir():
        try:
            if path.name.isdigit() and os.readlink(path / "ns" / "pid") == space:
                found.append(int(path.name))
        except OSError:
            continue
    return found


def _stop_all(unshare: int) -> None:
    """Stops all processes in the namespace, until a scan finds none that is running.

    A process that waits in the kernel for a stopped child between fork and exec never stops, but it does
    nothing either. Other waits in the kernel are short.
    """
    deadline = time.monotonic() + 30
    settled = time.monotonic() + 1
    while True:
        states = {pid: _state(pid) for pid in _pids_inside(unshare)}
        moving = [pid for pid, state in states.items() if state not in "TZXD"]
        if moving:
            settled = time.monotonic() + 1
        elif "D" not in states.values() or time.monotonic() > settled:
            return
        for pid in moving:
            kill(pid, signal.SIGSTOP)
        pause(0.005)
        assert time.monotonic() < deadline, f"not stopped: {moving}"


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def _judge(folder: Path, kind: str, is_control: bool, found: Findings) -> None:
    """Mounts the copy with another boot id, runs a scheduler in it, and checks the store before and after."""
    out = folder / "out"
    (folder / "boot_id").write_text("11111111-2222-4333-8444-555555555555\n")
    words = [line.split() for line in (out / "acks").read_text().splitlines()]
    accepted = [word[1] for word in words if word[0] == "job"]
    ended = {word[1]: word[2] for word in words if word[0] == "done"}
    found.count("accepted", len(accepted))
    found.count("reported as ended", len(ended))
    life = _life(folder, kind, "copy", "after", str(out))
    if life.wait(300) != 0 or not (out / "record.json").exists():
        found.fault("unusable", (out / "output").read_text()[-500:])
        return
    record = json.loads((out / "record.json").read_text())
    if record["integrity"] != "ok":
        found.fault("damaged", str(record["integrity"]))
    for job in accepted:
        if job not in record["jobs"]:
            found.fault("lost", f"job {job} was accepted")
    _judge_final(out, ended, is_control, found)


def _judge_final(out: Path, ended: dict[str, str], is_control: bool, found: Findings) -> None:
    if not (out / "final.json").exists():
        return
    status = json.loads((out / "final.json").read_text())
    by_id = {str(job["id"]): job for job in status["jobs"]}
    for job, code in ended.items():
        if str(by_id.get(job, {}).get("exit_code")) != code:
            found.fault("lost", f"job {job} was reported as ended with {code}: {by_id.get(job)}")
    found.count("running at the cut", sum(1 for job in status["jobs"] if job["state"] == "held"))
    codes = {number: number % 5 for number in (number_of(job["command"]) for job in status["jobs"])}
    judge(out / "trace", codes, outcomes_of(status), killed=True).report_to(found)
