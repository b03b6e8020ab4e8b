"""Texts of `run`, `wait` and `gpus`."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_scheduler.control.claim_gpus import (
    FoundGpus,
    Impossible,
    impossible_text,
    ineligibility_text,
    taken_text,
    timeout_text,
    unclaimed_text,
)
from gpu_scheduler.core.model.gpu import (
    LOST,
    ClaimedGpu,
    FaultKind,
    GpuClaim,
    GpuCriteria,
    GpuFault,
    GpuSample,
)
from gpu_scheduler.core.model.reasons import GpuObstacle, ObstacleKind
from gpu_scheduler.core.scheduling.gpu_choice import impossibility
from gpu_scheduler.show.gpu_text import to_json, to_text

FREE = ClaimedGpu(GpuSample("GPU-a", 1, "NVIDIA L40S", 46068, 1857, 3.0))
UNKNOWN = ClaimedGpu(GpuSample("GPU-b", 2, "a\x1b[2Jb"))


@pytest.mark.parametrize(
    ("kind", "values", "text"),
    [
        (ObstacleKind.FAULT, {"fault": LOST}, "GPU 1 has a fault: lost"),
        (
            ObstacleKind.FAULT,
            {"fault": GpuFault(FaultKind.QUERY_FAILED, "\x1b[2J")},
            r"GPU 1 has a fault: query failed: \x1b[2J",
        ),
        (
            ObstacleKind.CLAIMED,
            {"claims": (GpuClaim(None, 7, "ann"),)},
            "GPU 1 is claimed by run, pid 7, user ann",
        ),
        (
            ObstacleKind.CLAIMED,
            {"claims": (GpuClaim(500, 7, "ann"), GpuClaim(700, 8, "bob", by_scheduler=True))},
            "GPU 1 has 500 MiB claimed by run, pid 7, user ann; 700 MiB claimed by a scheduler's job, pid 8,"
            " user bob",
        ),
        (
            ObstacleKind.CLAIMS_UNKNOWN,
            {"detail": "/locks/GPU-a is not a regular file"},
            "GPU 1 cannot be claimed: /locks/GPU-a is not a regular file",
        ),
        (ObstacleKind.MEMORY, {"free": 812}, "GPU 1 has 812 MiB free"),
        (
            ObstacleKind.MEMORY,
            {"free": 812, "claims": (GpuClaim(500, 7, "ann"),)},
            "GPU 1 has 812 MiB free; 500 MiB claimed by run, pid 7, user ann",
        ),
        (ObstacleKind.MEMORY_UNKNOWN, {}, "GPU 1 does not report its free memory"),
        (ObstacleKind.FOREIGN_LOAD, {"foreign_load": 97}, "GPU 1 has a utilization of 97%"),
        (ObstacleKind.LOAD_UNKNOWN, {}, "GPU 1 does not report its utilization"),
    ],
)
def test_every_reason_names_the_gpu(kind: ObstacleKind, values: dict[str, Any], text: str) -> None:
    assert ineligibility_text(GpuObstacle(1, kind, **values)) == text


def test_the_taken_gpus_are_named_with_their_free_memory() -> None:
    free, unknown = "GPU 1 (NVIDIA L40S, 44211 MiB free)", r"GPU 2 (a\x1b[2Jb, free memory unknown)"
    both = (FREE, UNKNOWN)
    assert taken_text(FoundGpus(both, GpuCriteria(2))) == f"took {free} and {unknown}"
    assert taken_text(FoundGpus((FREE,), GpuCriteria(1, claim_mib=8000))) == f"took 8000 MiB of {free}"
    part = taken_text(FoundGpus((*both, FREE), GpuCriteria(3, claim_mib=8000)))
    assert part == f"took 8000 MiB of each of {free}, {unknown} and {free}"
    claimed = ClaimedGpu(FREE.sample, (GpuClaim(40000, 7, "ann"),))
    assert taken_text(FoundGpus((claimed,), GpuCriteria())) == "took GPU 1 (NVIDIA L40S, 6068 MiB free)"
    inside = FoundGpus((FREE,), GpuCriteria(), is_inside=True)
    assert taken_text(inside) == f"using {free} of the surrounding job or command, without another claim"
    one, two = FoundGpus((FREE,), GpuCriteria()), FoundGpus(both, GpuCriteria(2))
    for mib, amount in ((None, "the whole GPU"), (8000, "8000 MiB")):
        below = FoundGpus(
            (FREE,), GpuCriteria(1, 500), is_inside=True, surrounding={"GPU-a": GpuClaim(mib, 7)}
        )
        gpu = f"GPU 1 (NVIDIA L40S, 44211 MiB free, surrounding claim: {amount})"
        assert taken_text(below) == f"using {gpu} of the surrounding job or command, without another claim"
    assert unclaimed_text(inside) == f"found {free} of the surrounding job or command"
    text = "free but not claimed, so another program may take"
    assert unclaimed_text(one) == f"{free} is {text} it first"
    assert unclaimed_text(two) == f"{free} and {unknown} are {text} them first"


def test_a_timeout_says_how_many_gpus_were_wanted() -> None:
    assert timeout_text(30.0, 1) == "timed out: no GPU was free within 30 s"
    assert timeout_text(0.5, 2) == "timed out: fewer than 2 GPUs were free within 0.5 s"


@pytest.mark.parametrize(
    ("criteria", "text"),
    [
        ({"only": (1, 7)}, "GPU 7 is not among the GPUs to choose from (1,2)"),
        ({"only": (1, 7, 8)}, "GPUs 7,8 are not among the GPUs to choose from (1,2)"),
        ({"count": 3}, "3 GPUs wanted, but only 2 to choose from (1,2)"),
        ({"excluded": (1, 2)}, "1 GPU wanted, but --exclude leaves none"),
        ({"only": (1,), "excluded": (1,)}, "1 GPU wanted, but --allowed and --exclude leave none"),
        (
            {"claim_mib": 99999, "only": (1,)},
            "no GPU to choose from (1) has 99999 MiB; the largest has 46068 MiB",
        ),
        (
            {"min_free_mib": 50000, "count": 2},
            "2 GPUs wanted with 50000 MiB of memory, but only 1 of the 2 GPUs to choose from (1,2) can have"
            " so much",
        ),
    ],
)
def test_an_impossible_request_is_explained(criteria: dict[str, Any], text: str) -> None:
    found = impossibility([FREE.sample, UNKNOWN.sample], GpuCriteria(**criteria))
    assert found is not None
    assert impossible_text(Impossible(found)) == text


def test_a_setting_of_cuda_visible_devices_is_named_as_a_reason() -> None:
    found = impossibility([FREE.sample], GpuCriteria(only=(2,)))
    note = "CUDA_VISIBLE_DEVICES=1 allows only GPU 1 of 4"
    text = f"GPU 2 is not among the GPUs to choose from (1)\n{note}"
    assert impossible_text(Impossible(found, note)) == text
    assert impossible_text(Impossible(None, note)) == note


def test_the_table_of_gpus_has_a_column_of_faults_only_if_there_are_any() -> None:
    lost = ClaimedGpu(GpuSample("GPU-c", 3, "NVIDIA L40S", fault=LOST))
    assert to_text([FREE, UNKNOWN], None).splitlines() == [
        "idx  name         free       total      util",
        "1    NVIDIA L40S  44211 MiB  46068 MiB  3%",
        r"2    a\x1b[2Jb    ?          ?          ?",
    ]
    assert to_text([FREE, lost], None).splitlines() == [
        "idx  name         free       total      util  fault",
        "1    NVIDIA L40S  44211 MiB  46068 MiB  3%",
        "3    NVIDIA L40S  ?          ?          ?     lost",
    ]


@pytest.mark.parametrize("width", [None, 60])
def test_the_table_of_gpus_shows_every_claim_on_a_line_below_its_gpu(width: int | None) -> None:
    claims = (GpuClaim(8000, 7, "ann"), *[GpuClaim(9000, 8, "bob" * 20, by_scheduler=True)] * 3)
    problem = "/locks/GPU-a is a symbolic link"
    found = [ClaimedGpu(FREE.sample, claims), ClaimedGpu(FREE.sample, claims_problem=problem)]
    lines = to_text(found, width).splitlines()
    assert [line for line in lines if line.startswith(" ")] == [
        "     8000 MiB claimed by run, pid 7, user ann",
        *[f"     9000 MiB claimed by a scheduler's job, pid 8, user {'bob' * 20}"] * 3,
        f"     cannot be claimed, because {problem}",
    ]


def test_unknown_claims_are_null_in_json() -> None:
    text = to_json([ClaimedGpu(FREE.sample, claims_problem="is a link")])
    assert '"claims": null, "claims_problem": "is a link"' in text
    assert text.isascii()
    assert '"claims": [], "claims_problem": null' in to_json([FREE])


def test_claims_that_can_be_read_are_listed_even_if_nothing_can_claim_the_gpu() -> None:
    gpu = ClaimedGpu(FREE.sample, (GpuClaim(8000, 7, "ann"),), "/locks/GPU-a is not writable")
    assert to_text([gpu], None).splitlines()[2:] == [
        "     cannot be claimed, because /locks/GPU-a is not writable",
        "     8000 MiB claimed by run, pid 7, user ann",
    ]
    assert '"claims": [{"pid": 7, "user": "ann", "mib": 8000, "by_scheduler": false,' in to_json([gpu])
