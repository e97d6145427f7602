"""The variables that choose the network interface of a backend."""

from __future__ import annotations

INTERFACE_NAMES = {"gloo": "GLOO_SOCKET_IFNAME", "nccl": "NCCL_SOCKET_IFNAME"}
"""By backend."""


def is_meant(name: str, wanted: str, *, prefixes: bool) -> bool:
    """Whether a variable's value selects an interface. `prefixes`: NCCL's format: prefixes of names, `=eth0` for a complete name,
    `^docker,lo` for all others. Gloo takes names."""
    if not prefixes:
        return name in wanted.split(",")
    others, exact = wanted.startswith("^"), wanted.lstrip("^").startswith("=")
    words = wanted.lstrip("^").lstrip("=").split(",")
    return any(name == word if exact else name.startswith(word) for word in words) != others
