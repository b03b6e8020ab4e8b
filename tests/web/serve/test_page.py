"""Tests the web page in a real browser, against `start --serve`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.web.tokens import Tokens
from tests.waiting import wait_for
from tests.web.serve.box import Box

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
#: Text that would run, move the cursor, turn the direction of what follows, or fill the page.
HOSTILE = "<img src=x onerror=window.hacked=1>\x1b[2J\u202etxt.exe javascript:alert(1)"
JOBS = """\
[name=first] echo prepared
[name=long] i=0; while :; do i=$((i+1)); printf '\\r%s' "step $i"; [ $i = 3 ] && echo; sleep 0.05; done
[name=fails] echo 'ValueError: bad shape'; exit 3
[name=big gpus=9] true
[name=later after=long] true
[hold name=held] true
"""


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    made = Box(tmp_path_factory.mktemp("page"))
    made.create_token()
    (made.folder / "jobs.txt").write_text(JOBS)
    made.start()
    wait_for(made.health, "the server")
    yield made
    made.cli("stop", "--jobs")
    made.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


Open = Callable[..., Any]


@pytest.fixture
def open_page(browser: Any, box: Box) -> Iterator[Open]:
    """Returns a function that opens the page. It may use no other host, and print no error.

    token: None to open it without one. strips_policy: whether the page comes without its policy. is_empty:
    whether it finds no jobs and no GPUs.
    """
    contexts, errors, hosts = [], list[str](), set[str]()

    def open_(
        path: str = "/", token: str | None = "", *, strips_policy: bool = False, waits: bool = True,
        is_empty: bool = False, **options: Any,
    ) -> Any:  # fmt: skip
        context = browser.new_context(**options)
        contexts.append(context)
        if token is not None:
            context.add_init_script(f"sessionStorage.setItem('token', {json.dumps(token or box.token)})")
        if strips_policy:
            context.route(
                "**/", lambda route: route.fulfill(body=route.fetch().body(), content_type="text/html")
            )
        if is_empty:
            nothing: dict[str, Any] = {"jobs": [], "gpus": [], "next": None, "now": 0}
            for path_of in ("**/jobs?*", "**/gpus"):
                context.route(path_of, lambda route: route.fulfill(json=nothing))
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda line: errors.extend([line.text] * (line.type == "error")))
        page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
        page.goto(f"http://127.0.0.1:{box.port}{path}")
        if waits:
            page.wait_for_selector("section h2")
        return page

    yield open_
    for context in contexts:
        context.close()
    # A status that the page shows is no fault of it.
    assert [text for text in errors if "Failed to load resource" not in text] == []
    assert hosts <= {f"127.0.0.1:{box.port}"}


def row(page: Any, name: str) -> Any:
    return page.locator(f"tr:has(td.name:text-is('{name}'))")


def test_a_job_is_submitted_followed_and_cancelled_and_a_gpu_paused(open_page: Open, box: Box) -> None:
    page = open_page()
    page.click("text=Submit a job")
    page.fill("textarea", "for i in $(seq 100); do echo hello $i; sleep 0.1; done")
    page.get_by_label("name", exact=True).fill("mine")
    page.get_by_label("vram", exact=True).fill("lots")
    page.click("text=Preview")
    assert "lots" in page.locator("#problem").inner_text()
    page.get_by_label("vram", exact=True).fill("1G")
    page.click("text=Preview")
    page.click("text=Queue it")
    row(page, "mine").get_by_text("running").wait_for()
    row(page, "mine").get_by_role("link").click()
    page.locator("pre").get_by_text("hello 5").wait_for()
    page.get_by_role("button", name="Cancel").click()
    assert "mine" in page.locator("dialog:has-text('Are you sure?')").inner_text()
    page.get_by_role("button", name="Yes").click()
    page.locator("dialog dd:has-text('cancelled')").first.wait_for()
    page.get_by_role("button", name="Close").click()
    row(page, "mine").get_by_role("cell", name="cancelled", exact=True).wait_for()
    page.get_by_role("button", name="Pause GPU 1").click()
    page.locator(".card:has-text('GPU 1') .warn:has-text('paused')").wait_for()
    page.get_by_role("button", name="Resume GPU 1").click()
    page.locator(".card:has-text('GPU 1') h3 span:not(:has-text('paused'))").first.wait_for()


def test_everything_can_be_done_by_keyboard_on_a_phone(open_page: Open) -> None:
    page = open_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
    focused = "document.activeElement.innerText || document.activeElement.type"

    def tab_to(text: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            if text in page.evaluate(focused):
                return
        raise AssertionError(f"{text} cannot be reached")

    tab_to("Submit a job")
    page.keyboard.press("Enter")
    tab_to("textarea")
    page.keyboard.type("echo by hand")
    tab_to("Preview")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Queue it").wait_for()  # the same button, which has the focus
    page.keyboard.press("Enter")
    row(page, "echo by hand").get_by_text("completed").wait_for()
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 390


@pytest.mark.parametrize("strips_policy", [False, True])
def test_hostile_text_is_shown_and_not_run(open_page: Open, box: Box, *, strips_policy: bool) -> None:
    made = box.post("/api/v1/jobs", {
        "command": ["printf", "%s", HOSTILE], "attributes": {"gpus": "0"},
    })  # fmt: skip
    long = box.post("/api/v1/jobs", {"command": "true " + "x" * 60_000, "attributes": {"hold": True}})
    page = open_page(f"/#job/{made['ids'][0]}", strips_policy=strips_policy)
    page.locator("pre").get_by_text("<img src=x").first.wait_for()
    shown = page.locator("body").inner_text()
    assert "\\u202etxt.exe" in shown
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    page.goto(f"http://127.0.0.1:{box.port}/#search/{'x' * 50}")
    page.get_by_role("link", name=str(long["ids"][0]), exact=True).wait_for()
    folder = box.folder / HOSTILE.replace("/", "")
    folder.mkdir(exist_ok=True)
    page.get_by_role("button", name="Submit a job").click()
    page.get_by_label("Command").fill("./missing.sh")
    page.get_by_label("cwd").fill(str(folder))
    page.get_by_role("button", name="Preview").click()
    page.get_by_text("<img src=x").first.wait_for()
    assert page.evaluate("[window.hacked, document.images.length]") == [None, 0]
    box.post("/api/v1/cancel", {"jobs": long["ids"]})


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_checker_of_accessibility_finds_nothing_serious(open_page: Open, scheme: str) -> None:
    axe = (files("axe_playwright_python") / "axe.min.js").read_text()
    for path, content in (
        ("/", "table td"), ("/#job/3", "dialog dl"), ("/#search/nothing-has-this-name", "p.soft"),
        ("/?", "p.soft"),
    ):  # fmt: skip
        page = open_page(path, color_scheme=scheme, is_empty=path == "/?")
        page.wait_for_selector(content)
        page.evaluate(f"{axe};0")
        found = page.evaluate("axe.run().then((found) => found.violations)")
        serious = [one for one in found if one["impact"] in ("serious", "critical")]
        assert [(one["id"], one["nodes"][0]["html"]) for one in serious] == []


def test_an_address_of_what_does_not_exist_shows_the_full_list(open_page: Open) -> None:
    for path, text in (
        ("/#gpu/9", "There is no GPU 9."),
        ("/#job/x", "There is no job x."),
        ("/#job/999999", "There is no job 999999."),
        ("/#search/zzz", "There is no job here"),
    ):
        page = open_page(path)
        page.get_by_text(text).first.wait_for()
        if "search" not in path:
            row(page, "held").wait_for(state="attached")


def test_a_link_opens_the_page_once(open_page: Open, box: Box) -> None:
    link = f"/#link={Tokens(box.home.folder).create_link()}"
    page = open_page(link, token=None)
    row(page, "held").wait_for()
    assert page.url == f"http://127.0.0.1:{box.port}/"
    again = open_page(link, token=None, waits=False)
    again.locator(".banner:has-text('was used or has expired')").wait_for()


def test_a_revoked_token_and_a_server_that_is_away_are_said(open_page: Open, box: Box) -> None:
    tokens = Tokens(box.home.folder)
    page = open_page(token=tokens.create("page"))
    row(page, "held").wait_for()
    page.context.set_offline(True)
    page.locator(".banner:has-text('does not answer')").wait_for()
    page.context.set_offline(False)
    page.locator(".banner:has-text('does not answer')").wait_for(state="detached")
    tokens.revoke("page")
    page.locator(".banner:has-text('gpu-scheduler link')").wait_for()


def test_a_link_is_printed_on_a_terminal_only(box: Box) -> None:
    done = box.cli("link")
    assert (done.returncode, done.stdout) == (2, "")
    assert "only printed on a terminal" in done.stderr


def test_a_page_that_waits_shows_what_the_commands_change(open_page: Open, box: Box, tmp_path: Path) -> None:
    page = open_page()
    row(page, "held").get_by_text("held", exact=True).nth(1).wait_for()
    [made] = box.post("/api/v1/jobs", {"command": "true", "attributes": {"name": "z", "hold": True}})["ids"]
    row(page, "z").wait_for()
    box.post("/api/v1/cancel", {"jobs": [made]})
    row(page, "z").get_by_role("cell", name="cancelled", exact=True).wait_for()


def test_what_changes_without_an_event_is_shown_too(open_page: Open, box: Box) -> None:
    page = open_page()
    made = [
        box.post("/api/v1/jobs", {"command": "true", "attributes": {"name": name, "hold": True}})["ids"][0]
        for name in ("p1", "p2")
    ]
    row(page, "p2").wait_for()
    box.post("/api/v1/priority", {"jobs": made[1:], "priority": 3})
    page.locator("section:has(#queue) tbody tr:first-child:has-text('p2')").wait_for()
    box.post("/api/v1/cancel", {"jobs": made})


def test_a_text_in_the_search_stays_while_it_is_typed(open_page: Open) -> None:
    page = open_page()
    search = page.get_by_placeholder("search jobs")
    search.press_sequentially("hel")
    reads = [0]
    page.on("response", lambda one: reads.__setitem__(0, reads[0] + one.url.endswith("/gpus")))
    while reads[0] < 2:
        page.wait_for_timeout(50)
    assert search.input_value() == "hel"
    search.press("Enter")
    row(page, "long").wait_for(state="detached")
    row(page, "held").wait_for()


def test_a_dialog_leads_to_another_and_shows_the_answer(open_page: Open, box: Box) -> None:
    page = open_page("/#job/2")
    page.locator("dialog pre").get_by_text("step").first.wait_for()
    assert "undefined" not in page.locator("dialog pre").inner_text()
    page.evaluate("location.hash = '#job/6'")
    page.locator("dialog[aria-label^='Job 6']").wait_for()
    page.get_by_role("button", name="Set priority").click()
    page.locator("dialog .banner").get_by_role("button", name="OK").click()
    page.get_by_role("button", name="Close").click()
    page.wait_for_function("document.querySelector('dialog') === null")


def test_a_link_works_in_a_tab_that_shows_the_page(open_page: Open, box: Box) -> None:
    page = open_page(token=None, waits=False)
    page.locator(".banner:has-text('gpu-scheduler link')").wait_for()
    page.goto(f"http://127.0.0.1:{box.port}/#link={Tokens(box.home.folder).create_link()}")
    row(page, "held").wait_for()
    assert "link" not in page.url


def test_answers_that_fail_or_never_come_do_not_stop_the_page(open_page: Open, box: Box) -> None:
    page = open_page()
    row(page, "held").wait_for()
    page.route("**/api/v1/health", lambda route: route.fulfill(status=503, body="{}"))
    page.route("**/api/v1/gpus", lambda route: None)  # no answer
    [made] = box.post("/api/v1/jobs", {"command": "true", "attributes": {"name": "v", "hold": True}})["ids"]
    row(page, "v").wait_for()
    page.locator(".banner:has-text('503')").wait_for()
    page.unroute("**/api/v1/health")
    box.post("/api/v1/cancel", {"jobs": [made]})
    row(page, "v").get_by_role("cell", name="cancelled", exact=True).wait_for()
    page.locator(".banner:has-text('503')").wait_for(state="detached")
