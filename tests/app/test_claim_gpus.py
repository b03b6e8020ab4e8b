"""Choosing and claiming GPUs, with a fake probe and real locks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import pytest

from gpu_scheduler.control import claim_gpus as app
from gpu_scheduler.control.claim_gpus import (
    FoundGpus,
    GpuRequest,
    Impossible,
    Shortfall,
    find_gpus,
    ineligibility_text,
)
from gpu_scheduler.core.model.gpu import UNKNOWN_UUID_PREFIX, GpuCriteria, GpuSample, Snapshot
from gpu_scheduler.gpus.probes.probe_process import (
    LateAnswerError,
    ProbeClient,
    ProbeFailure,
    UnreadableError,
)
from gpu_scheduler.runner import locks
from gpu_scheduler.runner.folder import TOKEN
from gpu_scheduler.runner.locks import Refusal, Wanted
from gpu_scheduler.show.machine_gpus import GpuSource
from gpu_scheduler.system.safe_file import name_of_user
from tests.claim_holder import claim_holder
from tests.turn_taker import TurnTaker, turn_taker
from tests.waiting import wait_for


class FakeProbe(ProbeClient):
    """A probe that returns the given samples one after the other, and the last one again and again.

    A sample is the free MiB of each GPU, None if the GPUs cannot be read, or "late" if the answer takes 1000
    seconds. prefix: the beginning of the UUIDs.
    """

    def __init__(self, *samples: Sequence[int] | Literal["late"] | None, prefix: str = "GPU-") -> None:
        self._samples, self._prefix = list(samples), prefix

    def sample(self, timeout_s: float | None = None) -> Snapshot:
        free = self._samples.pop(0) if len(self._samples) > 1 else self._samples[0]
        if free is None:
            raise UnreadableError(ProbeFailure("no answer"))
        if isinstance(free, str):
            assert timeout_s is not None
            raise LateAnswerError(ProbeFailure("no answer yet"))
        return Snapshot(
            0.0,
            tuple(
                GpuSample(f"{self._prefix}{i}", i, "Fake", 24576, 24576 - mib) for i, mib in enumerate(free)
            ),
        )


Claim = Callable[..., list[int] | Refusal]


@pytest.fixture(autouse=True)
def claim(monkeypatch: pytest.MonkeyPatch) -> Iterator[Claim]:
    """Releases the claims of this process at the end of the test. Yields the function that takes them."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with ExitStack() as stack:

        def claim(folder: str, wanted: Sequence[Wanted], *, inheritable: bool) -> list[int] | Refusal:
            answer = locks.claim_gpus(folder, wanted, inheritable=inheritable)
            if isinstance(answer, list):
                stack.callback(locks.release, answer)
            return answer

        monkeypatch.setattr(app, "claim_gpus", claim)
        yield claim


def find(
    probe: FakeProbe, on_wait: Callable[[Any], None] = lambda reasons: None, **request: Any
) -> list[int] | Impossible | None:
    """Returns the indices of the GPUs that were found, or why there are none."""
    own = {name: request.pop(name) for name in ("poll_s", "timeout_s", "claim") if name in request}
    found = find_gpus(GpuSource(probe, None), GpuRequest(GpuCriteria(**request), **own), on_wait)
    return [gpu.sample.index for gpu in found.gpus] if isinstance(found, FoundGpus) else found


def test_if_another_program_is_faster_the_next_best_gpu_is_taken_at_once(
    claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:

        def claim_later(folder: str, wanted: Sequence[Wanted], *, inheritable: bool) -> list[int] | Refusal:
            if wanted[0].name == "GPU-2":
                stack.enter_context(claim_holder(Path(folder), "GPU-2"))
            return claim(folder, wanted, inheritable=inheritable)

        monkeypatch.setattr(app, "claim_gpus", claim_later)
        waits: list[Any] = []
        assert find(FakeProbe([100, 200, 300]), waits.append, poll_s=3600.0) == [1]
        assert waits == []


def test_two_gpus_are_taken_or_neither() -> None:
    folder = Path(os.environ["GPU_SCHEDULER_LOCK_DIR"])
    folder.mkdir()
    with claim_holder(folder, "GPU-1"):
        assert find(FakeProbe([100, 200]), count=2, timeout_s=0.0) is None
        with claim_holder(folder, "GPU-0"):
            pass
    assert find(FakeProbe([100, 200]), count=2) == [0, 1]


def test_the_gpus_are_sampled_once_more_at_the_end_of_the_time_limit() -> None:
    assert find(FakeProbe([0], [9000]), min_free_mib=8000, poll_s=3600.0, timeout_s=0.05) == [0]


def test_a_failed_sample_is_reported_and_repeated() -> None:
    waits: list[Any] = []
    assert find(FakeProbe([0], None, [9000]), waits.append, min_free_mib=8000, poll_s=0.01) == [0]
    assert [type(reasons) for reasons in waits] == [Shortfall, UnreadableError]


def test_a_failed_first_sample_is_an_error() -> None:
    with pytest.raises(UnreadableError):
        find(FakeProbe(None))


def test_the_time_limit_also_limits_the_first_sample() -> None:
    waits: list[Any] = []
    assert find(FakeProbe("late"), waits.append, timeout_s=0.0) is None
    assert [type(reasons) for reasons in waits] == [LateAnswerError]


def test_a_search_without_a_claim_locks_nothing() -> None:
    folder = Path(os.environ["GPU_SCHEDULER_LOCK_DIR"])
    assert find(FakeProbe([100]), claim=False) == [0]
    assert not folder.exists()


def test_a_gpu_that_is_claimed_while_two_others_are_free_is_not_waited_for() -> None:
    folder = Path(os.environ["GPU_SCHEDULER_LOCK_DIR"])
    folder.mkdir()
    with claim_holder(folder, "GPU-2"):
        assert find(FakeProbe([100, 200, 300]), count=2) == [0, 1]


def test_a_gpu_without_a_known_uuid_is_not_eligible_except_inside_a_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = Path(os.environ["GPU_SCHEDULER_LOCK_DIR"])
    waits: list[Any] = []
    probe = FakeProbe([100], prefix=UNKNOWN_UUID_PREFIX)
    assert find(probe, waits.append, timeout_s=0.0) is None
    assert ineligibility_text(waits[0].reasons[0]) == "GPU 0 cannot be claimed: its UUID is unknown"
    monkeypatch.setenv(TOKEN, "of a job")
    monkeypatch.setattr(app, "is_below_runner", lambda: True)
    assert find(probe) == [0]
    assert list(folder.iterdir()) == []


@pytest.fixture
def other(claim: Claim) -> Iterator[TurnTaker]:
    """Another program that takes turns."""
    folder = Path(os.environ["GPU_SCHEDULER_LOCK_DIR"])
    folder.mkdir()
    with turn_taker(folder) as found:
        yield found


def test_a_gpu_goes_to_the_program_that_began_to_wait_first(other: TurnTaker) -> None:
    waits: list[Any] = []
    other.wait_in_line("GPU-0", 100.0)
    assert find(FakeProbe([200]), waits.append, timeout_s=0.0) is None
    kept = f"GPU 0 is kept for a waiting program, pid {other.pid}, user {name_of_user(os.getuid())}"
    assert ineligibility_text(waits[0].reasons[0]) == kept
    assert find(FakeProbe([200, 100])) == [1]
    other.wait_in_line("GPU-0", -1.0)
    assert find(FakeProbe([200])) == [0]


def test_a_gpu_that_another_program_holds_is_not_taken(other: TurnTaker) -> None:
    assert other.hold("GPU-0")
    assert find(FakeProbe([200]), timeout_s=0.0) is None
    assert find(FakeProbe([200]), timeout_s=0.0, claim=False) is None
    other.give_up()
    assert find(FakeProbe([200])) == [0]


def test_a_command_takes_the_gpu_as_soon_as_nobody_is_ahead_whatever_its_poll(other: TurnTaker) -> None:
    other.wait_in_line("GPU-0", 100.0)

    def end_when_both_wait() -> None:
        wait_for(lambda: other.ahead("GPU-0") == os.getpid(), "the place of the command")
        other.kill()

    thread = threading.Thread(target=end_when_both_wait)
    thread.start()
    assert find(FakeProbe([200]), poll_s=3600.0) == [0]
    thread.join()


def test_a_command_for_two_gpus_keeps_none_of_them_idle(other: TurnTaker) -> None:
    folder = Path(os.environ["GPU_SCHEDULER_LOCK_DIR"])
    with claim_holder(folder, "GPU-1"):
        assert find(FakeProbe([100, 200]), count=2, timeout_s=0.0) is None
        assert (other.ahead("GPU-0"), other.hold("GPU-0")) == (None, True)
        other.give_up()
    other.wait_in_line("GPU-1", 100.0)
    assert find(FakeProbe([100, 200]), count=2, timeout_s=0.0) is None
    other.wait_in_line("GPU-1", -1.0)
    assert find(FakeProbe([100, 200]), count=2) == [0, 1]


def test_a_command_waits_in_line_for_a_claimed_gpu_and_gives_its_place_up_with_the_claim(
    other: TurnTaker,
) -> None:
    folder = Path(os.environ["GPU_SCHEDULER_LOCK_DIR"])
    with claim_holder(folder, "GPU-0"):
        # The memory in use belongs to the claim, so the command expects to be able to take the GPU.
        assert find(FakeProbe([100]), min_free_mib=8000, timeout_s=0.0) is None
        # A program that begins to wait in the same millisecond is not behind it.
        wait_for(lambda: other.ahead("GPU-0") == os.getpid(), "the place of the command")
    assert find(FakeProbe([9000]), min_free_mib=8000) == [0]
    assert (other.ahead("GPU-0"), other.hold("GPU-0")) == (None, True)


def test_a_command_keeps_its_place_until_the_memory_of_an_ended_claim_is_free(other: TurnTaker) -> None:
    ahead: list[int | None] = []
    with claim_holder(Path(os.environ["GPU_SCHEDULER_LOCK_DIR"]), "GPU-0") as holder:

        def end_claim(reasons: Any) -> None:
            # Within the millisecond in which the command takes its place, nobody begins to wait after it.
            ahead.append(wait_for(lambda: other.ahead("GPU-0"), "the place of the command"))
            holder.kill()
            holder.wait()

        samples = FakeProbe([100], [100], [9000])
        assert find(samples, end_claim, min_free_mib=8000, poll_s=0.01) == [0]
    assert ahead == [os.getpid()] * 2


def test_a_turn_file_that_cannot_be_used_is_reported_and_stops_nobody() -> None:
    folder = Path(os.environ["GPU_SCHEDULER_LOCK_DIR"])
    folder.mkdir()
    (folder / ".turn-GPU-0").symlink_to("elsewhere")
    waits: list[Any] = []
    with claim_holder(folder, "GPU-0"):
        assert find(FakeProbe([100]), waits.append, timeout_s=0.0) is None
    assert waits[0].turn_problem.startswith(f"{folder}/.turn-GPU-0 is a symbolic link; ")
    assert find(FakeProbe([100])) == [0]
