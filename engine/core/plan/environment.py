"""Names of backends, the variables that choose their network interface, and warnings about variables."""

import re

import msgspec

INHERITED = "your environment"  # the place of a variable that the profile does not set


class EnvWarning(msgspec.Struct, frozen=True, kw_only=True):
    """A variable or another setting without the intended effect. The launch continues."""

    place: str  # file and line, or another source; empty: unknown
    table: str  # of the profile, such as `backend.env`; empty: the user's own environment, or this machine
    name: str
    problem: str  # the end of a sentence that begins with the name
    hint: str  # the next step

    @property
    def key(self) -> str:
        """The variable as errors of profiles name it: `backend.env.NCCL_TIMEOUT`."""
        return f"{self.table}.{self.name}" if self.table else self.name

    @property
    def fact(self) -> str:
        return f"{self.place}: {self.key} {self.problem}" if self.place else f"{self.key} {self.problem}"

    @property
    def line(self) -> str:
        return f"{self.fact}; {self.hint}"


INTERFACE_NAMES = {"gloo": "GLOO_SOCKET_IFNAME", "nccl": "NCCL_SOCKET_IFNAME"}  # by backend


def is_meant(name: str, wanted: str, *, prefixes: bool) -> bool:
    """Whether a variable's value selects an interface. `prefixes`: NCCL's format: prefixes of names, `=eth0` for a complete name,
    `^docker,lo` for all others. Gloo takes names."""
    if not prefixes:
        return name in wanted.split(",")
    others, exact = wanted.startswith("^"), wanted.lstrip("^").startswith("=")
    words = wanted.lstrip("^").lstrip("=").split(",")
    return any(name == word if exact else name.startswith(word) for word in words) != others


AUTO = "auto"  # leaves the choice to rankdeck

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
