"""Fakes the GPUs of a machine for every kind of probe, from one description."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.config import ProbeKind
from gpu_scheduler.gpus.probes import Probe
from gpu_scheduler.gpus.probes.probe_process import make_probe
from gpu_scheduler.system import simulated_usage

FAKES = Path(__file__).parent


@dataclass(frozen=True)
class FakeGpu:
    """A GPU as a probe reads it, in MiB and percent.

    compute, graphics: processes as (pid, MiB); measured: process loads that NVML has measured, as (pid,
    percent, seconds ago); errors: error codes by NVML call. mode: the compute mode, as in NVML. unified:
    whether it uses the memory of the machine. name: each character stands for one byte.
    """

    uuid: str = "GPU-a"
    bus: int = 1
    total: int = 24576
    used: int = 0
    load: float | None = 0.0
    compute: tuple[tuple[int, int | None], ...] = ()
    graphics: tuple[tuple[int, int | None], ...] = ()
    lost: bool = False
    mig: int | None = None
    errors: dict[str, int] = field(default_factory=dict)
    measured: tuple[tuple[int, int, float], ...] = ()
    mode: int = 0
    unified: bool = False
    name: str = "Fake"


class FakeMachine:
    """A machine whose GPUs a test sets. kind: the only probe that finds these GPUs."""

    def __init__(self, kind: ProbeKind, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.kind, self.folder = kind, folder
        self.simulate: str | None = None
        folder.mkdir(exist_ok=True)
        patch.setenv("FAKE_GPUS", str(folder))
        if kind in ("gputil", "auto"):
            patch.setenv("PATH", f"{FAKES}:{os.environ['PATH']}")
        if kind in ("nvml", "auto"):
            # For this process. The probe process imports the same file through PYTHONPATH.
            patch.setitem(sys.modules, "pynvml", importlib.import_module("tests.fakes.pynvml"))
            patch.setenv("PYTHONPATH", str(FAKES))

    def probe(self) -> Probe:
        """Returns a new probe of the kind that this machine supports, in this process."""
        return make_probe(self.kind, self.simulate, str(self.folder))

    def plant(self, *cards: FakeGpu, **world: Any) -> None:
        """Sets the GPUs, in the order in which the driver lists them."""
        self._plant_nvml(cards, world)
        self._plant_smi(cards)
        self._plant_simulation(cards)

    def _plant_nvml(self, cards: Sequence[FakeGpu], world: dict[str, Any]) -> None:
        raw = []
        for card in cards:
            errors = dict(card.errors)
            if card.lost:
                errors["GetHandleByIndex"] = 15
            if card.unified:
                errors |= {"GetMemoryInfo": 3, "GetMemoryInfo_v2": 3}
            if card.load is None:
                errors["GetUtilizationRates"] = 3
            values = {
                key: getattr(card, key) for key in ("uuid", "bus", "total", "used", "load", "mig", "mode")
            }
            values |= {"compute": card.compute, "graphics": card.graphics, "measured": card.measured}
            values |= {"errors": errors, "name": card.name}
            raw.append(values)
        (self.folder / "gpus.json").write_text(json.dumps({"cards": raw, **world}))

    def _plant_smi(self, cards: Sequence[FakeGpu]) -> None:
        # Reverse the lines (which no driver does), so that the parser cannot rely on their order.
        lines = [_smi_line(i, card) for i, card in enumerate(sorted(cards, key=lambda c: c.bus))]
        (self.folder / "smi.csv").write_text("".join(f"{line}\n" for line in reversed(lines)), "latin-1")

    def _plant_simulation(self, cards: Sequence[FakeGpu]) -> None:
        if self.kind != "simulated":
            return
        self.simulate = ",".join(f"1:{card.total}M" for card in cards)
        lost = {str(i): "lost" for i, card in enumerate(cards) if card.lost}
        (self.folder / "faults.json").write_text(json.dumps(lost))
        for file in self.folder.glob("*-*.json"):
            file.unlink()
        pids = {pid for card in cards for pid, _ in card.compute}
        for pid in pids:
            uses = {str(i): mib for i, card in enumerate(cards) for p, mib in card.compute if p == pid}
            load = max(card.load or 0 for card in cards if pid in dict(card.compute))
            text = json.dumps({"pid": pid, "gpus": uses, "load": load})
            (self.folder / f"{pid}-{simulated_usage.start_ticks(pid)}.json").write_text(text)


def _smi_line(index: int, gpu: FakeGpu) -> str:
    if gpu.lost:
        return f"{index}, {gpu.uuid}, " + ", ".join(["[GPU is lost]"] * 5 + ["Fake"] + ["[GPU is lost]"] * 5)
    load = "[N/A]" if gpu.load is None else f"{gpu.load:.0f}"
    mig = {None: "[N/A]", 0: "Disabled", 1: "Enabled"}[gpu.mig]
    mode = ("Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process")[gpu.mode]
    memory = f"{gpu.total}, {gpu.used}, {gpu.total - gpu.used}" if not gpu.unified else "[N/A], [N/A], [N/A]"
    return (
        f"{index}, {gpu.uuid}, {load}, {memory}, 550.1, {gpu.name}, 0, Disabled, Disabled, 40, {mode}, {mig}"
    )
