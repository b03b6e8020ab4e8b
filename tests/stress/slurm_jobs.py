"""P18: jobs run on a real Slurm and on this machine, while all that is between them and the scheduler fails.

The scheduler, its agent, Slurm's controller and its nodes are killed, stopped, cut off or declared failed;
the shared folder is away; answers of Slurm are lost, late or wrong; others cancel, requeue and preempt the
jobs. What the jobs write themselves is judged.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from gpu_scheduler.core.model.job import Attempt, Job
from gpu_scheduler.core.model.reasons import ReasonKind
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.core.scheduling.attempt_end import MAX_RECOVERIES
from gpu_scheduler.engines.engine import NAME_PREFIX
from gpu_scheduler.engines.start import TIME_SCALE
from tests.slurm_lab import GPUS_OF_NODE, NODES, PARTITION, URGENT, SlurmLab, missing
from tests.stress.harness import Stage, environment, kill, pause
from tests.stress.part import Findings, Order
from tests.stress.slurm_judge import Record, judge, read_trace
from tests.stress.slurm_program import TWICE
from tests.stress.trace import number_of
from tests.waiting import wait_for

#: Divides the times: a guard kills after 10 s, the agent declares an attempt dead after 12. A run at full
#: times (1) takes an hour for each tenth of the size.
SCALE = int(os.environ.get("GPU_SCHEDULER_STRESS_SCALE", "60"))
#: Seconds until a cut-off node has certainly been declared dead, if its heartbeat stands still from now on.
_CUT_OFF_S = 720 / SCALE + 2
#: Run as `sh run.sh TRACE N TICKS CODE MANNER`, where a tick is a tenth of a second.
_JOB = """\
exec 9>>"$1.lock.$2"
flock -n 9 || echo "$2 overlaps $$ $GPU_SCHEDULER_ATTEMPT" >> "$1"
case $5 in
    ignores) trap '' TERM ;;
    saves) trap 'exit 0' TERM ;;
esac
echo "$2 start $$ $GPU_SCHEDULER_ATTEMPT" >> "$1"
i=0
while [ $i -lt "$3" ]; do sleep 0.1; i=$((i+1)); done
echo "$2 end $4 $GPU_SCHEDULER_ATTEMPT" >> "$1"
exit "$4"
"""
#: How long jobs run, in tenths of a second. The longest outlast the silence after which a guard kills them.
_TICKS = (1, 10, 30, 60, 250)
_MANNERS = ("ends", "ends", "saves", "ignores")
#: Stand in for Slurm's programs. While the file MODE exists, they act as it says.
_FAKE = """\
#!/bin/bash
PATH={path}
[ -e {mode} ] && read -r mode < {mode}
[[ $mode = l* && " $* " = *" --test-only "* ]] && mode=
say() {{ echo "$@" >&2; exit 1; }}
lost="sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
case $mode in
    late) (sleep 3; {name} "$@") > /dev/null 2>&1 & say "$lost" ;;
    lost) {name} "$@" > /dev/null && say "$lost" ;;
    mixed) case $((RANDOM % 3)) in
        0) {name} "$@" > /dev/null && say "$lost" ;;
        1) say "$lost" ;;
    esac ;;
    empty) exit 0 ;;
    stale) cat {mode}.kept; exit ;;
    sometimes) [ $((RANDOM % 2)) = 0 ] && exit 0 ;;
    fails) say "slurm_load_jobs error: Unable to contact slurm controller (connect failure)" ;;
esac
exec {name} "$@"
"""
#: How each of Slurm's programs may lie.
_LIES = {
    "sbatch": ("lost", "late", "mixed"),
    "squeue": ("empty", "empty", "stale", "sometimes", "fails"),
    "scancel": ("fails",),
}


def jobs(order: Order) -> Findings:
    """Runs 50 jobs ten times, half of them on Slurm. Until all of them have ended, something fails."""
    reason = missing()
    if reason is not None:
        return Findings(skipped=reason)
    found = Findings()
    rounds = order.scaled(10)
    count = 50 if order.full_length else order.scaled(500, least=12)
    for number in range(rounds):
        folder = order.folder / f"jobs{number}"
        folder.mkdir()
        lab = SlurmLab()
        try:
            lab.start()
            with _Round(order, folder, lab, found) as one:
                one.run(count)
        finally:
            lab.stop()
    found.figures = {"jobs": rounds * count, **found.figures}
    return found


class _Round:
    """A scheduler and a Slurm with some jobs."""

    def __init__(self, order: Order, folder: Path, lab: SlurmLab, found: Findings) -> None:
        self.folder, self.lab, self.found = folder, lab, found
        self.dice, self.is_control = order.rng(folder.name), order.is_control
        (folder / "run.sh").write_text(_JOB)
        (folder / "jobs.txt").touch()
        self.shared = folder / "shared"
        self.shared.mkdir(mode=0o700)
        for name in _LIES:
            self._make_fake(name)
        env = {**environment(), "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
        env |= {
            TIME_SCALE: str(SCALE),
            "SLURM_CONF": str(lab.conf),
            **({TWICE: "1"} if order.is_control else {}),
        }
        words = ["--simulate", "2", "--slurm", PARTITION, "--slurm-dir", str(self.shared), "--recover"]
        words += ["--max-assign-attempts", "9", "--assign-retry-wait", "0.1", "--suspect-after", "0"]
        words += ["--log-dir", str(folder / "logs"), "--slurm-python", sys.executable]
        self.stage = Stage(
            folder, command=[sys.executable, "-m", "tests.stress.slurm_program", "start", *words], env=env
        )
        self._scheduler: subprocess.Popen[bytes] | None = None
        #: What fails now, and when and how it recovers.
        self._failing: dict[str, tuple[float, Callable[[], None]]] = {}
        #: The tokens of attempts that others have cancelled.
        self._cancelled: set[str] = set()
        #: The numbers of the jobs that this test has cancelled, and has preempted, with the commands for it.
        self._cancelled_here: set[int] = set()
        self._preempted: dict[int, subprocess.Popen[bytes]] = {}
        self._on_slurm: set[int] = set()
        self._numbers: set[int] = set()

    def __enter__(self) -> _Round:
        return self

    def __exit__(self, *_: object) -> None:
        for _at, recover in self._failing.values():
            with contextlib.suppress(Exception):
                recover()
        for process in [*self._preempted.values(), *([self._scheduler] if self._scheduler else [])]:
            process.terminate()
            process.wait(60)

    def run(self, count: int) -> None:
        """Runs the jobs to their ends and judges them."""
        self._scheduler = self.stage.start()
        if self.is_control:
            self._set_mode("sbatch", "lost")
        while len(self._numbers) < count:
            self._append(min(2 if self._numbers else 10, count - len(self._numbers)))
            for _ in range(self.dice.randint(2, 4)):
                self._wait(self.dice.uniform(0.05, 0.7))
                if not self.is_control:
                    self._fail()
        while self._failing:
            self._wait(0.1)
        with contextlib.suppress(AssertionError):
            wait_for(self._are_over, "the ends of all jobs", 90 + 2 * count + 3_600 / SCALE, every_s=0.3)
        # A second run would begin when the agent has seen for long that a job is gone.
        self._wait(1.0 + 120 / SCALE)
        names = self._output("squeue", "--states=all", "-h", "-o", "%j")
        repeated = sum(count > 1 for count in _submissions(names).values())
        self.found.count("attempts that Slurm has twice", repeated)
        judge(read_trace(self.stage.trace.read_text()), self._records(), self._numbers, self.found)

    def _append(self, count: int) -> None:
        """Adds jobs, half of them on Slurm."""
        lines = []
        for number in range(len(self._numbers), len(self._numbers) + count):
            self._numbers.add(number)
            where = "share=0.25"
            if number % 2 == 0:
                self._on_slurm.add(number)
                where = f"on=slurm gpus={self.dice.choice((0, 0, 1, 1, 2))}"
            ticks, code = self.dice.choice(_TICKS), self.dice.choice((0, 0, 0, 1, 3, 7))
            if self.is_control:
                ticks = 1
            manner = self.dice.choice(_MANNERS)
            command = f"sh {self.folder}/run.sh {self.stage.trace} {number} {ticks} {code} {manner}"
            lines.append(f"[{where}] {command}")
        self.stage.append(lines)

    def _wait(self, seconds: float) -> None:
        """Waits, and lets what fails recover when it is time."""
        end = time.monotonic() + seconds
        while True:
            for name, (at, recover) in list(self._failing.items()):
                if time.monotonic() >= at:
                    recover()
                    del self._failing[name]
            left = end - time.monotonic()
            if left <= 0:
                return
            pause(min(left, 0.05))

    # The faults.

    def _fail(self) -> None:
        """Lets something fail that does not fail yet."""
        fault = self.dice.choice(_FAULTS)
        if fault(self):
            self.found.count(fault.__name__.strip("_").replace("_", " "))

    def _fails(self, name: str, seconds: float, recover: Callable[[], None]) -> bool:
        """Notes that something fails for a while."""
        self._failing[name] = time.monotonic() + seconds, recover
        return True

    def _schedulers_killed(self) -> bool:
        if {"scheduler", "folder"} & self._failing.keys():
            return False
        assert self._scheduler is not None
        self._scheduler.kill()
        self._scheduler.wait()
        return self._fails("scheduler", self.dice.choice((0.0, 0.0, 1.0, 4.0)), self._start_scheduler)

    def _start_scheduler(self) -> None:
        self._scheduler = self.stage.start()

    def _agents_killed(self) -> bool:
        pid = self._agent()
        return pid is not None and kill(pid)

    def _agents_stopped(self) -> bool:
        pid = None if "agent" in self._failing else self._agent()
        if pid is None or not kill(pid, signal.SIGSTOP):
            return False
        seconds = self.dice.choice((0.5, 3.0, _CUT_OFF_S))
        return self._fails("agent", seconds, lambda: _go_on(pid))

    def _agent(self) -> int | None:
        """Returns the pid of the agent."""
        if "scheduler" in self._failing or self._scheduler is None:
            return None
        pid = self._scheduler.pid
        with contextlib.suppress(OSError):
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                if b"\0engine-agent\0" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
        return None

    def _controllers_killed(self) -> bool:
        if "controller" in self._failing:
            return False
        self.lab.kill_controller()
        return self._fails("controller", self.dice.choice((0.0, 0.5, 3.0)), self.lab.start_controller)

    def _controllers_stopped(self) -> bool:
        if "controller" in self._failing:
            return False
        self.lab.stop_controller()
        return self._fails("controller", self.dice.uniform(1.0, 5.0), self.lab.continue_controller)

    def _slurmds_killed(self) -> bool:
        number = self._whole_node()
        if number is None:
            return False
        self.lab.kill_node(number)
        # After 5 s, Slurm notices by itself.
        return self._fails(
            f"n{number}", self.dice.choice((0.0, 1.0, 9.0)), lambda: self.lab.start_node(number)
        )

    def _nodes_declared_failed(self) -> bool:
        number = self._whole_node()
        if number is None:
            return False
        self._set_node(number, "down")
        return self._fails(
            f"n{number}", self.dice.uniform(0.5, 4.0), lambda: self._set_node(number, "resume")
        )

    def _nodes_drained(self) -> bool:
        number = self._whole_node()
        if number is None:
            return False
        self._set_node(number, "drain")
        return self._fails(
            f"n{number}", self.dice.uniform(0.5, 4.0), lambda: self._set_node(number, "resume")
        )

    def _nodes_failed_whose_jobs_run_on(self) -> bool:
        return self._give_up_node(self.dice.uniform(1.0, 6.0))

    def _nodes_cut_off(self) -> bool:
        """As before, but the node cannot write to the shared folder either, so its guards must kill."""
        return self._give_up_node(_CUT_OFF_S, stops_heartbeats=True)

    def _give_up_node(self, seconds: float, *, stops_heartbeats: bool = False) -> bool:
        number = self._whole_node()
        if number is None:
            return False
        writers: list[int] = []
        if stops_heartbeats:
            whole = [one for one in range(1, NODES + 1) if f"n{one}" not in self._failing]
            writers, number = max(
                ((self._writers_on(one), one) for one in whole), key=lambda two: len(two[0])
            )
            if not writers:
                return False
        self.lab.kill_node(number)
        self._set_node(number, "down")
        if writers:
            for pid in writers:
                kill(pid, signal.SIGSTOP)
                self.found.count("heartbeats stopped")

        def recover() -> None:
            self.lab.start_node(number)
            self._set_node(number, "resume")

        return self._fails(f"n{number}", seconds, recover)

    def _whole_node(self) -> int | None:
        """Returns a node that does not fail, if two do not and the controller answers."""
        nodes = [number for number in range(1, NODES + 1) if f"n{number}" not in self._failing]
        return self.dice.choice(nodes) if len(nodes) > 1 and "controller" not in self._failing else None

    def _set_node(self, number: int, state: str) -> None:
        self._slurm("scontrol", "update", f"nodename=n{number}", f"state={state}", "reason=test")

    def _writers_on(self, number: int) -> list[int]:
        """Returns the processes that write the heartbeats of the attempts on a node: children of guards."""
        guards = self._runners(f"SLURMD_NODENAME=n{number}\0", is_guard=True)
        return [pid for pid, parent in guards.items() if parent in guards]

    def _runners(self, mark: str = "", *, is_guard: bool) -> dict[int, int]:
        """Returns the parents of the guards and writers, or of the runners, in the lab, by their pids.

        mark: what their environment must contain.
        """
        marks = f"SLURM_CONF={self.lab.conf}\0".encode(), b"SLURMD_NODENAME=", mark.encode()
        found: dict[int, int] = {}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                env, command = (path / "environ").read_bytes(), (path / "cmdline").read_bytes()
                is_runner = b"/start.py\0" in command and all(mark in env for mark in marks)
                if is_runner and (b"\0--guard\0" in command) == is_guard:
                    found[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        return found

    def _guards_killed(self) -> bool:
        guards = self._runners(is_guard=True)
        return self._kills_one([pid for pid, parent in guards.items() if parent not in guards])

    def _writers_killed(self) -> bool:
        guards = self._runners(is_guard=True)
        return self._kills_one([pid for pid, parent in guards.items() if parent in guards])

    def _runners_killed(self) -> bool:
        return self._kills_one([*self._runners(is_guard=False)])

    def _kills_one(self, pids: list[int]) -> bool:
        return bool(pids) and kill(self.dice.choice(pids))

    def _sbatch_lies(self) -> bool:
        return self._lies("sbatch")

    def _squeue_lies(self) -> bool:
        return self._lies("squeue")

    def _scancel_lies(self) -> bool:
        return self._lies("scancel")

    def _lies(self, name: str) -> bool:
        if {name, "controller"} & self._failing.keys():
            return False
        mode = self.dice.choice(_LIES[name])
        if mode == "stale":
            kept = self._output("squeue", "--states=all", "--noheader", "-o", "%i|%j|%T|%r|%N")
            (self.folder / f"{name}.mode.kept").write_text(kept)
        self._set_mode(name, mode)
        return self._fails(name, self.dice.choice((0.3, 1.0, 4.0)), lambda: self._set_mode(name, None))

    def _set_mode(self, name: str, mode: str | None) -> None:
        path = self.folder / f"{name}.mode"
        if mode is None:
            path.unlink()
        else:
            path.with_suffix(".new").write_text(f"{mode}\n")
            path.with_suffix(".new").replace(path)

    def _make_fake(self, name: str) -> None:
        (self.folder / "bin").mkdir(exist_ok=True)
        fake = self.folder / "bin" / name
        fake.write_text(_FAKE.format(path=os.environ["PATH"], mode=self.folder / f"{name}.mode", name=name))
        fake.chmod(0o755)

    def _folders_away(self) -> bool:
        if {"scheduler", "folder"} & self._failing.keys():
            return False
        away = self.shared.with_name("away")
        self.shared.rename(away)
        is_bare = self.dice.random() < 0.5
        if is_bare:
            self.shared.mkdir()  # as the mount point of a file system that is not mounted

        def bring_back() -> None:
            bare = self.shared.with_name(f"bare{time.monotonic_ns()}")
            if self.shared.exists():
                self.shared.rename(bare)
            away.rename(self.shared)
            # A Python that begins just then may write what it has compiled, and make the folder for that.
            files = (path for path in bare.rglob("*") if path.is_file() and path.suffix != ".pyc")
            if made := [str(path.relative_to(bare)) for path in files]:
                self.found.fault("made while the folder was away", f"{made[:5]}, …")

        return self._fails("folder", self.dice.choice((0.05, 0.5, 3.0)), bring_back)

    def _jobs_cancelled_by_others(self) -> bool:
        job = self._some_job()
        if job is None:
            return False
        self._cancelled.add(job[1].removeprefix(NAME_PREFIX))
        return self._slurm("scancel", job[0])

    def _jobs_cancelled(self) -> bool:
        number = self._job_on_slurm()
        if number is None:
            return False
        self._cancelled_here.add(number)
        self.stage.run_cli("cancel", str(number + 1), "--grace", "0.5")
        return True

    def _jobs_preempted_here(self) -> bool:
        number = self._job_on_slurm()
        if number is None or number in self._preempted:
            return False
        words = ["preempt", str(number + 1), "--timeout", "1", *self.dice.choice(([], ["--force"]))]
        self._preempted[number] = subprocess.Popen(
            [sys.executable, "-m", "gpu_scheduler", *words, "--state-file", str(self.stage.home.state_file)],
            env=self.stage.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        return True

    def _job_on_slurm(self) -> int | None:
        """Returns the number of a job on Slurm that has not ended; None if there is none or no scheduler."""
        if "scheduler" in self._failing:
            return None
        with contextlib.closing(self.stage.store()) as store:
            found = [n for n in sorted(self._on_slurm) if (job := store.job(n + 1)) and not _is_over(job)]
        return self.dice.choice(found) if found else None

    def _jobs_requeued(self) -> bool:
        job = self._some_job("RUNNING")
        if job is None:
            return False
        self._slurm("scontrol", "update", f"jobid={job[0]}", "requeue=1")
        return self._slurm("scontrol", "requeue", job[0])

    def _jobs_preempted(self) -> bool:
        if "controller" in self._failing:
            return False
        words = [f"--partition={URGENT}", f"--gres=gpu:{GPUS_OF_NODE}", "--output=/dev/null", "--chdir=/"]
        return self._slurm("sbatch", *words, "--wrap", "sleep 0.5")

    def _some_job(self, *states: str) -> tuple[str, str] | None:
        """Returns the id and the name of a job of ours in Slurm that has not ended; None if there is none."""
        if "controller" in self._failing:
            return None
        lines = self._output("squeue", "-h", "-o", "%i|%j|%T").splitlines()
        found = [line.split("|") for line in lines if NAME_PREFIX in line]
        chosen = [(native, name) for native, name, state in found if not states or state in states]
        return self.dice.choice(chosen) if chosen else None

    def _slurm(self, *words: str) -> bool:
        """Runs a program of Slurm, which may fail; returns whether it succeeded."""
        return subprocess.run(words, env=self.lab.env, capture_output=True, timeout=60).returncode == 0

    def _output(self, *words: str) -> str:
        return subprocess.run(words, env=self.lab.env, capture_output=True, text=True, timeout=60).stdout

    # The ends.

    def _are_over(self) -> bool:
        """Returns whether all jobs are over. Resumes the nodes that Slurm itself has drained meanwhile."""
        for line in self._output("sinfo", "-hN", "-p", PARTITION, "-o", "%N|%T").splitlines():
            if re.search("drain|down", line):
                self._set_node(int(line[1]), "resume")
        with contextlib.closing(self.stage.store()) as store:
            found = [store.job(number + 1) for number in self._numbers]
        for job in found:
            if job is not None and job.state is JobState.HELD and job.held_by == "preempted":
                self.stage.run_cli("retry", str(job.id))
        return all(job is not None and _is_over(job) for job in found)

    def _records(self) -> dict[int, Record]:
        records = {}
        with contextlib.closing(self.stage.store()) as store:
            for job_id in range(1, len(self._numbers) + 1):
                job, attempts = store.job(job_id), store.attempts(job_id)
                if job is not None:
                    number = number_of(job.text)
                    is_on_slurm = number in self._on_slurm
                    may_cancel = number in self._cancelled_here or (
                        bool(attempts) and attempts[-1].token in self._cancelled
                    )
                    story = self._story(number, job, attempts)
                    is_preempted = number in self._preempted
                    records[number] = Record(
                        number, job, attempts, is_on_slurm, may_cancel, is_preempted, story
                    )
                    self._count(job, attempts)
        return records

    def _story(self, number: int, job: Job, attempts: Sequence[Attempt]) -> str:
        """Returns what is known of a job, for the description of a fault."""
        lines = [line for line in self.stage.trace.read_text().splitlines() if line.startswith(f"{number} ")]
        for one in attempts:
            why = one.reason and (one.reason.kind.value, one.reason.message)
            lines.append(f"{one.number}: {one.token} {one.state.value}, {one.outcome}, {why}")
        if attempts and not _is_over(job):
            last = self.stage.home.attempt_folder(attempts[-1])
            for path in [*last.glob("*"), *self.shared.glob(f"*/{attempts[-1].token}/*")]:
                if path.name in (
                    "claim",
                    "engine",
                    "heartbeat",
                    "give-up",
                    "stop",
                    "runner.err",
                    "engine.log",
                ):
                    lines.append(f"{path}: {path.read_text()[-500:]}")
            lines.append(self._output("squeue", "--states=all", "-h", "-o", "%i|%j|%T|%r|%N"))
            lines.append(self.stage.output_file.read_text()[-2000:])
        return "; ".join(lines)

    def _count(self, job: Job, attempts: Sequence[Attempt]) -> None:
        """Adds a job and its attempts to the figures."""
        for one in attempts:
            if one.outcome in _COUNTED:
                self.found.count(f"attempts {one.outcome.value}")
            if one.reason is not None and one.reason.kind is ReasonKind.RUNNER_DIED:
                self.found.count("attempts declared dead")
        if job.state is JobState.HELD:
            self.found.count("jobs held as interrupted")


_COUNTED = (Outcome.INTERRUPTED, Outcome.NOT_STARTED, Outcome.CANCELLED, Outcome.PREEMPTED)


def _go_on(pid: int) -> None:
    kill(pid, signal.SIGCONT)


def _is_over(job: Job) -> bool:
    """Returns whether nothing more happens to a job by itself."""
    is_given_up = job.held_by == "interrupted" and job.recoveries >= MAX_RECOVERIES
    return job.state is JobState.FINISHED or (job.state is JobState.HELD and is_given_up)


def _submissions(names: str) -> Counter[str]:
    """Returns how many jobs of Slurm each attempt has had. names: their names, as far as Slurm knows them."""
    return Counter(name for name in names.split() if name.startswith(NAME_PREFIX))


#: What can fail. A fault returns False if it is not possible now.
_FAULTS: tuple[Callable[[_Round], bool], ...] = (
    _Round._schedulers_killed, _Round._agents_killed, _Round._agents_stopped, _Round._controllers_killed,
    _Round._controllers_stopped, _Round._slurmds_killed, _Round._nodes_declared_failed, _Round._nodes_drained,
    _Round._nodes_failed_whose_jobs_run_on, _Round._nodes_cut_off, _Round._nodes_cut_off, _Round._sbatch_lies,
    _Round._sbatch_lies, _Round._squeue_lies, _Round._squeue_lies, _Round._scancel_lies, _Round._folders_away,
    _Round._jobs_cancelled_by_others, _Round._jobs_cancelled, _Round._jobs_preempted_here,
    _Round._jobs_requeued, _Round._jobs_preempted, _Round._guards_killed, _Round._runners_killed,
    _Round._writers_killed,
)  # fmt: skip
