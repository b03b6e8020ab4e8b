"""Drivers of which one GPU, or the library itself, answers in an unexpected way.

Run by hand with more inputs than the tests: python -m tests.gpus.hostile COUNT [SEED]
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import GPUtil  # noqa: F401 - otherwise each input would import it again

from gpu_scheduler.core.model.gpu import ClaimedGpu, Gpu, GpuSample, Snapshot
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling.gpu_faults import update_faults
from gpu_scheduler.core.scheduling.gpu_use import ledger_of
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.gpus.probes import Probe, gputil
from gpu_scheduler.gpus.probes.gputil import GputilProbe
from gpu_scheduler.gpus.probes.nvml import NvmlProbe
from gpu_scheduler.gpus.probes.probe_process import AutoProbe, decode, encode, take_sample
from gpu_scheduler.gpus.watch import GpuWatch
from gpu_scheduler.health.doctor import _gpu as finding
from gpu_scheduler.show.gpu_text import to_json, to_text
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.store import Store
from tests.changes import CheckedWriter

#: The GPU that answers unexpectedly, and those that must not be affected.
BAD, GOOD = 1, (0, 2)
_UUIDS = ("GPU-aaaa", "GPU-bbbb", "GPU-cccc")
GOOD_UUIDS = {_UUIDS[index] for index in GOOD}
_CALLS = (
    "HandleByIndex", "UUID", "Name", "PciInfo", "MemoryInfo", "UtilizationRates", "ComputeRunningProcesses",
    "GraphicsRunningProcesses", "ProcessUtilization", "MigMode", "ComputeMode",
)  # fmt: skip
_CODES = (*range(31), 77, 999, 1000, -1, 2**31)
_ODD: tuple[Any, ...] = (
    None, "", "x",
    b"\xf8\xff", "\udcff", "\x1b[2J", "GPU-aaaa", "SIM-0", "unknown-0", "a/../b",
    -1, 0, 1, 2**31, 2**64 - 1, 10**400,
    float("nan"), float("inf"), -1.5, True, (), [], [None], {}, object(), [1], "9" * 5000,
)  # fmt: skip
_WORDS = (
    "[N/A]", "N/A",
    "[Not Supported]", "[Unknown Error]", "[GPU requires reset]", "[GPU is lost]", "ERR!",
    "", " ", "-1", "0", "7",
    "24576",
    "nan", "inf", "1e999", "9" * 400, "81,559", "\x00", "\x1b]0;x\x07",
    "Enabled", "Prohibited", "Exclusive_Process",
    "GPU-bbbb", "GPU-é",
    "[Insufficient Permissions]", "\u2028", "\x85", "%s%n", "No devices were found", '"', "'",
)  # fmt: skip


class NvmlError(Exception):
    """The exception of the hostile library."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.value = value


def _exception(dice: random.Random) -> Exception:
    if dice.random() < 0.7:
        return NvmlError(dice.choice(_CODES))
    name = bytes(dice.randrange(256) for _ in range(9))
    kinds = (
        TypeError,
        ValueError,
        MemoryError,
        AttributeError,
        OverflowError,
        KeyError,
        RecursionError,
        OSError,
    )
    return dice.choice(
        [UnicodeDecodeError("utf-8", name, 0, 1, "invalid start byte"), dice.choice(kinds)("odd")]
    )


def _odd_answer(dice: random.Random) -> Any:
    names = ("total", "used", "gpu", "domain", "bus", "device", "pid", "usedGpuMemory", "smUtil", "timeStamp")
    one = SimpleNamespace(**{name: dice.choice(_ODD) for name in names if dice.random() < 0.8})
    return dice.choice([dice.choice(_ODD), one, [one], [one, one, dice.choice(_ODD)]])


def nvml(dice: random.Random) -> Any:
    """Returns a library with three GPUs, of which one answers some calls unexpectedly."""
    bad = {call for call in _CALLS if dice.random() < dice.choice((0.1, 0.5, 1.0))}
    missing = {call for call in ("ProcessUtilization", "MigMode", "ComputeMode") if dice.random() < 0.1}
    answers = {
        "HandleByIndex": lambda i: i,
        "UUID": lambda i: _UUIDS[i],
        "Name": lambda i: "Fake",
        "PciInfo": lambda i: SimpleNamespace(domain=0, bus=i, device=0),
        "MemoryInfo": lambda i: SimpleNamespace(total=24576 << 20, used=(100 + i) << 20),
        "UtilizationRates": lambda i: SimpleNamespace(gpu=i),
        "ComputeRunningProcesses": lambda i: [SimpleNamespace(pid=7, usedGpuMemory=50 << 20)],
        "GraphicsRunningProcesses": lambda i: [],
        "ProcessUtilization": lambda i: [],
        "MigMode": lambda i: [0, 0],
        "ComputeMode": lambda i: 0,
    }

    def call(name: str, answer: Callable[[Any], Any]) -> Callable[..., Any]:
        def ask(i: Any, *_: Any) -> Any:
            if i not in GOOD and name in bad:
                if dice.random() < 0.6:
                    raise _exception(dice)
                return _odd_answer(dice) if name != "HandleByIndex" else BAD
            return answer(i)

        return ask

    library = {
        f"nvmlDeviceGet{name}": call(name, answer) for name, answer in answers.items() if name not in missing
    }
    return SimpleNamespace(
        NVMLError=NvmlError, nvmlInit=lambda: None, nvmlShutdown=lambda: None, nvmlMemory_v2=2,
        nvmlDeviceGetCount=lambda: 3, **library,
    )  # fmt: skip


def smi(dice: random.Random) -> bytes:
    """Returns an output of `nvidia-smi` in which the line of one GPU is unexpected."""
    lines = [_line(index) for index in range(3)]
    kind = dice.random()
    if kind < 0.7:
        values = lines[BAD].split(b", ")
        for place in range(len(values)):
            if dice.random() < 0.4:
                values[place] = dice.choice(_WORDS).encode()
        lines[BAD] = b", ".join(values[: dice.randint(1, 15)] if dice.random() < 0.3 else values)
    elif kind < 0.85:
        lines[BAD] = bytes(dice.choice([*range(1, 10), *range(11, 256)]) for _ in range(dice.randint(0, 200)))
    else:
        lines[BAD : BAD + dice.randint(0, 1)] = [
            dice.choice(_WORDS).encode() for _ in range(dice.randint(0, 3))
        ]
    # A line must not speak for another GPU.
    lines = [
        line for i, line in enumerate(lines) if i in (0, len(lines) - 1) or not _speaks_for_another(line)
    ]
    return b"\n".join(lines) + dice.choice([b"\n", b"", b"\r\n"])


def _line(index: int) -> bytes:
    memory = f"24576, {100 + index}, {24476 - index}"
    rest = "550.1, Fake, 0, Disabled, Disabled, 40, Default, [N/A]"
    return f"{index}, {_UUIDS[index]}, {index}, {memory}, {rest}".encode()


def _speaks_for_another(line: bytes) -> bool:
    return any(_UUIDS[index].encode() in line for index in GOOD)


class Chain:
    """The way of a sample through `start`, `gpus` and `doctor`, with a store in a folder."""

    def __init__(self, folder: Path) -> None:
        data_dir = DataDir.of(str(folder / "state.json"))
        data_dir.create()
        self.store = Store(data_dir, create=True)
        self.writer = CheckedWriter(self.store, Settings())
        self.settings = Settings()

    def check(self, probe: Probe) -> tuple[GpuSample, ...]:
        """Takes a sample and checks that the other GPUs are in it, and that every command can use it."""
        taken = take_sample(probe)
        assert isinstance(taken, Snapshot), taken
        _, found = decode(encode(1, taken))
        assert isinstance(found, Snapshot), found
        gpus = {gpu.uuid: gpu for gpu in found.gpus}
        for index in GOOD:
            gpu = gpus[_UUIDS[index]]
            assert (gpu.name, gpu.total_mib, gpu.used_mib) == ("Fake", 24576, 100 + index)
            assert (gpu.load_percent, gpu.fault, gpu.exclusive, gpu.unified) == (index, None, False, False)
        assert len(gpus) == len(found.gpus) <= 3
        assert len({gpu.index for gpu in found.gpus}) == len(found.gpus)
        self._use(found)
        return found.gpus

    def _use(self, snapshot: Snapshot) -> None:
        settled, _ = update_faults(snapshot.gpus, [])
        now = Now(0.0, 0.0, "boot")
        self.writer.record_gpus(settled, [gpu.uuid for gpu in settled], now)
        assert len(self.store.gpus()) == len(settled)
        watch = GpuWatch()
        watch.accept_sample(snapshot)
        managed = watch.gpus([Gpu(gpu.uuid, gpu.index) for gpu in settled], {})
        assert [ledger_of(gpu, (), self.settings).uuid for gpu in managed]
        claimed = [ClaimedGpu(gpu) for gpu in settled]
        assert (to_text(claimed, 80) + to_json(claimed)).encode()
        assert all(finding(gpu).message.encode() for gpu in settled)


def check_nvml(chain: Chain, dice: random.Random) -> tuple[GpuSample, ...]:
    """Checks one hostile library."""
    with patch.dict(sys.modules, {"pynvml": nvml(dice)}):
        return chain.check(NvmlProbe())


def check_smi(chain: Chain, dice: random.Random) -> tuple[GpuSample, ...]:
    """Checks one hostile output."""
    with _nvidia_smi(smi(dice), dice):
        return chain.check(GputilProbe())


def check_auto(chain: Chain, dice: random.Random) -> tuple[GpuSample, ...]:
    """Checks that a library that fails as a whole does not hide the GPUs."""
    library = nvml(dice)
    name = dice.choice(["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"])
    odd: Any = (
        dice.choice([None, "x", [], {}, float("nan"), float("inf"), -1, 0])
        if name.endswith("Count")
        else None
    )
    error = _exception(dice) if odd is None else None

    def fail(*_: Any) -> Any:
        if error is None:
            return odd
        raise error if not name.endswith("Index") else NvmlError(dice.choice((1, 9, 18, 20)))

    setattr(library, name, fail)
    with patch.dict(sys.modules, {"pynvml": library}), _nvidia_smi(smi(dice), dice):
        return chain.check(AutoProbe())


def _nvidia_smi(output: bytes, dice: random.Random) -> Any:
    noise = bytes(dice.randrange(256) for _ in range(dice.choice((0, 0, 30))))
    code = dice.choice((0, 0, 6, 255))
    modes = b"".join(b"%s, Default\n" % uuid.encode() for uuid in _UUIDS if uuid.encode() in output)

    def run(command: Sequence[str], **_: Any) -> Any:
        text = modes if "--query-gpu=uuid,compute_mode" in command else output
        return SimpleNamespace(stdout=text, stderr=noise, returncode=code)

    started = SimpleNamespace(communicate=lambda: (output, b""))
    return _Patches(
        patch("GPUtil.GPUtil.Popen", lambda *_, **__: started),
        patch(f"{gputil.__name__}.subprocess.run", run),
        patch(f"{gputil.__name__}.shutil.which", lambda name: name),
    )


class _Patches:
    def __init__(self, *patches: Any) -> None:
        self._patches: Sequence[Any] = patches

    def __enter__(self) -> None:
        for one in self._patches:
            one.start()

    def __exit__(self, *_: object) -> None:
        for one in self._patches:
            one.stop()


CHECKS = {"NVML": check_nvml, "nvidia-smi": check_smi, "auto": check_auto}


def main(count: int, seed: int) -> None:
    """Checks so many inputs of each kind."""
    with tempfile.TemporaryDirectory() as folder:
        chain = Chain(Path(folder))
        for name, check in CHECKS.items():
            for number in range(count):
                try:
                    check(chain, random.Random(f"{seed} {number}"))
                except BaseException:
                    print(f"{name}: seed {seed}, input {number}")
                    raise
            print(f"{name}: {count} inputs, seed {seed}: the other GPUs were read with all of them")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(10**6))
