"""Pauses made by commands, by edits to the state file, and by both.

The later pause takes precedence and none is lost.
"""

from __future__ import annotations

import ctypes
import errno
import json
from pathlib import Path

import pytest

from gpu_scheduler.attempts.executors import DirectExecutor, Executors
from gpu_scheduler.clock import Clock
from gpu_scheduler.core.model.gpu import GpuSample
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.scheduling.actions import Start
from gpu_scheduler.core.scheduling.needs import LlmConfig
from gpu_scheduler.core.scheduling.plan import plan
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.gpus.watch import GpuWatch
from gpu_scheduler.intake.state_file_watcher import StateFileWatcher, summarize
from gpu_scheduler.rounds.loop import read_facts
from gpu_scheduler.show.events import message_of
from gpu_scheduler.store import state_file
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.events import events_after
from gpu_scheduler.store.state_file import apply_edit, request_pauses, requested_pauses
from gpu_scheduler.store.store import Store
from tests import changes
from tests.changes import CheckedWriter

EXECUTORS = Executors(DirectExecutor())


class Machine:
    """A store with four GPUs, and a loop whose rounds carry out requests."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(DataDir.of(str(folder / "s.json")), create=True)
        self.recorder = CheckedWriter(self.store, Settings())
        self.clock = Clock()
        samples = [GpuSample(f"U{i}", i, "card", 24576, 0, 0.0) for i in range(4)]
        self.recorder.record_gpus(samples, [s.uuid for s in samples], self.clock.now())
        self.watch = StateFileWatcher(self.store)
        self.path = self.store.data_dir.state_file
        self.now = 1000.0

    def begin(self) -> None:
        """Starts a new scheduler on the store."""
        self.watch = StateFileWatcher(self.store)
        self.watch.start(self.now)
        self.round()

    def round(self) -> None:
        """Runs one round: reads the state file, carries out requests, and writes the file."""
        self.now += 2
        self.watch.check(self.now)
        while True:
            facts = read_facts(self.store, GpuWatch(), EXECUTORS, LlmConfig(), Settings(), self.clock.now())
            actions = plan(facts)
            if not actions:
                break
            self.recorder.record(actions, facts.now)
        self.watch.write(self.now)

    def edit(self, *paused: int, **more: object) -> None:
        """Edits the state file as a person does."""
        state = json.loads(self.path.read_text())
        state["paused_gpus"] = list(paused)
        self.path.write_text(json.dumps({**state, **more}))

    def pauses(self) -> tuple[list[int], list[int]]:
        """Returns the paused GPUs in the store, and those in the state file."""
        return [r.index for r in self.store.gpus() if r.paused], json.loads(self.path.read_text())[
            "paused_gpus"
        ]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.begin()
    return made


def test_an_edit_takes_effect_and_unknown_keys_are_kept(machine: Machine) -> None:
    machine.edit(0, 2, note="mine")
    machine.round()
    assert machine.pauses() == ([0, 2], [0, 2])
    assert json.loads(machine.path.read_text())["note"] == "mine"
    machine.edit(2)
    machine.round()
    assert machine.pauses() == ([2], [2])


def test_an_edit_after_the_last_read_survives_the_next_write(machine: Machine) -> None:
    machine.edit(3)
    request_pauses(machine.store, ["U1"], True, "cli", scheduler_is_up=False)
    machine.edit(3, 2)  # made after the command has read the file
    machine.round()
    assert machine.pauses() == ([1, 2, 3], [1, 2, 3])


def test_examines_a_version_that_was_edited_while_it_was_replaced(machine: Machine) -> None:
    before = machine.path.read_bytes()
    state = json.loads(before)
    state["paused_gpus"] = [0]
    machine.path.write_text(json.dumps(state))  # the scheduler never reads this version
    request_pauses(machine.store, [], True, "nobody", scheduler_is_up=False)
    with machine.store.db.transaction():
        machine.store.db.set_meta("statefile_examined", state_file.digest(before))
        machine.store.db.set_meta("statefile_edit", "null")
        machine.store.db.connection.execute("DELETE FROM request")
    machine.watch._exchange(before.replace(b'"jobs"', b'"jobs" '))
    machine.round()
    assert machine.pauses() == ([0], [0])


def test_the_next_start_examines_a_replaced_version_left_by_a_crash(machine: Machine) -> None:
    state = json.loads(machine.path.read_text())
    state["paused_gpus"] = [1]
    state_file.displaced_path(machine.path).write_text(json.dumps(state))
    machine.begin()
    assert machine.pauses() == ([1], [1])
    assert not state_file.displaced_path(machine.path).exists()


def test_a_pause_edited_while_no_scheduler_runs_takes_effect_at_the_next_start(machine: Machine) -> None:
    machine.edit(2)
    request_pauses(machine.store, ["U0"], True, "cli", scheduler_is_up=False)
    request_pauses(machine.store, ["U2"], False, "cli", scheduler_is_up=False)  # the later request
    machine.begin()
    assert machine.pauses() == ([0], [0])


@pytest.mark.parametrize(("scheduler_is_up", "paused"), [(False, {"U2"}), (True, {"U1", "U2"})])
def test_a_missing_file_resumes_gpus_only_if_no_scheduler_can_write_it_again(
    machine: Machine, scheduler_is_up: bool, paused: set[str]
) -> None:
    machine.edit(1)
    machine.round()
    machine.path.unlink()  # while a scheduler runs, an editor may have moved the file away for a moment
    request_pauses(machine.store, ["U2"], True, "cli", scheduler_is_up=scheduler_is_up)
    assert {uuid for uuid, is_paused in requested_pauses(machine.store).items() if is_paused} == paused


def test_examines_each_version_of_the_file_once(machine: Machine) -> None:
    machine.edit(2)
    content = machine.path.read_bytes()
    assert apply_edit(machine.store, content) == []
    assert requested_pauses(machine.store)["U2"]
    request_pauses(machine.store, ["U2"], False, "cli", scheduler_is_up=False)
    assert apply_edit(machine.store, content) == []
    assert not requested_pauses(machine.store)["U2"]


def test_an_edit_and_a_repeated_command_cause_one_event_each(machine: Machine) -> None:
    machine.edit(2)
    machine.round()
    for _ in range(2):
        request_pauses(machine.store, ["U2"], False, "cli", scheduler_is_up=True)
        machine.round()
    messages = [message_of(event).full_text for event in events_after(machine.store, 0, 10)]
    assert messages == ["GPU 2 paused by an edit to the state file", "GPU 2 resumed"]


def test_reports_once_the_gpus_resumed_by_removing_the_file(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    machine.edit(1)
    machine.round()
    machine.path.unlink()
    with caplog.at_level("INFO"):
        machine.begin()
    assert caplog.messages == [f"{machine.path} was removed; writing it again with no GPU paused"]
    messages = [message_of(event).full_text for event in events_after(machine.store, 0, 10)]
    assert messages[1:] == ["GPU 1 resumed because the state file was removed"]


def test_compares_a_state_file_without_a_base_with_the_store(machine: Machine) -> None:
    machine.path.write_text('{"gpu_status": [0, 0, 0, 0], "paused_gpus": [3]}')
    machine.round()
    assert machine.pauses() == ([3], [3])
    machine.path.write_text('{"gpu_status": [0, 0, 0, 0]}')
    machine.round()
    assert machine.pauses() == ([3], [3])


@pytest.mark.parametrize(
    ("text", "paused"),
    [
        ('{"gpu_status": [1.0, 0.5, 0.0, 0.0], "paused_gpus": [1, 3]}', [1, 3]),
        ('{"gpu_status": [0.5], "paused_gpus": ["1", 3.0, " 3 "]}', [1, 3]),  # as scripts write it
        ('{"gpu_status": "strange", "paused_gpus": []}', []),
        ('{"gpu_status": []}', []),
        # The file is from a machine with more GPUs.
        ('{"gpu_status": [0, 0, 0, 0, 0, 0, 0, 0], "paused_gpus": [3, 7]}', [3]),
    ],
)
def test_takes_over_the_pauses_in_a_state_file_of_the_older_scheduler(
    tmp_path: Path, text: str, paused: list[int]
) -> None:
    machine = Machine(tmp_path)
    older = {**json.loads(text), "sessions": {"a": "/tmp/gpujob_0"}, "note": None}
    machine.path.write_text(json.dumps(older))
    assert apply_edit(machine.store, machine.path.read_bytes())[0].startswith(
        "the older scheduler wrote the state file"
    )
    machine.begin()
    assert machine.pauses() == (paused, paused)
    state = json.loads(machine.path.read_text())
    assert state["gpu_status"] == [0.0, 0.0, 0.0, 0.0]
    assert (state["sessions"], state["note"]) == (older["sessions"], None)
    messages = apply_edit(machine.store, text.encode())
    assert not any(message.startswith("the older scheduler wrote") for message in messages)


def test_rejects_text_that_is_not_a_gpu_number() -> None:
    for value in ("-1", "one", "", 1.5, None, [1], True, "\u0661"):
        with pytest.raises(ValueError, match="must be a list of GPU numbers"):
            state_file.parse(json.dumps({"paused_gpus": [value]}).encode())


def test_compares_and_renames_if_the_file_system_cannot_exchange_names(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Libc:
        """Answers RENAME_EXCHANGE with an error, as NFS, CIFS and FUSE do."""

        @staticmethod
        def renameat2(*args: object) -> int:
            ctypes.set_errno(errno.EINVAL)
            return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *args, **kwargs: Libc)
    machine.path.chmod(0o640)
    machine.edit(0, 2, note="mine")
    edited = machine.path.read_bytes()
    machine.round()
    assert machine.pauses() == ([0, 2], [0, 2])
    assert json.loads(machine.path.read_text())["note"] == "mine"
    assert machine.path.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in machine.path.parent.glob(".s.json*")] == []
    # The exchange returns an edit that was never read. The edit stays in a file beside the state file until
    # it is examined.
    machine.edit(1)
    edited = machine.path.read_bytes()
    assert state_file.exchange(machine.path, b"{}") == edited
    assert state_file.displaced_path(machine.path).read_bytes() == edited
    machine.begin()
    assert machine.pauses() == ([1], [1])


def test_reports_and_ignores_an_unmanaged_gpu(machine: Machine) -> None:
    machine.edit(9)
    assert apply_edit(machine.store, machine.path.read_bytes()) == [
        "GPU 9 in paused_gpus is ignored, because it is not managed"
    ]


@pytest.mark.parametrize("broken", ["{", "[]", '{"paused_gpus": "all"}', '{"paused_gpus": [true]}', "\xff"])
def test_broken_json_changes_no_pause_and_is_set_aside_after_two_seconds(
    machine: Machine, broken: str
) -> None:
    machine.edit(1)
    machine.round()
    machine.path.write_text(broken, encoding="latin-1")
    machine.now += 5
    machine.watch.check(machine.now)
    machine.watch.write(machine.now)
    assert machine.path.read_text(encoding="latin-1") == broken
    machine.watch.check(machine.now + 1.9)
    assert machine.path.exists()
    machine.watch.check(machine.now + 2.1)
    aside = machine.path.with_name("s.json.bad")
    assert aside.read_text(encoding="latin-1") == broken
    machine.round()
    assert machine.pauses() == ([1], [1])


def test_removing_the_state_file_while_no_scheduler_runs_resumes_every_gpu(machine: Machine) -> None:
    machine.edit(0, 1)
    machine.round()
    machine.path.unlink()
    machine.begin()
    assert machine.pauses() == ([], [])


def test_a_pause_after_the_file_was_removed_takes_precedence(machine: Machine) -> None:
    machine.edit(0, 1)
    machine.round()
    machine.path.unlink()
    request_pauses(machine.store, ["U2"], True, "cli", scheduler_is_up=False)
    machine.begin()
    assert machine.pauses() == ([2], [2])


def test_rewrites_a_broken_state_file_after_its_removal(machine: Machine) -> None:
    machine.edit(1)
    machine.round()
    machine.path.write_text("{")
    machine.watch.check(machine.now)
    machine.path.unlink()
    machine.round()
    machine.round()  # a missing file is written after two seconds
    assert machine.pauses() == ([1], [1])
    assert machine.watch.due_at is None


def test_does_not_replace_a_state_file_that_is_being_written(machine: Machine) -> None:
    request_pauses(machine.store, ["U0"], True, "cli", scheduler_is_up=True)
    writer = machine.path.open("w")
    machine.round()
    assert machine.path.read_text() == ""
    writer.write('{"paused_gpus": [3], "mine": 1}')
    writer.close()
    machine.round()
    machine.round()
    assert machine.pauses() == ([3], [3])  # without a base, the file lists all pauses
    assert json.loads(machine.path.read_text())["mine"] == 1


def test_rewrites_the_state_file_if_it_is_removed_while_the_scheduler_runs(machine: Machine) -> None:
    machine.edit(0)
    machine.round()
    machine.path.unlink()
    machine.round()
    assert not machine.path.exists(), "an editor may be about to write it"
    machine.round()
    assert machine.pauses() == ([0], [0])
    machine.path.unlink()
    machine.round()
    assert not machine.path.exists(), "the delay begins anew"
    machine.round()
    assert machine.pauses() == ([0], [0])


def test_a_file_that_an_editor_moves_away_right_after_a_start_is_not_replaced(machine: Machine) -> None:
    machine.edit(note="mine")
    content = machine.path.read_text()
    machine.watch = StateFileWatcher(machine.store)
    machine.watch.start(machine.now)
    machine.path.rename(machine.path.with_name("backup"))
    machine.round()
    assert not machine.path.exists(), "a file without the note would become the base of the next edit"
    machine.path.write_text(content)
    machine.round()
    assert json.loads(machine.path.read_text())["note"] == "mine"


def test_does_not_write_an_unchanged_state(machine: Machine) -> None:
    machine.round()
    before = machine.path.stat()
    machine.round()
    assert (machine.path.stat().st_ino, machine.path.stat().st_mtime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
    )


def test_writes_the_state_file_at_most_once_a_second(machine: Machine) -> None:
    machine.round()
    request_pauses(machine.store, ["U0"], True, "cli", scheduler_is_up=False)
    machine.recorder.record(
        plan(read_facts(machine.store, GpuWatch(), EXECUTORS, LlmConfig(), Settings(), machine.clock.now())),
        machine.clock.now(),
    )
    machine.watch.write(machine.now + 1.1)
    assert machine.pauses()[1] == [0]
    machine.recorder.record([], machine.clock.now())
    request_pauses(machine.store, ["U0"], False, "cli", scheduler_is_up=False)
    machine.recorder.record(
        plan(read_facts(machine.store, GpuWatch(), EXECUTORS, LlmConfig(), Settings(), machine.clock.now())),
        machine.clock.now(),
    )
    machine.watch.write(machine.now + 1.5)
    assert machine.pauses()[1] == [0]
    assert machine.watch.due_at == pytest.approx(machine.now + 2.1)
    machine.watch.write(machine.now + 2.2)
    assert machine.pauses()[1] == []


def test_logs_the_pauses_of_an_older_file_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine(tmp_path)
    machine.path.write_text('{"gpu_status": [0, 0], "paused_gpus": [1]}')
    with caplog.at_level("INFO"):
        machine.begin()
    assert machine.pauses() == ([1], [1])
    assert "the older scheduler wrote the state file" in caplog.text
    assert "by an edit" not in caplog.text


def test_keeps_several_broken_versions_of_the_state_file(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(7):
        machine.path.write_text(f'{{"paused_gpus": "{number}"}}')
        machine.now += 5
        machine.watch.check(machine.now)
        machine.round()
        machine.round()
    names = ["s.json.bad", *(f"s.json.bad.{number}" for number in (1, 2, 3, 4))]
    kept = [machine.path.with_name(name).read_text() for name in names]
    assert kept == [f'{{"paused_gpus": "{number}"}}' for number in (0, 1, 2, 3, 6)]
    assert (
        's.json was set aside as s.json.bad and rewritten from the store: its "paused_gpus" must be a list'
        " of GPU numbers, such as [0, 2]"
    ) in caplog.text


def test_keeps_a_broken_version_that_was_replaced(machine: Machine) -> None:
    state_file.displaced_path(machine.path).write_text("{")
    machine.begin()
    assert machine.path.with_name("s.json.bad").read_text() == "{"
    assert not state_file.displaced_path(machine.path).exists()


def test_a_job_that_runs_again_is_counted_although_an_earlier_attempt_has_ended(machine: Machine) -> None:
    store, now = machine.store, machine.clock.now()
    job = store.insert_job(JobSpec("command", "true", "/", command="true"), "cli")
    first = machine.recorder.record([Start(job, ("U0",), 1000)], now)[job]
    assert summarize(store)[2] == {"starting": 1, "running_ids": [job]}
    assert summarize(store, {first})[2] == {"running_ids": []}  # its end is not recorded yet
    end = changes.fail(first)
    assert machine.recorder.record([end], now) == {}
    assert summarize(store, {first})[2] == {"queued": 1, "running_ids": []}
    second = machine.recorder.record([Start(job, ("U1",), 500)], now)[job]
    shares, paused, jobs = summarize(store, {first})
    assert (shares, paused, jobs) == ([0, 0.5, 0, 0], [], {"starting": 1, "running_ids": [job]})
    assert summarize(store, {first, second})[2] == {"running_ids": []}
