"""Launching a run again: as it was, with a change in the form, or with other arguments in one line."""

import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from engine.core.catalogue import ProfileEntry
from engine.core.errors import RankdeckError
from engine.core.plan.profile import Profile
from engine.core.views.view import RunSummary, RunView
from tui.data.off_loop import off_loop
from tui.screens.base import DeckScreen
from tui.text.cells import plain_line


class Relaunching:
    """The keys that launch a run again: the one that `past_run` tells."""

    def __init__(self, screen: DeckScreen, past_run: Callable[[], RunSummary | RunView | None]) -> None:
        self._screen = screen
        self._past_run = past_run

    def action_change_run(self) -> None:
        self.with_launched(self._screen.deck.open_form)

    def action_change_arguments(self) -> None:
        self.with_launched(self._ask_arguments)

    def action_launch_again(self) -> None:
        self.with_launched(self._launch)

    def with_launched(self, act: Callable[[ProfileEntry], None]) -> None:
        """Does something with the profile that the run was launched with; it has no file of its own."""
        if (past := self._past_run()) is not None:
            self._screen.begin(partial(self._read, past, act), "launched", exclusive=True)

    async def _read(self, past: RunSummary | RunView, act: Callable[[ProfileEntry], None]) -> None:
        try:
            profile = await off_loop(self._screen.engine.launched_profile, past.run)
        except RankdeckError as error:
            self._screen.deck.show_error(f"The profile of {plain_line(past.run)} can't be read", error)
        else:
            act(ProfileEntry(name=past.name, path=Path(), source="run", profile=profile, error=None))

    def _launch(self, entry: ProfileEntry) -> None:
        if entry.profile is not None:
            self._screen.deck.launch(entry.profile)

    def _ask_arguments(self, entry: ProfileEntry) -> None:
        from tui.data.form import fits_a_form
        from tui.screens.confirm import AskScreen

        profile = entry.profile
        if profile is None:
            return
        if not fits_a_form(profile):
            self._screen.say(
                f"the profile of {plain_line(entry.name)} contains characters that can't be shown", error=True
            )
            return
        recipe = profile.recipe
        program = plain_line(recipe.name or recipe.module or (recipe.script or "").rpartition("/")[2])
        detail = "As in a shell. Enter launches a new run with these arguments; everything else stays as it was."
        question = f"Arguments of {program}"
        screen = AskScreen(question, shlex.join(recipe.args), detail, empty=True)
        self._screen.app.push_screen(screen, partial(self._arguments_given, profile))

    def _arguments_given(self, profile: Profile, text: str | None) -> None:
        if text is None:
            return
        try:
            words = shlex.split(text)
        except ValueError as error:
            self._screen.say(f"these arguments can't be read: {str(error).lower()}", error=True)
            return
        recipe = msgspec.structs.replace(profile.recipe, args=tuple(words))
        self._screen.deck.launch(msgspec.structs.replace(profile, recipe=recipe))
