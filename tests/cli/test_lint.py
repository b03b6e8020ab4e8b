"""`lint`: a jobs file as the scheduler would read it, and nothing queued."""

from __future__ import annotations

import io
import json
import sys
from types import SimpleNamespace

import pytest

from tests.cli.desk import Desk

FILE = """\
priority,script_path,conda_env,arguments,allowed_gpus
0,a.py,,--llm small,

# nothing
[share=0.5 name=half env:SEED=1] echo 'two words'
0,a.py,,--llm small,0
for x in 1 2
do
echo $x; done
high,a.py,env
"""


def write(desk: Desk, text: str = FILE) -> None:
    (desk.path / "a.py").touch()
    (desk.path / "llm_config.json").write_text('{"models": {"small": 0.5}}')
    (desk.path / "jobs.txt").write_text(text)


def test_each_line_is_told_and_a_malformed_one_is_1(desk: Desk) -> None:
    write(desk)
    code, out, err = desk.run("lint")
    assert (code, err) == (1, "")
    assert (
        f"""\
jobs.txt:2: csv; needs 0.5 of a GPU; GPUs any; priority 0
    python -u {desk.path}/a.py --llm small --cuda IDS
    in {desk.path}
    note: script a.py is a relative path: it is looked for in {desk.path}
jobs.txt:5: command; needs 0.5 of a GPU; GPUs any; priority 200; name half; env SEED
    echo 'two words'
    in {desk.path}
jobs.txt:6: the same as line 2; they are one job
jobs.txt:7: malformed: bash refuses it"""
        in out
    )
    assert "jobs.txt:8: malformed: it belongs to line 7" in out
    assert "jobs.txt:9: malformed: it belongs to line 7" in out
    assert "jobs.txt:10: malformed: priority 'high'" in out
    assert out.endswith("2 jobs, 1 duplicate line, 4 malformed\n")
    assert sorted(path.name for path in desk.path.iterdir()) == ["a.py", "jobs.txt", "llm_config.json"]


def test_json_has_the_same(desk: Desk) -> None:
    write(desk)
    code, out, _ = desk.run("lint", "jobs.txt", "--json")
    assert code == 1
    told = json.loads(out)
    assert [(line["line"], line["same_as_line"]) for line in told["lines"]] == [(2, None), (5, None), (6, 2)]
    assert told["lines"][0]["need"] == {"gpus": 1, "share": 0.5, "idle": False, "words": "0.5 of a GPU"}
    assert told["lines"][1]["env"] == {"SEED": "1"}
    assert [bad["line"] for bad in told["malformed"]] == [7, 8, 9, 10]
    assert all(bad["reason"] and bad["accepted"] for bad in told["malformed"])


def test_a_good_file_is_0_and_gpus_are_checked_where_they_are_named(desk: Desk) -> None:
    write(desk, "[gpus=2] true\n0,a.py,,,3\n")
    assert desk.run("lint")[0] == 0
    code, out, _ = desk.run("lint", "--gpus", "2")
    assert code == 1
    assert "jobs.txt:2: malformed" in out
    assert "there is no GPU 3" in out
    code, out, _ = desk.run("lint", "--gpus", "3,")
    assert code == 0
    assert "warning: it needs 2 idle GPUs, and may use 1" in out


def test_a_record_tells_the_gpus_and_the_folder(desk: Desk) -> None:
    write(desk, "0,a.py,,,5\n")
    assert desk.store.gpus()
    code, out, _ = desk.run("lint")
    assert code == 1
    assert "the GPUs are 0,1" in out


def test_the_standard_input(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"echo hi")))
    code, out, _ = desk.run("lint", "-")
    assert code == 0
    assert out.startswith("-:1: command; needs 1 idle GPU")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"\xff\xfe\n")))
    code, out, _ = desk.run("lint", "-")
    assert code == 1
    assert "UTF-16" in out


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["nowhere.txt"], "nowhere.txt: there is no such file"),
        (["."], "Is a directory"),
        (["--llm-config", "nowhere.json"], "--llm-config nowhere.json"),
        (["--gpus", "x"], "'x'"),
    ],
)
def test_what_cannot_be_read_is_2(desk: Desk, words: list[str], part: str) -> None:
    write(desk)
    code, out, err = desk.run("lint", *words)
    assert (code, out) == (2, "")
    assert part in err


def test_a_broken_llm_config_is_told(desk: Desk) -> None:
    write(desk)
    (desk.path / "llm_config.json").write_text("{")
    code, _, err = desk.run("lint")
    assert code == 2
    assert "not JSON" in err


def test_hostile_text_is_shown_as_escapes(desk: Desk) -> None:
    write(desk, "echo '\x1b]0;x\x07'\n0,\x1b[2J.py,\n")
    code, out, _ = desk.run("lint")
    assert code == 0
    assert "\x1b" not in out
    assert r"\x1b[2J" in out
