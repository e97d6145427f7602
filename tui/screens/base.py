"""The parts of every screen: the app as `Deck`, parts with actions of their own, and workers whose unexpected errors are shown instead of ending the app."""

from collections.abc import Callable, Coroutine
from typing import cast

from textual.screen import Screen
from textual.worker import Worker, WorkerState

from engine.client.protocols import EngineClient
from tui.deck import Deck


class DeckScreen(Screen[None]):
    # Textual 8.2.8 spells their type `ClassVar[…] | None`, which type checkers take for a type of instances.
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide"), (160, "-broad")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (14, "-short"), (20, "-high")]  # noqa: RUF012
    gives_way = False  # whether a run that was launched from here takes the place of this screen

    @property
    def deck(self) -> Deck:
        return cast("Deck", self.app)

    @property
    def engine(self) -> EngineClient:
        return self.deck.engine

    @property
    def is_seen(self) -> bool:
        """Whether the user can see it: it is on top, or only a dialog is above it."""
        for screen in reversed(self.app.screen_stack):
            if screen is self or not screen.is_modal:
                return screen is self
        return False

    def add_parts(self, *parts: object) -> None:
        """Makes the `action_…` methods of parts actions of this screen, which keys name."""
        for part in parts:
            for name in dir(part):
                if name.startswith("action_"):
                    setattr(self, name, getattr(part, name))

    def begin(
        self, work: Callable[[], Coroutine[object, object, None]], group: str, *, exclusive: bool = False
    ) -> None:
        """Begins work that takes a while. `exclusive`: whether it replaces the current work of the same group, which may not
        even have begun."""
        self.run_worker(work, group=group, exclusive=exclusive, exit_on_error=False)

    def key_label(self, key: str) -> str:
        """The label in the footer of a key, which is named by its id in the table of keys; empty: the table's."""
        return ""

    @property
    def parting(self) -> str | None:
        """The text to print when the app is left from here; None: nothing."""
        return None

    def say(self, text: str, *, error: bool = False) -> None:
        self.deck.say(text, error=error)

    def ask(self, question: Screen[bool | None], then: Callable[[], object]) -> None:
        """Asks, and does something after a yes."""

        def answered(yes: bool | None) -> None:
            if yes:
                then()

        self.app.push_screen(question, answered)

    def action_close(self) -> None:
        self.dismiss()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """An unexpected error ends one worker, and is shown."""
        if event.state is WorkerState.ERROR:
            self.say(f"{event.worker.group}: {event.worker.error}", error=True)
