"""What a job is: the line, command or request that shall run to its end once.

`identity` is what it runs; `attributes` is everything else that the user may say about it.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

from gpu_scheduler.core.words import split_words

Kind = Literal["csv", "command"]
CudaMode = Literal["add", "rewrite", "off"]
CudaIds = Literal["physical", "visible"]

#: Attributes that a reading compares one by one; they are not part of the identity.
ATTRIBUTES = (
    "name", "priority", "allowed", "share", "gpus", "vram", "exclusive", "oom_retries", "fail_retries",
    "timeout_s", "cuda", "cuda_ids", "hold", "cancel",
)  # fmt: skip


@dataclass(frozen=True)
class JobSpec:
    """One job as asked for.

    kind       "csv": `python -u script arguments`; "command": `bash -c command`.
    torchrun   of a csv line: the processes with which torchrun starts the script, a GPU each; None = python.
    text       the line as a user recognises it (attribute block and comment apart).
    cwd        absolute working folder.
    share      thousandths of a GPU; gpus: a count; vram: MiB on each of them; allowed: GPU indices, None =
               any. None = not said. exclusive: with no other job of ours on its GPUs.
    timeout_s  seconds after which it is ended; *_retries: how often it runs again, None = not said.
    """

    kind: Kind
    text: str
    cwd: str
    script: str | None = None
    arguments: tuple[str, ...] = ()
    command: str | None = None
    conda: str | None = None
    venv: str | None = None
    env: tuple[tuple[str, str], ...] = ()
    name: str | None = None
    priority: int | None = None
    allowed: tuple[int, ...] | None = None
    share: int | None = None
    gpus: int | None = None
    vram: int | None = None
    exclusive: bool = False
    oom_retries: int | None = None
    fail_retries: int | None = None
    timeout_s: float | None = None
    torchrun: int | None = None
    cuda: CudaMode | None = None
    cuda_ids: CudaIds | None = None
    hold: bool = False
    cancel: bool = False

    @cached_property
    def identity(self) -> str:
        """A digest of what the job runs (docs/design.md, Jobs file), whatever front end it came from."""
        runs: list[Any] = [self.kind, self.cwd, self.conda, self.venv, sorted(self.env)]
        runs += [self.script, self.arguments] if self.kind == "csv" else [self.command]
        runs += [] if self.torchrun is None else [f"torchrun-{self.torchrun}gpu"]
        return hashlib.sha256(json.dumps(runs, ensure_ascii=True).encode()).hexdigest()[:32]

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes, by name, as a reading compares them."""
        return {name: getattr(self, name) for name in ATTRIBUTES}

    def words(self) -> tuple[str, ...]:
        """The words of the command line, as well as they can be told without running a shell."""
        if self.kind == "csv":
            return self.arguments
        try:
            return split_words(self.command or "")
        except ValueError:
            return tuple((self.command or "").split())

    def option(self, name: str) -> str | None:
        """The value of `--name X` or `--name=X` in the arguments; the last one counts; None if absent."""
        found = None
        words = self.words()
        for i, word in enumerate(words):
            if word == f"--{name}" and i + 1 < len(words):
                found = words[i + 1]
            elif word.startswith(f"--{name}="):
                found = word[len(name) + 3 :]
        return found

    @property
    def llm(self) -> str | None:
        """The model named by `--llm`."""
        return self.option("llm")

    @property
    def program(self) -> str:
        """What it runs, whatever its arguments: the script; of a command the module of `python -m`, else the
        first word that is a script, else the first word."""
        if self.script is not None:
            return self.script
        words = [w for w in self.words() if not re.fullmatch(r"[A-Za-z_]\w*=.*", w)]
        modules = [after for word, after in pairwise(words) if word == "-m"]
        scripts = [w for w in words if re.search(r"\.(?:py|sh)$", w)]
        return (modules or scripts or words or [""])[0]

    @property
    def mode(self) -> str:
        """The word for the Screen session: `--mode`, else the script's or the program's name."""
        said = self.option("mode")
        if said:
            return said
        if self.script is not None:
            return re.sub(r"\.py$", "", self.script.rsplit("/", 1)[-1])
        words = [w for w in self.words() if not re.fullmatch(r"[A-Za-z_]\w*=.*", w)]
        scripts = [w for w in words if w.endswith(".py")]
        word = (scripts or words or ["job"])[0]
        return re.sub(r"\.py$", "", word.rsplit("/", 1)[-1])

    def to_json(self) -> str:
        """One line of JSON that `from_json` reads back to an equal value."""
        values = [(name, getattr(self, name)) for name in _FIELDS]
        return _JSON.encode({k: v for k, v in values if v is not None and v is not False and v != ()})

    @classmethod
    def from_json(cls, text: str) -> JobSpec:
        """The value that `to_json` wrote."""
        raw = json.loads(text)
        said = {k: v for k, v in raw.items() if k in _FIELDS}
        for key in ("arguments", "allowed"):
            if key in said:
                said[key] = tuple(said[key])
        if "env" in said:
            said["env"] = tuple((k, v) for k, v in said["env"])
        return cls(**said)


#: Made once: `json.dumps` makes one at each call that wants something special.
_JSON = json.JSONEncoder(ensure_ascii=False)
_FIELDS = tuple(field.name for field in fields(JobSpec))
