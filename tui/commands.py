"""The command palette: every key that does something now, by its name, and choices that need no key of their own."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content

from tui.deck import Deck
from tui.keys import KEYS, changes_something, rebound
from tui.text.cells import plain_line


class Command(NamedTuple):
    name: str
    help: str
    act: Callable[[], object]


class Commands(Provider):
    """A list of commands that a part of a name finds."""

    async def discover(self) -> Hits:
        """Everything, while nothing is typed."""
        for command in self._commands():
            yield DiscoveryHit(Content(command.name), command.act, text=command.name, help=command.help)

    async def search(self, query: str) -> Hits:
        """The commands that match, best first."""
        matcher = self.matcher(query)
        for command in self._commands():
            # `Matcher.highlight` and `help` take text for markup (8.2.8), so names are plain here and help is ours.
            if (score := matcher.match(command.name)) > 0:
                yield Hit(score, Content(command.name), command.act, text=command.name, help=command.help)

    def _commands(self) -> Iterable[Command]:
        raise NotImplementedError


class DeckCommands(Commands):
    """Commands for the screen that the palette was opened from."""

    def _commands(self) -> Iterator[Command]:
        app, deck = self.app, cast("Deck", self.app)
        works = {one.binding.id: one.node for one in self.screen.active_bindings.values() if one.enabled}
        for key in KEYS:
            if key.command and key.id in works and not (deck.read_only and changes_something(key.action)):
                act = partial(app.run_action, key.action, works[key.id])
                yield Command(f"{key.label} ({rebound(key, deck.keymap).first})", key.help, act)
        for run in deck.known_runs:
            yield Command(plain_line(f"watch {run.run}"), "A run.", partial(deck.open_run, run.run))
        for entry in () if deck.read_only else deck.known_profiles:
            yield Command(plain_line(f"launch {entry.name}"), "A profile.", partial(deck.launch_entry, entry))
        for theme in sorted(app.available_themes):
            yield Command(f"theme {theme}", "Colours.", partial(deck.choose_theme, theme))


def choices(options: Mapping[str, str], act: Callable[[str], object]) -> type[Provider]:
    """A list of options, each with a line about it, of which one is chosen."""

    class Choices(Commands):
        def _commands(self) -> Iterable[Command]:
            return [Command(plain_line(name), about, partial(act, name)) for name, about in options.items()]

    return Choices
