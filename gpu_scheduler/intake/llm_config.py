"""Reads llm_config.json, and reloads it when it changes.

After an invalid edit, the last valid version remains in use and an error is logged.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from gpu_scheduler.config import LLM_CONFIG, StartOptions
from gpu_scheduler.core.scheduling.needs import LlmConfig, parse_llm_config
from gpu_scheduler.core.text.parsing import decode_text, parse_json
from gpu_scheduler.errors import UsageError
from gpu_scheduler.system import safe_file
from gpu_scheduler.system.safe_file import Content, FileProblem, ProblemKind, file_version

log = logging.getLogger(__name__)


class LlmConfigFile:
    """The llm_config.json that `--llm-config` names, or the default one, which may be absent.

    trust: accept the file regardless of its owner and mode. Raises UsageError if a named file does not exist,
    or if an existing file is invalid or not trusted.
    """

    def __init__(self, named: str | None, *, trust: bool = False) -> None:
        self.path = Path(os.path.abspath(named or LLM_CONFIG))
        self.current = LlmConfig()
        self._trust = trust
        self._last_version: tuple[int, ...] | None = None
        self._is_first_read = True
        self._problem: FileProblem | None = None
        if named is not None or self.path.exists():
            shown = f"--llm-config {named}" if named is not None else str(self.path)
            _validate(shown, safe_file.read(self.path, trust=trust))

    def refresh(self) -> bool:
        """Reloads the file if it has changed. Returns whether `current` has changed."""
        first, self._is_first_read = self._is_first_read, False
        try:
            if self._last_version == file_version(os.stat(self.path)):
                return False
        except OSError:
            pass  # the read below reports the reason
        found = safe_file.read(self.path, trust=self._trust)
        if isinstance(found, FileProblem):
            self._report_problem(found, first)
            self._last_version = None
            return False
        self._last_version, self._problem = file_version(found.status), None
        try:
            config = parse_llm_config(decode_text(found.data))
        except ValueError as error:
            log.error("%s: %s; the last valid version remains in use", self.path, error)
            return False
        changed = config != self.current
        self.current = config
        if changed and not first:
            log.info("%s reloaded", self.path.name)
        return changed

    def _report_problem(self, problem: FileProblem, is_first: bool) -> None:
        """Logs once why the file cannot be read."""
        if problem == self._problem:
            return
        self._problem = problem
        if problem.kind is not ProblemKind.MISSING:
            log.error("%s %s; the last valid version remains in use", self.path, problem)
        elif is_first:
            log.info("there is no %s, so a job that declares no needs gets 1 GPU", self.path.name)
        else:
            log.warning("%s was removed; the last valid version remains in use", self.path)


class LlmConfigText(Struct, frozen=True):
    """The text of llm_config.json as it was read, "{}" if it does not exist, with the configuration in it."""

    path: Path
    text: str
    config: LlmConfig

    @classmethod
    def read(cls, path: str, *, must_exist: bool) -> LlmConfigText:
        """Reads the file.

        Raises UsageError if the file is invalid or unreadable, or if it must exist but does not.
        """
        real = Path(os.path.realpath(path))
        found = safe_file.read(real, trust=True)  # the user named this file, and it cannot run anything
        if isinstance(found, FileProblem) and found.kind is ProblemKind.MISSING and not must_exist:
            return cls(real, "{}", LlmConfig())
        content, config = _validate(path, found)
        return cls(real, decode_text(content.data), config)

    @property
    def models(self) -> Mapping[str, Any]:
        """The models' entries, exactly as in the file."""
        models: Mapping[str, Any] = parse_json(self.text).get("models", {})
        return models


def _validate(shown: str, found: Content | FileProblem) -> tuple[Content, LlmConfig]:
    """Returns the content of a file and the configuration in it. Raises UsageError if it is unusable."""
    if isinstance(found, FileProblem):
        raise UsageError(
            f"{shown} {found.description}; {found.remedy or 'name a JSON file that you can read'}"
        )
    try:
        return found, parse_llm_config(decode_text(found.data))
    except ValueError as error:
        raise UsageError(
            f"{shown}: {error}; correct the file, because the needs of jobs are never guessed"
        ) from None


def current_llm_config(options: StartOptions) -> LlmConfig:
    """Returns a scheduler's llm_config.json; the defaults if the file is missing, broken or not trusted."""
    path = options.llm_config
    if path is None or not os.path.exists(path):
        return LlmConfig()
    try:
        file = LlmConfigFile(path, trust=options.trust_files)
    except UsageError:
        return LlmConfig()
    file.refresh()
    return file.current
