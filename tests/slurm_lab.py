"""A real Slurm of three nodes in a temporary folder, on this machine. Needs root, but no munge.

The GPUs are character devices without function, two of the type a100 on each node; each GPU has two shards.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.waiting import wait_for

#: Programs without which no lab can start; the Debian packages of the same names, and slurm-client.
PROGRAMS = ("slurmctld", "slurmd", "sbatch")
NODES = 3
GPUS_OF_NODE = 2
SHARDS_OF_GPU = 2
#: Partitions: the default one; one that preempts jobs of the others; two with limits; one that is down.
PARTITION, URGENT, SHORT, ONE_NODE, CLOSED = "gpu", "urgent", "short", "single", "closed"
#: Seconds after which programs give up a controller that does not answer, and after which a node is down.
MESSAGE_TIMEOUT_S = 2
NODE_TIMEOUT_S = 5
_DEADLINE_S = 30

_CONF = f"""\
ClusterName=lab
SlurmctldHost={{host}}(127.0.0.1)
SlurmctldPort={{port}}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SlurmdParameters=config_overrides
SlurmctldPidFile={{folder}}/slurmctld.pid
SlurmdPidFile={{folder}}/slurmd-%n.pid
StateSaveLocation={{folder}}/state
SlurmdSpoolDir={{folder}}/spool/%n
SlurmctldLogFile={{folder}}/log/slurmctld.log
SlurmdLogFile={{folder}}/log/slurmd-%n.log
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu,shard
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=10000
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
MessageTimeout={MESSAGE_TIMEOUT_S}
SlurmdTimeout={{node_timeout}}
MinJobAge=600
InactiveLimit=0
KillWait=2
NodeName=n[1-{NODES}] NodeHostname={{host}} NodeAddr=127.0.0.1 Port=[{{node_ports}}] CPUs=8 \
Gres=gpu:a100:{GPUS_OF_NODE},shard:{GPUS_OF_NODE * SHARDS_OF_GPU}
PartitionName={PARTITION} Nodes=ALL Default=YES MaxTime=INFINITE
PartitionName={URGENT} Nodes=ALL PriorityTier=10 PreemptMode=OFF
PartitionName={SHORT} Nodes=ALL MaxTime=10
PartitionName={ONE_NODE} Nodes=n1
PartitionName={CLOSED} Nodes=ALL State=DOWN
"""
_GRES = f"""\
NodeName=n[1-{NODES}] Name=gpu Type=a100 File={{folder}}/dev/g[0-{GPUS_OF_NODE - 1}]
NodeName=n[1-{NODES}] Name=shard Count={GPUS_OF_NODE * SHARDS_OF_GPU}
"""


def missing() -> str | None:
    """Returns why no lab can run here; None if one can."""
    if os.geteuid() != 0:
        return "a Slurm without munge runs only as root"
    lacking = [name for name in PROGRAMS if _path_of(name) is None]
    return f"not installed: {', '.join(lacking)}" if lacking else None


class SlurmLab:
    """Starts and stops the controller and the nodes, and knows the pid of each.

    node_timeout_s: the seconds of silence after which Slurm takes a node for dead. conf: path of the
    configuration. env: the environment in which its programs find it.
    """

    def __init__(self, node_timeout_s: int = NODE_TIMEOUT_S) -> None:
        self._node_timeout_s = node_timeout_s
        # A short path, because sockets in it have at most 107 characters. Jobs may write there as any user.
        self.folder = Path(tempfile.mkdtemp(prefix="gs-slurm-"))
        self.folder.chmod(0o755)
        self.conf = self.folder / "slurm.conf"
        self._ports, self._ports_lock = _reserve_ports()
        self._controller: subprocess.Popen[bytes] | None = None
        self._nodes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def env(self) -> Mapping[str, str]:
        """The environment of the caller, with SLURM_CONF."""
        return {**os.environ, "SLURM_CONF": str(self.conf)}

    def start(self) -> None:
        """Starts everything and waits until all nodes are idle."""
        for name in ("state", "spool", "log", "dev"):
            (self.folder / name).mkdir()
        for number in range(GPUS_OF_NODE):
            # Slurm sets CUDA_VISIBLE_DEVICES only for devices; this is /dev/null.
            os.mknod(self.folder / "dev" / f"g{number}", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        self.conf.write_text(
            _CONF.format(
                host=socket.gethostname().split(".")[0],
                folder=self.folder,
                node_timeout=self._node_timeout_s,
                port=self._ports[0],
                node_ports=f"{self._ports[1]}-{self._ports[-1]}",
            )
        )
        (self.folder / "gres.conf").write_text(_GRES.format(folder=self.folder))
        self.start_controller()
        for number in range(1, NODES + 1):
            self.start_node(number)
        self.wait_for_nodes("idle")

    def stop(self) -> None:
        """Kills all processes of the lab, also those of its jobs, and removes its folder."""
        self.kill_controller()
        for number in list(self._nodes):
            self.kill_node(number)

        def kill() -> bool:
            left = self._processes()
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not left

        wait_for(kill, "the end of the lab's processes", _DEADLINE_S)
        shutil.rmtree(self.folder)
        self._ports_lock.close()

    def run(self, *words: str) -> str:
        """Runs a program of Slurm, which must succeed, and returns its output."""
        done = subprocess.run(
            words, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_DEADLINE_S
        )
        output = done.stdout.decode(errors="replace")
        assert done.returncode == 0, f"{words}: exit code {done.returncode}: {output}"
        return output

    def start_controller(self) -> None:
        """Starts the controller and waits until it answers. It keeps the jobs that it had."""
        self._controller = self._daemon("slurmctld")
        wait_for(self._answers, "an answer of slurmctld", _DEADLINE_S, 0.05)

    def kill_controller(self) -> None:
        """Kills the controller with SIGKILL."""
        if self._controller is not None:
            self._controller.kill()
            self._controller.wait()
            self._controller = None

    def stop_controller(self) -> None:
        """Stops the controller with SIGSTOP: connections to it succeed, but nothing answers."""
        assert self._controller is not None
        self._controller.send_signal(signal.SIGSTOP)

    def continue_controller(self) -> None:
        """Lets a stopped controller continue."""
        assert self._controller is not None
        self._controller.send_signal(signal.SIGCONT)

    def start_node(self, number: int) -> None:
        """Starts the slurmd of a node. Its running jobs are kept."""
        self._nodes[number] = self._daemon("slurmd", "-N", f"n{number}")

    def kill_node(self, number: int) -> None:
        """Kills the slurmd of a node with SIGKILL. Its jobs run on."""
        node = self._nodes.pop(number)
        node.kill()
        node.wait()

    def drain(self, number: int) -> None:
        """Lets a node finish its jobs, but accept no more."""
        self._update(number, "drain")

    def fail_node(self, number: int) -> None:
        """Declares a node failed. Slurm ends its jobs as NODE_FAIL; if slurmd is dead, they run on."""
        self._update(number, "down")

    def resume(self, number: int) -> None:
        """Lets a drained or failed node accept jobs again."""
        self._update(number, "resume")

    def wait_for_nodes(self, state: str, numbers: Sequence[int] = range(1, NODES + 1)) -> None:
        """Waits until nodes have a state, as `sinfo` names it."""
        try:
            wait_for(lambda: self._states(numbers) == {state}, f"nodes {state}", _DEADLINE_S, 0.05)
        except AssertionError as error:
            raise AssertionError(f"{error}; {self._states(numbers)}; {self._log()}") from None

    def heal(self) -> None:
        """Resumes all nodes, also those that Slurm itself has drained, and waits until they are idle."""

        def are_idle() -> bool:
            if self._states() == {"idle"}:
                return True
            for number in range(1, NODES + 1):
                self.resume(number)
            return False

        wait_for(are_idle, "idle nodes", _DEADLINE_S, 0.05)

    def _states(self, numbers: Sequence[int] = range(1, NODES + 1)) -> set[str]:
        names = ",".join(f"n{number}" for number in numbers)
        return set(self.run("sinfo", "-hN", "-p", PARTITION, "-n", names, "-o", "%T").split())

    def _update(self, number: int, state: str) -> None:
        words = ["scontrol", "update", f"nodename=n{number}", f"state={state}", "reason=test"]
        done = subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=_DEADLINE_S)
        # A node that was down is resumed as soon as its slurmd reports (ReturnToService).
        is_done = state == "resume" and "Invalid node state" in done.stderr
        assert done.returncode == 0 or is_done, f"{words}: {done.stderr}"

    def _answers(self) -> bool:
        assert self._controller is not None
        assert self._controller.poll() is None, self._log()
        return subprocess.run(["scontrol", "ping"], env=self.env, capture_output=True).returncode == 0

    def _daemon(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        path = _path_of(name)
        assert path is not None
        return subprocess.Popen(
            # slurmctld starts itself again by its own name, which must therefore be absolute.
            [path, "-D", "-f", str(self.conf), *words],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _processes(self) -> list[int]:
        """Returns the processes that have the lab's environment or one of its files, such as slurmstepd."""
        return [
            int(name)
            for name in os.listdir("/proc")
            if name.isdigit() and int(name) != os.getpid() and self._is_ours(Path("/proc", name))
        ]

    def _is_ours(self, process: Path) -> bool:
        folder = f"{self.folder}/"
        try:
            if f"SLURM_CONF={self.conf}\0".encode() in (process / "environ").read_bytes():
                return True
            return any(os.readlink(fd).startswith(folder) for fd in (process / "fd").iterdir())
        except OSError:  # it has ended, or ends just now
            return False

    def _log(self) -> str:
        logs = sorted((self.folder / "log").iterdir())
        return "\n".join(f"{path.name}:\n{path.read_text(errors='replace')[-3000:]}" for path in logs)


def _path_of(program: str) -> str | None:
    # A link, such as Debian's, is not resolved, because the programs act by their own name.
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _reserve_ports() -> tuple[list[int], socket.socket]:
    """Returns ports for one lab, and a socket that keeps them from other labs while it is open.

    They are below those that the kernel gives to outgoing connections, and so stay free until they are used.
    """
    for first in random.sample(range(20000, 32000, NODES + 1), 1000):
        lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        ports = list(range(first, first + NODES + 1))
        try:
            lock.bind(f"\0gs-slurm-lab-{first}")
            for port in ports:
                with socket.socket() as probe:
                    probe.bind(("", port))
        except OSError:
            lock.close()
            continue
        return ports, lock
    raise AssertionError("no free ports")
