"""Posts jobs to the API from several threads, and records each answer, for the stress test of the API.

Usage: python -m tests.stress.poster ANSWERS. Standard input has two lines: a JSON object {"port", "token",
"again", "posts": [{"n", "path", "key", "body"}, …]}, and, after this program has printed "ready", an empty
line. Each answer is added to the file ANSWERS as the line "N STATUS ID", where ID is 0 if no job was queued.

again: whether to repeat a post until it is answered. Otherwise, a thread ends when it gets no answer.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

#: Number of posts at the same time.
THREADS = 4
#: Codes of answers that ask for a repetition, and seconds until then and until giving up.
_LATER, _LATER_S, _TIMEOUT_S = (429, 503), 0.2, 60.0


def main() -> int:
    """Posts the jobs; returns 0."""
    order = json.loads(sys.stdin.readline())
    answers = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    print("ready", flush=True)
    sys.stdin.readline()
    with ThreadPoolExecutor(THREADS) as pool:
        for number in range(THREADS):
            pool.submit(_post_all, order, order["posts"][number::THREADS], answers)
    return 0


def _post_all(order: dict[str, Any], posts: list[dict[str, Any]], answers: int) -> None:
    for post in posts:
        end = time.monotonic() + _TIMEOUT_S
        while (found := _post(order, post)) is None or found[0] in _LATER:
            if not order["again"] or time.monotonic() > end:
                return
            time.sleep(_LATER_S)
        os.write(answers, f"{post['n']} {found[0]} {found[1]}\n".encode())


def _post(order: dict[str, Any], post: dict[str, Any]) -> tuple[int, int] | None:
    """Returns the status and the id of the job; None if there is no complete answer."""
    headers = {"Authorization": f"Bearer {order['token']}", "Content-Type": "application/json"}
    headers |= {} if post["key"] is None else {"Idempotency-Key": post["key"]}
    connection = http.client.HTTPConnection("127.0.0.1", order["port"], timeout=30)
    try:
        connection.request("POST", post["path"], json.dumps(post["body"]), headers)
        answer = connection.getresponse()
        found = json.loads(answer.read())
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return answer.status, int(found["job_id"] if "job_id" in found else found.get("ids", [0])[0])


if __name__ == "__main__":
    sys.exit(main())
