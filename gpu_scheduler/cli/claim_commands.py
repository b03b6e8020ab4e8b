"""The commands `run`, `wait` and `gpus`, which use GPUs without a scheduler, a store or a state file.

Only `wait --job`, which waits for jobs in place of GPUs, reads a store.

The probe starts first and reads the GPUs while the other modules are imported.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gpu_scheduler.cli.program import follow_simulation, location_of, print_message, stdout_screen
from gpu_scheduler.errors import GpuStateError, UsageError
from gpu_scheduler.show.machine_gpus import GpuSource, open_source

if TYPE_CHECKING:
    from gpu_scheduler.control.claim_gpus import FoundGpus, WaitReasons
    from gpu_scheduler.control.wait import AwaitedJob
    from gpu_scheduler.show.location import Location

#: The command `timeout` exits with 124, too.
EXIT_IMPOSSIBLE, EXIT_TIMED_OUT = 3, 124
EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND = 126, 127


def run(options: Namespace) -> int:
    """Waits for GPUs, claims them and executes the command. Returns an exit code only if that fails."""
    source = _open(options)
    from gpu_scheduler.control import claim_gpus as app

    failure = app.missing_program(options.command_words[0])
    if failure is None:
        found = _find(source, options, claim=True)
        if isinstance(found, int):
            return found
        print_message(app.taken_text(found))
        failure = app.execute(options.command_words, app.command_environment(found, source, os.environ))
    print_message(failure.text)
    return EXIT_NOT_FOUND if failure.is_missing else EXIT_NOT_EXECUTABLE


def wait(options: Namespace) -> int:
    """Waits for GPUs and prints their indices, or waits for jobs. Claims nothing."""
    if options.jobs:
        return _wait_for_jobs(options)
    found = _find(_open(options), options, claim=False)
    if isinstance(found, int):
        return found
    from gpu_scheduler.control.claim_gpus import unclaimed_text

    print_message(unclaimed_text(found))
    print(",".join(str(gpu.sample.index) for gpu in found.gpus))
    return 0


def _wait_for_jobs(options: Namespace) -> int:
    from gpu_scheduler.cli.commands import given_gpu_option
    from gpu_scheduler.control.wait import find_jobs

    given = given_gpu_option(options)
    if given is not None:
        raise UsageError(f"{given} chooses GPUs and cannot be combined with jobs; leave out one of them")
    location = location_of(options)
    with JobWait(location) as wait:
        wait.left = find_jobs(location, options.jobs)
        return wait.until_ended(options.timeout)


def gpus(options: Namespace) -> int:
    """Prints the GPUs of this machine with their free memory and the claims on them."""
    source = _open(options)
    from gpu_scheduler.show.gpu_text import to_json, to_text
    from gpu_scheduler.show.machine_gpus import lock_folder_problem, machine_gpus

    with source.probe:
        found = machine_gpus(source)
    problem = lock_folder_problem(source)
    for message in (source.probe.note, problem):
        if message:
            print_message(message)
    sys.stdout.write(to_json(found) if options.json else to_text(found, stdout_screen().width))
    return 0


def _open(options: Namespace) -> GpuSource:
    follow_simulation(options)
    return open_source(options.gpu_probe, options.simulate, location_of(options))


def _find(source: GpuSource, options: Namespace, *, claim: bool) -> FoundGpus | int:
    """Waits for GPUs and returns them, or the exit code, after printing the reason, if there are none."""
    from gpu_scheduler.control import claim_gpus as app
    from gpu_scheduler.core.model.gpu import GpuCriteria

    criteria = GpuCriteria(
        options.count,
        options.mb,
        options.min_free_mb,
        options.max_util,
        options.allowed,
        options.exclude or (),
    )
    request = app.GpuRequest(criteria, options.poll, options.timeout, claim)
    with source.probe:
        found = app.find_gpus(source, request, _WaitReport(options.count))
    if isinstance(found, app.FoundGpus):
        return found
    if found is None:
        print_message(app.timeout_text(options.timeout or 0.0, options.count))
        return EXIT_TIMED_OUT
    print_message(app.impossible_text(found))
    return EXIT_IMPOSSIBLE


class _WaitReport:
    """Prints what the command waits for, and each reason again only if it has changed."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._is_announced = False
        self._failure: str | None = None
        self._visible_note: str | None = None
        #: The reason that was printed for each GPU, without figures that change with every sample.
        self._printed: Mapping[int, object] = {}

    def __call__(self, found: WaitReasons) -> None:
        from msgspec.structs import replace

        from gpu_scheduler.control.claim_gpus import ineligibility_text, wait_text

        if isinstance(found, GpuStateError):
            if str(found) != self._failure:
                print_message(f"{found}\nstill waiting for the GPUs")
            self._failure = str(found)
            return
        self._failure = None
        if not self._is_announced:
            self._is_announced = True
            print_message(wait_text(self._count))
            if found.turn_problem:
                print_message(f"{found.turn_problem}; without it, programs do not take turns on this GPU")
        if found.visible_note not in (None, self._visible_note):
            print_message(str(found.visible_note))
        self._visible_note = found.visible_note
        stable = {one.gpu: replace(one, free=None, foreign_load=None) for one in found.reasons}
        for reason in found.reasons:
            if stable[reason.gpu] != self._printed.get(reason.gpu):
                print_message(ineligibility_text(reason))
        self._printed = stable


# Waits for jobs on behalf of `submit --wait` and `wait --job`, and reports their progress on stderr.


#: Maximum number of lines about jobs that are printed at once.
_MAX_LINES = 20


class JobWait:
    """A wait for jobs. After Ctrl-C anywhere in its `with` block, says which jobs continue.

    left: the ids of the jobs that have not ended, as far as known. The caller sets it before `until_ended`.
    """

    def __init__(self, location: Location) -> None:
        self._location = location
        self.left: list[int] = []
        self._obstacles: dict[int, str | None] = {}

    def __enter__(self) -> JobWait:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is KeyboardInterrupt and self.left:
            print_message(f"no longer waiting; {_left_text(self.left)}")

    def until_ended(self, timeout_s: float | None = None) -> int:
        """Waits until the jobs have ended and reports their progress.

        Returns the largest of their exit codes, or 124 after the timeout.
        """
        from gpu_scheduler.control.wait import wait_for_jobs

        code = wait_for_jobs(self._location, self.left, self._report, timeout_s)
        if code is None:
            print_message(f"not ended within {timeout_s:g} s: {_left_text(self.left)}")
            return EXIT_TIMED_OUT
        return code

    def _report(self, jobs: Sequence[AwaitedJob]) -> None:
        """Prints the end of each job, and each new reason why a job may need the user."""
        from gpu_scheduler.control.wait import obstacle_text
        from gpu_scheduler.show.job_findings import end_text

        self.left = [job.view.record.id for job in jobs if not job.has_ended]
        lines = [end_text(job.view) for job in jobs if job.has_ended]
        for job in jobs:
            text, job_id = obstacle_text(job), job.view.record.id
            if text is not None and text != self._obstacles.get(job_id):
                lines.append(text)
            self._obstacles[job_id] = text
        for line in lines[:_MAX_LINES]:
            print_message(line)
        if len(lines) > _MAX_LINES:
            print_message(f"and {len(lines) - _MAX_LINES:,} more (see `status --all`)")


def _left_text(job_ids: Sequence[int]) -> str:
    from gpu_scheduler.core.model.gpu import format_ranges

    listed = format_ranges(sorted(job_ids)).replace(",", "")
    if len(job_ids) == 1:
        return f"job {listed} continues, and `wait --job {listed}` waits for it again"
    return f"jobs {listed} continue, and `wait --job {listed}` waits for them again"
