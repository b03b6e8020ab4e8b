"""Lets `serve` run without the parts of `web` that do not exist yet; Python imports this file at its start.

The modules beside this file stand in for modules of the package. Existing modules of the package win.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

_ROOM = "gpu_scheduler.web."


class _Finder:
    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = Path(__file__).with_name(f"{name.removeprefix(_ROOM)}.py")
        return spec_from_file_location(name, file) if name.startswith(_ROOM) and file.exists() else None


sys.meta_path.append(_Finder)
