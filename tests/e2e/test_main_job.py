"""Tests the main use case: each line runs once, on an allowed GPU, in its own session and environment."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from gpu_scheduler.store.data_dir import DataDir, Host, write_host
from gpu_scheduler.store.store import Store
from tests.e2e.world import CONDA, World, make_conda
from tests.waiting import wait_for

SHOW = """\
import json, os, sys, time
names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CONDA_DEFAULT_ENV", "STY", "SEED")
seen = {name: os.environ.get(name) for name in names}
with open(sys.argv[1], "a") as file:
    file.write(json.dumps({**seen, "argv": sys.argv[2:], "tty": sys.stdout.isatty()}) + "\\n")
print("running", flush=True)
while not os.path.exists("go"):
    time.sleep(0.02)
"""

CONFIG = {"default_requirement": 1.0, "models": {"qwen2.5-3b-inst": 0.5, "qwen2.5-7b-inst": 1.0}}


@pytest.fixture
def shown(world: World) -> World:
    (world.folder / "show.py").write_text(SHOW)
    (world.folder / "llm_config.json").write_text(json.dumps(CONFIG))
    make_conda(world.folder, "torch", "other")
    return world


def test_runs_six_lines_in_both_the_csv_and_the_command_format(shown: World) -> None:
    shown.start("--screen", "--conda-sh", str(CONDA))
    shown.append(
        "0,show.py,,a --llm qwen2.5-3b-inst --mode half,",
        "0,show.py,,b --llm=qwen2.5-3b-inst,all",
        "1,show.py,,c --llm qwen2.5-7b-inst --cuda 7 --mode x/y,3",
        "[gpus=1 priority=2 allowed=1] python3 show.py d",
        "2,show.py,torch,e --llm qwen2.5-3b-inst,2",
        "[gpus=2 priority=3] python3 show.py f --cuda=9",
    )
    lines = {name: json.loads(shown.wait_for_lines(name)[0]) for name in "abcde"}
    assert {name: line["CUDA_VISIBLE_DEVICES"] for name, line in lines.items()} == {
        "a": "0", "b": "0", "c": "3", "d": "1", "e": "2",
    }  # fmt: skip
    assert {line["CUDA_DEVICE_ORDER"] for line in lines.values()} == {"PCI_BUS_ID"}
    assert lines["e"]["CONDA_DEFAULT_ENV"] == "torch"
    assert lines["d"]["CONDA_DEFAULT_ENV"] is None
    assert lines["a"]["argv"] == ["--llm", "qwen2.5-3b-inst", "--mode", "half", "--cuda", "0"]
    assert lines["b"]["argv"] == ["--llm=qwen2.5-3b-inst", "--cuda", "0"]
    assert lines["c"]["argv"][2:4] == ["--cuda", "3"]
    assert lines["c"]["argv"].count("--cuda") == 1
    assert all(line["tty"] for line in lines.values())
    jobs = shown.jobs()
    sessions = {i: job["session"] for i, job in jobs.items() if job["session"]}
    assert sessions[1].endswith(".gpujob_0_half_1")
    assert sessions[3].endswith(".gpujob_3_x-y_3")
    assert sessions[2].endswith(".gpujob_0_show_2")
    assert jobs[6]["state"] == "queued"
    assert jobs[6]["reason"] == "needs 2 idle GPUs, 0 free"
    assert "running" in Path(jobs[1]["log"]).read_text()
    assert Path(jobs[1]["log"]).name.startswith("job_1_")
    (shown.folder / "go").touch()
    assert {job["outcome"] for job in shown.wait_finished().values()} == {"completed"}
    two = json.loads(shown.wait_for_lines("f")[0])
    assert two["argv"] == [f"--cuda={two['CUDA_VISIBLE_DEVICES']}"]
    assert len(two["CUDA_VISIBLE_DEVICES"].split(",")) == 2
    assert all(len((shown.folder / name).read_text().splitlines()) == 1 for name in "abcdef")


def test_arguments_reach_the_script_unchanged(shown: World) -> None:
    (shown.folder / "go").touch()
    shown.append(
        '0,show.py,,"one --layers 1,2,3 --note ""a b""",',
        "0,show.py,,two --lr 1 --bs 2,",
        "0,show.py,,two --lr 2 --bs 1,",
        "[env:SEED=1] 0,show.py,,three,",
        "[env:SEED=2] 0,show.py,,three,",
        "0,show.py,,four ';' touch injected ; touch injected $HOME `touch injected` *,",
    )
    shown.start("--drain")
    assert shown.process is not None
    assert shown.process.wait(60) == 0, shown.output()
    args = {
        name: [json.loads(line) for line in shown.wait_for_lines(name)]
        for name in ("one", "two", "three", "four")
    }
    assert args["one"][0]["argv"][:4] == ["--layers", "1,2,3", "--note", "a b"]
    assert sorted(line["argv"][1] for line in args["two"]) == ["1", "2"]
    assert sorted(line["SEED"] for line in args["three"]) == ["1", "2"]
    assert args["four"][0]["argv"][:3] == [";", "touch", "injected"]
    assert "$HOME" in args["four"][0]["argv"]
    assert not (shown.folder / "injected").exists()


def test_pauses_by_command_and_by_state_file_take_effect_without_overwriting_each_other(world: World) -> None:
    world.start()
    assert "0" in world.run_ok("pause", "0")
    world.append("[share=1 allowed=0] echo x >> ran")
    world.wait_until(
        lambda jobs: 1 in jobs and "GPU 0: paused" in (jobs[1]["reason"] or ""), "job 1 waits for GPU 0"
    )
    state = world.folder / world.state
    wait_for(lambda: json.loads(state.read_text())["paused_gpus"] == [0], "state file")
    state.write_text(json.dumps({**json.loads(state.read_text()), "paused_gpus": [1, 3]}))
    world.wait_for_lines("ran")  # The edit resumes GPU 0, so the job starts.
    wait_for(
        lambda: [g["state"] for g in world.status()["gpus"]] == ["available", "paused", "available", "paused"]
    )
    world.end_scheduler()
    assert world.run_ok("pause", "2") == "GPU 2: paused\n"
    assert json.loads(state.read_text())["paused_gpus"] == [1, 2, 3]
    world.start()
    wait_for(lambda: [g["state"] for g in world.status()["gpus"]].count("paused") == 3, "three paused GPUs")
    wait_for(lambda: json.loads(state.read_text())["paused_gpus"] == [1, 2, 3], "state file")
    world.run_ok("resume", "all")
    wait_for(lambda: json.loads(state.read_text())["paused_gpus"] == [], "state file")


@pytest.mark.parametrize("mode", [(), ("--screen",)], ids=["direct", "screen"])
def test_a_restarted_scheduler_reads_results_written_while_it_was_down(
    world: World, mode: tuple[str, ...]
) -> None:
    wait = "while [ ! -e {0} ]; do sleep 0.02; done"
    world.start(*mode)
    world.append(
        *(f"[share=1 name={n}] echo {n} >> ran; {wait.format('go-' + n)}; exit {code}"
          for n, code in (("zero", 0), ("seven", 7), ("third", 3), ("fourth", 0))),
        *(f"[share=1] echo queued{n} >> ran" for n in range(3)),
    )  # fmt: skip
    world.wait_for_lines("ran", 4)
    world.wait_until(
        lambda jobs: [jobs.get(i, {}).get("state") for i in range(1, 5)] == ["running"] * 4, "four running"
    )
    assert world.process is not None
    world.process.kill()
    world.process.wait()
    for name in ("zero", "seven"):
        (world.folder / f"go-{name}").touch()
    home = DataDir.of(str(world.folder / world.state))
    wait_for(lambda: len(list(home.runs.glob("*/*/result"))) == 2, "two results without a scheduler")
    before = world.jobs()
    # The state comes from the attempt folder, because the store is not up to date.
    assert before[1]["state"] == "finished"
    world.start(*mode)
    jobs = world.wait_finished(1, 2, 5, 6, 7)
    assert [jobs[i]["exit_code"] for i in (1, 2)] == [0, 7]
    assert [jobs[i]["state"] for i in (3, 4)] == ["running", "running"]
    assert sorted((world.folder / "ran").read_text().split()) == sorted(
        ["zero", "seven", "third", "fourth", "queued0", "queued1", "queued2"]
    )
    assert world.end_scheduler() == 0
    assert "keeps running" in world.output()
    # `cancel` also ends a running job without a scheduler. The next scheduler records the end.
    assert "cancel" in world.run_ok("cancel", "3")
    wait_for(lambda: len(list(home.runs.glob("3/*/result"))) == 1, "the cancelled job's result")
    world.start(*mode)
    assert world.wait_finished(3)[3]["outcome"] == "cancelled"
    (world.folder / "go-fourth").touch()
    assert world.wait_finished(4)[4]["outcome"] == "completed"


def test_a_machine_shutdown_interrupts_jobs_regardless_of_the_order_of_its_signals(world: World) -> None:
    world.start()
    world.append(*(f"[share=0.5] echo $PPID $$ >> pids{n}; exec sleep 60" for n in (1, 2)))
    for n, order in ((1, (0, 1)), (2, (1, 0))):
        pids = [int(pid) for pid in world.wait_for_lines(f"pids{n}")[0].split()]
        os.kill(pids[order[0]], signal.SIGTERM)
        # The runner forwards the signal and may be faster than the test.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids[order[1]], signal.SIGTERM)
    world.wait_until(lambda jobs: all(jobs.get(i, {}).get("state") == "held" for i in (1, 2)), "both held")
    jobs = world.jobs()
    assert all(
        jobs[i]["reason"].startswith("the machine was shut down or its login session ended") for i in (1, 2)
    )
    assert "`retry 1`" in jobs[1]["reason"]
    world.run_ok("retry", "1")
    world.wait_until(lambda jobs: jobs.get(1, {}).get("state") == "running", "running again")
    world.run_ok("cancel", "--all", "--grace", "1")
    assert {job["outcome"] for job in world.wait_finished().values()} == {"cancelled"}


def test_two_schedulers_in_one_folder_do_not_interfere(world: World, tmp_path: Path) -> None:
    other = World(tmp_path, "other.json")
    try:
        world.start("--jobs-file", "jobs.txt")
        other.start("--jobs-file", "other.txt")
        other.jobs_file = tmp_path / "other.txt"
        world.append("echo one >> ran; sleep 60")
        other.append("echo two >> ran; sleep 60")
        world.wait_for_lines("ran", 2)
        world.wait_until(lambda jobs: jobs.get(1, {}).get("state") == "running", "running")
        world.run_ok("cancel", "1", "--grace", "1")
        assert world.wait_finished(1)[1]["outcome"] == "cancelled"
        assert other.jobs()[1]["state"] == "running"
        assert f"pid {other.process.pid}" in other.cli("start", "--simulate", "1").stderr  # type: ignore[union-attr]
    finally:
        other.close()


def test_starts_with_an_empty_queue_if_the_state_file_and_data_directory_were_deleted(world: World) -> None:
    import shutil

    world.start()
    world.append("[share=1] echo old >> ran; sleep 60")
    world.wait_for_lines("ran")
    store = Store(DataDir.of(str(world.folder / world.state)))
    token = store.active_attempts()[0].token
    store.close()
    world.end_scheduler()
    (world.folder / world.state).unlink()
    shutil.rmtree(world.folder / "gpu_scheduler_state.d")
    world.jobs_file.write_text("[share=1] echo new >> ran\n")
    world.start()
    jobs = world.wait_finished()
    assert {i: job["outcome"] for i, job in jobs.items()} == {1: "completed"}
    assert (world.folder / "ran").read_text().split() == ["old", "new"]
    from tests.processes import sweep

    sweep(world.folder, token, term_s=0.0)


def test_a_scheduler_ends_if_its_data_directory_is_removed(world: World) -> None:
    world.start()
    folder = world.folder / "gpu_scheduler_state.d"

    def is_removed() -> bool:
        # After it notices the removal, the scheduler may still write its status board before it ends.
        subprocess.run(["rm", "-rf", folder], check=False, stderr=subprocess.DEVNULL)
        return not folder.exists()

    wait_for(is_removed, "the removal of the data directory")
    assert world.process is not None
    assert world.process.wait(60) == 1
    assert "removed or replaced" in world.output()


def test_a_scheduler_starts_no_job_after_another_host_takes_over(world: World) -> None:
    home = DataDir.of(str(world.folder / world.state))
    world.start("--state-interval", "0.5")
    world.append("[share=0.5] while [ ! -e go ]; do sleep 0.05; done; echo ran >> ran")
    world.wait_until(lambda jobs: 1 in jobs and jobs[1]["state"] == "running", "job 1 runs")
    home.host_file.unlink()
    wait_for(home.host_file.exists, "the scheduler to write its own host name again")
    wait_for(lambda: '"running": 1' in home.state_file.read_text(), "the state file with job 1")
    write_host(home.host_file, Host("gpu-other", "0" * 32))
    home.state_file.write_text("{}")  # This stands for a file written by the other host.
    assert world.process is not None
    assert world.process.wait(60) == 1
    assert "belongs to host gpu-other" in world.output()
    assert "no more jobs are started; running jobs continue" in world.output()
    assert home.state_file.read_text() == "{}"
    world.append("[share=0.5] echo never >> ran")
    (world.folder / "go").touch()
    ran = world.folder / "ran"
    wait_for(lambda: ran.exists() and ran.read_text(), "the end of job 1")
    assert ran.read_text() == "ran\n"
    home.host_file.unlink()  # The clean-up must be able to read the store.
