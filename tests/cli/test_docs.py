"""The generated pages are up to date, and the links on handwritten pages work."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.cli.commands import COMMANDS
from gpu_scheduler.core.model.states import ATTEMPT_TRANSITIONS, TRANSITIONS, AttemptState, JobState, Outcome
from tools.docs import PAGES

ROOT = Path(__file__).parents[2]
BY_HAND = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("name", PAGES)
def test_the_generated_pages_are_up_to_date(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == PAGES[name](), "run `make docs`"


def test_every_command_has_a_section_with_an_example() -> None:
    sections = dict(
        re.findall(r"^### (\S+)\n(.*?)(?=^##|\Z)", PAGES["commands.md"](), re.DOTALL | re.MULTILINE)
    )
    assert set(sections) == set(COMMANDS)
    assert [name for name, text in sections.items() if f"gpu-scheduler {name}" not in text] == []
    assert [name for name, text in sections.items() if "Example: " not in text] == []


def test_the_states_page_shows_every_state_outcome_and_transition() -> None:
    page = PAGES["states.md"]()
    for word in (*JobState, *AttemptState, *Outcome):
        assert f"| `{word}` |" in page
    diagrams = re.findall(r"```mermaid\n(.*?)```", page, re.DOTALL)
    tables: list[Mapping[Any, Collection[Any]]] = [TRANSITIONS, ATTEMPT_TRANSITIONS]
    for diagram, table in zip(diagrams, tables, strict=True):
        arrows = set(re.findall(r"^    (\w+) --> (\w+)$", diagram, re.MULTILINE))
        assert arrows == {(str(old), str(new)) for old, after in table.items() for new in after}


@pytest.mark.parametrize("page", BY_HAND, ids=lambda page: page.name)
def test_local_links_point_to_existing_files(page: Path) -> None:
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", page.read_text())]
    local = [link for link in links if link and not link.startswith(("http:", "https:", "mailto:"))]
    assert [link for link in local if not (page.parent / link).exists()] == []


def test_comments_cite_existing_sections_of_the_design_page() -> None:
    sections = re.findall(r"^## (.*)$", (ROOT / "docs/design.md").read_text(), re.MULTILINE)
    sources = [path for room in ("gpu_scheduler", "bench") for path in (ROOT / room).rglob("*.py")]
    citation = re.compile(r"docs/design\.md, ([A-Z][a-z]+(?: [a-z]+)*)")
    cited = {name for path in sources for name in citation.findall(path.read_text())}
    assert cited
    assert sorted(cited - set(sections)) == []


def test_the_glossary_has_at_most_forty_terms() -> None:
    rows = re.findall(r"^\| (?!term|---)(.*?) \|", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    assert len(set(rows)) == len(rows) <= 40
