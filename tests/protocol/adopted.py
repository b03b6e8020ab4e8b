"""An adopted process, which runs before the job exists, and the runner that watches it.

The process belongs to the job, not to an attempt: it outlives its watchers. The watcher of an attempt has
opened it if the attempt's COMMAND is WATCHED. A scan does not find it, because it carries no token.
"""

from __future__ import annotations

from functools import cache

from gpu_scheduler.core.model.job import AdoptedProcess, Job
from gpu_scheduler.core.model.states import JobState
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling.actions import JobChanged
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.needs import LlmConfig, ResourceSpec
from gpu_scheduler.core.scheduling.reconcile_attempt import watch_adopted
from gpu_scheduler.core.scheduling.settings import Settings
from tests.protocol import state as st
from tests.protocol.steps import FAULT, OWN, Steps
from tests.protocol.stops import REQUESTS

SWEPT = "I19 a sweep signals an adopted process"


@cache
def next_job_state(stop: int, *, old_boot: bool) -> int:
    """Returns the next state of a job that is a process without a watcher: STARTING, HELD or FINISHED.

    stop: the open request to stop it.
    """
    job = Job(
        1, spec_key=ResourceSpec().key(), adopted=AdoptedProcess(77, 7, "boot", 0.0), stop=REQUESTS[stop]
    )
    now = Now(1e9, 1000.0, "later boot" if old_boot else "boot")
    [action] = watch_adopted(Facts(now, Settings(), LlmConfig(), adopted_jobs=(job,)))
    if not isinstance(action, JobChanged):
        return st.STARTING
    return {JobState.HELD: st.HELD, JobState.FINISHED: st.FINISHED}[action.new.state]


def steps_of_process(steps: Steps) -> None:
    """Adds the end of the process, and another process that gets its pid."""
    state = steps.state
    if state[st.PROCESS] == st.PROCESS_SAVES:
        steps.add(OWN, "PROCESS has saved its work and exits 0", {st.PROCESS: ended(st.EXIT_SAVED)})
    elif state[st.PROCESS] == st.PROCESS_RUNS:
        steps.add(OWN, "PROCESS exits 0", {st.PROCESS: ended(st.EXIT_0)})
        steps.add(OWN, "PROCESS exits 7", {st.PROCESS: ended(st.EXIT_7)})
    elif state[st.REUSE] and not any(watchers(state, a) for a in st.ATTEMPTS):
        reused = {st.REUSE: 0, st.PROCESS: st.REUSED_PID + state[st.PROCESS]}
        steps.add(FAULT, "ANOTHER PROCESS gets the pid of the adopted process", reused)


def ended(how: int) -> int:
    """Returns the value of PROCESS for a process that ended like this (see ACTUAL_END)."""
    return st.PROCESS_ENDED + how


def watchers(state: bytes | bytearray, a: int) -> int:
    """Returns how many runners of this attempt watch the process."""
    if not state[a + st.WATCHES]:
        return 0
    return sum(st.SECOND_STOP_CHECK <= state[a + runner] <= st.PUT_BACK for runner in st.RUNNERS)


def end_of_process(state: bytes | bytearray) -> int:
    """Returns how the process ended (see ACTUAL_END); NEVER if it runs."""
    process = state[st.PROCESS] % st.REUSED_PID
    return process - st.PROCESS_ENDED if process > st.PROCESS_ENDED else st.NEVER
