"""Measures the web page with many queued jobs, in Debian's chromium: `python -m bench.page [--jobs 10000]`.

It prints how long the first content takes, how soon a change is visible, how the memory of the page grows
while ten events arrive each second, and the processor time of `serve` with and without pages.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from tests.waiting import wait_for
from tests.web.serve.box import Box

_CHANGES, _LOADS, _PAGES = 40, 10, 5


def main() -> None:
    """Runs the measurements and prints each figure as soon as it is known."""
    parser = argparse.ArgumentParser(prog="python -m bench.page", description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=30.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, sync_playwright() as playwright:
        box = Box(Path(folder), is_warm=False)
        box.create_token()
        lines = (f"[name=job/{n} gpus=2] sleep 1000" for n in range(options.jobs))
        (box.folder / "jobs.txt").write_text("\n".join(lines) + "\n")
        box.start()
        wait_for(
            lambda: box.health().get("counts", {}).get("queued", 0) >= options.jobs - 2, "the queue", 300
        )
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        try:
            measure(box, browser, options.minutes)
        finally:
            browser.close()
            box.cli("stop", "--jobs")
            box.close()


def measure(box: Box, browser: Any, minutes: float) -> None:
    """Prints the figures. minutes: for how long the memory of the page is watched."""
    idle = processor_share(box, 20)
    print(f"serve, no page: {idle:.1%} of a core", flush=True)
    loads = [first_content_s(open_page(box, browser)) for _ in range(_LOADS)]
    print(f"first content: median {statistics.median(loads):.2f} s, slowest {max(loads):.2f} s", flush=True)
    page = open_page(box, browser)
    first_content_s(page)
    seen = sorted(change_s(box, page, n) for n in range(_CHANGES))
    p95 = seen[int(0.95 * len(seen)) - 1] * 1000
    print(f"change visible: median {statistics.median(seen) * 1000:.0f} ms, p95 {p95:.0f} ms", flush=True)
    pages = [open_page(box, browser) for _ in range(_PAGES - 1)]
    print(f"serve, {_PAGES} pages, no events: {processor_share(box, 20):.1%} of a core", flush=True)
    with ten_events_a_second(box):
        print(f"serve, {_PAGES} pages, 10 events/s: {processor_share(box, 20):.1%} of a core", flush=True)
        heaps = [heap_mib(page)]
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end:
            page.wait_for_timeout(6000 * minutes)
            heaps.append(heap_mib(page))
        print(f"page memory, MiB, over {minutes:g} min: {', '.join(f'{one:.1f}' for one in heaps)}")
    with ten_events_a_second(box):
        for one in (page, *pages):
            one.context.close()
        print(f"serve, no page, 10 events/s: {processor_share(box, 20):.1%} of a core", flush=True)


def open_page(box: Box, browser: Any) -> Page:
    """Opens the page in a context of its own."""
    context = browser.new_context()
    context.add_init_script(f"sessionStorage.setItem('token', {json.dumps(box.token)})")
    page: Page = context.new_page()
    page.goto(f"http://127.0.0.1:{box.port}/")
    return page


def first_content_s(page: Page) -> float:
    """Returns the seconds from the navigation until the first row of the queue is shown."""
    page.wait_for_selector("#queue ~ table td")
    return float(page.evaluate("performance.now()")) / 1000


def change_s(box: Box, page: Page, number: int) -> float:
    """Returns the seconds from a request that holds a job until the page shows it."""
    job = 10 + number
    box.post("/api/v1/hold", {"jobs": [job]})
    began = time.monotonic()
    page.wait_for_function(
        "id => [...document.querySelectorAll('tr')].some(row => row.cells[0].innerText === String(id)"
        " && row.cells[2].innerText === 'held')", arg=job, polling="raf",
    )  # fmt: skip
    return time.monotonic() - began


def heap_mib(page: Page) -> float:
    """Returns the memory of the page's objects after a garbage collection."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    used: float = session.send("Runtime.getHeapUsage")["usedSize"] / 2**20
    session.detach()
    return used


@contextmanager
def ten_events_a_second(box: Box) -> Iterator[None]:
    """Holds and releases jobs, each with one event."""
    ending = threading.Event()

    def work() -> None:
        for number, verb in zip(cycle(range(60, 110)), cycle(["hold"] * 50 + ["release"] * 50), strict=False):
            if ending.wait(0.1):
                return
            try:
                box.post(f"/api/v1/{verb}", {"jobs": [number]})
            except OSError as error:
                print(error, file=sys.stderr)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def processor_share(box: Box, seconds: float) -> float:
    """Returns the part of a core that `serve` uses over some seconds."""
    pid = box.server_pid()

    def used_s() -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before = used_s()
    time.sleep(seconds)
    return (used_s() - before) / seconds


if __name__ == "__main__":
    main()
