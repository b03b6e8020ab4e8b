"""The GPUs through GPUtil, which reads `nvidia-smi`: totals and load only; it lists no processes.

GPUtil has no time limit of its own and raises for all GPUs when one is odd; both are told as they are.
"""

from __future__ import annotations

import math
import shutil
import warnings
from typing import Any

from gpu_scheduler.core.gpu import GpuSample
from gpu_scheduler.probes import DRIVER_REMEDY, ProbeError


class GputilProbe:
    """Answers from GPUtil.getGPUs(), one `nvidia-smi` per sample."""

    def sample(self) -> tuple[GpuSample, ...]:
        """See Probe.sample."""
        # GPUtil answers "no GPUs" when the program is missing, which is something else.
        if shutil.which("nvidia-smi") is None:
            raise ProbeError("nvidia-smi is not on PATH", DRIVER_REMEDY)
        try:
            with warnings.catch_warnings():
                # It imports distutils, which Python 3.10 and 3.11 call deprecated.
                warnings.simplefilter("ignore")
                import GPUtil
        except ImportError as error:
            raise ProbeError(f"GPUtil: {error}", "pip install GPUtil setuptools") from None
        try:
            cards = GPUtil.getGPUs()
        except (ValueError, IndexError, ZeroDivisionError) as error:
            raise ProbeError(f"GPUtil cannot read what nvidia-smi says: {error}", DRIVER_REMEDY) from None
        cards.sort(key=lambda card: card.id)
        return tuple(_sample(card, index) for index, card in enumerate(cards))


def _sample(card: Any, index: int) -> GpuSample:
    load = _known(card.load)
    total, used = _known(card.memoryTotal), _known(card.memoryUsed)
    return GpuSample(
        uuid=card.uuid,
        index=index,
        name=card.name,
        total_mib=None if total is None else int(total),
        used_mib=None if used is None else int(used),
        load_percent=None if load is None else round(load * 100, 1),
    )


def _known(value: float) -> float | None:
    """GPUtil writes NaN where nvidia-smi says [N/A]."""
    return None if math.isnan(value) else value
