"""`rankdeck env`: the variables of a backend, and names that look like variables but do nothing."""

import shutil
import textwrap
from collections.abc import Iterable

import click

from engine.backends.variables import Family, Gone, Variable, families_of
from engine.commands.output import print_json
from engine.core.errors import UsageError

WIDEST = 100  # longest line, in columns: longer ones are hard to read

INDENT = " " * 6


def show_variables(backend: str, word: str | None, *, as_json: bool) -> None:
    """Prints the variables of a backend. `word`: must be in the name or the description, in any case; None: all variables. Raises UsageError: no
    variable has that word."""
    searched, chosen = (word or "").lower(), []
    for family in families_of(backend):
        texts = [(one, (one.name, one.aliases, one.does, one.when, one.instead)) for one in family.variables]
        variables = [one for one, text in texts if searched in " ".join(text).lower()]
        missing = [one for one in family.gone if searched in f"{one.name} {one.why} {one.hint}".lower()]
        if variables or missing:
            chosen.append((family, variables, missing))
    if not chosen:
        raise UsageError(f"no variable of {backend} has {word!r}", hint=f"rankdeck env {backend} lists them all")
    if as_json:
        known = [
            {"name": one.name, "of": family.title, "default": one.default, "does": one.does, "when": one.when,
             "takes": one.values.words if one.values else "", "since": one.since, "until": one.until,
             "instead": one.instead, "aliases": one.aliases.split(), "set_by_rankdeck": one.sets}
            for family, variables, _ in chosen for one in variables
        ]  # fmt: skip
        gone = [{"name": one.name, "why": one.why, "hint": one.hint} for _, _, names in chosen for one in names]
        print_json({"variables": known, "gone": gone})
        return
    click.echo("\n\n".join("\n".join(_family_lines(*part)) for part in chosen))


def _family_lines(family: Family, known: Iterable[Variable], gone: Iterable[Gone]) -> list[str]:
    lines = [family.title]
    for one in known:
        mark = "*" if one.sets else " "
        lines += ["", f" {mark} {one.name}  [{one.default}]", *_wrapped(f"{one.does}.")]
        if one.values is not None:
            lines += _wrapped(f"Takes {one.values.words}.")
        if one.when:
            lines += _wrapped(f"Set it when {one.when}.")
        if one.since or one.until:
            lines += _wrapped(_versions(family, one))
        if one.aliases:
            lines += _wrapped(f"Old name: {', '.join(one.aliases.split())}.")
        if one.sets:
            lines += _wrapped(f"* rankdeck sets it: {one.sets}.")
    names = list(gone)
    if names:
        lines += ["", "   These do nothing:"]
        lines += [line for one in names for line in _wrapped(f"{one.name}: {one.why}; {one.hint}", hanging=True)]
    return lines


def _versions(family: Family, one: Variable) -> str:
    if one.since:
        before = f"; before: {one.instead}" if one.instead else ""
        return f"Since {family.reader} {one.since}{before}."
    return f"Up to {family.reader} {one.until}{f'; then: {one.instead}' if one.instead else ''}."


def _wrapped(text: str, *, hanging: bool = False) -> list[str]:
    width = min(WIDEST, shutil.get_terminal_size().columns)
    after = INDENT + "  " if hanging else INDENT
    return textwrap.wrap(
        text, width, initial_indent=INDENT, subsequent_indent=after, break_long_words=False, break_on_hyphens=False
    )
