"""Tests that a job is completed only if its work was done: pipes, and work in the background."""

from __future__ import annotations

from tests.e2e.world import World

START = ("--simulate", "4", "--drain", "--log-dir", "logs", "--fail-retries", "1")


#: Lines, with the outcome, the exit code and the words that `why` must contain.
_PIPES = [
    ("[share=0.5] python3 -c 'raise SystemExit(7)' 2>&1 | tee log", "failed", 7, ()),
    ("[share=0.5 pipefail=off] python3 -c 'raise SystemExit(7)' 2>&1 | tee log", "completed", 0, ()),
    ("[share=0.5] bash inner.sh", "completed", 0, ()),
    ("[share=0.5] env SHELLOPTS=pipefail bash inner.sh", "failed", 1, ()),
    (
        "[share=0.5] yes | head -1 && echo trained", "failed", 141,
        ("a program wrote to a pipe whose reader had read enough", "pipefail=off"),
    ),
    (
        "[share=0.5] yes | head -1", "completed", 141,
        ("a program in its pipe wrote more than the next one read",),
    ),
    (
        "[share=0.5] python3 -c 'exec(\"while 1: print(1, flush=True)\")' | head -1", "failed", 120,
        ("a pipe whose reader had read enough", "BrokenPipeE", "pipefail=off"),
    ),
    (
        "[share=0.5] echo a | grep b", "failed", 1,
        ("`grep` found no line, or another program", "pipefail=off"),
    ),
]  # fmt: skip


def test_the_exit_code_of_a_pipe_is_that_of_its_first_failed_program(world: World) -> None:
    (world.folder / "inner.sh").write_text("false | cat\n")
    world.env |= {"SHELLOPTS": "braceexpand"}
    world.append(*(line for line, *_ in _PIPES))
    world.start(*START[:-2])
    jobs = world.wait_finished(*range(1, len(_PIPES) + 1))
    for number, (line, outcome, code, texts) in enumerate(_PIPES, start=1):
        assert (jobs[number]["outcome"], jobs[number]["exit_code"]) == (outcome, code), line
        why = world.run_ok("why", str(number)) if texts else ""
        assert [text for text in texts if text not in why] == [], line
    assert world.end_scheduler() == 141


def test_a_script_that_only_starts_work_fails_once_and_names_it(world: World) -> None:
    (world.folder / "start.sh").write_text("nohup sleep 300 >/dev/null 2>&1 &\necho started\n")
    world.append("[share=0.5] bash start.sh", "[share=0.5 background=ignore] bash start.sh")
    (world.folder / "wait.sh").write_text("(sleep 1; echo done; exit 5) &\n")
    world.append("[share=0.5 background=wait] bash wait.sh")
    assert "bash start.sh" in world.run_ok("lint", "jobs.txt")
    assert world.run_ok("lint", "jobs.txt").count("start.sh contains `&` without `wait`") == 1
    world.start(*START, module="tests.e2e.short_waits")
    jobs = world.wait_finished(1, 2, 3)
    assert [jobs[n]["outcome"] for n in (1, 2, 3)] == ["failed", "completed", "failed"]
    assert [jobs[n]["exit_code"] for n in (1, 2, 3)] == [0, 0, 5]
    reason = "its work was still running in the background; 1 process was left and then ended: sleep 300"
    assert jobs[1]["reason"] == reason
    assert reason in world.run_ok("status", "--all")
    assert reason in world.run_ok("events")
    assert "put [background=wait] before its line" in world.run_ok("why", "1")
    assert "sleep 300" in world.run_ok("logs", "1")
    assert world.end_scheduler() == 5
