"""Stands in for the file with the tokens: each line is one."""

from __future__ import annotations

from pathlib import Path


class Tokens:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "tokens.json"

    def valid(self) -> list[str]:
        return self._path.read_text().split() if self._path.exists() else []
