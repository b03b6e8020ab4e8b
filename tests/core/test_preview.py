"""Preview of a line before it becomes a job."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from gpu_scheduler.control.line_note import line_note_text
from gpu_scheduler.control.new_line import Preview, PreviewContext, preview
from gpu_scheduler.core.jobsfile.job_line import ParsedJob, parse_line
from gpu_scheduler.core.scheduling.needs import LlmConfig, parse_llm_config
from gpu_scheduler.core.scheduling.settings import Limits
from gpu_scheduler.show.wait_text import need_text

CONFIG = parse_llm_config(
    '{"default_requirement": 1.0, "models": {"small": 0.5, "big": {"gpus": 2, "share": 1}}}'
)
EXISTING_PATHS = ("/w", "/s/a.py", "/w/a.py", "/v/bin/activate")


def previewed(
    line: str,
    known: Collection[int] | None = None,
    conda_sh: str | None = "/c/conda.sh",
    config: LlmConfig = CONFIG,
) -> Preview:
    read = parse_line(line, "/w", "/home/u")
    assert isinstance(read, ParsedJob)
    return preview(
        1, read.spec, read.notes, None, PreviewContext(config, known, conda_sh, EXISTING_PATHS.__contains__)
    )


@pytest.mark.parametrize(
    ("line", "need", "priority", "conda", "command"),
    [
        ("3,/s/a.py,env,--llm small,", "0.5 of a GPU", 3, "env", "python -u /s/a.py --llm small --cuda IDS"),
        (",/s/a.py,,,", "1 free GPU", 200, "base", "python -u /s/a.py --cuda IDS"),
        ("1,/s/a.py,,--llm big --cuda 7,", "2 free GPUs", 1, "base",
         "python -u /s/a.py --llm big --cuda IDS"),
        ("echo hi", "1 idle GPU", 200, None, "echo hi"),
        ("[gpus=2 priority=4] python a.py --cuda 0", "2 idle GPUs", 4, None, "python a.py --cuda IDS"),
        ("[share=0.25] true", "0.25 of a GPU", 200, None, "true"),
        ("[venv=/v] 0,/s/a.py", "1 free GPU", 0, None, "python -u /s/a.py --cuda IDS"),
    ],
)  # fmt: skip
def test_previews_need_priority_environment_and_command(
    line: str, need: str, priority: int, conda: str | None, command: str
) -> None:
    found = previewed(line)
    assert need_text(found.need) == need
    assert (found.priority, found.conda, found.command) == (priority, conda, command)
    assert found.warnings == ()


def test_previews_no_conda_environment_if_conda_is_missing() -> None:
    assert previewed("0,/s/a.py", conda_sh=None).conda is None


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("0,/s/none.py", "script /s/none.py does not exist"),
        ("0,~/a.py", "script /home/u/a.py does not exist"),
        ("[cwd=/nowhere] true", "the working folder /nowhere does not exist"),
        ("[venv=/none] true", "virtual environment /none"),
        ("python none.py --x 1", "script /w/none.py does not exist"),
        ("/usr/bin/python3.11 -u none.py", "script /w/none.py does not exist"),
    ],
)
def test_warns_about_problems_that_would_prevent_the_job_from_running(line: str, part: str) -> None:
    (warning,) = previewed(line).warnings
    assert part in line_note_text(warning)


@pytest.mark.parametrize(
    "line",
    ["python a.py", "python -m none.py", "python -c none.py", "cd x && python none.py", "python $X.py",
     "python", "run none.py", "FOO=1 python none.py"],
)  # fmt: skip
def test_does_not_guess_a_script_in_commands_of_other_programs(line: str) -> None:
    assert previewed(line).warnings == ()


def test_warns_about_a_line_with_a_missing_conda_environment() -> None:
    def warnings(conda: str, envs: Collection[str] | None) -> tuple[str, ...]:
        read = parse_line(f"[conda={conda}] true", "/w", "/home/u")
        assert isinstance(read, ParsedJob)
        setting = PreviewContext(CONFIG, None, "/c/conda.sh", EXISTING_PATHS.__contains__, envs)
        return tuple(map(line_note_text, preview(1, read.spec, (), None, setting).warnings))

    missing = "conda environment e does not exist; environments: base, f"
    assert warnings("e", ["base", "f"]) == (missing,)
    assert warnings("f", ["base", "f"]) == warnings("e", None) == warnings("/w/a.py", ["base"]) == ()
    assert warnings("/w/none", None) == (
        "conda environment /w/none does not exist; environments: none known",
    )


def test_warns_about_a_line_with_a_conda_environment_if_conda_is_missing() -> None:
    assert "conda was not found" in line_note_text(previewed("0,/s/a.py,env", conda_sh=None).warnings[0])


@pytest.mark.parametrize(
    ("line", "known", "warned"),
    [
        ("[gpus=2] true", {0}, True),
        ("[gpus=2] true", {0, 1}, False),
        ("[gpus=2 allowed=1-2] true", {0, 1}, True),
        ("[share=0.5 allowed=5] true", {0, 1}, True),
        ("[gpus=8] true", None, False),
    ],
)
def test_warns_about_a_line_that_needs_more_gpus_than_exist(
    line: str, known: Collection[int] | None, warned: bool
) -> None:
    assert (
        any("would wait" in line_note_text(warning) for warning in previewed(line, known).warnings) is warned
    )


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("0,a.py", ["a.py is a relative path", "in /w"]),
        ("0,/s/a.py,,--llm other,", ["model other is not in llm_config.json"]),
        ("0,/s/a.py,,--llm=,", ["model  is not in llm_config.json"]),
        ("0,/s/a.py,,--layers 3,0", ["read as arguments: --layers 3 | GPUs: 0"]),
        ("CUDA_VISIBLE_DEVICES=0 python a.py", ["sets CUDA_VISIBLE_DEVICES itself"]),
        ("[share=1] 0,/s/a.py,,--llm other,", []),
        ("[vram=1G] 0,/s/a.py,,--llm other,", []),
    ],
)
def test_the_preview_of_a_line_includes_notes_about_surprising_defaults(line: str, parts: list[str]) -> None:
    notes = "\n".join(map(line_note_text, previewed(line).notes))
    assert bool(notes) is bool(parts)
    assert all(part in notes for part in parts), notes


@pytest.mark.parametrize(
    ("line", "warned"),
    [
        ("[vram=900] true", False),
        ("[vram=901] true", True),
        ("[vram=400 gpus=2] true", False),
        ("[vram=401 gpus=2] true", True),
        ("[vram=500 allowed=1] true", True),
        ("[vram=500 allowed=0,2] true", False),
        ("[vram=9G allowed=2] true", False),
        ("[share=1] true", False),
    ],
)
def test_warns_about_a_line_that_needs_more_memory_than_the_gpus_have(line: str, warned: bool) -> None:
    read = parse_line(line, "/w", "/home/u")
    assert isinstance(read, ParsedJob)
    totals, limits = {0: 1000, 1: 500}, Limits(margin_mib=100)
    known = (0, 1, 2) if "allowed" in line else (0, 1)  # the size of GPU 2 is unknown
    setting = PreviewContext(CONFIG, known, None, EXISTING_PATHS.__contains__, None, totals, limits)
    warnings = preview(1, read.spec, (), None, setting).warnings
    assert ["too small (the scheduler keeps 100 MiB" in line_note_text(warning) for warning in warnings] == [
        True
    ] * warned
