"""The table of faults in docs/redis.md names only tests and stress parts that exist, and all parts of P17."""

from __future__ import annotations

import re
from pathlib import Path

from tests.stress.parts import PARTS

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs" / "redis.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.partition("## Faults")[2].splitlines()
    if line.startswith("| ") and not line.startswith(("| fault", "| ---"))
]


def test_every_fault_names_tests_that_exist() -> None:
    code = "".join(path.read_text() for path in HERE.glob("test_*.py"))
    known = set(re.findall(r"^def (test_\w+)", code, re.MULTILINE))
    named = {row[0]: set(re.findall(r"`(test_\w+)`", row[4])) for row in ROWS}
    assert [fault for fault, tests in named.items() if not tests] == []
    assert sorted(set().union(*named.values()) - known) == []


def test_the_faults_name_every_part_of_the_stress_test() -> None:
    named = {name for row in ROWS for name in re.findall(r"\*([^*]+)\*", row[5])}
    assert named == {part.name for part in PARTS if part.promise == "P17"}
