"""Outputs of `nvidia-smi --query-gpu=… --format=csv,noheader,nounits`, with the expected samples.

The wording is that of drivers 325 to 610, as quoted in users' reports. UUIDs are shortened.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Index, UUID, total MiB, used MiB, load in percent, and the beginning of the fault's text (None = no fault).
Observed = tuple[int, str, int | None, int | None, float | None, str | None]

A = "0, GPU-a, 0, 24576, 11, 24565, 550.54.14, NVIDIA GeForce RTX 3090, [N/A], Disabled, Disabled, 31"
B = "1, GPU-b, 97, 24576, 23117, 1459, 550.54.14, NVIDIA GeForce RTX 3090, [N/A], Enabled, Enabled, 71"
C = "2, GPU-c, 100, 24576, 700, 23876, 550.54.14, NVIDIA GeForce RTX 3090, [N/A], Disabled, Disabled, 64"
A_OBSERVED: Observed = (0, "GPU-a", 24576, 11, 0.0, None)
B_OBSERVED: Observed = (1, "GPU-b", 24576, 23117, 97.0, None)
C_OBSERVED: Observed = (2, "GPU-c", 24576, 700, 100.0, None)

IDLE = "0, GPU-k, [N/A], 2004, 0, 2004, 384.111, GeForce GT 730, [N/A], [N/A], [N/A], 34"
IDLE_OBSERVED: Observed = (0, "GPU-k", 2004, 0, None, None)

NO_HANDLE = "Unable to determine the device handle for GPU"
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest"
    " NVIDIA driver is installed and running.\n"
)
ERRORS = ", ".join(["[Unknown Error]"] * 12)


@dataclass(frozen=True)
class Case:
    """An output with its expected result, which is either GPUs or an error with a remedy."""

    name: str
    out: str | bytes
    observed: tuple[Observed, ...] = ()
    error: str = ""
    remedy: str = ""
    err: str = ""
    code: int = 0


def _row(index: int, uuid: str, values: str, mig: str = "") -> str:
    """Returns an output line with these values for load, total, used and free memory."""
    row = f"{index}, {uuid}, {values}, 535.86.10, NVIDIA A100-SXM4-80GB, 1652922, Disabled, Disabled, 33"
    return f"{row}, {mig}" if mig else row


CASES = (
    Case("good", f"{A}\n{B}\n{C}\n", (A_OBSERVED, B_OBSERVED, C_OBSERVED)),
    Case("out of order", f"{C}\n{A}\n{B}\n", (A_OBSERVED, B_OBSERVED, C_OBSERVED)),
    Case("one more column", f"{A}, P8\n{B}, P2\n", (A_OBSERVED, B_OBSERVED)),
    Case("an unknown line between two GPUs", f"{A}\n+++ something new +++\n{B}\n", (A_OBSERVED, B_OBSERVED)),
    Case(
        "a warning on stderr", f"{A}\n", (A_OBSERVED,), err="WARNING: infoROM is corrupted at gpu 0000:3B\n"
    ),
    Case("good lines and exit status 14", f"{A}\n{B}\n", (A_OBSERVED, B_OBSERVED), code=14),
    Case("a blank line before and after", f"\n{A}\n\n", (A_OBSERVED,)),
    Case("DOS line ends", f"{A}\r\n{B}\r\n", (A_OBSERVED, B_OBSERVED)),
    # Without the newline, GPUtil would skip the last line; it cannot parse the first line at all.
    Case("no last newline", f"{IDLE}\n{B}, [N/A]", (IDLE_OBSERVED, B_OBSERVED)),
    Case(
        "load not available (old GeForce, vGPU)",
        f"{IDLE}\n{B}\n",
        (IDLE_OBSERVED, B_OBSERVED),
    ),
    Case(
        "load not supported (drivers before 440)",
        f"{_row(0, 'GPU-k', '[Not Supported], 2004, 0, 2004')}\n",
        ((0, "GPU-k", 2004, 0, None, None),),
    ),
    Case(
        "memory not available (GB10, shared with the machine)",
        "0, GPU-s, 2, [N/A], [N/A], [N/A], 580.126.09, NVIDIA GB10, [N/A], Disabled, Disabled, 36, [N/A]\n",
        ((0, "GPU-s", 122880, 7168, 2.0, None),),
    ),
    Case(
        "memory that this user may not read is not that of the machine",
        "0, GPU-s, 2, [Insufficient Permissions], [Insufficient Permissions], [N/A], 580.126.09, NVIDIA A100,"
        " [N/A], Disabled, Disabled, 36, Default, [N/A]\n",
        ((0, "GPU-s", None, None, 2.0, None),),
    ),
    Case(
        "memory of a GPU in MIG mode is not that of the machine",
        "0, GPU-s, [N/A], [N/A], [N/A], [N/A], 580.126.09, NVIDIA A100, [N/A], Disabled, Disabled, 36,"
        " Default, Enabled\n",
        ((0, "GPU-s", None, None, None, "in MIG mode"),),
    ),
    Case(
        "compute mode Prohibited",
        "0, GPU-s, 2, 81920, 5, 81915, 580.126.09, NVIDIA A100, [N/A], Disabled, Disabled, 36, Prohibited,"
        " [N/A]\n",
        ((0, "GPU-s", 81920, 5, 2.0, "in compute mode Prohibited"),),
    ),
    Case(
        "a number with 400 digits",
        f"{_row(0, 'GPU-z', '0, ' + '9' * 400 + ', 5, 0')}\n{C}\n",
        ((0, "GPU-z", None, 5, 0.0, None), C_OBSERVED),
    ),
    Case(
        "a name that is not UTF-8",
        _row(0, "GPU-z", "0, 100, 5, 0").encode().replace(b"NVIDIA", b"\xf8\xff") + f"\n{C}\n".encode(),
        ((0, "GPU-z", 100, 5, 0.0, None), C_OBSERVED),
    ),
    Case(
        "memory of 0 MiB",
        f"{_row(0, 'GPU-z', '0, 0, 0, 0')}\n{B}\n",
        ((0, "GPU-z", None, 0, 0.0, None), B_OBSERVED),
    ),
    Case(
        "more memory used than available",
        f"{_row(0, 'GPU-z', '0, 81920, 90000, 0')}\n",
        ((0, "GPU-z", 81920, None, 0.0, None),),
    ),
    Case(
        "load above 100 %",
        f"{_row(0, 'GPU-z', '4294967295, 81920, 5, 81915')}\n",
        ((0, "GPU-z", 81920, 5, None, None),),
    ),
    Case(
        "more memory than any GPU has",
        f"{_row(0, 'GPU-z', '0, inf, 5, inf')}\n{_row(1, 'GPU-y', '0, ' + '9' * 40 + ', 5, 0')}\n{C}\n",
        (
            (0, "GPU-z", None, 5, 0.0, "query failed: inf"),
            (1, "GPU-y", None, 5, 0.0, None),
            C_OBSERVED,
        ),
    ),
    Case(
        "an error instead of the UUID",
        f"{A}\n{_row(1, '[Unknown Error]', '0, 24576, 5, 24571')}\n{C}\n",
        (A_OBSERVED, C_OBSERVED),
    ),
    Case(
        "numbers with commas",
        f"{_row(0, 'GPU-u', '12, 81,559, 3, 81,556')}\n{B}\n",
        ((0, "GPU-u", None, 3, 12.0, "query failed: 81,559"), B_OBSERVED),
    ),
    Case(
        "MIG mode",
        f"{_row(0, 'GPU-m', '[N/A], 81920, 36537, 45383', 'Enabled')}\n"
        f"{_row(1, 'GPU-n', '58, 81920, 23100, 58820', 'Disabled')}\n",
        (
            (0, "GPU-m", 81920, 36537, None, "in MIG mode"),
            (1, "GPU-n", 81920, 23100, 58.0, None),
        ),
    ),
    Case(
        "MIG devices listed between GPUs",
        f"{_row(0, 'GPU-m', '[N/A], 81920, 36537, 45383', 'Enabled')}\n"
        "  MIG 1g.10gb     Device  0: (UUID: MIG-feb88891-0321-5fef-9c87-d4af3b54259e)\n"
        "  MIG 1g.10gb     Device  1: (UUID: MIG-a25704ba-3a06-5299-a795-fd7cf4d13973)\n"
        f"{B}\n",
        ((0, "GPU-m", 81920, 36537, None, "in MIG mode"), B_OBSERVED),
    ),
    Case(
        "a lost GPU that still has a line",
        f"{A}\n1, GPU-b{', [GPU is lost]' * 10}\n{C}\n",
        (A_OBSERVED, (1, "GPU-b", None, None, None, "lost"), C_OBSERVED),
        code=15,
    ),
    Case(
        "needs a reset",
        f"{A}\n1, GPU-b, [GPU requires reset], 97887, 0, 97887, 580.65.06, NVIDIA RTX PRO 6000, [N/A],"
        f" Disabled, Disabled, [GPU requires reset]\n",
        (A_OBSERVED, (1, "GPU-b", 97887, 0, None, "query failed: GPU requires reset")),
    ),
    Case(
        "unknown error in the load",
        f"{_row(0, 'GPU-e', '[Unknown Error], 49140, 6, 49134')}\n{B}\n",
        ((0, "GPU-e", 49140, 6, None, "query failed: Unknown Error"), B_OBSERVED),
    ),
    Case(
        "unknown error in an unused column",
        "0, GPU-e, 3, 49140, 6, 49134, 535.54.03, NVIDIA RTX A6000, [Unknown Error], Disabled, Disabled,"
        " [Unknown Error], [N/A]\n",
        ((0, "GPU-e", 49140, 6, 3.0, None),),
    ),
    Case(
        "ERR!",
        f"{_row(0, 'GPU-e', 'ERR!, 49140, 6, 49134')}\n",
        ((0, "GPU-e", 49140, 6, None, "query failed: ERR!"),),
    ),
    Case(
        "no handle, and the program continues (drivers from about 535)",
        f"{A}\n{NO_HANDLE}0000:02:00.0: Unknown Error\n{ERRORS}\n{C}\n",
        (A_OBSERVED, C_OBSERVED),
        code=255,
    ),
    Case(
        "no handle but an index, and the program continues (drivers from about 570)",
        f"{NO_HANDLE}1: 0000:34:00.0: Unknown Error\n{A}\n{C}\n",
        (A_OBSERVED, C_OBSERVED),
    ),
    Case(
        "no handle, with the message on stderr",
        f"{A}\n{ERRORS}\n{C}\n",
        (A_OBSERVED, C_OBSERVED),
        err=f"{NO_HANDLE}0000:02:00.0: Unknown Error\n",
    ),
    Case("two GPUs with one UUID", f"{A}\n{B}\n{B.replace('1, ', '2, ', 1)}\n", (A_OBSERVED, B_OBSERVED)),
    Case(
        "two GPUs with one index",
        f"{A}\n{B.replace('1, ', '0, ', 1)}\n",
        (A_OBSERVED, B_OBSERVED),
    ),
    Case(
        "no handle, and the program stops (older drivers)",
        f"{A}\n{NO_HANDLE} 0000:02:00.0: GPU is lost.  Reboot the system to recover this GPU\n",
        (A_OBSERVED,),
        code=15,
    ),
    Case(
        "no handle for the only GPU",
        f"{NO_HANDLE}0: 0000:01:00.0: Unknown Error\n",
        error=f"nvidia-smi: {NO_HANDLE}0: 0000:01:00.0",
        remedy="driver",
        code=6,
    ),
    Case("a truncated line", f"{IDLE}\n1, GPU-b, 9", (IDLE_OBSERVED, (1, "GPU-b", None, None, 9.0, None))),
    Case("the same GPU twice", f"{A}\n{A}\n{B}\n", (A_OBSERVED, B_OBSERVED)),
    Case("no devices, after a warning", "WARNING: something\nNo devices were found\n", (), code=6),
    Case("no devices", "No devices were found\n", (), code=6),
    Case(
        "library and module do not match",
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.144\n",
        error="nvidia-smi: Failed to initialize NVML: Driver/library version mismatch",
        remedy="reboot",
        code=18,
    ),
    Case(
        "module not loaded",
        NO_DRIVER,
        error="couldn't communicate with the NVIDIA driver",
        remedy="modprobe",
        code=9,
    ),
    Case(
        "a container that lost its GPUs",
        "Failed to initialize NVML: Unknown Error\n",
        error="Failed to initialize NVML: Unknown Error",
        remedy="container",
        code=255,
    ),
    Case("no output", "", error="it printed nothing and exited with status 9", remedy="driver", code=9),
    Case(
        "a message on stderr only",
        "",
        error="Segmentation fault",
        remedy="--simulate",
        err="Segmentation fault\n",
    ),
    Case("a page of HTML", "<html>\n<body>502</body>\n", error="nvidia-smi: <html>", remedy="--simulate"),
    Case("bytes", bytes(range(256)) * 3, error="nvidia-smi: ?", remedy="--simulate"),
)
