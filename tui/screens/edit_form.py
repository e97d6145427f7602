"""The lines of a form: the values in them, problems with them, and lists that fill them."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path

from textual.widget import Widget
from textual.widgets import Input

from engine.core.arguments.argument import RecipeInfo
from engine.core.catalogue import BackendInfo, ProfileEntry
from engine.core.errors import ProfileError, RankdeckError
from engine.core.plan.batch.slurm import partition_words, soonest_first
from engine.core.plan.document.checks import profile_name
from engine.core.plan.environment import EnvWarning
from engine.core.plan.profile import Profile
from tui.data.form import errors_of, free_name, line_of_error, profile_of, values_of
from tui.data.form_lines import JOB_NODES, OWN_SCRIPT, PARTITION, RECIPE, SCRIPT, Field, fields, own_script, script_in
from tui.data.off_loop import off_loop
from tui.data.path_lines import PathSuggester, probable_script, scripts_below
from tui.screens.base import DeckScreen
from tui.text.cells import plain_line
from tui.widgets.form_row import Form, FormRow


class EditForm:
    """The form of a profile. `base`: the profile that is edited or copied; None: a new one. `is_new`: whether the form has no file yet."""

    def __init__(
        self, screen: DeckScreen, base: Profile | None, *, is_new: bool, changed: Callable[[], object]
    ) -> None:
        self._screen, self._base, self._is_new, self._changed = screen, base, is_new, changed
        self.recipes: list[RecipeInfo] = []
        self.backends: list[BackendInfo] = []
        self.values: dict[str, str] = {}
        self._saved: dict[str, str] = {}
        self._defaults: Mapping[str, object] = {}
        self._building = asyncio.Lock()

    @property
    def rows(self) -> Iterable[FormRow]:
        """The lines, top to bottom."""
        return self._screen.query(FormRow)

    @property
    def focused(self) -> FormRow | None:
        row = self._screen.focused.parent if self._screen.focused is not None else None
        return row if isinstance(row, FormRow) else None

    @property
    def recipe(self) -> str:
        """The name of the recipe in the form; empty: another program."""
        name = self.values.get(RECIPE)
        return next((one.name for one in self.recipes if one.name == name != OWN_SCRIPT), "")

    @property
    def is_changed(self) -> bool:
        self.read_lines()
        return any(self.values.get(key, "") != self._saved.get(key, "") for key in {*self.values, *self._saved})

    def was_saved(self, profile: Profile) -> None:
        """The profile in the form is now what its file contains."""
        self._base, self._is_new = profile, False
        self._saved = dict(self.values)

    # --- the lines ---------------------------------------------------------------------------------------------------

    async def fill(self, suffix: str) -> None:
        """Reads the choices, and shows the profile. `suffix`: for the name of one without a file."""
        engine, base = self._screen.engine, self._base
        self.recipes = await off_loop(engine.recipes)
        self.backends = await off_loop(engine.backends)
        self._defaults = await off_loop(engine.site_defaults)
        script = "" if base else probable_script(await off_loop(scripts_below, Path()))
        await self.read_script(values_of(base, self.recipes, script))
        self.values = values_of(base, self.recipes, script)
        if self._is_new:
            taken = {entry.name for entry in await off_loop(engine.profiles)}
            name = f"{base.name[:56]}{suffix}" if base else profile_name(script)[:56] if script else "my-run"
            self.values["name"] = free_name(name, taken)
        # A form without input can be left without a question.
        self._saved = dict(self.values)
        await self.build()

    async def read_script(self, values: Mapping[str, str]) -> bool:
        """Reads the arguments that the user's script in the form declares. Returns whether this has changed."""
        place = script_in(values)
        found = () if place is None else await off_loop(self._screen.engine.arguments, *place)
        known, self.recipes = self.recipes, own_script(self.recipes, found)
        return known != self.recipes

    async def build(self) -> None:
        """Makes the lines that belong to the choices; lines that stay are not touched. It goes on when the work that asked for it is replaced:
        Textual passes a cancellation on to the tasks of the lines that are being removed, and those would stay and answer no more."""
        await asyncio.shield(self._build())

    async def _build(self) -> None:
        async with self._building:
            if not self._screen.is_attached:
                return
            wanted = fields(self.values, self.recipes, self.backends)
            form = self._screen.query_one(Form)
            rows = {row.field.id: row for row in self.rows}
            kept = {field.id for field in wanted if field.id in rows and rows[field.id].field == field}
            await asyncio.gather(*(row.remove()() for key, row in rows.items() if key not in kept))
            above: Widget | None = None
            for stays, group in groupby(wanted, key=lambda field: field.id in kept):
                if stays:
                    above = rows[[field.id for field in group][-1]]
                    continue
                new = [self._row(field) for field in group]
                await form.mount(*new, after=above) if above is not None else await form.mount(*new, before=0)
                above = new[-1]

    def _row(self, field: Field) -> FormRow:
        ending = {"script": ".py", "file": "", "folder": None}.get(field.path, "")
        folder = self._script_folder if field.path == "script" else Path.cwd
        suggester = PathSuggester(folder, ending) if field.path else None
        value, ascii = self.values.get(field.id, ""), self._screen.deck.ascii
        return FormRow(field, value, ascii=ascii, suggester=suggester, takes_commands=self._is_new)

    def _script_folder(self) -> Path:
        self.read_lines()
        return Path(self.values.get("launch.workdir", "").strip() or ".").expanduser()

    def read_lines(self) -> None:
        """Takes the values that are in the lines now: the message about the last key may still be under way."""
        for row in self.rows:
            self.values[row.field.id] = row.line.value

    # --- what is wrong -----------------------------------------------------------------------------------------------

    def check(self, elsewhere: Callable[[RankdeckError], object]) -> Profile | None:
        """The profile in the form; None if it is not valid, with the reasons at their lines. `elsewhere`: shows an error that has no line."""
        self.read_lines()
        for row in self.rows:
            row.show_problem("")
        errors = errors_of(self.values, self._base, self.recipes)
        for error in errors:
            if not self.show_problem(error):
                elsewhere(error)
        return None if errors else profile_of(self.values, self._base, self.recipes, self._defaults)

    def go_to_problem(self) -> None:
        """Puts the cursor on the first wrong line, and says how many there are."""
        if wrong := [row for row in self.rows if row.has_class("-wrong")]:
            # Now, unlike `Widget.focus`, which would undo what the next key does.
            self._screen.set_focus(wrong[0].line)
            count = "this line is" if len(wrong) == 1 else f"{len(wrong)} lines are"
            self._screen.say(f"{count} not valid", error=True)

    def show_problem(self, error: RankdeckError, default: str = "") -> bool:
        """Puts an error at its line, or at line `default`. False: the form has no such line."""
        rows = {row.field.id: row for row in self.rows}
        key = line_of_error(error, list(rows)) if isinstance(error, ProfileError) else None
        row = rows.get(key or default)
        if row is None:
            return False
        reason = error.reason if isinstance(error, ProfileError) else error.message
        row.show_problem(plain_line(f"{reason}; {error.hint}" if error.hint else reason))
        return True

    def show_warnings(self, warnings: Sequence[EnvWarning]) -> None:
        """Puts warnings below the variables that they are about."""
        for row in self.rows:
            own = [warning for warning in warnings if warning.table == row.field.id]
            row.show_warning("\n".join(plain_line(f"{one.name} {one.problem}; {one.hint}") for one in own))

    # --- lists that fill lines ---------------------------------------------------------------------------------------

    def action_choose_script(self) -> None:
        """Asks for one of the scripts in the working directory, and makes it the ranks' script."""
        self._screen.begin(self._choose_script, "script", exclusive=True)

    async def _choose_script(self) -> None:
        folder = self._script_folder()
        found = await off_loop(scripts_below, folder)
        if not found:
            self._screen.say(f"there is no Python file in {plain_line(str(folder.absolute()))}", error=True)
        elif self._screen.is_current:
            options = dict.fromkeys(found, "")
            self._ask(options, lambda path: {RECIPE: OWN_SCRIPT, SCRIPT: path}, SCRIPT, "a script")

    def action_choose_partition(self) -> None:
        """Shows free nodes in Slurm's partitions, and asks for a partition."""
        self._screen.begin(self._choose_partition, "partition", exclusive=True)

    async def _choose_partition(self) -> None:
        self._screen.say("asking Slurm what is free")
        try:
            found = await off_loop(self._screen.engine.partitions)
        except RankdeckError as error:
            self._screen.deck.show_error("Slurm does not tell what is free", error)
            return
        if self._screen.is_current:
            options = {one.name: partition_words(one) for one in soonest_first(found)}
            self.read_lines()
            nodes = self.values.get(JOB_NODES) or "1"
            self._ask(options, lambda name: {JOB_NODES: nodes, PARTITION: name}, PARTITION, "a partition")

    def _ask(
        self, options: Mapping[str, str], values: Callable[[str], Mapping[str, str]], cursor: str, what: str
    ) -> None:
        """Asks for one of a list, and fills lines, which need not be there yet. `cursor`: the line that gets the cursor."""

        def take(chosen: str) -> None:
            self._screen.begin(partial(self._take, values(chosen), cursor), "take", exclusive=True)

        self._screen.deck.choose_from(options, take, what)

    async def _take(self, values: Mapping[str, str], cursor: str) -> None:
        self.read_lines()
        self.values |= values
        await self.build()
        for row in self.rows:
            value = values.get(row.field.id, row.line.value)
            if isinstance(row.line, Input):
                row.line.value = value
            else:
                row.line.choose(value)
            if row.field.id == cursor:
                row.line.focus()
        self._changed()


def title_words(entry: ProfileEntry | None, name: str, *, is_changed: bool) -> tuple[str, str]:
    """The title of a form, and a note beside it."""
    if entry is None:
        return f"New: {name}", "not saved yet; paste a launch command to fill it in"
    is_again = entry.source == "run"
    origin = "as a run was launched" if is_again else f"{entry.source}: {entry.path}"
    return f"{'Launch again' if is_again else 'Edit'}: {name}", "changed" if is_changed else origin
