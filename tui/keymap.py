"""Keys and theme of the user's settings, checked against the table of keys and the themes that there are."""

import difflib
from collections.abc import Iterable, Iterator, Mapping

from textual.keys import KEY_ALIASES, Keys, _character_to_key
from textual.theme import BUILTIN_THEMES

from engine.core.plan.document.places import Places
from engine.core.settings import Settings
from tui.keys import KEYS, Key, key_name, rebound
from tui.theme import DARK, LIGHT

TOGETHER: tuple[frozenset[str], ...] = tuple(
    frozenset((*places, "app"))
    for places in (
        ("home", "profiles", "list"), ("home", "runs", "list"), ("history", "past", "list"), ("compare", "list"),
        ("run", "ranks", "table", "list"), ("run", "ranks", "nodes", "list"), ("run", "chart"), ("run", "log", "list"),
        ("stacks", "list"), ("check", "cells", "list"), ("edit", "choice"), ("confirm", "leave"), ("notice", "list"), ("ask",),
        ("script", "list"), ("help", "list"),
    )
)  # fmt: skip
"""Places whose keys do something at the same time."""

THEMES = (DARK.name, LIGHT.name, *BUILTIN_THEMES)

_NAMED = frozenset(key.value for key in Keys if not key.value.startswith("<"))
_SHORT = {"esc": "escape", "del": "delete", "pgup": "pageup", "pgdn": "pagedown", "return": "enter"}
_MODIFIERS = frozenset({"ctrl", "shift", "alt"})


def check_theme(settings: Settings, places: Places) -> None:
    """Raises ProfileError if there is no such theme."""
    if settings.theme not in THEMES:
        raise places.error(
            ("theme",), f"there is no theme {settings.theme!r}", hint=_nearest(settings.theme, THEMES, "themes")
        )


def keymap_of(settings: Settings, places: Places) -> dict[str, str]:
    """The keys that the user has changed: comma-separated, as Textual names them, by id. Raises ProfileError: there is no such id, no
    such key, or a key would have two meanings at one place."""
    ids = [key.id for key in KEYS]
    found: dict[str, str] = {}
    for id, words in settings.keys.items():
        place = ("keys", *id.split("."))
        if id not in ids:
            raise places.error(place, "there is no such id", hint=_nearest(id, ids, "ids"))
        names = []
        for word in words:
            if (name := _key_of(word)) is None:
                near = difflib.get_close_matches(word.lower(), (*_SHORT, *_NAMED), 1)
                hint = f"did you mean {near[0]}?" if near else "for example: X, ?, f5, escape, ctrl+x"
                raise places.error(place, f"there is no key {word!r}", hint=hint)
            names.append(name)
        found[id] = ",".join(names)
    for id in found:
        _refuse_two_meanings(id, found, places)
    return found


def _key_of(word: str) -> str | None:
    """Textual's name of a key that a user has written: `X`, `?`, `ctrl+x`, `F5`, `esc`. None: there is none."""
    if len(word) == 1:
        return _character_to_key(word) if word.isprintable() and not word.isspace() else None
    word = word.lower().replace("^", "ctrl+")
    *modifiers, last = word.split("+")
    last = _SHORT.get(last, last)
    if modifiers == ["shift"] and len(last) == 1 and last.isalpha():
        return _character_to_key(last.upper())  # what a terminal sends
    whole = "+".join((*modifiers, last))
    if whole in _NAMED or whole in {key for one in KEYS for key in one.keys.split(",")}:
        return next((name for name, others in KEY_ALIASES.items() if whole in others), whole)
    is_known = last in _NAMED or (len(last) == 1 and last.isalnum())
    return whole if modifiers and _MODIFIERS.issuperset(modifiers) and is_known else None


def _refuse_two_meanings(id: str, keymap: Mapping[str, str], places: Places) -> None:
    one = next(key for key in KEYS if key.id == id)
    for other in _beside(one):
        usual = set(one.keys.split(",")) & set(other.keys.split(","))
        for name in rebound(one, keymap).keys.split(","):
            if name in rebound(other, keymap).keys.split(",") and name not in usual:
                raise places.error(
                    ("keys", *id.split(".")),
                    f"{key_name(name)} can't be both {id} ({one.label}) and {other.id} ({other.label}): they work at the same place",
                    hint=f"choose another key, or give {other.id} one of its own",
                )


def _beside(one: Key) -> Iterator[Key]:
    """The other keys that do something at the same time."""
    places = {place for group in TOGETHER if one.where in group for place in group} if one.where != "app" else None
    return (key for key in KEYS if key.id != one.id and (places is None or key.where in places))


def _nearest(word: str, known: Iterable[str], kind: str) -> str:
    known = sorted(known)
    if near := difflib.get_close_matches(word, known, 1, 0.5):
        return f"did you mean {near[0]}?"
    if "." in word and (same := [one for one in known if one.startswith(word.partition(".")[0] + ".")]):
        return f"{kind} there: {', '.join(same)}"
    return f"{kind}: {', '.join(known)}" if len(known) < 40 else "rankdeck config --keys lists them"


def key_table(keymap: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Id, keys and meaning of every line of the table of keys, with the user's changes."""
    return [(key.id, key.shown, key.help) for key in (rebound(one, keymap) for one in KEYS)]
