from __future__ import annotations

from tests.cli.conftest import desk

__all__ = ["desk"]
