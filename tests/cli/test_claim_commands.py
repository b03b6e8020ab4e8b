"""The commands `run`, `wait` and `gpus`, as processes, on simulated GPUs and through the fake probes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_scheduler.config import StartOptions
from tests.cli.claim_box import Box
from tests.cli.desk import Desk
from tests.fakes.machine import FakeGpu
from tests.waiting import wait_for

ME = os.getpid()


@pytest.fixture(params=["simulated", "nvml", "gputil"])
def any_box(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    """Two GPUs; the second one has more free memory and is busier."""
    box = Box(request.param, tmp_path, monkeypatch)
    box.plant(
        FakeGpu("GPU-a", 1, 24576, 23764, 97.0, ((ME, 23764),)),
        FakeGpu("GPU-b", 2, 46068, 1857, 97.0, ((ME, 1857),)),
    )
    yield box
    box.close()


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    """Two idle simulated GPUs with 24000 MiB each."""
    box = Box("simulated", tmp_path, monkeypatch)
    box.plant(FakeGpu(total=24000), FakeGpu("GPU-b", 2, total=24000))
    yield box
    box.close()


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    """GPUs that a test sets in the fake driver library."""
    box = Box("nvml", tmp_path, monkeypatch)
    yield box
    box.close()


def test_gpus_lists_every_gpu_in_the_columns_idx_name_free_total_and_util(any_box: Box) -> None:
    code, out, err = any_box.run("gpus")
    rows = [line.split() for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert rows[0] == ["idx", "name", "free", "total", "util"]
    assert [(row[0], *row[-5:]) for row in rows[1:]] == [
        ("0", "812", "MiB", "24576", "MiB", "97%"),
        ("1", "44211", "MiB", "46068", "MiB", "97%"),
    ]


def test_gpus_as_json_adds_the_free_memory_and_the_claims(any_box: Box) -> None:
    holder = any_box.hold("--mb", "8000")
    code, out, err = any_box.run("gpus", "--json")
    found = json.loads(out)["gpus"]
    assert (code, err) == (0, "")
    assert [
        (gpu["index"], gpu["memory_used_mib"], gpu["memory_total_mib"], gpu["memory_free_mib"])
        for gpu in found
    ] == [(0, 23764, 24576, 812), (1, 1857, 46068, 44211)]
    assert found[0]["claims"] == []
    (claim,) = found[1]["claims"]
    assert (claim["pid"], claim["mib"], claim["by_scheduler"]) == (holder.pid, 8000, False)


def test_run_takes_the_gpu_with_the_most_free_memory_and_forwards_the_exit_code(any_box: Box) -> None:
    script = 'echo "$CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER"; cat; exit 7'
    code, out, err = any_box.run("run", "--min-free-mb", "8000", "--", "sh", "-c", script, text="from stdin")
    assert (code, out) == (7, "1 PCI_BUS_ID\nfrom stdin")
    assert err.startswith("scheduler.py: took GPU 1 (")
    assert err.endswith(", 44211 MiB free)\n")


def test_run_takes_a_gpu_in_exclusive_mode_entirely_and_only_without_another_process(driver: Box) -> None:
    driver.plant(FakeGpu("GPU-a", 1, mode=3))
    driver.hold("--mb", "1000")
    assert not driver.can_claim("--mb", "1000")
    driver.plant(FakeGpu("GPU-a", 1, mode=3, compute=((7, 10),)), FakeGpu("GPU-b", 2, mode=2))
    code, _, err = driver.run("run", "--min-free-mb", "5", "--timeout", "0", "--", "true")
    assert code == 124
    assert "GPU 1 has a fault: in compute mode Prohibited" in err


def test_run_waits_for_the_process_on_a_gpu_in_exclusive_mode(driver: Box) -> None:
    driver.plant(FakeGpu("GPU-a", 1, mode=3, compute=((7, 10),)))
    code, _, err = driver.run("run", "--timeout", "0", "--", "true")
    assert (code, "GPU 0 is in compute mode Exclusive_Process, and a process uses it" in err) == (124, True)
    driver.plant(FakeGpu("GPU-a", 1, mode=3, graphics=((7, 10),)))
    assert driver.run("run", "--timeout", "0", "--", "true")[0] == 0


def test_wait_prints_the_ids_and_says_that_it_holds_nothing(any_box: Box) -> None:
    code, out, err = any_box.run("wait", "-n", "2")
    assert (code, out) == (0, "0,1\n")
    assert "not claimed" in err
    assert any_box.can_claim("-n", "2")


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["-n", "3", "--", "true"], 3, "3 GPUs wanted, but only 2 to choose from (0,1)"),
        (["--only", "0,7", "--", "true"], 3, "GPU 7 is not among the GPUs to choose from (0,1)"),
        (["--exclude", "0,1", "--", "true"], 3, "1 GPU wanted, but --exclude leaves none"),
        (["--min-free-mb", "40000", "-n", "2", "--", "true"], 3, "but only 1 of the 2 GPUs"),
        (
            ["--mb", "50000", "--", "true"],
            3,
            "no GPU to choose from (0,1) has 50000 MiB; the largest has",
        ),
        (["--only", "1", "--mb", "50000", "--", "true"], 3, "(1) has 50000 MiB; the largest has 46068 MiB"),
        (["--min-free-mb", "45000", "--timeout", "0", "--", "true"], 124, "timed out"),
        (["--max-util", "50", "--timeout", "0.2", "--poll", "0.1", "--", "true"], 124, "timed out"),
    ],
)
def test_exit_codes_of_run(any_box: Box, options: list[str], code: int, message: str) -> None:
    found, out, err = any_box.run("run", *options)
    assert (found, out) == (code, "")
    assert message in err


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ([], 2, "give a command after `--`"),
        (["--"], 2, "give a command after `--`"),
        (["true"], 2, " -- true`\n"),
        (
            ["python", "train.py", "--epochs", "3"],
            2,
            " -- python train.py --epochs 3`\n",
        ),
        (["--count", "0", "--", "true"], 2, "--count"),
        (["--max-util", "101", "--", "true"], 2, "--max-util"),
        (["--mb", "0", "--", "true"], 2, "--mb"),
        (["--exclude", "all", "--", "true"], 2, "--exclude"),
        (["--min-fre-mb", "1", "--", "true"], 2, "did you mean `--min-free-mb`?"),
        (["bash", "-c", "echo hi"], 2, " -- bash -c 'echo hi'`\n"),
        (["-n", "2", "echo", "--lr", "2"], 2, " -n 2 -- echo --lr 2`\n"),
        (["--simulate", "2", "--gpus", "2", "--", "true"], 2, "--gpus; did you mean `--count N`"),
        (["--gpus", "2", "--", "true"], 2, "did you mean `--count N`"),
        (["--daemon"], 2, "to run the jobs of the queue until none is left, use `start --drain`"),
        (["--timeout", "1e9", "--", "true"], 2, "is not a number from 0 to 31622400"),
        (["--exclude", "x", "--", "true"], 2, "write ids such as 0, 0,2 or 0-3\n"),
        (["--exclude", "", "--", "true"], 2, "write ids such as 0, 0,2 or 0-3\n"),
        (["--", "no-such-program"], 127, "no-such-program: command not found\n"),
        (["--", "echo hi"], 127, "'echo hi': command not found (for a shell command, use `run -- bash"),
        (["--", "A=1", "env"], 127, "A=1: command not found (for a shell command"),
        (["--", "source", "x"], 127, "source: command not found (for a shell command"),
        (["--", ""], 127, "'': command not found\n"),
        (["--", "/etc/passwd"], 126, "/etc/passwd: cannot be executed (Permission denied)"),
        (["--", "/"], 126, "/: cannot be executed"),
    ],
)
def test_exit_codes_of_run_on_any_gpus(box: Box, options: list[str], code: int, message: str) -> None:
    found, out, err = box.run("run", *options)
    assert (found, out) == (code, "")
    assert message in err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"\x7fELF no program", "cannot be executed (Exec format error; does the script begin with #!?)"),
        (b"#!/no/such/interpreter\n", "cannot be executed (its interpreter does not exist)"),
    ],
)
def test_a_script_that_the_kernel_refuses_is_explained(box: Box, text: bytes, message: str) -> None:
    script = box.folder / "script"
    script.write_bytes(text)
    script.chmod(0o755)
    code, out, err = box.run("run", "--", "./script")
    assert (code, out) == (126, "")
    assert f"./script: {message}\n" in err


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["-n", "3"], 3),
        (["--max-util", "50", "--timeout", "0"], 124),
        (["--max-util", "x"], 2),
        (["--", "true"], 2),
    ],
)
def test_exit_codes_of_wait(any_box: Box, options: list[str], code: int) -> None:
    found, out, _ = any_box.run("wait", *options)
    assert (found, out) == (code, "")


@pytest.mark.parametrize("command", [["gpus"], ["wait"], ["run", "--", "true"]])
def test_the_exit_code_is_4_if_no_gpu_can_be_read(driver: Box, command: list[str]) -> None:
    driver.plant(init=9)
    code, out, err = driver.run(*command)
    assert (code, out) == (4, "")
    assert "Driver Not Loaded" in err


def test_a_driver_that_does_not_answer_in_time_is_a_timeout(driver: Box) -> None:
    driver.plant(FakeGpu())
    (driver.machine.folder / "hang").touch()
    code, out, err = driver.run("run", "--timeout", "0", "--", "true")
    assert (code, out) == (124, "")
    assert "no answer from the GPU driver within 2 s" in err


def test_nothing_is_written_into_the_working_folder(box: Box) -> None:
    assert box.run("gpus")[0] == box.run("wait")[0] == box.run("run", "--", "true")[0] == 0
    assert list(box.folder.iterdir()) == []


def test_the_pid_of_the_command_is_that_of_run(box: Box) -> None:
    started = box.start("run", "--", "sh", "-c", "echo $$")
    assert started.read_line() == str(started.pid)
    assert started.finish() == (0, "")


def test_the_command_has_the_signal_actions_of_the_caller(box: Box) -> None:
    show = ["grep", "-E", "^Sig(Ign|Blk|Cgt):", "/proc/self/status"]
    direct = subprocess.run(show, capture_output=True, text=True, timeout=60, check=True)
    assert box.run("run", "--", *show)[1] == direct.stdout


def test_a_killed_holder_frees_its_gpu_at_once(box: Box) -> None:
    holder = box.hold("--only", "0")
    waiter = box.start("run", "--only", "0", "--poll", "3600", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    waiter.wait_for_text(f"GPU 0 is claimed by run, pid {holder.pid}, user ")
    assert "scheduler.py: waiting for a free GPU ...\n" in waiter.stderr()
    holder.kill()
    assert waiter.finish() == (0, "0\n")


def test_a_second_command_gets_another_gpu(box: Box) -> None:
    box.hold("--only", "0")
    assert box.run("run", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")[:2] == (0, "1\n")
    box.hold("--only", "1")
    assert not box.can_claim()
    _, out, _ = box.run("gpus")
    assert out.count("claimed by run, pid ") == 2


def test_a_command_that_waits_for_two_gpus_holds_neither(box: Box) -> None:
    holder = box.hold("--only", "1")
    waiter = box.start("run", "-n", "2", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    waiter.wait_for_text("GPU 1 is claimed")
    assert "waiting for 2 free GPUs ..." in waiter.stderr()
    assert box.can_claim("--only", "0")
    holder.kill()
    assert waiter.finish() == (0, "0,1\n")


def test_small_users_share_one_gpu_until_its_memory_is_claimed(box: Box) -> None:
    first = box.hold("--only", "0", "--mb", "10000")
    second = box.hold("--only", "0", "--mb", "12G")
    assert "took 12288 MiB of GPU 0 (" in second.stderr()
    assert not box.can_claim("--only", "0", "--mb", "1713")
    assert box.can_claim("--only", "0", "--mb", "1712")
    assert not box.can_claim("--only", "0")
    third = box.start("run", "--only", "0", "--mb", "9000", "--poll", "3600", "--", "echo", "ran")
    third.wait_for_text(f"GPU 0 has 10000 MiB claimed by run, pid {first.pid}, user ")
    assert f"; 12288 MiB claimed by run, pid {second.pid}, user " in third.stderr()
    first.kill()
    assert third.finish() == (0, "ran\n")


def test_a_claim_survives_when_the_command_executes_another_program(box: Box) -> None:
    holder = box.start("run", "--only", "0", "--", "sh", "-c", "exec sh -c 'echo ready; exec cat'")
    assert holder.read_line() == "ready"
    assert not box.can_claim("--only", "0")
    assert holder.finish() == (0, "")
    assert box.can_claim("--only", "0")


def test_children_of_the_command_hold_no_claim(box: Box) -> None:
    script = "sleep 60 >/dev/null 2>&1 & echo $!; exit 0"
    code, out, _ = box.run("run", "--only", "0", "--", "sh", "-c", script)
    try:
        assert code == 0
        assert box.can_claim("--only", "0")
    finally:
        os.kill(int(out), signal.SIGKILL)


@pytest.mark.parametrize("prefix", [[], ["sh", "-c", '"$@"; exit $?', "sh"]])
def test_run_below_run_uses_the_gpus_of_the_outer_command_without_a_claim(
    box: Box, prefix: list[str]
) -> None:
    inner = [
        "env",
        "-u",
        "CUDA_VISIBLE_DEVICES",
        *box.words("run", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES"),
    ]
    code, out, err = box.run("run", "--only", "1", "--", *prefix, *inner)
    assert (code, out) == (0, "1\n")
    assert "scheduler.py: using GPU 1 (" in err
    too_many = box.words("run", "-n", "2", "--", "true")
    assert box.run("run", "--only", "1", "--", *prefix, *too_many)[0] == 3


@pytest.mark.parametrize("prefix", [[], ["sh", "-c", '"$@"; exit $?', "sh"]])
def test_run_below_a_run_that_claims_part_of_a_gpu_does_not_use_that_claim(
    box: Box, prefix: list[str]
) -> None:
    outer = ["--only", "0", "--mb", "10000", "--", *prefix]
    code, _, err = box.run("run", *outer, *box.words("run", "--timeout", "0", "--", "true"))
    assert code == 124
    assert "GPU 0 has 10000 MiB claimed by run, pid " in err
    inner = box.words("run", "--mb", "12000", "--", "sh", "-c", "echo ready; exec cat")
    holder = box.start("run", *outer, *inner)
    assert holder.read_line() == "ready"
    # If both are the same process, the second claim replaces the first one.
    left = 2000 if prefix else 12_000
    assert not box.can_claim("--only", "0", "--mb", str(left + 1))
    assert box.can_claim("--only", "0", "--mb", str(left))


def test_run_below_run_does_not_release_the_outer_claim(box: Box) -> None:
    inner = box.words("run", "--", "sh", "-c", "echo ready; exec cat")
    holder = box.start("run", "--only", "1", "--", *inner)
    assert holder.read_line() == "ready"
    assert not box.can_claim("--only", "1")


def test_run_inside_a_job_chooses_among_the_gpus_of_the_job_without_a_claim(box: Box) -> None:
    box.hold("--only", "1")  # as the runner of the job does
    job = {"GPU_SCHEDULER_TOKEN": "0" * 32, "CUDA_VISIBLE_DEVICES": "1"}
    show = ["--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]
    code, out, err = box.run("run", *show, env=job, below=box.fake_runner())
    assert (code, out) == (0, "1\n")
    assert "without another claim" in err
    assert box.run("run", "--only", "0", *show, env=job, below=box.fake_runner())[0] == 3
    _, _, err = box.run("wait", env=job, below=box.fake_runner())
    assert "not claimed" not in err


def test_a_copy_of_the_environment_of_a_job_does_not_switch_claims_off(box: Box) -> None:
    box.hold("--only", "1")
    job = {"GPU_SCHEDULER_TOKEN": "0" * 32, "CUDA_VISIBLE_DEVICES": "1"}
    code, _, err = box.run("run", "--timeout", "0", "--", "true", env=job)
    assert code == 124
    assert "GPU 1 is claimed by run, pid " in err


@pytest.mark.parametrize(("options", "amount"), [([], "the whole GPU"), (["--mb", "8000"], "8000 MiB")])
def test_run_inside_a_job_names_the_claim_of_the_job(box: Box, options: list[str], amount: str) -> None:
    job = ["env", f"GPU_SCHEDULER_TOKEN={'0' * 32}", *box.words("run", "--mb", "500", "--", "true")]
    code, _, err = box.run("run", "--only", "1", *options, "--", *box.fake_runner(), *job)
    assert code == 0
    assert f", 24000 MiB free, surrounding claim: {amount}) of the surrounding job" in err


def test_run_inside_a_job_uses_all_gpus_of_the_job_even_if_its_runner_claims_only_one(box: Box) -> None:
    job = ["env", "CUDA_VISIBLE_DEVICES=0,1", f"GPU_SCHEDULER_TOKEN={'0' * 32}"]
    inner = box.words("run", "-n", "2", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    code, out, _ = box.run("run", "--only", "1", "--", *box.fake_runner(), *job, *inner)
    assert (code, out) == (0, "0,1\n")


def test_cuda_visible_devices_restricts_the_choice(box: Box) -> None:
    show = ["--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]
    assert box.run("run", *show, env={"CUDA_VISIBLE_DEVICES": "1"})[:2] == (0, "1\n")
    for value, reason in (("", "hides every GPU"), ("7", "'7' matches no GPU")):
        code, _, err = box.run("run", *show, env={"CUDA_VISIBLE_DEVICES": value})
        assert (code, reason in err) == (3, True)
    code, _, err = box.run("run", "--only", "0", *show, env={"CUDA_VISIBLE_DEVICES": "1"})
    note = "CUDA_VISIBLE_DEVICES=1 allows only GPU 1 of 2\n"
    assert (code, err) == (3, f"scheduler.py: GPU 0 is not among the GPUs to choose from (1)\n{note}")
    box.hold("--only", "1")
    _, _, err = box.run("run", "--timeout", "0", *show, env={"CUDA_VISIBLE_DEVICES": "1"})
    assert err.startswith(
        f"scheduler.py: waiting for a free GPU ...\nscheduler.py: {note}scheduler.py: GPU 1 is"
    )


def test_wait_can_be_used_in_a_shell_assignment(box: Box) -> None:
    box.hold("--only", "0")
    words = " ".join(box.words("wait", "--min-free-mb", "8000"))
    script = f"export CUDA_VISIBLE_DEVICES=$({words}); echo $CUDA_VISIBLE_DEVICES"
    done = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, timeout=60, check=True, cwd=box.folder
    )
    assert done.stdout == "1\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_signal_ends_the_wait(box: Box, number: signal.Signals, code: int) -> None:
    box.hold("-n", "2")
    waiter = box.start("run", "--", "true")
    waiter.wait_for_text("GPU 1 is claimed")
    waiter.process.send_signal(number)
    assert waiter.finish() == (code, "")
    assert "Traceback" not in waiter.stderr()


def test_a_reason_is_printed_again_only_if_it_changes(driver: Box) -> None:
    driver.plant(FakeGpu(used=20000))
    waiter = driver.start("run", "--min-free-mb", "8000", "--poll", "0.1", "--", "echo", "ran")
    waiter.wait_for_text("GPU 0 has 4576 MiB free\n")
    driver.plant(FakeGpu(used=20001))
    driver.plant(count=999)
    waiter.wait_for_text("Unknown Error")
    driver.plant(FakeGpu(used=20002, lost=True))
    waiter.wait_for_text("GPU 0 has a fault: lost\n")
    driver.plant(FakeGpu(used=16576))
    assert waiter.finish() == (0, "ran\n")
    texts = ("waiting for a free GPU", "MiB free\n", "Unknown Error")
    assert [waiter.stderr().count(text) for text in texts] == [1, 1, 1]


def test_an_unusable_lock_file_keeps_the_command_off_its_gpu(box: Box) -> None:
    box.run("run", "--", "true")
    (folder,) = Path(os.environ["GPU_SCHEDULER_LOCK_DIR"]).glob("sim-*")
    (folder / "SIM-0").unlink()
    (folder / "SIM-0").symlink_to("/etc/passwd")
    assert box.run("run", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")[:2] == (0, "1\n")
    code, _, err = box.run("run", "--only", "0", "--timeout", "0", "--", "true")
    assert code == 124
    assert f"GPU 0 cannot be claimed: {folder}/SIM-0 is a symbolic link; " in err


def test_an_unsuitable_lock_folder_is_refused_with_a_remedy(box: Box) -> None:
    code, _, err = box.run("run", "--", "true", env={"GPU_SCHEDULER_LOCK_DIR": "/tmp/locks"})
    assert code == 2
    assert "is in /tmp, which the system empties" in err
    assert "set GPU_SCHEDULER_LOCK_DIR" in err


def test_wait_refuses_an_unsuitable_lock_folder_and_makes_none(box: Box) -> None:
    folder = Path(os.environ["GPU_SCHEDULER_LOCK_DIR"])
    assert box.run("wait")[0] == 0
    assert not folder.exists()
    folder.symlink_to("/var/tmp")
    code, out, err = box.run("wait")
    assert (code, out) == (2, "")
    assert f"the lock folder {folder} is a symbolic link\nset GPU_SCHEDULER_LOCK_DIR" in err


def test_gpus_reports_an_unsuitable_lock_folder_once(box: Box) -> None:
    folder = Path(os.environ["GPU_SCHEDULER_LOCK_DIR"])
    folder.symlink_to("/var/tmp")
    code, out, err = box.run("gpus")
    assert (code, len(out.splitlines())) == (0, 3)
    assert err.count(f"the lock folder {folder} is a symbolic link\n") == 1


@pytest.mark.parametrize(("command", "said"), [("gpus", "Simulated 8 GiB"), ("wait", "0\n")])
def test_the_commands_use_the_simulated_gpus_of_the_running_scheduler_and_say_so(
    desk: Desk, command: str, said: str
) -> None:
    desk.store.record_options(StartOptions(simulate="1:8G"))
    with desk.scheduler():
        code, out, err = desk.run(command)
        real = desk.run(command, "--gpu-probe", "nvml")
    assert (code, said in out) == (0, True)
    assert "the scheduler of gpu_scheduler_state.json simulates GPUs (--simulate 1:8G)" in err
    assert "simulates" not in real[2]


def test_simulated_jobs_report_their_usage_to_run(box: Box) -> None:
    job = [sys.executable, "-m", "gpu_scheduler.simjob", "--vram", "20000", "--hold", "60"]
    holder = box.start("run", "--only", "0", "--mb", "1", "--", *job)

    def free() -> list[int]:
        code, out, err = box.run("gpus", "--json")
        assert (code, err) == (0, ""), holder.stderr()
        return [gpu["memory_free_mib"] for gpu in json.loads(out)["gpus"]]

    wait_for(lambda: free() == [4000, 24000], "the usage of the job")
    assert not box.can_claim("--only", "0", "--mb", "4001")
    assert box.can_claim("--only", "0", "--mb", "4000")
    holder.kill()
