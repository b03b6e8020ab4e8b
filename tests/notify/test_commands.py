"""Tests `notify` and `start --notify` as programs, with a real receiver."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from gpu_scheduler.config import NOTIFY_VARIABLE, StartOptions
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.store.events import newest_event_id
from tests import changes, warm
from tests.cli.desk import Desk
from tests.notify.inbox import Inbox
from tests.processes import exists
from tests.stress.harness import environment
from tests.waiting import wait_for

#: How often `notify` is killed.
KILLS = int(os.environ.get("NOTIFY_KILLS", "4"))
ROOT = Path(__file__).parents[2]


class Notifier:
    """Runs `notify` on the store of a desk. env: its variables."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.env, self.output = environment(), desk.path / "output"
        self.processes: list[warm.Process] = []
        assert desk.store

    def begin(self, *words: str) -> warm.Process:
        """Starts it."""
        with open(self.output, "ab") as out:
            words = ("notify", *words)
            made = warm.Process("gpu_scheduler", words, self._desk.path, self.env, out.fileno(), out.fileno())
        self.processes.append(made)
        return made

    def said(self) -> str:
        """Returns what all processes have printed."""
        return self.output.read_text()

    def end_job(self, outcome: Outcome = Outcome.COMPLETED) -> int:
        """Ends a job. Returns the id of the event."""
        self._desk.record(changes.finish(self._desk.job(), outcome))
        return newest_event_id(self._desk.store)


@pytest.fixture
def notifier(desk: Desk) -> Iterator[Notifier]:
    made = Notifier(desk)
    yield made
    for process in made.processes:
        process.kill()
        process.wait()


def run(notifier: Notifier, words: Sequence[str], path: Path) -> subprocess.CompletedProcess[str]:
    return warm.run("gpu_scheduler", ["notify", *words], path, notifier.env)


def test_a_wrong_url_is_refused_with_what_apprise_accepts(notifier: Notifier, tmp_path: Path) -> None:
    pytest.importorskip("apprise")
    done = run(notifier, ["--to", "foo://me:s3cret@h"], tmp_path)
    assert done.returncode == 2
    assert "apprise knows no service foo; it accepts such URLs as mailto://" in done.stderr
    known = run(notifier, ["--to", "tgram://s3cret"], tmp_path)
    assert known.returncode == 2
    assert "it has the form tgram://{bot_token}" in known.stderr
    assert "s3cret" not in done.stderr + known.stderr
    notifier.env[NOTIFY_VARIABLE] = "foo://x"
    assert run(notifier, [], tmp_path).returncode == 2
    started = warm.run("gpu_scheduler", ["start", "--simulate", "1", "--notify"], tmp_path, notifier.env)
    assert (started.returncode, "knows no service foo" in started.stderr) == (2, True)


def test_without_a_receiver_it_names_the_options(notifier: Notifier, tmp_path: Path) -> None:
    done = run(notifier, [], tmp_path)
    assert done.returncode == 2
    assert "--to URL, --to-file FILE, $GPU_SCHEDULER_NOTIFY or --command CMD" in done.stderr
    started = warm.run("gpu_scheduler", ["start", "--simulate", "1", "--notify"], tmp_path, notifier.env)
    assert (started.returncode, "in the variable GPU_SCHEDULER_NOTIFY" in started.stderr) == (2, True)


def test_without_the_extra_it_says_what_to_install_and_commands_work(
    notifier: Notifier, tmp_path: Path
) -> None:
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "apprise.py").write_text("raise ImportError")
    notifier.env["PYTHONPATH"] = str(tmp_path / "without")
    for command in (["notify", "--to", "json://h"], ["start", "--simulate", "1", "--notify", "json://h"]):
        done = warm.run("gpu_scheduler", command, tmp_path, notifier.env)
        assert done.returncode == 2
        assert f"{sys.executable} -m pip install 'apprise>=1.9'" in done.stderr
    notifier.begin("--command", "cat >> got")
    wait_for(lambda: "reporting completed, failed" in notifier.said(), "its start")
    wait_for(lambda: list(tmp_path.glob("*/notify-*.json")), "its position")
    event = notifier.end_job()
    wait_for(lambda: (tmp_path / "got").exists() and f'"id": {event}' in (tmp_path / "got").read_text())


@pytest.mark.parametrize("mode", [0o644, 0o620, 0o606])
def test_a_file_that_others_can_use_is_refused(notifier: Notifier, tmp_path: Path, mode: int) -> None:
    file = tmp_path / "urls"
    file.write_text("json://h")
    file.chmod(mode)
    done = run(notifier, ["--to-file", str(file)], tmp_path)
    assert done.returncode == 2
    assert "chmod" in done.stderr


def test_the_urls_in_a_file_are_shown_nowhere_and_only_one_notifier_runs(
    notifier: Notifier, inbox: Inbox, tmp_path: Path
) -> None:
    pytest.importorskip("apprise")
    file = tmp_path / "urls"
    file.write_text(f"# mine\n\n{inbox.url}\n")
    file.chmod(0o600)
    process = notifier.begin("--to-file", "urls")
    wait_for(lambda: list(tmp_path.glob("*/notify-*.json")), "its position")
    other = run(notifier, ["--to-file", "urls"], tmp_path)
    assert (other.returncode, "another `notify` runs" in other.stderr) == (1, True)
    event = notifier.end_job(Outcome.FAILED)
    wait_for(lambda: inbox.events == [event], "the message")
    process.terminate()
    assert process.wait(30) == 0
    assert not exists(process.pid)
    texts = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path != file]
    assert not any(b"s3cret" in text for text in texts)


def test_what_waits_at_the_end_is_not_lost(notifier: Notifier, inbox: Inbox, tmp_path: Path) -> None:
    pytest.importorskip("apprise")
    process = notifier.begin("--to", inbox.url)
    wait_for(lambda: list(tmp_path.glob("*/notify-*.json")), "its position")
    wanted = [notifier.end_job() for _ in range(3)]
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    if set(inbox.events) != set(wanted):  # it had too little time
        notifier.begin("--to", inbox.url)
    wait_for(lambda: sorted(set(inbox.events)) == wanted, "all ends")


def test_a_receiver_that_hangs_holds_up_neither_another_one_nor_the_end(
    notifier: Notifier, inbox: Inbox, tmp_path: Path
) -> None:
    pytest.importorskip("apprise")
    other = Inbox(["hang"])
    try:
        process = notifier.begin("--to", other.url, inbox.url)
        wait_for(lambda: len(list(tmp_path.glob("*/notify-*.json"))) == 2, "their positions")
        events = [notifier.end_job()]
        wait_for(lambda: inbox.events == events, "a message to the other receiver")
        events.append(notifier.end_job())
        wait_for(lambda: inbox.events == events, "another message")
        assert other.messages == []
        process.terminate()
        assert process.wait(30) == 0
    finally:
        other.close()


@pytest.mark.timeout(1200)
def test_every_end_is_delivered_however_often_it_is_killed(notifier: Notifier, inbox: Inbox) -> None:
    pytest.importorskip("apprise")
    chance, wanted = random.Random(1), list[int]()

    def started(count: int) -> bool:
        return notifier.said().count("reporting") > count

    def delivered(event: int) -> bool:
        return event in inbox.events

    notifier.begin("--to", inbox.url)
    before = 0
    wait_for(lambda: list(notifier.output.parent.glob("*/notify-*.json")), "its position")
    for number in range(KILLS):
        ends = [notifier.end_job() for _ in range(chance.randint(1, 2))]
        wanted += ends
        # Kills it while it starts, while it reads and delivers, and while it writes what it has delivered.
        if number % 3 > 0:
            wait_for(partial(started, before), "its start")
        if number % 3 == 2:
            wait_for(partial(delivered, ends[0]), "a delivery")
        end = chance.uniform(0.0, (1.0, 1.5, 0.1)[number % 3])
        with pytest.raises(subprocess.TimeoutExpired):  # the moment of the kill
            notifier.processes[-1].wait(end)
        notifier.processes[-1].kill()
        notifier.processes[-1].wait()
        wanted += [notifier.end_job() for _ in range(chance.randint(0, 1))]
        before = notifier.said().count("reporting")
        notifier.begin("--to", inbox.url)
    wait_for(lambda: set(inbox.events) >= set(wanted), "all ends", timeout_s=300)
    assert set(inbox.events) == set(wanted)
    print(f"{len(wanted)} ends, {len(inbox.events)} delivered, {len(inbox.messages)} messages")


def test_start_tells_of_the_jobs_and_shows_no_url(notifier: Notifier, inbox: Inbox, tmp_path: Path) -> None:
    pytest.importorskip("apprise")
    (tmp_path / "jobs.txt").write_text("env > env; echo hello\necho 'ValueError: bad' >&2; exit 3\n")
    notifier.env[NOTIFY_VARIABLE] = inbox.url
    words = ("start", "--simulate", "1", "--jobs-file", "jobs.txt", "--poll", "0.1", "--log-dir", "logs",
             "--notify")  # fmt: skip
    with open(tmp_path / "output", "wb") as out:
        made = warm.Process("gpu_scheduler", words, tmp_path, notifier.env, out.fileno(), out.fileno())
    notifier.processes.append(made)
    wait_for(lambda: len(set(inbox.events)) == 2, "both ends", timeout_s=100)
    children = Path(f"/proc/{made.pid}/task/{made.pid}/children").read_text().split()
    lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in (made.pid, *children)]
    assert any(b"\0notify\0" in line for line in lines)
    assert not any(b"s3cret" in line for line in lines)
    made.terminate()
    made.wait(60)
    assert "exit code 3: ValueError: bad" in "".join(body for _, body in inbox.messages)
    texts = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(b"s3cret" in text for text in texts)
    assert "s3cret" not in repr(StartOptions(notify=(inbox.url,)))


def test_the_last_end_of_a_scheduler_is_not_lost(notifier: Notifier, inbox: Inbox, tmp_path: Path) -> None:
    pytest.importorskip("apprise")
    (tmp_path / "jobs.txt").write_text("until ls */notify-*.json; do sleep 0.1; done\n")
    words = ["start", "--simulate", "1", "--jobs-file", "jobs.txt", "--drain", "--log-dir", "logs"]
    done = warm.run("gpu_scheduler", [*words, "--notify", inbox.url], tmp_path, notifier.env)
    assert done.returncode == 0
    if not inbox.events:  # it had too little time
        notifier.begin("--to", inbox.url)
    wait_for(lambda: inbox.messages, "the end")
    assert inbox.messages[0][0].startswith("job 1 (until ls ")


@pytest.mark.parametrize("words", [["status"], ["start", "--simulate", "1", "--drain", "--jobs-file", ""]])
def test_other_commands_import_nothing_of_apprise(tmp_path: Path, words: Sequence[str]) -> None:
    code = (
        "import sys; from gpu_scheduler.cli import main; main();"
        " print([name for name in sys.modules if 'apprise' in name or 'notify' in name.split('.')])"
    )
    env = {**environment(), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, env=env, capture_output=True, text=True,
        timeout=60, stdin=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "[]"
