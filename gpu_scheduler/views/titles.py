"""The title of a job in a list: its name, else its script and arguments, else its command."""

from __future__ import annotations

import json
import posixpath
import shlex
from collections.abc import Sequence

from gpu_scheduler.core.gpulist import format_gpu_list
from gpu_scheduler.core.secrets import masked_words
from gpu_scheduler.views.report import JobShown
from gpu_scheduler.views.words import shortened, visible


def title(job: JobShown) -> str:
    """One line of printable text, in full."""
    return title_of(job.name, job.text, job.spec)


def title_of(name: str | None, text: str, spec: str) -> str:
    """The same. text: the job's line; spec: its JobSpec as JSON."""
    return visible(shortened(name or _runs(text, spec)))


def _runs(text: str, spec_json: str) -> str:
    """Its script and arguments, without the other fields of a CSV line; else the text of its line."""
    spec = json.loads(spec_json)
    script = spec.get("script")
    if script is None:
        return text
    return " ".join([posixpath.basename(script), *map(shlex.quote, masked_words(spec.get("arguments", ())))])


def in_common(titles: Sequence[str]) -> str:
    """The words with which all these titles begin, `…` for what differs; "" if they begin differently."""
    words = [text.split(" ") for text in titles]
    count = 0
    for nth in zip(*words, strict=False):
        if len(set(nth)) > 1:
            break
        count += 1
    same = " ".join(words[0][:count])
    return same if not same or all(len(each) == count for each in words) else f"{same} …"


def ranges(numbers: Sequence[int]) -> str:
    """Ids as people write them: "3, 7-9, 12-31"; two that follow each other stay apart."""
    return format_gpu_list(numbers).replace(",", ", ")
