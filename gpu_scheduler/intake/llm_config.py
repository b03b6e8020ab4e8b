"""Reads llm_config.json, reloads it when it changes, and writes it only at the user's request.

After an invalid edit, the last valid version remains in use and an error is logged.
"""

from __future__ import annotations

import codecs
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_scheduler.config import LLM_CONFIG, StartOptions
from gpu_scheduler.core.scheduling.needs import LlmConfig, parse_llm_config
from gpu_scheduler.core.text import strict_json
from gpu_scheduler.errors import SchedulerError, UsageError
from gpu_scheduler.system import safe_file
from gpu_scheduler.system.safe_file import Content, FileProblem, ProblemKind, create_file, file_version, sync

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
            config = parse_llm_config(strict_json.decode(found.data))
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


@dataclass(frozen=True)
class LlmConfigText:
    """The text of llm_config.json as it was read, with the configuration in it.

    text: None if the file does not exist; status: the file's status when it was read; bom: its byte order
    mark.
    """

    path: Path
    text: str | None
    config: LlmConfig
    status: os.stat_result | None = None
    bom: bytes = b""

    @classmethod
    def read(cls, path: str, *, must_exist: bool) -> LlmConfigText:
        """Reads the file.

        Raises UsageError if the file is invalid or unreadable, or if it must exist but does not.
        """
        real = Path(os.path.realpath(path))
        found = safe_file.read(real, trust=True)  # the user named this file, and it cannot run anything
        if isinstance(found, FileProblem) and found.kind is ProblemKind.MISSING and not must_exist:
            return cls(real, None, LlmConfig())
        content, config = _validate(path, found)
        bom = codecs.BOM_UTF8 if content.data.startswith(codecs.BOM_UTF8) else b""
        return cls(real, strict_json.decode(content.data), config, content.status, bom)

    @property
    def models(self) -> Mapping[str, Any]:
        """The models' entries, exactly as in the file."""
        models: Mapping[str, Any] = strict_json.parse(self.text or "{}").get("models", {})
        return models

    def replace(self, text: str) -> Path | None:
        """Replaces the file atomically and durably with this text.

        Keeps the mode and the owner. If the path is a link, replaces its target. Returns the path of the
        backup of the old version, or None if there was no old version. Raises SchedulerError if the file
        cannot be replaced; it is then unchanged.
        """
        spare = self.path.with_name(f".{self.path.name}.{os.getpid()}.new")
        made = [spare]
        try:
            try:
                create_file(spare, self.bom + text.encode(), synced=True, mode=0o666, like=self.status)
                backup = self._write_backup() if self.status is not None else None
                made += [backup] if backup is not None else []
                if not self._is_unchanged():
                    raise SchedulerError(
                        f"{self.path} was changed in the meantime, so nothing was written; try again"
                    )
                os.rename(spare, self.path)
                made = []
            finally:
                for path in made:
                    path.unlink(missing_ok=True)
            with suppress(OSError):  # some file systems cannot sync a folder; the rename is valid anyway
                sync(self.path.parent)
        except OSError as error:
            raise SchedulerError(
                f"{self.path} cannot be replaced: {error.strerror}; nothing was changed"
            ) from None
        return backup

    def _is_unchanged(self) -> bool:
        try:
            now = os.stat(self.path)
        except FileNotFoundError:
            return self.status is None
        return self.status is not None and file_version(now) == file_version(self.status)

    def _write_backup(self) -> Path:
        """Writes a backup of the version that was read, under an unused name next to the file."""
        data = self.bom + (self.text or "").encode()
        number = 0
        while True:
            backup = self.path.with_name(f"{self.path.name}.bak" + (f".{number}" if number else ""))
            try:
                create_file(backup, data, synced=True, like=self.status)
                return backup
            except FileExistsError:
                number += 1


def _validate(shown: str, found: Content | FileProblem) -> tuple[Content, LlmConfig]:
    """Returns the content of a file and the configuration in it. Raises UsageError if it is unusable."""
    if isinstance(found, FileProblem):
        raise UsageError(
            f"{shown} {found.description}; {found.remedy or 'name a JSON file that you can read'}"
        )
    try:
        return found, parse_llm_config(strict_json.decode(found.data))
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
