"""Runs every benchmark, each in its own process: `python -m bench [--tree PATH ...]`."""

from __future__ import annotations

import subprocess
import sys

from bench.scheduler import parse_arguments


def main() -> int:
    """Runs the benchmarks one after the other; returns 0 if all succeeded."""
    trees = [f"--tree={tree}" for tree in parse_arguments("", __doc__).trees]
    codes = [_run(name, *trees) for name in ("first_instruction", "handover", "throughput", "costs")]
    codes += [_run("queue", tree) for tree in trees]
    codes += [
        _run("queue", "--blocked"),
        _run("round"),
        _run("chain"),
        _run("progress"),
        _run("forecast"),
        _run("api"),
        _run("metrics"),
        _run("redis_queue"),
        _run("top"),
        _run("page", "--minutes", "1"),
    ]
    return max(codes)


def _run(name: str, *words: str) -> int:
    print(f"\n{name}", flush=True)
    return subprocess.run([sys.executable, "-m", f"bench.{name}", *words], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
