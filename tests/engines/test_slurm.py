"""SlurmEngine keeps the promises of the port, with a real Slurm."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gpu_scheduler.engines.engine import (
    NAME_PREFIX,
    EngineJob,
    EngineUnavailableError,
    Order,
    RefusedError,
    Resources,
)
from gpu_scheduler.engines.slurm import DEADLINE_S, LOG_NAME, SlurmEngine, SlurmSettings
from tests.slurm_lab import CLOSED, GPUS_OF_NODE, NODES, ONE_NODE, PARTITION, SHARDS_OF_GPU, URGENT, SlurmLab
from tests.waiting import wait_for

#: Stands in for the guard. Notes what it gets; ends at SIGTERM, or with the exit code in the file `code`.
GUARD = """\
import os, signal, sys, time
folder = sys.argv[2]
def note(text):
    with open(os.path.join(folder, "notes"), "a") as file:
        file.write(text + "\\n")
def end(number, frame):
    note("SIGTERM")
    sys.exit(1)
signal.signal(signal.SIGTERM, end)
print("guard started", flush=True)
with open(os.path.join(folder, "env"), "w", errors="surrogateescape") as file:
    file.write("".join(f"{name}={value}\\n" for name, value in os.environ.items()))
note(" ".join(sys.argv[1:2]))
while not os.path.exists(os.path.join(folder, "code")):
    time.sleep(0.02)
sys.exit(int(open(os.path.join(folder, "code")).read()))
"""


class Desk:
    """Makes orders and engines for one test. Cancels their jobs at its end."""

    def __init__(self, slurm: SlurmLab, folder: Path) -> None:
        self.slurm = slurm
        self.folder = folder
        self.start = folder / "start.py"
        self.start.write_text(GUARD)
        self._number = 0

    def engine(
        self,
        partition: str = PARTITION,
        options: tuple[str, ...] = (),
        shards: int = 0,
        env: Mapping[str, str] | None = None,
        python: str = sys.executable,
        deadline_s: float = DEADLINE_S,
    ) -> SlurmEngine:
        settings = SlurmSettings(partition, python, str(self.start), options, shards)
        return SlurmEngine(settings, {**self.slurm.env, **(env or {})}, deadline_s)

    def order(self, resources: Resources | None = None, name: str = "") -> Order:
        self._number += 1
        token = os.urandom(8).hex()
        folder = self.folder / f"{name or 'f'}{self._number}"
        folder.mkdir()
        return Order(token, str(folder), resources or Resources())

    def started(self, order: Order) -> dict[str, str]:
        """Waits until the guard of an order runs, and returns its environment."""
        folder = Path(order.folder)
        wait_for(lambda: (folder / "notes").exists(), f"a start; {self.states()}", every_s=0.05)
        lines = (folder / "env").read_text(errors="surrogateescape").splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def job(self, order: Order) -> EngineJob | None:
        return self.engine().jobs().get(order.token)

    def wait(self, order: Order, state: str) -> EngineJob:
        """Waits until the job of an order has a state."""
        seen = wait_for(
            lambda: (job := self.job(order)) and job.state == state and job,
            f"{state}; {self.states()}",
            every_s=0.05,
        )
        assert isinstance(seen, EngineJob)
        return seen

    def states(self) -> str:
        return self.slurm.run("squeue", "--states=all", "-h", "-o", "%j|%T|%r|%N")


@pytest.fixture
def desk(slurm: SlurmLab, tmp_path: Path) -> Iterator[Desk]:
    yield Desk(slurm, tmp_path)
    slurm.run("scancel", f"--user={os.getuid()}")
    wait_for(lambda: not slurm.run("squeue", "-h").strip(), "an empty queue", every_s=0.05)
    slurm.heal()


def test_a_job_runs_the_guard_and_is_seen_until_its_end(desk: Desk) -> None:
    order = desk.order(Resources(1))
    assert order.token not in desk.engine().jobs()
    desk.engine().submit(order)
    assert desk.started(order)["CUDA_VISIBLE_DEVICES"] in ("0", "1")
    job = desk.wait(order, "running")
    assert re.fullmatch("n[1-3]", job.node)
    assert (Path(order.folder) / "notes").read_text() == "--guard\n"
    assert (Path(order.folder) / LOG_NAME).read_text() == "guard started\n"
    (Path(order.folder) / "code").write_text("3")
    ended = desk.wait(order, "ended")
    assert (ended.native_id, ended.node, ended.was_cancelled) == (job.native_id, job.node, False)
    assert ended.reason == "FAILED NonZeroExitCode"


def test_a_cancelled_job_gets_sigterm_and_is_shown_as_cancelled(desk: Desk) -> None:
    order, other = desk.order(), desk.order()
    for each in (order, other):
        desk.engine().submit(each)
        desk.started(each)
    desk.engine().cancel("0" * 16)
    desk.engine().cancel(order.token)
    assert desk.wait(order, "ended").was_cancelled
    assert "SIGTERM" in (Path(order.folder) / "notes").read_text().split()
    assert desk.wait(other, "running").reason == ""
    desk.engine().cancel(order.token)


def test_one_name_stands_for_all_of_its_jobs(desk: Desk) -> None:
    order = desk.order()
    desk.engine(options=("--hold",)).submit(order)
    assert desk.wait(order, "pending").reason == "JobHeldUser"
    desk.engine().submit(order)
    desk.started(order)
    assert desk.wait(order, "running").node
    desk.engine().cancel(order.token)
    desk.wait(order, "ended")


@pytest.mark.parametrize(
    "name",
    ["a b", "it's", 'q"', "100%j", "$HOME", "back\\slash", "both\\%j", "new\nline", "raw\udcff", "ü\\"],
)
def test_a_folder_may_have_any_name(desk: Desk, name: str) -> None:
    order = desk.order(name=name)
    desk.engine().submit(order)
    desk.started(order)
    assert (Path(order.folder) / LOG_NAME).read_text() == "guard started\n"


def test_a_python_that_the_node_lacks_is_the_reason_of_the_end(desk: Desk) -> None:
    order = desk.order()
    desk.engine(python="/nonexistent/python").submit(order)
    assert desk.wait(order, "ended").reason == "FAILED NonZeroExitCode"
    assert "/nonexistent/python" in (Path(order.folder) / LOG_NAME).read_text()


def test_a_type_a_time_limit_and_shards_are_asked_for(desk: Desk) -> None:
    typed = desk.order(Resources(2, gpu_type="a100", time_limit_s=90.0))
    desk.engine().submit(typed)
    assert desk.started(typed)["CUDA_VISIBLE_DEVICES"] == "0,1"
    shared = [desk.order(Resources(0, 500)) for _ in range(2)]
    for order in shared:
        desk.engine(shards=SHARDS_OF_GPU, options=("--nodelist=n2",)).submit(order)
    assert {desk.started(order)["SLURM_SHARDS_ON_NODE"] for order in shared} == {"1"}
    whole = desk.order(Resources(0, 500, "a100"))
    desk.engine().submit(whole)
    assert desk.started(whole)["SLURM_GPUS_ON_NODE"] == "1"
    limits = desk.slurm.run("squeue", "-h", f"--name=gpusched-{typed.token}", "-o", "%l")
    assert limits.strip() == "2:00"


def test_variables_of_slurm_in_the_environment_count_for_nothing(desk: Desk) -> None:
    order = desk.order()
    env = {
        "SBATCH_PARTITION": "nonsense", "SBATCH_REQUEUE": "1", "SQUEUE_STATES": "FAILED",
        "SLURM_JOB_ID": "77",
        "SCANCEL_NAME": "other", "SCANCEL_INTERACTIVE": "true", "SLURM_CLUSTERS": "other",
        "CUDA_VISIBLE_DEVICES": "9", "KEPT": "1",
    }  # fmt: skip
    engine = desk.engine(env=env)
    engine.submit(order)
    found = desk.started(order)
    assert found["SLURM_JOB_PARTITION"] == PARTITION
    assert "KEPT" not in found
    assert "CUDA_VISIBLE_DEVICES" not in found
    assert found["SLURM_JOB_ID"] == engine.jobs()[order.token].native_id
    assert found.get("SLURM_EXPORT_ENV", "ALL") == "ALL"
    engine.cancel(order.token)
    desk.wait(order, "ended")


@pytest.mark.parametrize(
    ("partition", "options", "resources", "words"),
    [
        ("nonsense", (), Resources(), "Invalid partition name specified"),
        (PARTITION, (), Resources(GPUS_OF_NODE + 1), "Requested node configuration is not available"),
        (PARTITION, (), Resources(1, gpu_type="h100"), "Requested node configuration is not available"),
        (PARTITION, ("--constraint=x",), Resources(), "Invalid feature specification"),
        (PARTITION, ("--foo=1",), Resources(), "unrecognized option '--foo=1'"),
        (PARTITION, ("--reservation=x",), Resources(), "Requested reservation is invalid"),
    ],
)
def test_what_slurm_can_never_run_is_a_problem_and_is_refused(
    desk: Desk, partition: str, options: tuple[str, ...], resources: Resources, words: str
) -> None:
    engine = desk.engine(partition, options)
    problem = engine.problem(resources)
    assert problem is not None
    assert words in problem
    with pytest.raises(RefusedError, match=re.escape(words)):
        engine.submit(desk.order(resources))


@pytest.mark.parametrize(
    ("resources", "shards"),
    [
        (Resources(), 0),
        (Resources(GPUS_OF_NODE, gpu_type="a100"), 0),
        (Resources(0, 999), 0),
        (Resources(0, 999), SHARDS_OF_GPU),
    ],
)
def test_what_slurm_can_run_is_no_problem_even_if_all_nodes_are_busy(
    desk: Desk, resources: Resources, shards: int
) -> None:
    engine = desk.engine(shards=shards)
    assert engine.problem(resources) is None
    orders = [desk.order(Resources(GPUS_OF_NODE)) for _ in range(NODES)]
    for order in orders:
        engine.submit(order)
    for order in orders:
        desk.started(order)
    assert engine.problem(resources) is None


def test_nodes_that_are_drained_or_down_are_no_problem(desk: Desk) -> None:
    engine, slurm = desk.engine(), desk.slurm
    numbers = range(1, NODES + 1)
    for disable in (slurm.drain, slurm.fail_node):
        for number in numbers:
            disable(number)
        assert engine.problem(Resources(GPUS_OF_NODE)) is None
        assert engine.problem(Resources(GPUS_OF_NODE + 1)) == "Requested node configuration is not available"
        order = desk.order(Resources(GPUS_OF_NODE))
        engine.submit(order)
        # Slurm names the reason only once it has tried to start the job.
        wait_for(
            lambda order=order: (job := desk.job(order)) and job.reason.startswith("ReqNodeNotAvail"),  # type: ignore[misc]
            f"the reason; {desk.states()}",
            every_s=0.05,
        )
        for number in numbers:
            slurm.resume(number)
        slurm.wait_for_nodes("idle") if not desk.started(order) else engine.cancel(order.token)
        desk.wait(order, "ended")


def test_a_partition_that_is_down_waits_and_one_that_drains_takes_no_jobs_now(desk: Desk) -> None:
    order = desk.order()
    desk.engine(CLOSED).submit(order)
    assert desk.wait(order, "pending").reason == "PartitionDown"
    assert desk.engine(CLOSED).problem(Resources(1)) is None
    desk.slurm.run("scontrol", "update", f"partitionname={ONE_NODE}", "state=drain")
    try:
        with pytest.raises(EngineUnavailableError, match="Required partition not available"):
            desk.engine(ONE_NODE).submit(desk.order())
        with pytest.raises(EngineUnavailableError, match="Required partition not available"):
            desk.engine(ONE_NODE).problem(Resources())
    finally:
        desk.slurm.run("scontrol", "update", f"partitionname={ONE_NODE}", "state=up")


def test_a_preempted_job_is_not_requeued(desk: Desk) -> None:
    order, urgent = desk.order(Resources(GPUS_OF_NODE)), desk.order(Resources(GPUS_OF_NODE))
    desk.engine(options=("--nodelist=n1",)).submit(order)
    desk.started(order)
    desk.engine(URGENT, ("--nodelist=n1",)).submit(urgent)
    desk.started(urgent)
    ended = desk.wait(order, "ended")
    assert (ended.reason, ended.was_cancelled) == ("PREEMPTED", False)
    assert "SIGTERM" in (Path(order.folder) / "notes").read_text().split()


def test_a_job_whose_answer_was_lost_is_found_by_its_name(desk: Desk) -> None:
    fakes = desk.folder / "bin"
    fakes.mkdir()
    path = os.environ["PATH"]
    fake = fakes / "sbatch"
    fake.write_text(
        f'#!/bin/sh\nPATH={path} sbatch "$@" >/dev/null || exit\n'
        "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2\n"
        "exit 1\n"
    )
    fake.chmod(0o755)
    order = desk.order()
    engine = desk.engine(env={"PATH": f"{fakes}:{path}"})
    with pytest.raises(EngineUnavailableError, match="Socket timed out"):
        engine.submit(order)
    assert engine.jobs()[order.token].state in ("pending", "running")


def test_a_program_that_hangs_is_given_up(desk: Desk) -> None:
    fakes = desk.folder / "bin"
    fakes.mkdir()
    (fakes / "sbatch").write_text(
        "#!/bin/sh\necho 'sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying' >&2\n"
        "exec sleep 600\n"
    )
    (fakes / "sbatch").chmod(0o755)
    engine = desk.engine(env={"PATH": f"{fakes}:{os.environ['PATH']}"}, deadline_s=0.5)
    with pytest.raises(EngineUnavailableError, match=r"within 0\.5 s; Slurm temporarily unable"):
        engine.submit(desk.order())


@pytest.mark.parametrize("way", ["killed", "stopped"])
def test_without_a_controller_nothing_is_concluded_within_the_deadline(desk: Desk, way: str) -> None:
    slurm, engine, order = desk.slurm, desk.engine(), desk.order()
    engine.submit(order)
    desk.started(order)
    slurm.kill_controller() if way == "killed" else slurm.stop_controller()
    try:
        for call in (
            lambda: engine.submit(desk.order()),
            engine.jobs,
            lambda: engine.cancel(order.token),
            lambda: engine.problem(Resources()),
        ):
            began = time.monotonic()
            with pytest.raises(EngineUnavailableError, match=r"slurm controller|Socket timed out"):
                call()
            assert time.monotonic() - began < DEADLINE_S + 1
    finally:
        slurm.start_controller() if way == "killed" else slurm.continue_controller()
    (Path(order.folder) / "code").write_text("0")
    if way == "stopped":
        assert desk.wait(order, "ended").reason == "COMPLETED"
    else:
        # A controller that was killed just after a start has forgotten the job, or takes it for pending,
        # starts it again, is told by the node that it runs, cancels it, and drains the node.
        engine.jobs()


def test_a_failed_node_ends_its_job_for_slurm_although_it_runs_on(desk: Desk) -> None:
    order = desk.order()
    desk.engine(options=("--nodelist=n3",)).submit(order)
    desk.started(order)
    desk.slurm.kill_node(3)
    desk.slurm.fail_node(3)
    ended = desk.wait(order, "ended")
    assert (ended.reason, ended.node) == ("NODE_FAIL NodeDown", "n3")
    assert "SIGTERM" not in (Path(order.folder) / "notes").read_text()
    (Path(order.folder) / "code").write_text("0")
    desk.slurm.start_node(3)
    desk.slurm.resume(3)
    desk.slurm.wait_for_nodes("idle")


@pytest.mark.parametrize(
    ("partition", "options", "words"),
    [
        (PARTITION, (), None),
        (CLOSED, (), None),
        ("nonsense", (), "`sinfo -s` lists the partitions"),
        (PARTITION, ("--constraint=x",), "check --slurm and --slurm-options"),
        (PARTITION, ("--foo",), "check --slurm and --slurm-options"),
    ],
)
def test_what_prevents_a_start_is_said_with_the_remedy(
    desk: Desk, partition: str, options: tuple[str, ...], words: str | None
) -> None:
    problem = desk.engine(partition, options).start_problem()
    assert problem is None if words is None else problem is not None and words in problem


def test_a_start_without_slurm_says_so(tmp_path: Path) -> None:
    engine = SlurmEngine(SlurmSettings("gpu", "python3", "start.py"), {"PATH": str(tmp_path)})
    assert str(engine.start_problem()).startswith("sbatch is not on PATH; start on a login node")
    with pytest.raises(EngineUnavailableError, match="sbatch cannot be started"):
        engine.submit(Order("a", str(tmp_path), Resources()))


def start_problem_if_sbatch_says(words: str, folder: Path) -> str | None:
    """Returns why Slurm cannot be used if its programs are fakes, of which sbatch refuses every job."""
    for name in ("sbatch", "squeue", "scancel", "sinfo"):
        ending = "exit 1" if name == "sbatch" else "echo 'idle|gpu:a100:2'"
        (folder / name).write_text(f"#!/bin/sh\necho 'allocation failure: {words}' >&2\n{ending}\n")
        (folder / name).chmod(0o755)
    settings = SlurmSettings("gpu", "python3", "start.py", ("--account=x",))
    return SlurmEngine(settings, {"PATH": f"{folder}:{os.environ['PATH']}"}).start_problem()


def test_nodes_that_restart_keep_no_scheduler_from_starting(tmp_path: Path) -> None:
    assert start_problem_if_sbatch_says("Requested node configuration is not available", tmp_path) is None


def test_an_account_that_slurm_does_not_know_is_said_with_the_remedy(tmp_path: Path) -> None:
    """The lab has no accounting, without which every account is accepted."""
    words = "Invalid account or account/partition combination specified"
    problem = start_problem_if_sbatch_says(words, tmp_path)
    assert problem is not None
    assert "`sacctmgr show associations" in problem


def test_the_jobs_of_a_hidden_partition_are_found(tmp_path: Path) -> None:
    """Without --all, squeue leaves them out, and the agent would submit them again and again."""
    squeue = tmp_path / "squeue"
    squeue.write_text(
        f'#!/bin/sh\ncase " $* " in *" --all "*) echo "7|{NAME_PREFIX}ab|PENDING|Resources|";; esac\n'
    )
    squeue.chmod(0o700)
    engine = SlurmEngine(SlurmSettings("secret", "python3", "start.py"), {"PATH": f"{tmp_path}:/bin"})
    assert [*engine.jobs()] == ["ab"]
