"""P7: lines of a jobs file are corrupted in 20,000 ways (single bytes, quotes, encodings).

Every other line must keep its job. The corrupted line must run as written, or be reported with its number and
a remedy. Only commands in the file may run. Once the line is repaired, everything must be as before.
"""

from __future__ import annotations

import csv
import io
import os
import random
import shlex
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.states import JobState
from gpu_scheduler.intake.jobs_file_text import is_complete
from gpu_scheduler.intake.jobs_file_watcher import malformed_message
from tests.stress.file_observers import JobsFileObserver
from tests.stress.part import Findings, Order

#: A typical jobs file, in which no line could complete the command of another line.
_LINES = (
    b"priority,script_path,conda_env,arguments,allowed_gpus\n",
    b"0,/data/train.py,env,--llm qwen2.5-7b-inst --name 'first run' --lr 1e-4,0-3\n",
    b'1,/data/eval.py,,"--layers 1,2,3 --text ""quoted""",\n',
    '2,/data/öl.py,env,--text "grün" --out ./results\n'.encode(),
    b"# a comment, with 'one quote\n",
    b'[share=0.5 name=one] python /data/one.py --text "a b" && echo done\n',
    b"python /data/two.py --path '/tmp/with space' | tee two.log  # a note\n",
    b"\n",
    b"for i in 1 2 3; do python /data/three.py --seed $i; done\r\n",
    b'[share=0.25 allowed=0-3] env A=1 python /data/four.py --x "$HOME"\n',
    b"bash /data/five.sh\n",
)
#: Characters and bytes that often break parsers.
_HOSTILE = (
    b"'", b'"', b"\\", b"`", b"$(", b")", b"{", b"}", b"[", b"]", b"#", b" #", b",", b",,", b";", b"&", b"|",
    b"<<EOF", b"\t", b"\r", b"\0", b"\x0c", b"\x0b", b"\x1b[2J", b"\x7f", b"\xff", b"\xc3", b"\xe9", b"\xa0",
    b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", "\u00a0".encode(), "\u2028".encode(),
    "\u0085".encode(), "\u201c".encode(), "\u2019".encode(), "\u0661\u0662".encode(), "\u202e".encode(),
    b"%s", b"*", b"~", b"!", b"=", b"-", b"\n", b"\n\n", b"'\n", b"x" * 5000, b"share=0.5 ", b"vram=",
)  # fmt: skip

#: Number of mutations before a new file is begun, because finished jobs slow down the reader.
_EPISODE = 40


def _insert(line: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(line) + 1)
    return line[:at] + dice.choice(_HOSTILE) + line[at:]


def _replace(line: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(max(1, len(line)))
    return line[:at] + dice.choice(_HOSTILE) + line[at + 1 :]


def _flip(line: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(max(1, len(line)))
    return line[:at] + bytes([dice.randrange(256)]) + line[at + 1 :]


def _drop(line: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(max(1, len(line)))
    return line[:at] + line[at + dice.randint(1, 3) :]


def _swap(line: bytes, dice: random.Random) -> bytes:
    a = dice.randrange(max(1, len(line)))
    b = dice.randrange(a, len(line) + 1)
    return line[:a] + line[a:b][::-1] + line[b:]


def _recode(line: bytes, dice: random.Random) -> bytes:
    text = line.decode()
    if dice.random() < 0.5:
        return text.replace("a", "ä").encode("cp1252", "replace")
    return text.encode(dice.choice(["utf-16", "utf-16-le", "utf-32", "utf-8-sig"]))


_WAYS: tuple[Callable[[bytes, random.Random], bytes], ...] = (_insert, _replace, _flip, _drop, _swap, _recode)


def mutations(order: Order) -> Findings:
    """Makes 20,000 mutations. Saves, reads and repairs the file for each of them."""
    found, dice, count = Findings(), order.rng("mutations"), order.scaled(20_000, 40)
    path, done = order.folder / "jobs.txt", 0
    look = _read_all_rows if order.is_control else None
    eye = JobsFileObserver(path)
    for done in range(count):
        if done % _EPISODE == 0:
            eye = _begin(path)
        at = dice.randrange(len(_LINES))
        corrupted = _corrupt(_LINES[at], dice)
        if look is not None:
            _judge_control(look(b"".join([*_LINES[:at], corrupted, *_LINES[at + 1 :]])), at, corrupted, found)
        else:
            _one(eye, path, at, corrupted, found)
    found.figures = {"mutations": count, **found.figures}
    return found


def _corrupt(line: bytes, dice: random.Random) -> bytes:
    """Returns the line after one to three mutations, with its line ending."""
    corrupted = line
    for _ in range(dice.choice([1, 1, 1, 2, 3])):
        corrupted = (
            dice.choice(_WAYS)(corrupted.rstrip(b"\n"), dice)
            if corrupted.isascii()
            else _insert(corrupted, dice)
        )
    return corrupted.rstrip(b"\n") + b"\n"


def _begin(path: Path) -> JobsFileObserver:
    path.unlink(missing_ok=True)
    eye = JobsFileObserver(path)
    _save(path, _LINES)
    eye.wait(30)
    return eye


def _save(path: Path, lines: tuple[bytes, ...]) -> None:
    spare = path.with_name("spare")
    spare.write_bytes(b"".join(lines))
    os.replace(spare, path)


def _one(eye: JobsFileObserver, path: Path, at: int, corrupted: bytes, found: Findings) -> None:
    others = {line.job_id: line.text for line in eye.reading if line.number != at + 1}
    own = [line.job_id for line in eye.reading if line.number == at + 1 and line.job_id is not None]
    texts, before = Counter(line.text for line in eye.reading), eye.ready()
    lines = (*_LINES[:at], corrupted, *_LINES[at + 1 :])
    _save(path, lines)
    eye.wait(30)
    ready = eye.ready()
    if (eye.problem is not None) != _is_binary(b"".join(lines)):
        found.fault("binary file not recognised", f"{corrupted!r}: {eye.problem}")
    if eye.problem is not None:
        found.count("binary files")
        if ready != before:
            found.fault("jobs changed by a binary file", f"{corrupted!r}: {before ^ ready}")
        _mend(eye, path, {*before}, texts, corrupted, found)
        return
    pieces = corrupted.split(b"\n")[:-1]
    same = _continuation_lines(eye, at, len(pieces))
    for job_id, text in others.items():
        if job_id not in ready and not any(text in whole for whole in same.values()):
            found.fault("other lines affected", f"{text!r} after {corrupted!r}")
    for job_id in ready - set(others):
        found.count("lines run as written")
        spec = eye.jobs[job_id].spec
        wrong = [_wrong(spec, piece) for piece in pieces]
        if None not in wrong:
            found.fault("wrong jobs", f"{corrupted!r}: {wrong}: {spec.text!r}")
    reported = _judge_reports(eye, at, pieces, same, found)
    if reported and any(eye.jobs[job_id].state is not JobState.QUEUED for job_id in own):
        found.fault("ended by a typo", f"{_LINES[at]!r} after {corrupted!r}")
    _mend(eye, path, {*(own if reported else ()), *others}, texts, corrupted, found)


def _mend(
    eye: JobsFileObserver,
    path: Path,
    kept: set[int | None],
    texts: Counter[str],
    corrupted: bytes,
    found: Findings,
) -> None:
    """Saves the original file and checks that every kept job belongs to its line again."""
    _save(path, _LINES)
    eye.wait(30)
    if not kept <= eye.ready():
        found.fault("another job after the repair", f"{corrupted!r}: {kept - eye.ready()}")
    if Counter(eye.open_texts()) != texts or eye.malformed:
        found.fault("not repaired", f"{corrupted!r}: {Counter(eye.open_texts())} {eye.malformed}")


def _is_binary(content: bytes) -> bool:
    return 0 in content or content[:2] in (b"\xff\xfe", b"\xfe\xff")


def _continuation_lines(eye: JobsFileObserver, at: int, pieces: int) -> dict[int, str]:
    """Returns the later lines, by number, that could belong to an unfinished command in the corrupted line.

    By design they wait with that command, because the rest of a loop must never run alone.
    """
    opened = {f"this line belongs to line {number}," for number in range(at + 1, at + 1 + pieces)}
    return {
        mistake.number: mistake.text
        for mistake in eye.malformed
        if (mistake.problem or "").startswith(tuple(opened))
    }


def _judge_reports(
    eye: JobsFileObserver, at: int, pieces: list[bytes], same: dict[int, str], found: Findings
) -> bool:
    """Checks that each report names a corrupted line and the accepted form, and that no report is missing.

    Returns whether a part of the corrupted line is reported.
    """
    reported = set()
    for mistake in eye.malformed:
        found.count("lines reported")
        reported.add(mistake.number - at - 1)
        message = malformed_message(Path("jobs.txt"), mistake, with_accepted_form=True)
        if not mistake.accepted_form or not mistake.problem or f":{mistake.number}: " not in message:
            found.fault("unhelpful errors", message)
    for number in reported - set(range(len(pieces))):
        if number + at + 1 not in same:
            found.fault("other lines affected", f"line {number + at + 1} is reported after {pieces}")
    for number, piece in enumerate(pieces):
        if not _is_utf8(piece) and number not in reported:
            found.fault("unreported", f"{piece!r} is not UTF-8")
    return bool(reported & set(range(len(pieces))))


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _wrong(spec: JobSpec, corrupted: bytes) -> str | None:
    """Returns how the job differs from its line, without using the parser; None if it does not differ."""
    if not _is_utf8(corrupted):
        return "the line is not UTF-8"
    text = corrupted.decode()
    if "\0" in text:
        return "the line contains a null byte"
    if spec.command is not None:
        if spec.command not in text:
            return f"the command {spec.command!r} is not in the line"
        return None if is_complete(spec.command) else "bash rejects it"
    plain = text.replace('""', '"')
    if spec.script is None or os.path.basename(spec.script) not in plain:
        return f"the script {spec.script!r} is not in the line"
    missing = [word for word in spec.arguments if word not in plain and shlex.quote(word) not in plain]
    if missing and not any(mark in text for mark in "\\'\""):
        return f"the arguments {missing} are not in the line"
    return None


def _read_all_rows(content: bytes) -> list[list[str]]:
    """Returns the rows that the `csv` module reads from the whole file (for the negative control)."""
    return list(csv.reader(io.StringIO(content.decode("utf-8", "replace").replace("\0", ""), newline="")))


def _judge_control(rows: list[list[str]], at: int, corrupted: bytes, found: Findings) -> None:
    wanted = [row for n, line in enumerate(_LINES) if n != at for row in _read_all_rows(line)]
    for row in wanted:
        if row not in rows:
            found.fault("other lines affected", f"{row} after {corrupted!r}")
