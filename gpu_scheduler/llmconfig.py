"""llm_config.json on disk: read again when it changes; a broken edit keeps the last good one and says so."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from gpu_scheduler.config import LLM_CONFIG
from gpu_scheduler.core.needs import LlmConfig, parse_llm_config
from gpu_scheduler.errors import UsageError

log = logging.getLogger(__name__)


class LlmConfigFile:
    """The file named by `--llm-config`, or the default one, which may be absent.

    Raises UsageError at once if a named file is absent, or one that is there is broken.
    """

    def __init__(self, named: str | None) -> None:
        self.path = Path(os.path.abspath(named or LLM_CONFIG))
        self.current = LlmConfig()
        self._seen: tuple[int, int, int] | None = None
        self._first = True
        if named is not None or self.path.exists():
            shown = f"--llm-config {named}" if named is not None else str(self.path)
            try:
                parse_llm_config(self.path.read_text(encoding="utf-8-sig"))
            except OSError as error:
                raise UsageError(f"{shown}: {error.strerror}; name a file that you may read") from None
            except ValueError as error:
                raise UsageError(f"{shown}: {error}; mend it, no need of a job is guessed") from None

    def look(self) -> bool:
        """Read the file again if it has changed; True if `current` is new."""
        first, self._first = self._first, False
        try:
            status = os.stat(self.path)
            seen = (status.st_ino, status.st_mtime_ns, status.st_size)
            if seen == self._seen:
                return False
            text = self.path.read_text(encoding="utf-8-sig")
        except OSError:
            if first:
                log.info("no %s: every job that names no share needs 1 GPU", self.path.name)
            elif self._seen is not None:
                log.warning("%s is gone; what it said last is kept", self.path)
            self._seen = None
            return False
        self._seen = seen
        try:
            config = parse_llm_config(text)
        except ValueError as error:
            log.error("%s: %s; the last good one is kept", self.path, error)
            return False
        changed = config != self.current
        self.current = config
        if changed and not first:
            log.info("%s read again", self.path.name)
        return changed
