"""`calibrate` prints a comparison and entries to paste into llm_config.json, which it does not change."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.config import StartOptions
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.intake.llm_config import LlmConfigFile
from tests import changes
from tests.cli.desk import Desk

CONFIG = '{\n  "note": "mine",\n  "models": {\n    "qwen": 1.0,\n    "other": {"share": 0.5}\n  }\n}\n'


def finish_job(desk: Desk, text: str, peak: int, outcome: Outcome = Outcome.COMPLETED, **values: Any) -> None:
    """Inserts a finished job whose memory was measured."""
    job = desk.job(text, **values)
    gpus = ("SIM-0", "SIM-1")[: values.get("gpus", 1)]
    this = desk.record(act.Start(job, gpus, 0, vram=values.get("vram")))[job]
    seen = tuple((uuid, peak - 10 * index, 50.0) for index, uuid in enumerate(gpus))
    desk.record(changes.run(this), changes.measure(this, 5.0, *seen))
    desk.record(
        changes.end(this, outcome, started_at=100.0, ended_at=160.0),
        *changes.leave(this),
    )


@pytest.fixture
def config(desk: Desk) -> Path:
    """Provides the llm_config.json that the scheduler uses. Also inserts three kinds of finished jobs."""
    path = desk.path / "llm_config.json"
    path.write_text(CONFIG)
    desk.store.record_options(StartOptions(llm_config=str(path)))
    finish_job(desk, "python t.py --llm qwen", 8000)
    finish_job(desk, "python t.py --llm qwen --lr 1", 8300)
    finish_job(desk, "python t.py --llm qwen --lr 2", 8200)
    finish_job(desk, "python t.py --llm qwen", 20000, Outcome.FAILED)
    finish_job(desk, "python big.py", 3000, gpus=2)
    finish_job(desk, "python good.py", 4000, vram=4096)
    return path


def calibrate_json(desk: Desk, *words: object) -> dict[str, Any]:
    code, out, err = desk.run("calibrate", "--json", *words)
    assert (code, err) == (0, "")
    value: dict[str, Any] = json.loads(out)
    return value


def test_calibrate_compares_each_workload_class_and_changes_nothing(desk: Desk, config: Path) -> None:
    code, out, err = desk.run("calibrate")
    assert (code, err) == (0, "")
    lines = [re.split(r"\s\s+", line.strip()) for line in out.splitlines()[1:7]]
    rows = {program: cells for cells, [program] in zip(lines[::2], lines[1::2], strict=True)}
    expected = ["qwen", "3", "8300", "8300", "1 min", "-", '{"vram": 9152}']
    assert rows["t.py; current entry 1.0"] == expected
    assert rows["big.py"][-2:] == ["-", "[vram=3328 gpus=2]"]
    assert rows["good.py"][-2:] == ["4096", "within ±10%"]
    assert f'Suggested entries for "models" in {config}, to paste in place of the old ones:\n' in out
    assert '\n  "qwen": {"vram": 9152}\n' in out
    assert "\n  [vram=3328 gpus=2] big.py\n" in out
    assert config.read_text() == CONFIG
    assert [path.name for path in desk.path.glob("llm_config*")] == ["llm_config.json"]


def test_the_printed_entries_are_json_and_once_pasted_are_not_suggested_again(
    desk: Desk, config: Path
) -> None:
    for run in range(3):
        finish_job(desk, f"python t.py --llm 中\x9b --lr {run}", 2000)
    _, _, rest = desk.run("calibrate")[1].partition(" to paste in place of the old ones:\n")
    entries = json.loads("{" + rest.partition(OLDER)[0] + "}")
    assert entries == {"qwen": {"vram": 9152}, "中\x9b": {"vram": 2240}}
    watched = LlmConfigFile(str(config))
    watched.refresh()
    config.write_text(json.dumps({"models": entries}))
    assert watched.refresh()
    assert watched.current.models["qwen"].vram == 9152
    assert calibrate_json(desk)["models"] == {}
    assert f"\n{config} needs no changes.\n" in desk.run("calibrate")[1]


OLDER = "The older scheduler cannot read entries in braces.\n"


def test_an_entry_based_on_one_short_run_is_only_shown(desk: Desk, config: Path) -> None:
    config.write_text(CONFIG.replace('"other"', '"new": 0.5, "other"'))
    finish_job(desk, "python n.py --llm new", 2000)
    early = (
        "Too few measurements to suggest these entries (an entry needs 3 completed runs, or one run of"
        ' 10 min):\n  "new": {"vram": 2240}\n'
    )
    assert f'  "qwen": {{"vram": 9152}}\n{OLDER}\n{early}' in desk.run("calibrate")[1]
    assert calibrate_json(desk)["models"] == {"qwen": {"vram": 9152}}
    # Without the other suggestion, the early one remains.
    config.write_text('{"models": {"qwen": {"vram": 9152}, "new": 0.5}}')
    found = calibrate_json(desk)
    [new] = [one for one in found["measured"] if one["model"] == "new"]
    assert found["models"] == {}
    assert (new["suggested"], new["sufficient_data"], new["current"]) == ({"vram": 2240}, False, 0.5)
    out = desk.run("calibrate")[1]
    assert early in out
    assert "needs no changes" not in out


def test_calibrate_json_has_the_documented_keys(desk: Desk, config: Path) -> None:
    value = calibrate_json(desk)
    assert value["models"] == {"qwen": {"vram": 9152}}
    found = {one["program"]: one for one in value["measured"]}
    assert (found["t.py"]["model"], found["t.py"]["runs"], found["t.py"]["mean_s"]) == ("qwen", 3, 60.0)
    assert (found["t.py"]["longest_s"], found["t.py"]["sufficient_data"]) == (60.0, True)
    assert (found["t.py"]["current"], found["t.py"]["suggested"]) == (1.0, {"vram": 9152})
    assert (found["big.py"]["gpus"], found["big.py"]["attributes"]) == (2, "[vram=3328 gpus=2]")
    assert (found["good.py"]["declared_mib"], found["good.py"]["reason"]) == (4096, "within ±10%")
    text = (Path(__file__).parents[2] / "docs" / "json.md").read_text()
    for title, keys in {
        "# `calibrate --json`": value,
        "## An element of `measured`": value["measured"][0],
        "## An element of `run_times`": value["run_times"][0],
    }.items():
        section = re.split(r"^#", text.partition(f"\n{title}\n")[2], flags=re.MULTILINE)[0]
        rows = re.findall(r"^\| (`.*?) \|", section, flags=re.MULTILINE)
        assert {key for row in rows for key in re.findall(r"`(\w+)`", row)} == set(keys), title


def test_calibrate_shows_how_long_jobs_ran_and_how_good_the_estimates_were(desk: Desk, config: Path) -> None:
    for seconds in (100.0, 100.0, 150.0, 80.0, 100.0, 130.0, 900.0):
        run_job(desk, "python long.py --llm qwen", seconds)
    code, out, err = desk.run("calibrate")
    assert (code, err) == (0, "")
    [at] = [number for number, line in enumerate(out.splitlines()) if "9 of 10 within" in line][:1]
    row, program = out.splitlines()[at + 1 : at + 3]
    assert re.split(r"\s\s+", row.strip()) == ["qwen", "7", "1", "1 min 40 s", "9.00 x", "25 %"]
    assert program.strip() == "long.py"
    assert "\n3 programs have fewer than 5 completed runs; `calibrate --json` lists them.\n" in out
    found = {one["program"]: one for one in calibrate_json(desk)["run_times"]}
    assert found["long.py"] == {
        "model": "qwen", "program": "long.py", "runs": 7, "commands": 1, "median_s": 100.0,
        "upper_ratio": 9.0, "median_error": 0.25,
    }  # fmt: skip
    assert (found["t.py"]["runs"], found["t.py"]["commands"], found["t.py"]["upper_ratio"]) == (3, 3, None)


def test_calibrate_shows_run_times_of_jobs_whose_memory_was_not_measured(desk: Desk) -> None:
    for seconds in (1.0, 2.0, 3.0, 4.0, 5.0):
        run_job(desk, "python cpu.py", seconds)
    out = desk.run("calibrate")[1]
    assert out.startswith("No measurements yet")
    assert re.search(r"^- +5 +1 +3\.0 s +- +- *\n +cpu\.py$", out, re.MULTILINE)


def run_job(desk: Desk, text: str, seconds: float) -> None:
    """Inserts a job that ran for so many seconds, and whose memory was not measured."""
    job = desk.job(text)
    this = desk.record(act.Start(job, ("SIM-0",), 0))[job]
    done = Outcome.COMPLETED
    desk.record(changes.end(this, done, started_at=100.0, ended_at=100.0 + seconds))
    desk.record(*changes.leave(this))


def test_calibrate_uses_the_schedulers_spike_buffer_and_tolerance(desk: Desk, config: Path) -> None:
    desk.store.record_options(StartOptions(llm_config=str(config), spike_buffer=0.5, tolerance=0.01))
    found = {one["program"]: one for one in calibrate_json(desk)["measured"]}
    assert found["t.py"]["suggested"] == {"vram": 12480}
    assert found["good.py"]["attributes"] == "[vram=6016]"


def test_calibrate_accepts_another_configuration_file(desk: Desk, config: Path) -> None:
    other = desk.path / "other.json"
    other.write_text('{"models": {"qwen": {"share": 0.5}}}')
    assert calibrate_json(desk, "--llm-config", other)["models"] == {"qwen": {"share": 0.5, "vram": 9152}}
    code, out, err = desk.run("calibrate", "--llm-config", "nowhere.json")
    assert (code, out) == (2, "")
    assert "nowhere.json does not exist" in err


def test_calibrate_works_without_a_configuration_file(desk: Desk, config: Path) -> None:
    config.unlink()
    assert calibrate_json(desk)["models"] == {"qwen": {"vram": 9152}}
    assert not config.exists()


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (b'{\n  "models": {"a": 1,}\n}', "line 2, column "),
        (b'{"models": {"qwen": {"vram": "much"}}}', "models.qwen: vram"),
        (b'{"models": {"qwen": "\xff"}}', "byte 0xff is not UTF-8"),
    ],
)
def test_calibrate_rejects_a_broken_configuration_file(
    desk: Desk, config: Path, text: bytes, part: str
) -> None:
    config.write_bytes(text)
    code, out, err = desk.run("calibrate")
    assert (code, out) == (2, "")
    assert part in err
    assert f"{config}: " in err


def test_calibrate_reports_missing_measurements_or_a_missing_store(desk: Desk) -> None:
    code, _, err = desk.run("calibrate")
    assert code == 1
    assert "run `start` there first" in err
    assert desk.store
    code, out, _ = desk.run("calibrate")
    assert code == 0
    assert out.startswith("No measurements yet")
    assert list(desk.path.glob("llm_config*")) == []


def test_calibrate_limits_suggestions_by_the_gpus_and_their_reserved_memory(desk: Desk, config: Path) -> None:
    finish_job(desk, "python wide.py", 23_700, gpus=2)
    with desk.store.db.transaction() as db:
        for peak in (*[1000] * 20, 24_400):
            db.execute(
                "INSERT INTO measurement (workload_class, at, gpu_count, peak_mib, outcome)"
                " VALUES (?, 0, 1, ?, 'completed')",
                ('["rare.py", null]', peak),
            )
    found = {one["program"]: one for one in calibrate_json(desk)["measured"]}
    # The limit is 24,576 MiB minus the margin of 512 and the idle threshold of 200.
    assert found["wide.py"]["attributes"] == "[vram=23864 gpus=2]"
    assert (found["rare.py"]["max_mib"], found["rare.py"]["p95_mib"]) == (24_400, 1000)
    assert found["rare.py"]["reason"] == "needs a GPU to itself"
