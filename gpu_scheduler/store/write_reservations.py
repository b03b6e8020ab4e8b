"""Records the actions that reserve GPUs for a job that preempts others."""

from __future__ import annotations

from gpu_scheduler.core.model.event import EventKind, GpusReserved, ReservationDropped
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.store.write_context import WriteContext


def reserve(context: WriteContext, action: act.Reserve) -> None:
    """Records the reservation of a queued job, and for which job its victims are preempted."""
    db = context.db
    # The job may have had a reservation by queue order.
    db.execute("DELETE FROM reservation WHERE job_id = ?", (action.job_id,))
    rows = [(action.job_id, gpu) for gpu in action.gpus]
    db.executemany("INSERT INTO reservation (job_id, gpu) VALUES (?, ?)", rows)
    victims = [(action.job_id, attempt_id) for attempt_id in action.victims]
    db.executemany("UPDATE attempt SET preempted_for = ? WHERE id = ?", victims)
    marks = ", ".join("?" * len(action.victims))
    jobs = db.execute(f"SELECT job_id FROM attempt WHERE id IN ({marks}) ORDER BY job_id", action.victims)
    details = GpusReserved(context.gpu_indices(action.gpus), [job_id for (job_id,) in jobs])
    context.add_event(EventKind.GPUS_RESERVED, action.job_id, details=details)


def drop_reservation(context: WriteContext, action: act.DropReservation) -> None:
    """Deletes the reservation of a job."""
    context.db.execute("DELETE FROM reservation WHERE job_id = ?", (action.job_id,))
    context.add_event(EventKind.RESERVATION_DROPPED, action.job_id)


def set_queue_reservation(context: WriteContext, action: act.SetQueueReservation) -> None:
    """Replaces the reservation by queue order. Only a new job or the end of the reservation is an event."""
    db = context.db
    old = db.execute(
        "SELECT job_id, overtakes FROM reservation WHERE start_at IS NOT NULL LIMIT 1"
    ).fetchone()
    old_job = None if old is None else old["job_id"]
    db.execute("DELETE FROM reservation WHERE start_at IS NOT NULL")
    if old_job not in (None, action.job_id):
        dropped = ReservationDropped(old["overtakes"])
        context.add_event(EventKind.RESERVATION_DROPPED, old_job, details=dropped)
    if action.job_id is None:
        return
    db.executemany(
        "INSERT INTO reservation (job_id, gpu, start_at, overtakes) VALUES (?, ?, ?, ?)",
        [(action.job_id, gpu, action.start_at, action.overtakes) for gpu in action.gpus],
    )
    if action.job_id != old_job:
        details = GpusReserved(
            sorted(context.gpu_indices(action.gpus)), [], action.start_at, action.overtakes
        )
        context.add_event(EventKind.GPUS_RESERVED, action.job_id, details=details)
