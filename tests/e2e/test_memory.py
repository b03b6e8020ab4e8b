"""Tests placement by declared and measured memory, on simulated GPUs with real processes."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpu_scheduler.core.model.gpu import LOAD_SAMPLES
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.store import Store
from tests import warm
from tests.e2e.world import World
from tests.waiting import wait_for

SIMJOB = f"{sys.executable} -m gpu_scheduler.simjob"
#: A jobs file with every form of memory declaration.
EXAMPLE = """\
# no declaration -> runs only on a fully idle GPU, alone
python preprocess.py

# declared max VRAM (per GPU): may share a GPU when the declared amount fits
[vram=18000] python train.py --config a.yaml
[vram=22G] bash run_eval.sh

# multi-GPU: 2 GPUs, EACH with >= 30 GiB free; CUDA_VISIBLE_DEVICES gets both
[vram=30G gpus=2] torchrun --nproc_per_node=2 train_big.py

# auto-retry on CUDA OOM, declaration bumped ~1.25x of observed peak per retry
[vram=8G retries=2] python sweep.py --seed 3

# opt-in walltime: SIGTERM at 2h, SIGKILL +10s. No timeout attribute = runs
# forever; the scheduler never guesses which long-running jobs are hung.
[timeout=2h] python flaky_eval.py
"""


def drained(world: World, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs `gpu-scheduler FILE …` until the file is drained."""
    return warm.run("gpu_scheduler", words, world.folder, world.env)


@contextmanager
def somebody(world: World, vram: int, load: int, gpu: int = 0) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a foreign process on a GPU during the `with` block."""
    folder = DataDir.of(str(world.folder / world.state)).simulation
    with subprocess.Popen(
        [sys.executable, "-m", "gpu_scheduler.simjob", "--vram", str(vram), "--load", str(load),
         "--hold", "600", "--gpus", str(gpu)],
        env=world.env | {"GPU_SCHEDULER_SIM": str(folder)}, stdout=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        try:
            wait_for(
                lambda: list(Path(folder).glob(f"{process.pid}-*.json")), "the GPU use of the foreign process"
            )
            yield process
        finally:
            process.kill()


def seen_on(world: World, gpu: int, least_mib: int) -> None:
    """Waits until a sample shows at least this much memory in use on a GPU."""

    def used() -> bool:
        return (world.status()["gpus"][gpu]["memory_used_mib"] or 0) >= least_mib

    wait_for(used, f"{least_mib} MiB on GPU {gpu}")


def loaded(world: World, percent: float) -> None:
    """Waits until every load sample of GPU 0 that counts towards the mean has this value."""

    def is_loaded() -> bool:
        store = Store(DataDir.of(str(world.folder / world.state)))
        loads = store.gpus()[0].loads[-LOAD_SAMPLES:]
        store.close()
        return loads == (percent,) * LOAD_SAMPLES

    wait_for(is_loaded, f"load {percent} %")


def test_the_sixty_second_tour_in_the_readme_prints_the_documented_lines(world: World) -> None:
    line = f"[vram=8G] {SIMJOB} --vram 8000 --ramp 0.6 --hold 0.7"
    (world.folder / "jobs.txt").write_text(f"{line}\n")
    done = drained(world, "jobs.txt", "--sim", "2", "--poll", "0.2", "-v")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "job 1 starts on gpu [0] (1/1 dispatched, declared 8192 MiB/gpu) — " in done.stdout
    assert re.search(r"job 1 gpu0 8000 MiB \(peak so far; declared 8192\)", done.stdout)
    assert re.search(
        r"job 1 finished \[OK\] in [\d.]+s — peak vram gpu0:8000 MiB \| declared 8192 MiB → within ±10%"
        r" \| avg gpu util \d+%",
        done.stdout,
    )
    again = drained(world, "jobs.txt", "--sim", "2", "--poll", "0.2")
    assert again.returncode == 0
    assert "starts on gpu" not in again.stdout
    fresh = drained(world, "jobs.txt", "--sim", "2", "--poll", "0.2", "--fresh")
    assert fresh.returncode == 0, fresh.stdout + fresh.stderr
    assert "job 2 finished [OK]" in fresh.stdout


def test_the_complete_memory_example_runs_as_documented(world: World) -> None:
    for name in ("preprocess.py", "train.py", "train_big.py", "sweep.py", "flaky_eval.py"):
        shutil.copy(Path(__file__).parent / "scripts" / "pretend.py", world.folder / name)
    (world.folder / "run_eval.sh").write_text("echo evaluated\n")
    (world.folder / "jobs.txt").write_text(EXAMPLE)
    bin_folder = world.folder / "bin"
    bin_folder.mkdir()
    os.symlink(sys.executable, bin_folder / "python")
    world.env["PATH"] = f"{bin_folder}:{world.env['PATH']}"
    done = drained(world, "jobs.txt", "--sim", "2", "--poll", "0.2")
    assert done.returncode == 3, done.stdout + done.stderr
    told = "infeasible: needs 30.0 GiB of each of 2 GPUs, but the largest managed GPUs have 24.0 GiB"
    assert f"job 4 waits, {told}" in done.stdout
    outcomes = {job: about["outcome"] for job, about in world.jobs().items()}
    assert outcomes == {**dict.fromkeys((1, 2, 3, 5, 6), "completed"), 4: None}
    assert "5 of 6 jobs completed" in done.stdout


def test_reports_a_job_that_exceeds_its_declaration_and_allocates_its_peak(world: World) -> None:
    world.append(f"[vram=8G] {SIMJOB} --vram 14000 --hold 600")
    world.start("--simulate", "1", "--poll", "0.2")
    wait_for(lambda: "EXCEEDS" in world.output(), "the warning")
    assert re.search(
        r"WARNING job 1 EXCEEDS declared VRAM on gpu 0: 14000 MiB used, 8192 MiB declared \(\+71%\);"
        r" neighbors may OOM",
        world.output(),
    )
    # By the declarations, job 2 would fit: 8 + 12 GiB and a margin of 0.5 GiB are less than 24 GiB.
    world.append("[vram=12G] echo fits")
    world.wait_until(lambda jobs: "room for" in (jobs.get(2, {}).get("reason") or ""), "job 2 waits")
    # The memory left for other jobs is 24576 - 1.1 x 14000 - 512 MiB.
    assert world.jobs()[2]["reason"] == "needs 12.0 GiB of a GPU, 0 free (GPU 0: room for 8.5 GiB)"
    world.run_ok("cancel", "1", "--grace", "0")
    assert world.wait_finished()[2]["outcome"] == "completed"
    assert world.output().count("EXCEEDS") == 1
    assert "under-declared (+71%)" in world.output()


def test_an_oom_retry_requests_more_memory_even_if_the_scheduler_was_killed(world: World) -> None:
    world.append(f"[vram=17G] {SIMJOB} --vram 17408 --hold 600")
    world.start("--simulate", "1", "--poll", "0.2")
    world.wait_until(lambda jobs: jobs.get(1, {"peaks": {}})["peaks"] == {"0": 17408}, "job 1 has its memory")
    world.append(f"[vram=4G retries=3] {SIMJOB} --vram 9000 --ramp 1 --hold 0.5")

    def waits_with_more(jobs: dict[int, dict[str, Any]]) -> bool:
        two = jobs.get(2, {"attempts": 0})
        waits = two["attempts"] >= 1 and two["state"] == "queued"
        return waits and "GiB of a GPU" in (two["reason"] or "")

    world.wait_until(waits_with_more, "job 2 waits for more memory")
    before = world.jobs()[2]["attempts"]
    wait_for(lambda: len(re.findall("OOM retry", world.output())) == before, "the log messages")
    assert world.end_scheduler(signal.SIGKILL) == -signal.SIGKILL
    world.start("--simulate", "1", "--poll", "0.2")
    world.wait_until(waits_with_more, "job 2 still waits for more")
    world.run_ok("cancel", "1", "--grace", "0")
    jobs = world.wait_finished()
    assert (jobs[2]["outcome"], jobs[2]["attempts"]) == ("completed", before + 1)
    retries = re.findall(r"OOM retry (\d) of 3 with ([\d.]+) GiB per GPU", world.output())
    assert [int(number) for number, _ in retries] == list(range(1, before + 1))
    sizes = [float(size) for _, size in retries]
    assert sizes == sorted(sizes)
    assert sizes[0] >= 5.0


def test_failures_other_than_an_oom_do_not_use_up_oom_retries(world: World) -> None:
    world.append(
        f"[vram=4G retries=3] {sys.executable} -c 'raise ValueError(\"bad value\")'",
        "[vram=1G fail-retries=0] exit 4",
    )
    world.start("--simulate", "1", "--drain")
    assert world.process is not None
    assert world.process.wait(60) == 4
    jobs = world.jobs()
    assert (jobs[1]["attempts"], jobs[1]["outcome"]) == (1, "failed")
    assert "ValueError: bad value" in jobs[1]["reason"]


def test_a_time_limit_is_enforced_while_no_scheduler_runs(world: World) -> None:
    world.append("[vram=1G timeout=1.5s] sleep 600")
    world.start("--simulate", "1")
    world.wait_until(lambda jobs: jobs.get(1, {}).get("state") == "running", "job 1 runs")
    world.end_scheduler(signal.SIGKILL)
    world.wait_until(lambda jobs: jobs[1]["outcome"] == "timed_out", "timed out")
    world.start("--simulate", "1", "--drain")
    assert world.process is not None
    assert world.process.wait(60) == 124


def test_the_memory_and_load_of_foreign_processes_limit_placement(world: World) -> None:
    world.start("--simulate", "1", "--poll", "0.2")
    with somebody(world, 60, 0):
        seen_on(world, 0, 60)
        world.append("echo whole GPU")
        assert world.wait_finished(1)[1]["outcome"] == "completed"
    with somebody(world, 22200, 0) as one:
        seen_on(world, 0, 22000)
        world.append("echo whole GPU, again", "[share=0.5] echo half")
        told = f"GPU 0: foreign process {one.pid} uses 21.7 GiB"
        world.wait_until(lambda jobs: told in (jobs.get(3, {}).get("reason") or ""), "job 3 waits")
        assert told in world.jobs()[2]["reason"]
    world.wait_finished(2, 3)
    with somebody(world, 1000, 97) as two:
        loaded(world, 97)
        world.append("[share=0.5] echo beside a colleague")
        told = f"foreign process {two.pid}, load 97 %"
        world.wait_until(lambda jobs: told in (jobs.get(4, {}).get("reason") or ""), "job 4 waits")
    world.wait_finished(4)
    world.append(f"[share=0.5] {SIMJOB} --vram 1000 --load 97 --hold 600")
    with somebody(world, 1000, 0):
        seen_on(world, 0, 2000)
        loaded(world, 97)
        world.append("[share=0.5] echo the second half")
        assert world.wait_finished(6)[6]["outcome"] == "completed"


def test_learns_the_memory_needs_of_jobs_from_measured_usage(world: World) -> None:
    line = f"{SIMJOB} --vram 5000 --hold 0.6"
    world.append(*[f"{line} --exit 0 # {n}" for n in range(6)])
    world.start("--simulate", "1", "--poll", "0.2", "--learn", "--drain")
    assert world.process is not None
    assert world.process.wait(60) == 0
    started = re.findall(r"job \d starts on gpu \[0\] \(\d/6 dispatched, (.*?)\)", world.output())
    assert started == ["alone", *["learned 5500 MiB/gpu"] * 5]
    events = [kind for kind in re.findall(r"job \d (starts|finished)", world.output())]
    assert events[:2] == ["starts", "finished"]
    assert events[2:6] == ["starts"] * 4  # 4 x 5500 + 512 MiB fit in 24 GiB
