"""Servers on the loopback network: which Host headers a request may have.

A web page of a stranger can have its own name resolved to 127.0.0.1, and then read what a server there answers, unless that server
looks at the name in the request.
"""

import re

_HOST = re.compile(r"(127(?:\.\d{1,3}){3}|localhost|\[::1\])(:\d{1,5})?", re.ASCII)


def is_loopback_host(host: str) -> bool:
    """Whether a Host header names the loopback network."""
    return _HOST.fullmatch(host) is not None
