"""The settings of a profile as one flat table, so that two runs can be compared, and what differs between two of them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from engine.core.plan.plan import LaunchPlan
from engine.core.plan.profile import Profile, to_toml_data
from engine.core.plan.secrets import shown_value

NOT_COMPARED = ("schema", "name", "description")  # keys of a profile that do not change what a run does

ARGUMENTS = "recipe.args"

Settings = Mapping[str, Any]
"""Dotted keys of a profile and their values. Arguments of the program have keys of their own: `--lr`, or `argument 1` for the first
that follows no option."""


class Change(NamedTuple):
    """A setting that differs, as it is shown; empty: it is not set."""

    key: str
    before: str
    after: str

    @property
    def words(self) -> str:
        """`--lr 0.001` for an argument, `launch.warm=false` for a key, `without --lr` where it is not set any more."""
        if not self.after:
            return f"without {self.key}"
        if self.key.startswith("-"):
            return self.key if self.after == SET else f"{self.key} {self.after}"
        return f"{self.key}={self.after}"


SET = "set"  # shown for an option without a value


def settings_of(profile: Profile) -> Settings:
    """The settings of a profile, without defaults, name and description."""
    found: dict[str, Any] = {}
    for key, value in _flat(to_toml_data(profile)):
        if key == ARGUMENTS:
            found |= arguments_of([str(word) for word in value])
        elif key not in NOT_COMPARED:
            found[key] = value
    return found


def launched_settings(profile: Profile, plan: LaunchPlan) -> Settings:
    """The settings of a run. Folder, script and Python come from its plan, because profiles may write one path in several ways."""
    found = {**settings_of(profile), "launch.workdir": plan.workdir}
    if "recipe.script" in found:
        found["recipe.script"] = plan.program.target
    if "/" in (profile.launch.python or ""):
        found["launch.python"] = plan.python
    return found


def arguments_of(words: list[str]) -> dict[str, str]:
    """The arguments of a program by option: `--lr 1e-3` and `--lr=1e-3` are the same. A word that follows an option counts as its value
    unless it begins with a dash and is no number. An option that occurs again has all its values, separated by blanks."""
    found: dict[str, list[str]] = {}
    option, plain = "", 0
    for word in words:
        if word.startswith("-") and word != "-" and not _is_number(word):
            option, equals, value = word.partition("=")
            found.setdefault(option, [])
            if equals:
                found[option].append(value)
                option = ""
        elif option:
            found[option].append(word)
            option = ""
        else:
            plain += 1
            found[f"argument {plain}"] = [word]
    return {key: " ".join(values) or SET for key, values in found.items()}


def changes(before: Settings, after: Settings) -> list[Change]:
    """The settings that differ, in the order of `after`. Values that look like secrets are hidden."""
    return [
        Change(key, *(shown_value(key, side[key]) if key in side else "" for side in (before, after)))
        for key in differing_settings([after, before])
    ]


def differing_settings(several: Sequence[Settings]) -> list[str]:
    """The keys of settings that are not the same in all."""
    missing = object()
    keys = dict.fromkeys(key for one in several for key in one)
    return [key for key in keys if any(one.get(key, missing) != several[0].get(key, missing) for one in several)]


def _flat(table: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of nested tables, by its dotted key."""
    for name, value in table.items():
        key = f"{path}.{name}" if path else name
        if isinstance(value, dict):
            yield from _flat(value, key)
        else:
            yield key, value


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
