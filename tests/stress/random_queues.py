"""P14: jobs preempt others in random queues on four GPUs, and the scheduler dies at random steps.

The attempts exist only in memory, and a clock of the test replaces the real one (tests/loop). In the
negative control, reservations are lost.
"""

from __future__ import annotations

from tests.loop.random_preemptions import Queue
from tests.stress.part import Findings, Order


def queues(order: Order) -> Findings:
    """Plays 500 random queues."""
    found, number = Findings(), order.scaled(500)
    for at in range(number):
        folder = order.folder / str(at)
        folder.mkdir()
        queue = Queue(folder, order.rng("queues").randrange(10**9) + at, reserves=not order.is_control)
        for fault in queue.play():
            found.fault("queues", f"queue {at}: {fault}")
        for name, count in queue.counts.items():
            found.count(name, count)
    found.figures = {"queues": number, **found.figures}
    return found
