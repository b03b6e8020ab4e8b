"""Formats the live view `top` from the JSON objects of docs/json.md: rows, bars, lines and questions.

It uses the words of `status` and `why`. All texts of users are made safe here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from msgspec import Struct, convert

from gpu_scheduler.core.explain.progress import JobProgress
from gpu_scheduler.core.model.finding import Finding, HealthIssue
from gpu_scheduler.core.model.gpu import GpuClaim, Suspicion, format_ranges
from gpu_scheduler.core.model.job import Progress
from gpu_scheduler.core.model.states import ACTIVE, JobState, Outcome
from gpu_scheduler.core.model.values import WHOLE, format_share
from gpu_scheduler.core.text import formatting
from gpu_scheduler.core.text.formatting import count_noun, format_elapsed, limit_length, safe_text
from gpu_scheduler.core.text.job_output import plain_lines
from gpu_scheduler.errors import ClientError
from gpu_scheduler.show import layout
from gpu_scheduler.show.gpu_text import state_lines
from gpu_scheduler.show.job_findings import format_finding
from gpu_scheduler.show.job_text import long_text, outcome_text, short_text
from gpu_scheduler.show.layout import Cell, FixedColumns, truncate_middle
from gpu_scheduler.show.status_text import issue_text
from gpu_scheduler.show.tables import GPU_COLOURS

Json = dict[str, Any]
#: The columns of the two tables.
GPU_COLUMNS: FixedColumns = (
    ("GPU", 3, True), ("State", 9, False), ("Share", 5, True), ("Load", 5, True), ("Memory", 16, False),
    ("In GiB: by job, others and free", 0, False),
)  # fmt: skip
JOB_COLUMNS: FixedColumns = (
    ("Job", 6, True), ("State", 11, False), ("Prio", 4, True), ("GPUs", 5, False), ("Time", 8, True),
    ("What", -2, False), ("Progress, or reason", 0, False),
)  # fmt: skip
#: The keys of `?`: the key, what it does and, on the last line of the screen, a short word.
_KEYS = (
    ("Enter", "shows everything about the selected job, with `why`, or about the selected GPU", "details"),
    ("l", "shows the log of the job, and follows it", "log"),
    ("a", "opens the job's Screen session (Ctrl-A d returns); only on the queue's machine", "attach"),
    ("c", "cancels the job, after asking", "cancel"),
    ("r", "queues a finished or held job again, after asking", ""),
    ("h, u", "holds a queued job; releases it", ""),
    ("p", "changes the priority of a waiting job", ""),
    ("Tab", "selects among the GPUs instead of the jobs, and back", "GPUs"),
    ("Space", "among the GPUs: pauses the selected GPU, after asking, or resumes it", ""),
    ("/", "shows only the jobs with a text; Esc shows all again", "filter"),
    ("?", "lists the keys", "keys"),
    ("Ctrl-Z", "suspends `top`; `fg` returns", ""),
    ("q", "ends `top`, or closes what covers the tables", "quit"),
)
_GRADES = {"bad": layout.RED, "warn": layout.YELLOW, "ok": layout.GREEN}
#: The order of the jobs.
_RANK = {**dict.fromkeys(ACTIVE, 0), JobState.QUEUED: 1, JobState.HELD: 2, JobState.FINISHED: 3}

# The tables.


def in_order(jobs: Iterable[Json], max_finished: int) -> list[Json]:
    """Returns jobs in the order of the table, at most so many finished ones, without the cleared ones.

    jobs: waiting jobs with the same priority are in the order of the queue.
    """

    def key(job: Json) -> tuple[int, float]:
        is_finished = job["state"] == JobState.FINISHED
        return _RANK[job["state"]], -(job["finished_at"] or 0) if is_finished else job["priority"]

    found = sorted((one for one in jobs if not one["cleared"]), key=key)
    finished = sum(one["state"] == JobState.FINISHED for one in found)
    return found[: len(found) - max(0, finished - max_finished)]


def job_cells(job: Json, now: float) -> list[Cell]:
    """Returns the row of a job, an element of "jobs". now: in seconds since 1970."""
    state, outcome, started, end = job["state"], job["outcome"], job["started_at"], job["finished_at"]
    word = outcome or (Outcome.INTERRUPTED.value if job["interrupted"] else state)
    colour = layout.of_outcome(outcome) if outcome else layout.OF_STATE.get(state, "")
    took = "" if started is None or not (state in ACTIVE or end) else format_elapsed((end or now) - started)
    place = (job["engine"] or {}).get("node") or format_ranges(job["gpus"]) or "-" * (state in ACTIVE)
    about = Cell(_one_line(job["reason"]), layout.RED if job["infeasible"] else layout.YELLOW)
    if state == JobState.FINISHED:
        exit_text = outcome_text(outcome or "", job["exit_code"], job["signal"]).partition(", ")[2]
        about = Cell(about.text or exit_text, colour if colour == layout.RED else "")
        about = about if about.text else Cell(formatting.format_age(end, now), layout.FAINT)
    elif state in ACTIVE and not about.text:
        about = Cell(short_text(_progress(job["progress"])))
    return [
        Cell(str(job["id"])), Cell(word.replace("_", " "), colour), Cell(str(job["priority"])),
        Cell(_one_line(place)), Cell(took), Cell(title(job)), about,
    ]  # fmt: skip


def title(job: Json) -> str:
    """Returns the name of a job or, if it has none, its command."""
    return _one_line(job["name"] or job["command"])


def _one_line(text: str | None) -> str:
    return safe_text(limit_length(text or ""))


def _progress(found: Json | None) -> JobProgress | None:
    if found is None or found["current"] is None:
        return None
    return JobProgress(convert(found, Progress), None, found["eta_s"], found["finish_at"])


def matches(job: Json, wanted: str) -> bool:
    """Returns whether a job has a text, in any case, in its number, state, name, command or reason."""
    shown = (job["id"], job["outcome"] or job["state"], job["name"], job["command"], job["reason"])
    return wanted.casefold() in "\n".join(str(one) for one in shown if one is not None).casefold()


def gpu_cells(gpu: Json, jobs: Iterable[Json], now: float) -> list[Cell]:
    """Returns the row of a GPU, an element of "gpus". jobs: those that run on it.

    A job counts with the largest memory that it has used there, at most what is in use now.
    """
    colour, left, total = GPU_COLOURS.get(gpu["state"], ""), gpu["memory_used_mib"], gpu["memory_total_mib"]
    bar, text = "?", "memory unknown"
    if left is not None and total is not None:
        shown, used = [], left
        for job in jobs:
            mib = min(left, job["peaks"].get(str(gpu["index"]), 0))
            left -= mib
            shown.append((f"job {job['id']}", mib))
        bar = memory_bar(used - left, used, total, 16)
        shown += [*([("others", left)] if left else []), ("free", max(0, total - used))]
        text = ", ".join(f"{name} {mib / 1024:.1f}" for name, mib in shown)
    load = "?" if gpu["load_percent"] is None else f"{gpu['load_percent']:.0f} %"
    why = _gpu_reasons(gpu, now)
    return [
        Cell(str(gpu["index"])), Cell(gpu["state"], colour),
        Cell(format_share(round(gpu["allocated"] * WHOLE))), Cell(load), Cell(bar, layout.CYAN),
        Cell(f"{why}; {text}" if why else text, colour if why else ""),
    ]  # fmt: skip


def memory_bar(of_jobs: int, used: int, total: int, width: int) -> str:
    """Draws the memory of a GPU: of jobs (█), of others (▒) and free (·)."""
    jobs, in_use = (round(width * min(1.0, one / max(1, total))) for one in (of_jobs, used))
    return f"{'█' * jobs}{'▒' * (in_use - jobs)}{'·' * (width - in_use)}"


T = TypeVar("T", bound=Struct)


def _known(type_: type[T], given: Json) -> T:
    """Returns an object with the members that its type has; the answer may have more."""
    return convert({key: value for key, value in given.items() if key in type_.__struct_fields__}, type_)


def _gpu_reasons(gpu: Json, now: float) -> str:
    """Returns why a GPU is in its state."""
    doubt = gpu["suspicion"] and _known(Suspicion, gpu["suspicion"])
    given = ({key: value for key, value in one.items() if value is not None} for one in gpu["claims"] or ())
    claims = [_known(GpuClaim, {"mib": None, "pid": 0, **one}) for one in given]
    reason = gpu.get("pause_reason")  # which servers of an older version do not send
    lines = state_lines(gpu["index"], reason, doubt, now, claims, gpu["claims_problem"])
    then = f"then {format_ranges(gpu['reserved_for'])}" if gpu["reserved_for"] else ""
    return "; ".join(_one_line(one) for one in (gpu["fault"], *lines, then) if one)


# The lines above and below the tables.


def head_text(health: Json | None) -> str:
    """Formats the first line: "12 jobs: 2 running, 10 queued; scheduler pid 99". health: None if unknown."""
    if health is None:
        return "Reading the queue …"
    counts, pid = health["counts"], health["scheduler"]["pid"]
    parts = ", ".join(f"{counts[one]:,} {one}" for one in sorted(counts, key=lambda one: _RANK[one]))
    jobs = f"{count_noun(sum(counts.values()), 'job')}: {parts}" if parts else "No jobs yet"
    return jobs if pid is None else f"{jobs}; scheduler {formatting.pid_text(pid)}"


def banner_text(health: Json | None, problem: ClientError | None, late_s: float = 0.0) -> str:
    """Returns what is wrong, with the remedy; "" if nothing is. late_s: how long an answer is late."""
    if problem is not None:
        text = f"Problem: {problem}"
        if problem.status == 401:  # the remedy there is for programs
            text = text.partition(". ")[0].rstrip(".")
            text += (
                "; write a new token, from `token create`, into the file of --token-file, and restart `top`"
            )
        return _one_line(text)
    if late_s:
        return f"Problem: no answer for {late_s:.0f} s; check the connection, and that `serve` runs there"
    lines = []
    if health is not None and health["scheduler"]["pid"] is None:
        lines.append("Scheduler not running; changes are recorded, and `start` carries them out")
    for one in (health or {}).get("health_issues", ()):
        lines.append(issue_text(HealthIssue(*(one[key] for key in HealthIssue.__struct_fields__))))
    return "\n".join(lines)


def foot_text(wanted: str, count: int) -> str:
    """Returns the last line: the keys. wanted: the text of the filter, which so many jobs have."""
    keys = "  ".join(f"{key} {short}" for key, _, short in _KEYS if short)
    return f"{count_noun(count, 'job')} with `{safe_text(wanted)}` (Esc: all)  {keys}" if wanted else keys


def error_text(error: Exception) -> str:
    """Formats an error as one line."""
    return _one_line(str(error).replace("\n", "; "))


def answer_texts(answers: Iterable[Json]) -> Iterator[str]:
    """Yields a line for each of the answers to a change of jobs or GPUs, such as "job 3: held"."""
    for one in answers:
        subject = f"job {one['job']}" if "job" in one else f"GPU {one['gpu']}"
        text = _one_line(one["text"] or one["result"].replace("_", " "))
        yield text if text.startswith(subject) else f"{subject}: {text}"


def question(verb: str, row: Json) -> str:
    """Returns the question before a change of a job or a GPU; "" if the change needs none."""
    if verb == "pause":
        jobs = f", on which {format_ranges(row['jobs'])} go on" if row["jobs"] else ""
        return f"Pause GPU {row['index']} ({_one_line(row['name'])}){jobs}? [y/N]"
    if verb == "priority":
        return f"New priority of {named(row)}, now {row['priority']}; lower numbers start first:"
    return f"{verb.capitalize()} {named(row)}? [y/N]" if verb in ("cancel", "retry") else ""


def named(job: Json) -> str:
    """Returns a job with its title: "job 3 (train/bert)"."""
    return f"job {job['id']} ({truncate_middle(title(job), 60)})"


# What covers the tables.


def key_lines() -> list[Cell]:
    """Returns the list of the keys."""
    return [Cell("Keys", layout.BOLD), *(Cell(f"{key:<8}{text}") for key, text, _ in _KEYS)]


def gpu_lines(gpu: Json, now: float) -> list[Cell]:
    """Returns everything about a GPU as lines."""
    hidden = dict.fromkeys(("fault", "suspicion", "claims", "claims_problem", "pause_reason", "reserved_for"))
    age = formatting.format_age(gpu["sampled_at"], now)
    values = {**gpu, **hidden, "sampled_at": age, "reasons": _gpu_reasons(gpu, now)}
    shown = ((key, one) for key, one in values.items() if one or (one == 0 and one is not False))
    return [Cell(f"{key:<22}{_one_line(str(one))}") for key, one in shown]


def detail_lines(job: Json, why: Json | str, now: float, width: int | None = None) -> list[Cell]:
    """Returns everything about a job as lines. job: as `show --json`; why: as `why --json`, or its error."""
    one = job["job"]
    state = outcome_text(one["outcome"], one["exit_code"], one["signal"]) if one["outcome"] else one["state"]
    took = one["started_at"] and format_elapsed((one["finished_at"] or now) - one["started_at"])
    peaks = {int(gpu): mib for gpu, mib in one["peaks"].items()}
    values = (
        ("state", state), ("reason", one["reason"]), ("name", one["name"]), ("command", one["command"]),
        ("needs", job["need"]), ("GPUs", format_ranges(one["gpus"])), ("priority", one["priority"]),
        ("time", took), ("attempts", one["attempts"]),
        ("progress", long_text(_progress(one["progress"]), now)),
        ("memory", formatting.memory_text(peaks, one["vram_declared"])), ("log", one["log"]),
        ("session", one["session"]), ("source", one["source"]),
        *(("warning", text) for text in one["warnings"]),
    )  # fmt: skip
    found = [Cell(f"job {one['id']} {title(one)}", layout.BOLD), Cell("")]
    found += [Cell(f"{name:<10}{_one_line(str(text))}") for name, text in values if text not in (None, "")]
    found += [Cell(""), Cell("why", layout.BOLD)]
    if isinstance(why, str):
        return [*found, Cell(_one_line(why), layout.YELLOW)]
    for check in why["checks"]:
        finding = Finding(check["check"], check["grade"], check["message"], check["remedy"])
        colour = _GRADES.get(finding.grade, "")
        found += [Cell(line, colour) for line in format_finding(finding, width).split("\n")]
    end = [Cell(text) for text in plain_lines(why["log_end"])]
    return [*found, Cell(""), Cell("End of its log", layout.BOLD), *end] if end else found
