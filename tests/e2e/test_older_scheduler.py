"""Tests a start in a folder of the older scheduler, and torchrun with a fake program of that name."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.world import CONDA, World, make_conda

OLDER = Path(__file__).parents[1] / "golden" / "older"

SCRIPT = """\
import json, os, sys
names = ("CUDA_VISIBLE_DEVICES", "CONDA_DEFAULT_ENV", "LOCAL_RANK", "GPU_SCHEDULER_JOB")
told = {"script": sys.argv[0], "argv": sys.argv[1:], **{name: os.environ.get(name) for name in names}}
with open(os.path.join(os.environ["HOME"], "told.jsonl"), "a") as file:
    file.write(json.dumps(told) + "\\n")
"""

#: Starts N processes of the script, numbered by LOCAL_RANK, as torchrun does on one node.
TORCHRUN = f"""#!{sys.executable}
import os, subprocess, sys
words = sys.argv[1:]
assert words[:2] == ["--standalone", "--nnodes=1"], words
name, _, count = words[2].partition("=")
assert name == "--nproc_per_node", words
ranks = [
    subprocess.Popen([sys.executable, "-u", *words[3:]], env={{**os.environ, "LOCAL_RANK": str(rank)}})
    for rank in range(int(count))
]
sys.exit(max(rank.wait() for rank in ranks))
"""


def older(world: World) -> None:
    """Creates a folder of the older scheduler. Its scripts write their arguments to a file."""
    shutil.copytree(OLDER, world.folder, dirs_exist_ok=True)
    make_conda(world.folder, "ml")
    torchruns = ("conda/bin/torchrun", "conda/envs/ml/bin/torchrun")
    for name in ("train.py", "eval/eval.py", "shared/infer.py", *torchruns):
        path = world.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(TORCHRUN if name in torchruns else SCRIPT)
        path.chmod(0o755)
    world.env |= {"HOME": str(world.folder)}


def told(world: World) -> dict[str, list[dict[str, Any]]]:
    """Returns what the processes of each job wrote, by the job's line."""
    by_job: dict[str, list[dict[str, Any]]] = {}
    for line in (world.folder / "told.jsonl").read_text().splitlines():
        by_job.setdefault(json.loads(line)["GPU_SCHEDULER_JOB"], []).append(json.loads(line))
    jobs = world.jobs()
    return {jobs[int(job)]["command"]: lines for job, lines in by_job.items()}


def test_runs_the_jobs_of_an_older_schedulers_folder_without_changes_to_it(world: World) -> None:
    older(world)
    # Jobs of an older scheduler may be running on this machine.
    world.start("--conda-sh", str(CONDA), "--ignore-old-sessions")
    jobs = world.wait_finished(*range(1, 8))
    assert {job["outcome"] for job in jobs.values()} == {"completed"}, jobs
    report = world.status()
    assert [gpu["index"] for gpu in report["gpus"] if gpu["state"] == "paused"] == [1, 3]
    assert not {gpu for job in jobs.values() for gpu in job["gpus"]} & {1, 3}
    assert report["malformed"] == []
    assert "the older scheduler wrote the state file" in world.output()

    lines = {command: (found[0], len(found)) for command, found in told(world).items()}
    assert len(lines) == 7
    half, count = lines["0,train.py,,--llm qwen2.5-3b-inst --epochs 1 --cuda 7,"]
    assert half["argv"][-2:] == ["--cuda", half["CUDA_VISIBLE_DEVICES"]]
    assert (half["script"], count) == (str(world.folder / "train.py"), 1)
    named, _ = lines['1,./eval/eval.py,ml,--llm qwen2.5-7b-inst --dataset "two words",2']
    assert named["argv"] == ["--llm", "qwen2.5-7b-inst", "--dataset", "two words", "--cuda", "2"]
    assert named["CONDA_DEFAULT_ENV"] == "ml"
    assert lines["2,~/shared/infer.py,,--llm unknown --batch_size 1,0,2"][0]["script"].startswith(
        str(world.folder / "shared")
    )
    plain, count = lines["1,train.py,,python,--llm qwen2.5-7b-inst --seed 7,"]
    assert (plain["argv"][-2], plain["LOCAL_RANK"], count) == ("--cuda", None, 1)
    single, count = lines["2,train.py,ml,torchrun,--resume --cuda 0,0-2"]
    assert (single["argv"], count) == (["--resume", "--cuda", single["CUDA_VISIBLE_DEVICES"]], 1)

    double = told(world)["1,train.py,,torchrun-2gpu,--config big.yaml,"]
    assert sorted(one["LOCAL_RANK"] for one in double) == ["0", "1"]
    for one in double:
        assert (one["argv"], one["CUDA_VISIBLE_DEVICES"]) == (["--config", "big.yaml"], "0,2")

    assert world.end_scheduler() == 0
    state = json.loads((world.folder / world.state).read_text())
    assert state["gpu_status"] == [0.0, 0.0, 0.0, 0.0]
    assert state["paused_gpus"] == [1, 3]
    assert state["screen_sessions"] == json.loads((OLDER / world.state).read_text())["screen_sessions"]


@pytest.mark.skipif(
    shutil.which("screen") is None and "CI" not in os.environ, reason="screen is not installed"
)
def test_does_not_start_a_line_that_still_runs_under_the_older_scheduler(world: World) -> None:
    world.append("echo $$ >> ran; while [ ! -e end ]; do sleep 0.02; done")
    (world.folder / world.state).write_text('{"gpu_status": [1.0], "paused_gpus": []}')
    name = f"gpujob_0_train_{os.getpid()}"
    argv = ["screen", "-dmS", name, "bash", "-c", world.jobs_file.read_text()]
    subprocess.run(argv, cwd=world.folder, env=world.env, check=True, timeout=60)
    try:
        world.wait_for_lines("ran")
        before = sorted(path.name for path in world.folder.iterdir())
        refused = world.cli("start", "--simulate", "1", "--drain", "--log-dir", "logs")
        assert refused.returncode == 1
        named = rf"[0-9]+\.{name}, GPU 0, started .* ago \(`screen -r [0-9]+\.{name}` opens it\)"
        assert re.search(named, refused.stderr)
        assert sorted(path.name for path in world.folder.iterdir()) == before
        world.start("--ignore-old-sessions")
        assert f".{name}, GPU 0" in world.output()
        world.wait_for_lines("ran", 2)
        assert world.end_scheduler() == 0
        world.start()  # If it has its own data directory, the scheduler only warns.
        assert world.output().count(f".{name}, GPU 0") == 2
    finally:
        (world.folder / "end").touch()
    world.wait_finished(1)


def test_a_torchrun_job_that_needs_more_gpus_than_exist_waits_and_shows_why(world: World) -> None:
    (world.folder / "t.py").touch()
    world.append("0,t.py,,torchrun-9gpu", "0,t.py,,torchrun-2gpu,,3")
    world.start()
    world.wait_until(
        lambda jobs: len(jobs) == 2 and all(job["infeasible"] for job in jobs.values()), "both infeasible"
    )
    assert [job["reason"] for _, job in sorted(world.jobs().items())] == [
        "infeasible: needs 9 free GPUs, but only 4 are managed",
        "infeasible: needs 2 free GPUs, but only 1 is allowed",
    ]
