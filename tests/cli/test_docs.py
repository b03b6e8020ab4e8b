"""The generated pages are what the code would write now; those written by hand link to what exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpu_scheduler.cli import _MODULES
from gpu_scheduler.core.states import CHANGES, JobState, Outcome
from tools.docs import PAGES

ROOT = Path(__file__).parents[2]
BY_HAND = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_up_to_date(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == PAGES[name](), "run `make docs`"


def test_every_command_has_a_section_with_an_example() -> None:
    sections = dict(
        re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", PAGES["commands.md"](), re.DOTALL | re.MULTILINE)
    )
    assert set(sections) == set(_MODULES)
    assert [name for name, text in sections.items() if f"gpu-scheduler {name}" not in text] == []
    assert [name for name, text in sections.items() if "Example: " not in text] == []


def test_every_state_outcome_and_allowed_change_is_shown() -> None:
    page = PAGES["states.md"]()
    for word in (*JobState, *Outcome):
        assert f"| `{word}` |" in page
    arrows = set(re.findall(r"^    (\w+) --> (\w+)$", page, re.MULTILINE))
    assert arrows == {(str(old), str(new)) for old, after in CHANGES.items() for new in after}


@pytest.mark.parametrize("page", BY_HAND, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", page.read_text())]
    local = [link for link in links if link and not link.startswith(("http:", "https:", "mailto:"))]
    assert [link for link in local if not (page.parent / link).exists()] == []
