"""Random facts about a few GPUs that are full of attempts, and the same facts once attempts have left."""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import strategies as st

from gpu_scheduler.core.model.gpu import LOST, Gpu, GpuClaim, GpuFault, GpuProcess, GpuSample
from gpu_scheduler.core.model.job import ActiveAttempt
from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.scheduling.facts import Facts
from tests.attempts import replace
from tests.core.gpu_world import facts, gpu, running

FLAG = st.sampled_from([False, False, False, True])


def needs(most_gpus: int) -> st.SearchStrategy[Need]:
    """Draws the need of a job."""
    counts = st.integers(1, most_gpus)
    return st.one_of(
        st.builds(lambda count, share: Need(count, share), counts, st.sampled_from([100, 300, 500, 1000])),
        st.builds(
            lambda count, mib, exclusive: Need(count, vram=mib, exclusive=exclusive),
            counts,
            st.sampled_from([500, 4000, 9000, 23_000]),
            FLAG,
        ),
        st.builds(lambda count: Need(count, 1000, alone=True), counts),
        st.builds(
            lambda share, mib: Need(1, share, vram=mib),
            st.sampled_from([200, 700]),
            st.sampled_from([3000, 15_000]),
        ),
    )


@st.composite
def situations(draw: st.DrawFn, most_gpus: int = 3, most_attempts: int = 5) -> Facts:
    """Draws facts about GPUs, on which attempts and foreign processes run."""
    count = draw(st.integers(1, most_gpus))
    uuids = [f"U{index}" for index in range(count)]
    attempts = []
    for attempt_id in range(1, draw(st.integers(1, most_attempts)) + 1):
        need = draw(needs(count))
        on = draw(st.permutations(uuids))[: need.count]
        attempts.append(running(attempt_id, *on, share=need.share, vram=need.vram, whole=need.whole))
    return facts(*[draw(_gpus(index, attempts)) for index in range(count)], attempts=tuple(attempts))


@st.composite
def _gpus(draw: st.DrawFn, index: int, attempts: list[ActiveAttempt]) -> Gpu:
    here = [one for one in attempts if f"U{index}" in one.gpus]
    uses = st.sampled_from([0, 300, 2000, 9000])
    processes = [GpuProcess(1000 + one.id, draw(uses)) for one in here]
    owners: dict[int, int | None] = {1000 + one.id: one.id for one in here}
    if draw(FLAG):
        processes.append(GpuProcess(7, draw(st.sampled_from([100, 3000, 21_000]))))
    fault: GpuFault | None = LOST if draw(FLAG) and draw(FLAG) else None
    claims = (GpuClaim(draw(st.sampled_from([500, 8000])), 8),) if draw(FLAG) else ()
    drawn = gpu(
        index, processes=tuple(processes), owners=owners, claims=claims, paused=draw(FLAG) and draw(FLAG)
    )
    assert drawn.sample is not None
    return replace(drawn, sample=replace(drawn.sample, fault=fault))


def without_attempts(situation: Facts, gone: Collection[int]) -> Facts:
    """Returns the facts after these attempts have ended, with the memory of their processes freed."""
    return replace(
        situation,
        attempts=tuple(one for one in situation.attempts if one.id not in gone),
        gpus=tuple(replace(one, sample=_sample_without(one, gone)) for one in situation.gpus),
    )


def _sample_without(one: Gpu, gone: Collection[int]) -> GpuSample:
    sample = one.sample
    assert sample is not None
    assert sample.processes is not None
    stay = tuple(process for process in sample.processes if one.owners.get(process.pid) not in gone)
    freed = sum(process.used_mib or 0 for process in sample.processes) - sum(p.used_mib or 0 for p in stay)
    return replace(sample, processes=stay, used_mib=(sample.used_mib or 0) - freed)
