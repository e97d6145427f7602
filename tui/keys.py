"""The one table of keys, `keys.tsv`. Bindings, key bar, help screen and command palette are all made from it. A key in this table is
bound, is explained, and can be rebound by its id; no other key does anything. zellij may take ctrl+q and a terminal's flow control
ctrl+s, so each has an alternative."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from textual.binding import Binding, BindingType
from textual.keys import key_to_character

TABLE = Path(__file__).with_name("keys.tsv")


@dataclass(frozen=True, slots=True)
class Key:
    """One line of the table. `id`: its place and its name. `keys`: comma-separated, as Textual names them; the bar shows the first.
    `action`: as Textual names it. `lists`: where the key is listed besides the help. `label`: a word for the bar. `help`: a sentence for
    the help screen and the palette; it names another key as `{run.back}`."""

    id: str
    keys: str
    action: str
    lists: tuple[str, ...]
    label: str
    help: str

    @property
    def where(self) -> str:
        return self.id.partition(".")[0]

    @property
    def footer(self) -> bool:
        """Whether the bar shows it while there is room."""
        return "bar" in self.lists or self.pinned

    @property
    def pinned(self) -> bool:
        """Whether the bar always shows it, at its end."""
        return "end" in self.lists

    @property
    def command(self) -> bool:
        return "palette" in self.lists

    @property
    def shown(self) -> str:
        return " ".join(key_name(key) for key in self.keys.split(","))

    @property
    def first(self) -> str:
        """The key that the footer shows."""
        return self.shown.split(" ", 1)[0]


def key_name(key: str) -> str:
    """A key as a user reads it, from Textual's name of it."""
    if _FUNCTION_KEY.fullmatch(key):
        return key.upper()
    sign = key_to_character(key)
    is_shown = sign is not None and sign.isprintable() and not sign.isspace()
    return _NAMES.get(key) or (sign if sign and is_shown else key.replace("ctrl+", "^"))


_FUNCTION_KEY = re.compile(r"f\d+")
_NAMED = re.compile(r"\{([a-z_.]+)\}")
_NAMES = {
    "slash": "/", "plus": "+", "minus": "-", "escape": "esc", "delete": "del", "pageup": "pgup", "pagedown": "pgdn", "upper_g": "G", "upper_n": "N", "upper_j": "J", "upper_k": "K",
}  # fmt: skip


def _read() -> tuple[dict[str, str], dict[str, tuple[str, ...]], tuple[Key, ...]]:
    places: dict[str, str] = {}
    first: dict[str, tuple[str, ...]] = {}
    keys: list[Key] = []
    for line in TABLE.read_text("utf-8").splitlines():
        match line.split("\t"):
            case [id, names, action, lists, label, help]:
                keys.append(Key(id, names, action, tuple(lists.split()), label, help))
            case [place, heading, *ids]:
                places[place] = heading
                first[place] = tuple(" ".join(ids).split())
    return places, first, tuple(keys)


PLACES, FOOTER_FIRST, KEYS = _read()
"""The places with their headings, in the order of the help screen; the keys that the footer shows first; and all keys."""


def _name(action: str) -> str:
    """The name of an action that a binding writes as `screen.launch` or `pane('log')`."""
    return action.partition("(")[0].rpartition(".")[2]


_CHANGING = {_name(key.action) for key in KEYS if "changes" in key.lists}


def changes_something(action: str) -> bool:
    """Whether an action, as a binding names it, starts, changes or ends something, or leads to that, also from another screen."""
    return _name(action) in _CHANGING


def rebound(key: Key, keymap: Mapping[str, str]) -> Key:
    """A line of the table with the keys that the user has given it and those that its help names. `keymap`: keys by id."""
    named = _NAMED.sub(lambda found: first_key(found[1], keymap), key.help)
    return replace(key, keys=keymap.get(key.id, key.keys), help=named)


def first_key(id: str, keymap: Mapping[str, str]) -> str:
    """The key of one id, as a user reads it, for sentences that name a key."""
    return rebound(next(key for key in KEYS if key.id == id), keymap).first


def keys_of(where: str, keymap: Mapping[str, str] = MappingProxyType({})) -> tuple[Key, ...]:
    """The keys of one place; see `rebound`."""
    return tuple(rebound(key, keymap) for key in KEYS if key.where == where)


def bindings(*places: str) -> list[BindingType]:
    """The keys of some places, as Textual binds them."""
    return [
        Binding(key.keys, key.action, key.label, show=key.footer, key_display=key.first, tooltip=key.help, id=key.id)
        for where in places
        for key in keys_of(where)
    ]
