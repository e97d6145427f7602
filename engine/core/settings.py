"""A user's settings for all runs, in `config.toml`: colours and keys of the app, and how to notify the user."""

import re
from typing import Any, Literal

import msgspec

from engine.core.plan.document.places import Places
from engine.core.plan.document.reading import parsed_toml, section_from_data
from engine.core.plan.profile import Section

Occasion = Literal["end", "failure", "stall"]
"""When a user is told: a run has ended well or was stopped, it failed or waits with a failed rank, ranks hang."""

Desktop = Literal["off", "auto", "osc9", "osc777", "osc99"]
"""The terminal sequence of a desktop notification; `auto`: the one that the terminal is known to take."""


class Notify(Section, frozen=True, kw_only=True):
    """`[notify]`: what happens when a run needs its user."""

    on: tuple[Occasion, ...] = ("end", "failure", "stall")
    bell: bool = False
    desktop: Desktop = "off"
    command: tuple[str, ...] = ()  # a program and its arguments, run without a shell
    webhook: str = ""  # where JSON is posted; others may see `shown_webhook` only: it may be a secret

    @property
    def is_on(self) -> bool:
        """Whether anything would happen."""
        return bool(self.on) and (self.bell or self.desktop != "off" or bool(self.command) or bool(self.webhook))

    @property
    def shown_webhook(self) -> str:
        """The webhook without its possible secrets: its scheme and its host. Empty: there is none."""
        found = _ADDRESS.fullmatch(self.webhook)
        return f"{found[1]}/..." if found is not None else ""


QUIET = Notify()  # nothing happens


HidableColumn = Literal[
    "node", "local", "step", "throughput", "loss", "gpu", "memory", "cpu", "rss", "io", "late", "seen"
]
"""Columns of the app's table of ranks that can be left out."""

CurvesOver = Literal["whole run", "10 min", "1 min"]  # the time that the small curves of the table cover

LowerPane = Literal["log", "chart", "events"]


class Look(Section, frozen=True, kw_only=True):
    """`[look]`: how the app shows a run; the app writes it when the user changes something. `pane`: below the ranks. `hidden`: columns that are left
    out. `curves`, `own_scale`: the small curves. `charts`: metrics that the chart draws at once."""

    pane: LowerPane = "log"
    hidden: tuple[HidableColumn, ...] = ()
    curves: CurvesOver = "whole run"
    own_scale: bool = False
    charts: Literal[1, 2, 4, 6] = 2


DEFAULT_LOOK = Look()


class Units(Section, frozen=True, kw_only=True):
    """`[units]`: how the app writes values. `memory`: powers of 1024 or of 1000. `time`: zone of the clock."""

    memory: Literal["GiB", "GB"] = "GiB"
    time: Literal["local", "UTC"] = "local"


DEFAULT_UNITS = Units()


class Settings(Section, frozen=True, kw_only=True):
    """The file. `keys`: by the ids of the app's table of keys. `profiles`: folders of profiles before the user's own one."""

    theme: str = "rankdeck-dark"
    profiles: tuple[str, ...] = ()
    look: Look = DEFAULT_LOOK
    units: Units = DEFAULT_UNITS
    keys: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    notify: Notify = QUIET


def parse_settings(text: str, *, file: str) -> tuple[Settings, Places]:
    """Reads a document. The app checks `theme` and `keys`, whose values it alone knows. Raises ProfileError: the first error, with its
    line."""
    data, places = parsed_toml(text, file=file)
    keys_of_app = [one for one in places.lines if one[0] == "keys"]  # the quoted "run.kill" is like the bare run.kill
    places.lines |= {tuple(".".join(path).split(".")): places.lines[path] for path in keys_of_app}
    if isinstance(keys := data.get("keys"), dict):
        data["keys"] = dict(_flat(keys, ("keys",), places))
    settings = section_from_data(data, Settings, places)
    if settings.notify.webhook and _ADDRESS.fullmatch(settings.notify.webhook) is None:
        hint = 'for example: "https://chat.example.org/hooks/k3f9"'
        raise places.error(("notify", "webhook"), "must be an address of http or https", hint=hint)
    for folder in settings.profiles:
        if not folder.startswith(("/", "~")) or not folder.isprintable():
            raise places.error(("profiles",), f"{folder!r} is not an absolute path", hint="begin it with / or ~")
    return settings, places


_ADDRESS = re.compile(r"(https?://(?:[\w.-]+|\[[0-9a-fA-F:.]+\])(?::\d{1,5})?)(?:[/?][!-~]*)?", re.ASCII)
"""An address to which something can be posted; the first group is what of it is no secret. It names no user: urllib can't send one."""


def _flat(table: dict[str, Any], path: tuple[str, ...], places: Places) -> list[tuple[str, list[str]]]:
    """Ids and their keys: `run.kill = "X"` is a table in a table to TOML."""
    found: list[tuple[str, list[str]]] = []
    for name, value in table.items():
        here = (*path, *name.split("."))
        words = [value] if isinstance(value, str) else value
        if isinstance(value, dict):
            found += _flat(value, here, places)
        elif isinstance(words, list) and words and all(isinstance(word, str) and word for word in words):
            found.append((".".join(here[1:]), words))
        else:
            raise places.error(here, "must be a key or a list of keys", hint='for example: "X" or ["X", "delete"]')
    return found
