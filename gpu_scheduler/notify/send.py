"""Sends one message with apprise, or checks URLs, in a process of its own, because apprise may hang.

Standard input is a JSON object: `urls`, `deadline_s`, and `title` and `body` of the message, if there is one.
The exit code is one of those below; with WRONG_URL, the output says what apprise accepts. Nothing that
apprise itself says is shown, because it may contain the secrets of a URL.
"""

from __future__ import annotations

import json
import logging
import re
import signal
import sys
from typing import Any

ACCEPTED, REFUSED, WRONG_URL, NOT_INSTALLED = range(4)


def scheme_of(url: str) -> str:
    """Returns the part of a URL before `://`, in small letters; "" if there is none."""
    found = re.match(r"([a-z0-9.+-]{1,20})://", url.lower())
    return found[1] if found else ""


def main() -> int:
    """Carries out the request on standard input. Returns the exit code."""
    given = json.load(sys.stdin)
    signal.setitimer(signal.ITIMER_REAL, given["deadline_s"])  # also if our parent is killed
    try:
        import apprise
    except ImportError:
        return NOT_INSTALLED
    logging.getLogger("apprise").addHandler(logging.NullHandler())
    logging.getLogger("apprise").propagate = False
    # By default, apprise waits 4 s for an answer, and leaves a text that is too long to the receiver.
    apprise.URLBase.socket_read_timeout = given["deadline_s"]
    apprise.NotifyBase.overflow_mode = apprise.OverflowMode.SPLIT
    receivers = apprise.Apprise()
    for url in given["urls"]:
        if not receivers.add(url):
            print(_accepted_text(receivers.details()["schemas"], scheme_of(url)))
            return WRONG_URL
    if "body" not in given:
        return ACCEPTED
    text = apprise.NotifyFormat.TEXT  # otherwise, mail would show what a job has printed as HTML
    return ACCEPTED if receivers.notify(given["body"], given["title"], body_format=text) else REFUSED


def _accepted_text(services: list[dict[str, Any]], scheme: str) -> str:
    for service in services:
        if scheme in (*(service["protocols"] or ()), *(service["secure_protocols"] or ())):
            forms = " or ".join(service["details"]["templates"]).replace("{schema}", scheme)
            return f"a URL with {scheme}:// is not one that apprise accepts; it has the form {forms}"
    return (
        f"apprise knows no service {scheme or 'of a URL without a scheme'}; it accepts such URLs as"
        " mailto://USER:PASSWORD@HOST, ntfy://TOPIC, slack://TOKENS and tgram://BOT_TOKEN/CHAT"
        " (https://appriseit.com/services/ lists all)"
    )


if __name__ == "__main__":
    sys.exit(main())
