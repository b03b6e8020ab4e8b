"""Builds the title of a job in a list.

The title is the job's name. A job without a name is shown by its script and arguments, or by its command if
it has no script.
"""

from __future__ import annotations

import json
import posixpath
import shlex
from collections.abc import Sequence

from gpu_scheduler.app.status_report import JobView
from gpu_scheduler.core.text.formatting import limit_length, safe_text


def title(job: JobView) -> str:
    """Returns the full title of a job as a line that is safe to print."""
    found = title_of(job.record.name, job.record.text, job.record.spec_json)
    source = job.record.source
    return f"{found} ({safe_text(source)})" if source.startswith("redis:") else found


def title_of(name: str | None, text: str, spec: str) -> str:
    """Returns the title of a job with these values. text: its line; spec: its JobSpec as JSON."""
    return safe_text(limit_length(name or _program_text(text, spec)))


def _program_text(text: str, spec_json: str) -> str:
    """Returns the script and arguments of a CSV line, or the text of any other line."""
    spec = json.loads(spec_json)
    script = spec.get("script")
    if script is None:
        return text
    return " ".join([posixpath.basename(script), *map(shlex.quote, spec.get("arguments", ()))])


def common_prefix(titles: Sequence[str]) -> str:
    """Returns the words with which all titles begin, and `…` if the titles differ; "" if there are none."""
    words = [text.split(" ") for text in titles]
    count = 0
    for nth in zip(*words, strict=False):
        if len(set(nth)) > 1:
            break
        count += 1
    same = " ".join(words[0][:count])
    return same if not same or all(len(each) == count for each in words) else f"{same} …"
