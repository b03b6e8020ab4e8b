"""State files that are links, too large, or not regular files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_scheduler.store import state_file
from gpu_scheduler.store.requests import open_requests
from gpu_scheduler.store.state_file import edit_pauses_in_file, imports_old_state_file, request_pauses
from tests.store.test_state_file import Machine

pytestmark = pytest.mark.timeout(20)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.begin()
    return made


def _large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(17 * 1024**2)


UNUSABLE: dict[str, tuple[Callable[[Path], object], str]] = {
    "fifo": (os.mkfifo, "is not a regular file"),
    "endless device": (lambda path: path.symlink_to("/dev/zero"), "is not a regular file"),
    "folder": (lambda path: path.mkdir(), "is not a regular file"),
    "too large": (_large, "is larger than 16 MiB"),
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_reports_an_unusable_state_file_once_and_keeps_it(
    machine: Machine, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, why = UNUSABLE[kind]
    machine.edit(1)
    machine.round()
    machine.path.unlink()
    make(machine.path)
    status = machine.path.lstat()
    machine.begin()
    for _ in range(3):
        machine.round()
    assert caplog.text.count(f"cannot be read or written ({why}); jobs continue; retrying") == 1
    assert (machine.path.lstat().st_ino, machine.path.lstat().st_mode) == (status.st_ino, status.st_mode)
    request_pauses(machine.store, ["U3"], True, "cli", scheduler_is_up=False)
    assert not imports_old_state_file(machine.store.data_dir)
    assert {row.target for row in open_requests(machine.store)} == {"U3"}
    machine.path.rename(machine.path.with_name("away"))
    machine.round()
    assert machine.pauses() == ([1, 3], [1, 3])


@pytest.mark.parametrize("kind", UNUSABLE)
def test_a_pause_before_the_first_start_refuses_an_unusable_state_file(tmp_path: Path, kind: str) -> None:
    make, why = UNUSABLE[kind]
    path = tmp_path / "s.json"
    make(path)
    with pytest.raises(OSError, match=why):
        edit_pauses_in_file(path, [1], True)


@pytest.mark.parametrize("kind", UNUSABLE)
def test_sets_aside_an_unusable_version_that_was_replaced(
    machine: Machine, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, why = UNUSABLE[kind]
    spare = state_file.displaced_path(machine.path)
    make(spare)
    machine.begin()
    assert not os.path.lexists(spare)
    assert os.path.lexists(machine.path.with_name("s.json.bad"))
    assert f"s.json.bad and ignored: {why}" in caplog.text
    machine.edit(2)
    machine.round()
    assert machine.pauses() == ([2], [2])


def test_a_fifo_at_the_temporary_path_blocks_nothing(machine: Machine) -> None:
    os.mkfifo(state_file.displaced_path(machine.path))
    with pytest.raises(OSError, match="No such device"):
        state_file.exchange(machine.path, b"{}")
    assert machine.pauses() == ([], [])


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"[" * 200_000, "nested more than 100 levels deep"),
        (b'{"mine": ' + b"[" * 900 + b"]" * 900 + b"}", "nested more than 100 levels deep"),
        ('{"mine": "中"}'.encode("gbk"), "byte 0xd6 is not UTF-8"),
        (b'{"mine": ' + b"9" * 10_000 + b"}", "a number has 10,000 digits"),
        (b'{"paused_gpus": [1], "paused_gpus": [2]}', 'the name "paused_gpus" occurs twice'),
    ],
    ids=["unclosed", "nested", "GBK", "digits", "twice"],
)
def test_sets_aside_a_state_file_with_unacceptable_json(
    machine: Machine, content: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    machine.path.write_bytes(content)
    for _ in range(3):
        machine.round()
    assert f"s.json was set aside as s.json.bad and rewritten from the store: {why}" in " ".join(
        caplog.text.replace("line 1, column 11: ", "").split()
    )
    assert machine.path.with_name("s.json.bad").read_bytes() == content
    assert machine.pauses() == ([], [])


@pytest.mark.parametrize(
    "text", ['{"mine": "a\\ud800b"}', '{"a\\udfff": {"x": ["\\ud83d"]}}', '{"x": "😀é"}']
)
def test_keeps_text_that_is_not_unicode_in_unknown_keys(machine: Machine, text: str) -> None:
    edit = json.loads(text)
    machine.path.write_text(json.dumps({**json.loads(machine.path.read_text()), **edit}))
    machine.edit(1, **edit)
    machine.round()
    machine.edit(1, 2, **edit)
    machine.round()
    state = json.loads(machine.path.read_text())
    assert machine.pauses() == ([1, 2], [1, 2])
    assert {key: state[key] for key in edit} == edit


class TestLink:
    """The state file is a link to a file in another folder."""

    @pytest.fixture
    def real(self, tmp_path: Path) -> Path:
        (tmp_path / "there").mkdir()
        return tmp_path / "there" / "real.json"

    @pytest.fixture
    def machine(self, tmp_path: Path, real: Path) -> Machine:
        (tmp_path / "here").mkdir()
        (tmp_path / "here" / "s.json").symlink_to(real)
        made = Machine(tmp_path / "here")
        made.begin()
        return made

    @pytest.mark.parametrize("exchanges", [True, False])
    def test_writes_through_the_link(
        self, machine: Machine, real: Path, exchanges: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if not exchanges:
            monkeypatch.setattr(state_file, "_exchange_names", lambda one, other: False)
        machine.edit(1, mine="x")
        machine.round()
        machine.edit(1, 3)
        machine.round()
        assert machine.path.is_symlink()
        assert not real.is_symlink()
        assert machine.pauses() == ([1, 3], [1, 3])
        assert json.loads(real.read_text())["mine"] == "x"
        assert os.listdir(real.parent) == ["real.json"]
        assert sorted(os.listdir(machine.path.parent)) == ["s.d", "s.json"]

    def test_sets_aside_a_broken_version_beside_the_target(self, machine: Machine, real: Path) -> None:
        real.write_text("{")
        for _ in range(3):
            machine.round()
        assert real.with_name("real.json.bad").read_text() == "{"
        assert machine.path.is_symlink()
        assert json.loads(real.read_text())["paused_gpus"] == []

    def test_recreates_the_missing_target_of_the_link(self, machine: Machine, real: Path) -> None:
        real.unlink()
        machine.begin()
        assert machine.path.is_symlink()
        assert json.loads(real.read_text())["paused_gpus"] == []

    def test_a_pause_before_the_first_start_writes_through_the_link(self, tmp_path: Path) -> None:
        real, link = tmp_path / "real.json", tmp_path / "link.json"
        real.write_text('{"mine": 1}')
        link.symlink_to(real)
        edit_pauses_in_file(link, [1], True)
        assert link.is_symlink()
        assert json.loads(real.read_text()) == {"mine": 1, "paused_gpus": [1]}

    def test_reports_a_link_to_itself(
        self, machine: Machine, real: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        real.unlink()
        real.symlink_to(real)
        machine.begin()
        machine.round()
        assert caplog.text.count("cannot be read or written (Too many levels of symbolic links)") == 1
        assert real.is_symlink()
