"""Logs of jobs that ran out of GPU memory, in the wording of each library, and logs that only look similar.

In tests/golden/oom, each .log file has one log: the first line names the program that wrote it, the second
has the line that reports the OOM or "none", and the log follows. Each .txt file has one case per line; in
signatures.txt, the name of the signature precedes it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.core.explain.log_end import KEYWORDS, PRINTED_ERROR, SIGNATURES, LogEnd
from gpu_scheduler.core.explain.log_end import cuda_oom as cuda_oom_at

GOLDEN = Path(__file__).parents[1] / "golden" / "oom"


class Case(NamedTuple):
    """A log.

    `expected` is the line that reports the OOM that ended the program, or None if it ended otherwise.
    """

    name: str
    tail: str
    expected: str | None


def cuda_oom(tail: str) -> str | None:
    return cuda_oom_at(LogEnd(tail))


def read_case(path: Path) -> Case:
    _, verdict, tail = path.read_bytes().decode().split("\n", 2)
    expected = verdict.removeprefix("# OOM: ")
    return Case(path.stem, tail, None if expected == "none" else expected)


def lines(name: str) -> list[str]:
    """Returns the cases of a file with one case per line."""
    return (GOLDEN / f"{name}.txt").read_text().splitlines()


CASES = [read_case(path) for path in sorted(GOLDEN.glob("*.log"))]
OOMS = [case for case in CASES if case.expected is not None]
ROWS = list(SIGNATURES.values())
#: For each signature, a line that only it matches.
EXAMPLES = dict(line.split("\t") for line in lines("signatures"))
TORCH = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.35 GiB. GPU 3 has a total capacity of"
    " 63.42 GiB of which 1.70 GiB is free. If reserved but unallocated memory is large try setting"
    " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
GGML = (
    "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 7825.94 MiB on device 0:"
    " cudaMalloc failed: out of memory"
)
PROGRESS = "".join(f"epoch {n}: loss 0.{n}\n" for n in range(41))
DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"


def died(error: str) -> str:
    """Returns a traceback that ends with the error."""
    return f'Traceback (most recent call last):\n  File "/x/train.py", line 12, in main\n    run()\n{error}\n'


def with_process_mark(process: str, text: str) -> str:
    """Returns the text with a process prefix before each line."""
    return "".join(f"{process}{line}\n" for line in text.splitlines())


MISTAKE = died("ValueError: bad learning rate: -1")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_finds_the_line_of_the_oom_that_ended_a_job(case: Case) -> None:
    assert cuda_oom(case.tail) == case.expected


@pytest.mark.parametrize("case", OOMS, ids=lambda case: case.name)
def test_ignores_an_oom_after_which_the_program_continued(case: Case) -> None:
    assert cuda_oom(f"{case.tail}epoch 1\n{MISTAKE}") is None
    assert cuda_oom(f"{case.tail}{PROGRESS}") is None


@pytest.mark.parametrize("case", OOMS, ids=lambda case: case.name)
def test_ignores_the_line_that_the_runner_appends_to_the_log(case: Case) -> None:
    assert cuda_oom(f"{case.tail}\n--- exit code 1 after 12 s ---\n") == case.expected


@pytest.mark.parametrize("line", lines("wordings"))
def test_recognizes_different_wordings_of_an_oom_error(line: str) -> None:
    assert cuda_oom(f"starting\n{line}\n") == line


CAUGHT, MENTIONS = lines("caught"), lines("mentions")


@pytest.mark.parametrize("line", CAUGHT)
def test_recognizes_the_message_of_a_program_that_caught_an_oom_error(line: str) -> None:
    expected = line.strip()
    assert cuda_oom(f"epoch 1\n{line}\n") == expected
    assert cuda_oom(f"{PROGRESS}{line}\nexiting\nwandb: Run history:\n") == expected
    assert cuda_oom(with_process_mark("[rank1]: ", f"{line}\n")) == expected


@pytest.mark.parametrize("line", CAUGHT)
def test_an_oom_message_in_a_programs_own_words_counts_only_among_the_last_lines_of_a_log(line: str) -> None:
    assert cuda_oom(f"{line}\n" + "epoch\n" * 5) == line
    of_library = any(pattern.search(line) for pattern in ROWS)
    assert cuda_oom(f"{line}\n" + "epoch\n" * 6) == (line if of_library else None)
    assert cuda_oom(f"{line}\n{MISTAKE}") is None
    assert cuda_oom(f"{line}\nretrying with batch size 8, as memory is short\nepoch 2\n") is None
    assert cuda_oom(f"{line}\nKilled\n") is None


@pytest.mark.parametrize("line", MENTIONS)
def test_ignores_a_line_that_only_mentions_an_oom_error(line: str) -> None:
    assert cuda_oom(f"epoch 1\n{line}\n") is None
    assert cuda_oom(f"{line}\nepoch 1\n") is None


@pytest.mark.parametrize("line", lines("recoveries"))
def test_ignores_an_oom_from_which_the_program_recovered(line: str) -> None:
    assert cuda_oom(f"{died(TORCH)}{line}\n") is None


@pytest.mark.parametrize(
    "line",
    [
        "Please try lowering the batch size.",
        "You can avoid this by reducing memory.",
        "Reduce the batch.",
        "Retrying",
    ],
)
def test_advice_printed_after_an_oom_error_does_not_count_as_a_recovery(line: str) -> None:
    assert cuda_oom(f"{died(TORCH)}{line}\n") == TORCH


@pytest.mark.parametrize("advice", ["if you see", "when you get", "in case there is a", "If there is a"])
def test_ignores_advice_about_a_possible_oom(advice: str) -> None:
    assert cuda_oom(f"{advice} CUDA error: out of memory, use --small\n") is None


@pytest.mark.parametrize("line", lines("warnings"))
def test_an_oom_warning_counts_only_near_the_end_of_the_log(line: str) -> None:
    assert cuda_oom(f"{line}\n" + "epoch\n" * 5) == line
    assert cuda_oom(f"{line}\n" + "epoch\n" * 6) is None


def test_an_oom_error_counts_only_near_the_end_of_the_log() -> None:
    assert cuda_oom(died(TORCH) + "epoch\n" * 40) == TORCH
    assert cuda_oom(died(TORCH) + "epoch\n" * 41) is None


@pytest.mark.parametrize("line", ["", *lines("aftermath")])
def test_finds_an_oom_error_followed_by_stack_traces_and_summaries(line: str) -> None:
    assert cuda_oom(died(TORCH) + f"{line}\n" * 100) == TORCH


@pytest.mark.parametrize("error", lines("wrappers"))
def test_finds_the_oom_error_inside_an_error_that_only_wraps_it(error: str) -> None:
    assert cuda_oom(f"{GGML}\n{died(error)}") == GGML


@pytest.mark.parametrize(
    "intro",
    [
        "Exception ignored in: <x>",
        "Error in atexit._run_exitfuncs:",
        "--- Logging error ---",
        "Exception in thread T1:",
    ],
)
def test_finds_the_oom_before_a_later_error_that_did_not_end_the_program(intro: str) -> None:
    assert cuda_oom(f"{died(TORCH)}{intro}\n{died('ValueError: I/O operation on closed file.')}") == TORCH


@pytest.mark.parametrize(
    "mark",
    [
        "[rank3]: ",
        "[default3]:",
        "rank3: ",
        "[1,3]<stderr>:",
        "[1,3]<stdout>:",
        "stderr: ",
        "(train pid=7) ",
        "(pid=7, ip=10.0.0.7) ",
        "(VllmWorker rank=3 pid=7) ERROR 05-10 16:00:15 [multiproc_executor.py:470] ",
        "CRITICAL 05-10 16:00:15 core.py:470] ",
        "WARNING 05-10 16:00:15 [core.py:470] ",
        "INFO 05-10 16:00:15 [core.py:470] ",
        "    | ",
    ],
)
def test_strips_the_process_prefix_from_the_oom_line(mark: str) -> None:
    assert cuda_oom(with_process_mark(mark, died(TORCH))) == TORCH
    assert cuda_oom(with_process_mark(mark, died(TORCH) + MISTAKE)) is None


@pytest.mark.parametrize("name", SIGNATURES)
def test_each_example_of_an_oom_line_matches_only_its_own_signature(name: str) -> None:
    example = EXAMPLES[name]
    assert [other for other, pattern in SIGNATURES.items() if pattern.search(example)] == [name]
    assert cuda_oom(example) == example


@pytest.mark.parametrize("word", KEYWORDS)
def test_each_oom_keyword_finds_a_line_that_no_other_keyword_finds(word: str) -> None:
    lines = [case.expected.lower() for case in OOMS if case.expected]
    lines += map(str.lower, EXAMPLES.values())
    assert any([other for other in KEYWORDS if other in line] == [word] for line in lines)


#: Pieces of logs that contain no keyword, even if they are joined.
PIECES = (
    *(
        "CUDA",
        "error:",
        "RuntimeError: ",
        "out",
        "of",
        "RAM",
        "GPU:0",
        "\n",
        "\r",
        "\x1b[31m",
        "[rank0]: ",
        "é",
    ),
    *(
        "Traceback (most recent call last):\n",
        '  File "x.py", line 1\n',
        "ChildFailedError:",
        "  | ",
        "Killed",
    ),
    *(DURING, "Exception ignored in: ", "  what():  ", "(pid=7) "),
)


@given(st.one_of(st.text(max_size=300), st.lists(st.sampled_from(PIECES), max_size=40).map(" ".join)))
def test_text_without_oom_keywords_never_counts_as_an_oom(text: str) -> None:
    if not any(word in text.lower() for word in KEYWORDS):
        assert cuda_oom(text) is None


@given(st.lists(st.sampled_from((*PIECES, *(f"{example}\n" for example in EXAMPLES.values()))), max_size=30))
def test_returns_at_most_one_line_for_any_log(pieces: list[str]) -> None:
    told = cuda_oom(" ".join(pieces))
    assert told is None or (
        "\n" not in told and any(pattern.search(told) for pattern in (*ROWS, PRINTED_ERROR))
    )


@pytest.mark.parametrize(
    "piece", ["epoch 1: loss 0.123\n", "CUDA error: ", "a.", "a\n", "\x1b[32m1\x1b[0m\n", "1%|#\r", "é", " "]
)
def test_searching_a_full_log_tail_without_keywords_takes_only_milliseconds(piece: str) -> None:
    tail = (piece * 65536)[:65536]
    assert cuda_oom(tail) is None
    assert seconds(tail) < 0.02  # usually 1 to 3 ms; slow machines take longer


@pytest.mark.parametrize(
    "piece",
    [
        "CUDA error out of ",
        "cudaMalloc( out of memory",
        "OOM when allocating tensor / ",
        "NVML_SUCCESS == ",
        "CUDA out of memory ",
        "OutOfMemoryError: ",
        "if a.",
        "a.",
        " ",
    ],
)
def test_the_search_for_an_oom_is_fast_for_any_text(piece: str) -> None:
    assert seconds((piece * 65536)[:65500] + " CUDACachingAllocator") < 1
    assert seconds(f"{GGML}\n" + (f"{piece}\n" * 65536)[:65000]) < 1


def seconds(tail: str) -> float:
    """Returns the CPU seconds that the fastest of several searches of this log tail takes."""
    spent = []
    for _ in range(3):
        begun = time.process_time()
        cuda_oom(tail)
        spent.append(time.process_time() - begun)
    return min(spent)
