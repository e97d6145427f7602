"""Posts one JSON document to the user's webhook. Run as a program, so that a server or a name that does not answer can be ended.

stdin is a JSON object of `url` and `body`: the address may be a secret, and arguments are seen by every user of the machine.
stdout says why the document was not taken, in words without the address; nothing: it was.
"""

import json
import sys
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any

SECONDS = 8.0  # How long the server may be silent. The whole program may take `notify.COMMAND_SECONDS`.


class _Here(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: it could lead to another host, or away from https."""

    def redirect_request(self, *_: Any) -> None:
        return None


def post(url: str, body: object) -> str:
    """Posts a document. `body`: what is sent, as JSON. Returns why the receiver refused it; empty: it did not."""
    headers = {"Content-Type": "application/json", "User-Agent": "rankdeck"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers, method="POST")
    try:
        with urllib.request.build_opener(_Here).open(request, timeout=SECONDS):
            return ""
    except urllib.error.HTTPError as error:
        error.close()
        return f"the server answered with status {error.code}"
    except urllib.error.URLError as error:
        return f"the server can't be reached: {error.reason}"
    except (OSError, HTTPException, ValueError) as error:
        return f"the server did not answer as one of HTTP does: {type(error).__name__}"


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    print(post(asked["url"], asked["body"]))  # noqa: T201 - this is its answer
