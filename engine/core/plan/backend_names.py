"""What `backend.name` may be: one backend, one for each device (`cpu:gloo,cuda:nccl`), or `auto`."""

from __future__ import annotations

import re

AUTO = "auto"
"""Leaves the choice to rankdeck."""

_PART = re.compile(r"(?:(?P<device>cpu|cuda):)?(?P<backend>[a-z0-9_]+)\Z")


def backends_in(name: str) -> tuple[str, ...]:
    """The backends that a name is made of, in its order. `name`: as a profile has it, and torch: `gloo`, or `cpu:gloo,cuda:nccl`. Raises
    ValueError: the name is invalid; the message continues a sentence that begins with it."""
    parts = [_PART.match(word) for word in name.split(",")]
    matched = [part for part in parts if part is not None]
    devices = [part["device"] for part in matched]
    if len(matched) < len(parts):
        raise ValueError("is neither a backend nor one for each device")
    if len(parts) > 1 and None in devices:
        raise ValueError("names several backends, but not the device of each")
    if len(set(devices)) < len(devices):
        raise ValueError("names two backends for one device")
    backends = tuple(part["backend"] for part in matched)
    if AUTO in backends and name != AUTO:
        raise ValueError("has auto for one device; auto must be the whole name")
    return backends


def devices_in(name: str) -> dict[str, str]:
    """The backend of each device in a name; empty if it is one backend for all devices."""
    backends_in(name)
    return dict(word.split(":") for word in name.split(",") if ":" in word)
