"""Tests how commands end and how the results report it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from gpu_scheduler.runner import group_signals, leftovers, process_scan
from gpu_scheduler.runner.leftovers import Leftovers
from gpu_scheduler.runner.process_scan import Scan
from tests.runner.attempt import wait_for
from tests.runner.conftest import Make


@pytest.mark.parametrize(
    ("script", "code", "number"),
    [("exit 0", 0, None), ("exit 7", 7, None), ("exit 255", 255, None), ("kill -9 $$", None, 9)],
)
def test_the_result_contains_the_exit_code_or_the_signal(
    make: Make, script: str, code: int | None, number: int | None
) -> None:
    attempt = make(f"echo out; echo err >&2; {script}").launch()
    result = attempt.result()
    assert (result.cause, result.exit_code, result.signal, result.began) == (None, code, number, True)
    assert attempt.body() == "out\nerr\n"
    assert result.started_at is not None
    assert result.started_at <= result.ended_at


def test_the_log_contains_the_exact_output_between_header_and_last_line(make: Make) -> None:
    script = r"printf 'a\tb\r\n\377\0c'; head -c 300000 /dev/zero | tr '\0' x; exit 3"
    attempt = make(script, header="# job 7\n").launch()
    attempt.result()
    head, _, tail = attempt.log.read_bytes().partition(b"a\tb\r\n\377\0c" + b"x" * 300000)
    assert head == b"# job 7\n"
    assert tail.startswith(b"\n--- failed: exit code 3, after 0.")


def test_a_result_after_a_launch_failure_contains_its_reason(make: Make) -> None:
    attempt = make("")
    attempt.command_sh = "printf '!script_missing no such thing: a, b' >&3; exit 1\n"
    result = attempt.launch().result()
    assert (result.began, result.message, result.exit_code) == (False, "no such thing: a, b", 1)
    assert "--- not_started: exit code 1" in attempt.output()


def test_a_command_that_did_not_write_the_begin_byte_counts_as_not_begun(make: Make) -> None:
    attempt = make("")
    attempt.command_sh = "exit 0\n"
    assert not attempt.launch().result().began


def test_a_missing_working_folder_is_reported(make: Make) -> None:
    result = make("exit 0", cwd="/nowhere").launch().result()
    assert (result.began, result.exit_code, result.signal) == (False, None, None)
    assert result.message == "the command could not be started: /nowhere: No such file or directory"


@pytest.mark.parametrize(
    "leave",
    [
        "sleep 300 &",
        "nohup sleep 300 >/dev/null 2>&1 &",
        "setsid sleep 300 &",
        "(setsid sh -c 'sleep 300 & exec sleep 300' &) &",
        "setsid env -u GPU_SCHEDULER_TOKEN sleep 301 & sleep 0.2",
        "(trap '' TERM HUP; exec setsid sleep 300 >/dev/null 2>&1) & sleep 0.2",
    ],
)
def test_a_runner_ends_the_processes_that_its_command_left_behind(make: Make, leave: str) -> None:
    attempt = make(f"{leave}\necho done; exit 0", term_grace_s=0.4).launch()
    result = attempt.result()
    assert (result.exit_code, result.survivors) == (0, ())
    assert "done" in attempt.output()
    # Only the token identifies a process that was orphaned before the runner could adopt it.
    assert attempt.pids() in ((), (attempt.status().pid,))


def test_the_output_of_processes_that_the_command_left_behind_is_logged(make: Make) -> None:
    script = "(trap 'echo saved; exit' TERM; echo up >&2; while :; do sleep 0.05; done) & sleep 0.3; exit 0"
    attempt = make(script).launch()
    attempt.result()
    assert attempt.body().splitlines()[-1] == "saved"


def test_reports_processes_that_survive_five_seconds_after_the_end_of_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[int] = []
    monkeypatch.setattr(leftovers, "has_children", lambda: True)
    monkeypatch.setattr(process_scan, "descendants", lambda root: {8: 80})
    monkeypatch.setattr(process_scan, "scan", lambda attempts: Scan({"token": {9: 90, 8: 80}}, missed=False))
    monkeypatch.setattr(process_scan, "ticks_of", lambda pid: 10 * pid)
    monkeypatch.setattr(group_signals, "signal_children", lambda number: None)
    monkeypatch.setattr(process_scan, "send_signal", lambda pid, ticks, number: sent.append(number))
    rest = Leftovers("token", None, 10.0, ended=100.0)
    assert rest.step(100.0) is not None
    assert set(sent) == {signal.SIGTERM, signal.SIGCONT}
    assert rest.step(101.0) is not None
    assert len(sent) == 4
    assert rest.step(103.0) is not None
    assert sent[4:] == [signal.SIGKILL] * 2
    assert rest.step(105.0) is None
    assert rest.survivors == [8, 9]


def test_a_time_limit_ends_the_command(make: Make) -> None:
    result = make("exec sleep 300", timeout_s=0.3).launch().result()
    assert (result.cause, result.signal) == ("timed_out", signal.SIGTERM)


def test_a_command_runs_even_if_its_log_cannot_be_opened(make: Make, tmp_path: Path) -> None:
    attempt = make("echo hello; exit 0")
    attempt.log.unlink()
    attempt.log.symlink_to(tmp_path / "victim")
    result = attempt.launch().result()
    assert result.exit_code == 0
    assert result.message is not None
    assert "cannot be opened" in result.message
    assert not (tmp_path / "victim").exists()


def test_a_command_gets_its_umask_and_folder_and_default_signal_handlers(make: Make, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    attempt = make("umask; pwd; grep SigIgn /proc/self/status; touch made", cwd=str(work), umask=0o027)
    old = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        attempt.launch().result()
    finally:
        signal.signal(signal.SIGINT, old)
    umask, folder, ignored = attempt.body().splitlines()
    assert (umask, folder) == ("0027", str(work))
    # glibc reserves signals 32 and 33.
    assert int(ignored.split()[1], 16) & ~(3 << 31) == 0
    assert (work / "made").stat().st_mode & 0o777 == 0o640
    modes = {path.name: path.stat().st_mode & 0o777 for path in attempt.folder.iterdir()}
    assert modes == dict.fromkeys(("spec.json", "command.sh", "command.pid", "claim", "result"), 0o600)
    assert attempt.folder.stat().st_mode & 0o777 == 0o700


def test_a_command_inherits_only_the_standard_descriptors(make: Make, tmp_path: Path) -> None:
    secret = os.open(tmp_path / "secret", os.O_RDWR | os.O_CREAT)
    try:
        os.set_inheritable(secret, True)
        attempt = make("ls /proc/$$/fd; read line").launch()
        result = attempt.result()
    finally:
        os.close(secret)
    # Descriptor 255 is the script, which bash opens with close-on-exec.
    assert attempt.body().split() == ["0", "1", "2", "255"]
    assert result.exit_code == 1, "`read` fails, because stdin is /dev/null"


def open_files(pid: int | None) -> list[str] | None:
    """Returns the open files of a process, or None if one was closed while they were read."""
    try:
        return [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    except FileNotFoundError:
        return None


def test_a_runner_keeps_no_descriptors_of_the_process_that_started_it(make: Make, tmp_path: Path) -> None:
    secret = os.open(tmp_path / "secret", os.O_RDWR | os.O_CREAT)
    try:
        os.set_inheritable(secret, True)
        attempt = make("exec sleep 300").launch()
        pid = attempt.until_live().pid
        wait_for(lambda: len(attempt.pids()) == 2, "runner and command")
        held = wait_for(lambda: open_files(pid), "descriptors")
    finally:
        os.close(secret)
    assert not [path for path in held if path.endswith("secret")]
    assert held.count("/dev/null") == 3
    attempt.stop()
    assert attempt.result().cause == "cancelled"


def cpu_ticks(pid: int) -> int:
    """Returns the CPU time of a process so far, in hundredths of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_a_runner_uses_hardly_any_cpu_time_after_the_command_closes_its_output(
    make: Make, tmp_path: Path
) -> None:
    for terminal in (False, True):
        script = (
            f"echo first; exec </dev/null >&- 2>&-; until [ -e {tmp_path}/go ]; do sleep 0.05; done; exit 4"
        )
        attempt = make(script, terminal=terminal).launch()
        attempt.until_logged("first")
        runner = attempt.status().pid
        assert runner is not None
        before = cpu_ticks(runner)
        until = time.monotonic() + 0.5
        wait_for(lambda end=until: time.monotonic() > end, "half a second")  # type: ignore[misc]
        assert cpu_ticks(runner) - before < 10, "the runner uses CPU time instead of waiting"
        (tmp_path / "go").touch()
        assert attempt.result().exit_code == 4
        assert attempt.body() == "first\n"
        (tmp_path / "go").unlink()


#: How long the runners in these tests wait for the processes that a command leaves.
WAIT_S = 0.6


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize(
    ("leave", "name"),
    [
        ("sleep 300 --no-such-option || sleep 300 &", "sleep 300"),
        ("nohup sleep 301 >/dev/null 2>&1 &", "sleep 301"),
        ("setsid sleep 302 &", "sleep 302"),
        ("sleep 303 & disown", "sleep 303"),
    ],
)
def test_a_command_that_only_starts_work_has_not_completed(
    make: Make, leave: str, name: str, terminal: bool
) -> None:
    attempt = make(
        f"{leave}\nsleep 0.1; exit 0", leftover_wait_s=WAIT_S, terminal=terminal, ignore_hangup=True
    )
    result = attempt.launch().result()
    assert (result.cause, result.exit_code, result.verdict) == (None, 0, "unfinished")
    assert result.left_count == len(result.left) > 0
    assert name in result.left
    assert "--- failed: exit code 0, but its work was still running in the background" in attempt.output()
    assert name in attempt.output().splitlines()[-1]
    assert attempt.pids() in ((), (attempt.status().pid,))


@pytest.mark.parametrize(
    "script", ["(sleep 0.2; echo late) & exit 0", "(sleep 0.2; echo late; exit 5) & exit 0"]
)
def test_processes_that_end_by_themselves_do_not_change_the_end_of_the_command(
    make: Make, script: str
) -> None:
    attempt = make(script, leftover_wait_s=20).launch()
    result = attempt.result()
    assert (result.exit_code, result.verdict, result.left_count) == (0, None, None)
    assert attempt.body() == "late\n"


def test_a_command_has_ended_before_the_processes_that_it_leaves(make: Make, tmp_path: Path) -> None:
    go, pid = tmp_path / "go", tmp_path / "pid"
    rest = f"until [ -e '{go}' ]; do sleep 0.01; done; sleep 0.5"
    attempt = make(f"({rest}) & echo $$ > '{pid}'; exit 7", leftover_wait_s=60).launch()
    wait_for(lambda: pid.exists() and pid.read_text(), "the pid of the command")
    wait_for(lambda: not Path(f"/proc/{pid.read_text().strip()}").exists(), "the end of the command")
    ended_at = time.time()
    go.touch()
    assert attempt.result().ended_at < ended_at + 0.5


@pytest.mark.parametrize("background", [None, "ignore"])
def test_the_processes_of_a_failed_command_are_named_but_do_not_change_its_end(
    make: Make, background: str | None
) -> None:
    result = make("sleep 300 & exit 7", leftover_wait_s=WAIT_S, background=background).launch().result()
    assert (result.exit_code, result.verdict) == (7, None)
    assert result.left == (("sleep 300",) if background is None else ())


def test_options_of_processes_that_a_command_leaves_are_not_shown(make: Make) -> None:
    script = (
        "python3 -u -c 'import time; time.sleep(300)' --token hidden &"
        " python3 -m timeit -n 1 -s 'import time; hidden=1' 'time.sleep(300)' & exit 0"
    )
    attempt = make(script, leftover_wait_s=WAIT_S).launch()
    # `python3` may be a wrapper that executes `python`.
    names = [name.replace("python3", "python") for name in attempt.result().left]
    assert sorted(names) == ["python -m timeit …", "python -u …"]
    assert "hidden" not in attempt.output()


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize(
    ("script", "code", "number"),
    [
        ("(sleep 1; echo done) & (setsid sh -c 'sleep 0.5; echo also' &) & exit 0", 0, None),
        ("(sleep 1; echo done; exit 5) & (sleep 0.5; echo also) & exit 0", 5, None),
        ("(sleep 1; echo done; kill -9 $BASHPID) & (sleep 0.5; echo also) & exit 0", None, 9),
        ("(sleep 1; echo done; exit 5) & (sleep 0.5; echo also) & exit 3", 3, None),
    ],
)
def test_a_job_that_waits_lasts_as_long_as_its_processes(
    make: Make, script: str, code: int | None, number: int | None, terminal: bool
) -> None:
    attempt = make(
        script, leftover_wait_s=0.1, background="wait", terminal=terminal, ignore_hangup=True
    ).launch()
    result = attempt.result()
    assert (result.cause, result.exit_code, result.signal) == (None, code, number)
    assert (result.verdict, result.left_count) == (None, None)
    assert attempt.body().split() == ["also", "done"]
    assert result.started_at is not None
    assert result.ended_at - result.started_at > 0.9


def test_a_time_limit_ends_a_job_that_waits_for_its_processes(make: Make) -> None:
    attempt = make("sleep 300 & exit 0", leftover_wait_s=0.1, background="wait", timeout_s=1.0).launch()
    result = attempt.result()
    assert (result.cause, result.signal) == ("timed_out", signal.SIGTERM)


@pytest.mark.parametrize(
    ("background", "cause"), [("wait", "cancelled"), (None, "cancelled"), ("ignore", None)]
)
def test_a_request_to_stop_concerns_the_work_that_a_command_has_left(
    make: Make, background: str | None, cause: str | None
) -> None:
    script = "(trap 'echo saved; exit' TERM; echo up; while :; do sleep 0.05; done) & exit 0"
    attempt = make(script, leftover_wait_s=30, background=background).launch()
    attempt.until_logged("up")
    recorded = attempt.folder / "command.pid"
    command = int(recorded.read_text().split("\n")[1].split()[0])
    wait_for(lambda: not Path(f"/proc/{command}").exists(), "the command has ended")
    attempt.stop()
    result = attempt.result(10)
    assert (result.cause, result.exit_code) == (cause, 0)
    assert attempt.body().endswith("saved\n")


def test_a_preemption_of_work_in_the_background_can_be_withdrawn(make: Make, tmp_path: Path) -> None:
    script = (
        f"(trap 'echo asked' USR1; echo up; until [ -e {tmp_path}/go ]; do sleep 0.05; done; exit 4) & exit 0"
    )
    attempt = make(script, leftover_wait_s=1, background="wait").launch()
    attempt.until_logged("up")
    attempt.stop("preempted", 0.5, "withdraw", "id", "USR1")
    attempt.until_logged("asked")
    wait_for(lambda: attempt.status().withdrawn, "the withdrawal")
    (tmp_path / "go").touch()
    result = attempt.result()
    assert (result.cause, result.exit_code) == (None, 4)


@pytest.mark.parametrize(("background", "expected"), [("wait", ("machine", None)), (None, ("machine", 0))])
def test_a_machine_shutdown_interrupts_work_in_the_background(
    make: Make, background: str | None, expected: tuple[str, int | None]
) -> None:
    attempt = make("sleep 300 & echo up; exit 0", leftover_wait_s=30, background=background).launch()
    attempt.until_logged("up")
    runner = attempt.status().pid
    assert runner is not None
    command = int((attempt.folder / "command.pid").read_text().split("\n")[1].split()[0])
    wait_for(lambda: not Path(f"/proc/{command}").exists(), "the command has ended")
    os.kill(runner, signal.SIGTERM)
    result = attempt.result(10)
    assert (result.cause, result.exit_code) == expected


@pytest.mark.parametrize(("ends_in_pipe", "text"), [(True, "completed"), (False, "failed")])
def test_a_closed_pipe_completes_a_command_that_ends_in_it(make: Make, ends_in_pipe: bool, text: str) -> None:
    attempt = make("exec bash -o pipefail -c 'yes | head -1'", ends_in_pipe=ends_in_pipe).launch()
    result = attempt.result()
    assert (result.exit_code, result.verdict) == (141, "closed_pipe" if ends_in_pipe else None)
    assert f"--- {text}: exit code 141" in attempt.output()
