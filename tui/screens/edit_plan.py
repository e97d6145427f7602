"""The plan beside a form: the plan of its profile, or, on some lines, all choices."""

import asyncio
from collections.abc import Callable
from functools import partial

from engine.core.catalogue import BackendInfo, ProfileEntry
from engine.core.errors import RankdeckError
from engine.core.plan.plan import LaunchPlan
from engine.core.plan.profile import Profile
from engine.gate import Permit
from tui.data.form_lines import BACKEND, RECIPE, own_script
from tui.data.off_loop import off_loop
from tui.screens.base import DeckScreen
from tui.screens.edit_form import EditForm
from tui.text.lines import error_text
from tui.text.plan import backends_text, plan_text
from tui.text.recipes import recipes_text
from tui.widgets.text_pane import TextPane

PLAN_SECONDS = 0.2  # pause in typing before the plan is made again, in seconds


class EditPlan:
    """The pane beside a form. `entry`: the profile that the form began with, which says what may start; None: a new one."""

    def __init__(
        self, screen: DeckScreen, form: EditForm, entry: ProfileEntry | None, known: Callable[[], None]
    ) -> None:
        self._screen, self._form, self._entry, self._known = screen, form, entry, known
        self.available: list[BackendInfo] = []
        """The backends, with what the nodes in the form lack for each; empty before the first check."""
        self._shown_line = ""  # the line whose choices are shown in place of the plan; empty: the plan is shown

    @property
    def pane(self) -> TextPane:
        return self._screen.query_one("#plan", TextPane)

    @property
    def _line(self) -> str:
        """The line with the cursor, if the pane shows its choices; else empty."""
        row = self._form.focused
        return row.field.id if row is not None and row.field.id in (BACKEND, RECIPE) else ""

    def cursor_moved(self) -> None:
        """On their lines, the pane shows all backends or recipes."""
        if self._line != self._shown_line:
            self._shown_line = self._line
            self.make()

    def make(self) -> None:
        """Makes a new plan after a pause in typing."""
        self._screen.begin(self._make, "plan", exclusive=True)

    async def _make(self) -> None:
        await asyncio.sleep(PLAN_SECONDS)
        form, ascii = self._form, self._screen.deck.ascii
        form.read_lines()
        if await form.read_script(form.values):
            await form.build()
        profile = form.check(self.show_error)
        if self._line == RECIPE:
            await self._show_recipes(profile)
            return
        if profile is None:
            self.pane.show_title("Plan before the last change")
            return
        if self._line == BACKEND:
            await self._show_backends(profile)
            return
        try:
            plan = await off_loop(self._preview, profile)
        except RankdeckError as error:
            if not form.show_problem(error):
                self.show_error(error)
        else:
            self.pane.show_text(partial(plan_text, plan, ascii=ascii), title="Plan")
            form.show_warnings(plan.warnings)

    def _permit(self) -> Permit:
        return self._screen.engine.permit(self._entry)

    def _preview(self, profile: Profile) -> LaunchPlan:
        return self._screen.engine.preview(profile, self._permit())

    def show_error(self, error: RankdeckError, title: str = "Plan") -> None:
        """Shows an error that has no line in the form."""
        self.pane.show_text(partial(error_text, error), title=title)

    async def _show_recipes(self, profile: Profile | None) -> None:
        """Shows all choices in place of the plan; and at the line, why the chosen one can't run with the values of the form."""
        form, ascii = self._form, self._screen.deck.ascii
        text = partial(recipes_text, own_script(form.recipes, ()), form.recipe, ascii=ascii)
        self.pane.show_text(text, title="Recipes")
        self.pane.scroll_home(animate=False)
        try:
            if profile is not None:
                await off_loop(self._preview, profile)
        except RankdeckError as error:
            form.show_problem(error, RECIPE)

    async def _show_backends(self, profile: Profile) -> None:
        try:
            self.available = await off_loop(lambda: self._screen.engine.available(profile, self._permit()))
        except RankdeckError as error:
            if not self._form.show_problem(error):
                self.show_error(error, "Backends")
            return
        ascii = self._screen.deck.ascii
        self.pane.show_text(partial(backends_text, self.available, profile.backend.name, ascii=ascii), title="Backends")
        self._known()
