"""The app: its screens, how one leads to another, and their common parts. No run needs it. Leaving it, or losing its terminal, changes
nothing for any run."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import msgspec
from textual import events, work
from textual.actions import ActionParseResult
from textual.app import App
from textual.command import CommandPalette, Provider
from textual.driver import Driver
from textual.filter import LineFilter
from textual.scrollbar import ScrollBar, ScrollBarRender
from textual.widgets import Input
from textual.worker import Worker, WorkerError, WorkerState

from engine.client.protocols import EngineClient
from engine.core.catalogue import ProfileEntry
from engine.core.errors import RankdeckError
from engine.core.plan.profile import Profile
from engine.core.settings import Settings
from engine.core.terminal_text import visible
from engine.core.views.view import RunSummary
from engine.core.words import count
from tui.data.clipboard import COPIED, place_of
from tui.data.off_loop import off_loop
from tui.keys import bindings, changes_something, first_key
from tui.screens.base import DeckScreen
from tui.screens.home import HomeScreen
from tui.text.cells import plain_line
from tui.theme import DARK, LIGHT, own_filters

PATIENCE = 1.0  # seconds that a key waits for the text before it: a line that is being removed takes in nothing more

LOOK_SECONDS = 1.0  # seconds after which a changed look is written: a key may be pressed again
DEFAULT_SETTINGS = Settings()
END_SECONDS = 5.0  # seconds for which the end of the app waits for the killed command for notices


def _commands() -> type[Provider]:
    from tui.commands import DeckCommands

    return DeckCommands


def _collect_garbage() -> None:
    """Turns garbage collection on again after the app was set up. Collections leave out the objects that exist by then."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


async def _text_taken_in(line: Input) -> None:
    """Returns when a line has taken in the keys that were sent to it, or after `PATIENCE`."""
    taken = asyncio.Event()
    if line.call_later(taken.set):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(taken.wait(), PATIENCE)


class PlainBars(ScrollBarRender):
    """A scrollbar of whole cells: no block characters, so that it is the same with `--ascii`."""

    VERTICAL_BARS: ClassVar[list[str]] = [" "]
    HORIZONTAL_BARS: ClassVar[list[str]] = [" "]


ScrollBar.renderer = PlainBars


class RankdeckApp(App[None], inherit_bindings=False):
    """A workstation for distributed training, in a terminal. `Deck` documents what its screens use of it.

    Args:
        open_run: id of a run to show first; leaving it leaves the app.
        open_profile: name of a profile that the cursor begins on.
        settings: the user's; TEXTUAL_THEME in the environment wins over their theme.
        keymap: keys that the user has changed, by id, as Textual names them.
        driver_class: what talks to the terminal; None: Textual chooses.
    """

    CSS_PATH = "rankdeck.tcss"
    TITLE = "rankdeck"
    BINDINGS = bindings("app")
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {_commands}

    def __init__(
        self,
        engine: EngineClient,
        settings: Settings = DEFAULT_SETTINGS,
        *,
        open_run: str | None = None,
        open_profile: str | None = None,
        ascii: bool = False,
        slow: bool = False,
        read_only: bool = False,
        keymap: Mapping[str, str] = MappingProxyType({}),
        driver_class: type[Driver] | None = None,
    ) -> None:
        super().__init__(driver_class=driver_class)
        self.engine = engine
        self.ascii = ascii
        self.slow = slow
        self.read_only = read_only
        self.look, self.units, self._notify = settings.look, settings.units, settings.notify
        self._unkept_look: dict[tuple[str, ...], object] = {}
        self.animation_level = "none"
        self.parting: str | None = None
        self._open_run, self._open_profile, self._launching = open_run, open_profile, False
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        if "TEXTUAL_THEME" not in os.environ:
            self.theme = settings.theme
        self.keymap = keymap
        self.set_keymap(dict(keymap))
        self.set_class(ascii, "-ascii")
        self.set_class(self.no_color, "-no-color")
        self.set_class(self.no_color or self.console.color_system == "standard", "-few-colors")

    def get_line_filters(self) -> Sequence[LineFilter]:
        own = own_filters(self.current_theme, self.console.color_system, no_color=self.no_color)
        return own if self.no_color else [*super().get_line_filters(), *own]

    def get_default_screen(self) -> HomeScreen:
        return HomeScreen(self._open_profile)

    async def run_action(self, action: str | ActionParseResult, *words: Any, **options: Any) -> bool:
        """Runs the action of a key, unless it would change something and the app only watches."""
        if self.read_only and isinstance(action, str) and changes_something(action):
            self.say("rankdeck can't change anything: it was opened with --read-only", error=True)
            return True
        return await super().run_action(action, *words, **options)

    async def on_event(self, event: events.Event) -> None:
        """Handles keys in the order in which they arrive. In Textual 8.2.8 a key that is no text travels from the focused widget up to
        the app before its binding runs; text that arrives with it is typed meanwhile, so `ctrl+u` deletes what came after it and text
        goes where the focus was. Here the text before the key is taken in first, and its binding runs before the next key."""
        if (
            isinstance(event, events.Key)
            and not event.is_forwarded
            and (focused := self.focused) is not None
            and not focused.check_consume_key(event.key, event.character)
        ):
            if isinstance(focused, Input):
                await _text_taken_in(focused)
            if await self._check_bindings(event.key, priority=True) or await self._check_bindings(event.key):
                return
        await super().on_event(event)

    def on_mount(self) -> None:
        self.call_after_refresh(_collect_garbage)
        if self._open_run is not None:
            self.open_run(self._open_run)
        if self._notify.is_on:
            from tui.notices import tell

            telling = tell(self, self._notify, lambda text: self._driver and self._driver.write(text))
            self.run_worker(telling, group="notify", exit_on_error=False)

    @property
    def known_runs(self) -> list[RunSummary]:
        return self._home.lists.known_runs

    @property
    def known_profiles(self) -> list[ProfileEntry]:
        return self._home.lists.known_profiles

    @property
    def _home(self) -> HomeScreen:
        home = self.screen_stack[0]
        assert isinstance(home, HomeScreen)
        return home

    # --- from one screen to another -----------------------------------------------------------------------------------

    def open_run(self, run: str) -> None:
        from tui.screens.run import show_run

        self.run_worker(show_run(self, run, leaves_app=run == self._open_run), group="open")

    def open_history(self) -> None:
        from tui.screens.history import HistoryScreen

        self._push_once(HistoryScreen)

    def open_compare(self, runs: tuple[str, ...]) -> None:
        from tui.screens.compare import CompareScreen

        self._push_once(lambda: CompareScreen(runs))

    def open_form(self, entry: ProfileEntry | None, *, duplicate: bool = False) -> None:
        from tui.data.form import fits_a_form
        from tui.screens.edit import EditScreen

        if entry is not None and not fits_a_form(entry.profile):
            self.say(
                f"{visible(str(entry.path))} contains characters that a form can't show: use an editor", error=True
            )
            return
        self._push_once(lambda: EditScreen(entry, duplicate=duplicate))

    @work(group="import", exclusive=True, exit_on_error=False)
    async def open_command(self, command: str) -> None:
        from tui.screens.edit import EditScreen
        from tui.screens.import_command import entry_of_command

        below = self.screen
        if (entry := await entry_of_command(self, self, command)) is not None and self.screen is below:
            form = EditScreen(entry)
            await (self.switch_screen(form) if isinstance(below, EditScreen) else self.push_screen(form))

    def open_check(self, entry: ProfileEntry) -> None:
        from tui.screens.check import CheckScreen

        if (profile := entry.profile) is not None:
            self._push_once(lambda: CheckScreen(entry, profile))

    @work(group="trust", exclusive=True, exit_on_error=False)
    async def launch_entry(self, entry: ProfileEntry) -> None:
        from tui.screens.trust import ask_for_trust

        if (profile := entry.profile) is None:
            return
        if (await off_loop(self.engine.permit, entry)).may_start or (
            await ask_for_trust(self, self.engine, entry)
        ).may_start:
            await off_loop(self.engine.trust, entry)
            self.launch(profile)

    def _push_once(self, make: Callable[[], DeckScreen]) -> None:
        """Opens a screen above another one, only once even if its key was pressed several times."""
        screen = make()
        if not self.screen.is_modal and type(self.screen) is not type(screen):
            self.push_screen(screen)

    def profile_saved(self, name: str) -> None:
        self._home.lists.wanted = name

    def launch(self, profile: Profile) -> None:
        if not self._launching:
            self._launching = True
            self.say(f"launching {plain_line(profile.name)}", seconds=2)
            self._launch(profile)

    @work(group="launch", exit_on_error=False)
    async def _launch(self, profile: Profile) -> None:
        try:
            run = await self.engine.launch(profile)
        except RankdeckError as error:
            self.show_error(f"{plain_line(profile.name)} was not launched", error)
        else:
            self.open_run(run)
        finally:
            self._launching = False

    def choose_theme(self, name: str) -> None:
        self.theme = name
        if not self.read_only:
            self._keep_theme(name)

    @work(group="theme", exclusive=True, exit_on_error=False)
    async def _keep_theme(self, name: str) -> None:
        try:
            path = await off_loop(self.engine.keep_settings, {("theme",): name})
        except RankdeckError as error:
            self.show_error(f"theme {name} is for this session only", error)
        else:
            self.say(f"theme {name}, kept in {path}")

    def keep_look(self, **fields: object) -> None:
        look = msgspec.structs.replace(self.look, **fields)
        if look != self.look and not self.read_only:
            self.look = look
            self._unkept_look |= {("look", field): value for field, value in fields.items()}
            self._keep_look()

    @work(group="look", exclusive=True, exit_on_error=False)
    async def _keep_look(self) -> None:
        await asyncio.sleep(LOOK_SECONDS)
        try:
            await self._write_look()
        except RankdeckError as error:
            self.show_error("The look is for this session only", error)

    async def _write_look(self) -> None:
        """Writes the changes. Raises RankdeckError: they can't be written. They are not tried again."""
        if values := dict(self._unkept_look):
            try:
                await off_loop(self.engine.keep_settings, values)
            finally:
                left = {key: value for key, value in self._unkept_look.items() if (key, value) not in values.items()}
                self._unkept_look = left

    async def on_unmount(self) -> None:
        """Writes changes made just before the end. Kills the user's command for notices, if it runs, and waits for its end."""
        with contextlib.suppress(RankdeckError):
            await self._write_look()
        for telling in self.workers.cancel_group(self, "notify"):
            with contextlib.suppress(WorkerError, TimeoutError):
                async with asyncio.timeout(END_SECONDS):
                    await telling.wait()

    def choose_from(self, options: Mapping[str, str], act: Callable[[str], object], what: str) -> None:
        from tui.commands import choices

        self._open_palette(f"part of the name of {what}", [choices(options, act)])

    def copy_to_clipboard(self, text: str) -> None:
        self._copy(text)  # Textual's own is silent, and does nothing in most terminals of tmux

    @work(group="copy", exclusive=True, exit_on_error=False)
    async def _copy(self, text: str) -> None:
        place = await off_loop(place_of, text)
        if place == "tmux":
            self._clipboard = text
        elif place == "terminal":
            super().copy_to_clipboard(text)
        lines = count(text.count("\n") + 1, "line")
        self.say(f"{lines} {COPIED[place]}", error=place == "nowhere")

    def say(self, text: str, *, error: bool = False, seconds: float | None = None) -> None:
        # After the messages of earlier `notify` calls, so that only the newest notice stays.
        self.call_later(self.clear_notifications)
        self.notify(text, severity="error" if error else "information", markup=False, timeout=seconds)

    def show_error(self, title: str, error: RankdeckError) -> None:
        from tui.screens.confirm import NoticeScreen

        self.push_screen(NoticeScreen(title, error))

    def leave(self, parting: str | None = None) -> None:
        self.parting = parting
        self.exit()

    # --- keys that work everywhere ------------------------------------------------------------------------------------

    def action_show_help(self) -> None:
        from tui.screens.help import HelpScreen

        if not isinstance(self.screen, HelpScreen):
            own = self.focused._bindings.key_to_bindings.values() if self.focused is not None else ()
            places = {(key.id or "").partition(".")[0] for keys in own for key in keys} - {"list"}
            self.push_screen(HelpScreen(places))

    def action_command_palette(self) -> None:
        self._open_palette("part of a command's name")

    def _open_palette(self, placeholder: str, providers: Sequence[type[Provider]] | None = None) -> None:
        """Textual's own placeholder is not ASCII."""
        if not isinstance(self.screen, CommandPalette):
            self.push_screen(CommandPalette(providers, placeholder=placeholder, id="--command-palette"))

    def action_hint(self) -> None:
        """Explains which key leaves: ctrl+c ends nothing."""
        back, stop = first_key("home.quit", self.keymap), first_key("run.stop", self.keymap)
        self.say(f"{back} goes back or leaves. Runs keep running without this app; {stop} in a run stops it.")

    def action_leave(self) -> None:
        """Ends the app from any screen and prints which runs keep running. A form with changes asks first."""
        from tui.screens.edit import EditScreen

        if isinstance(self.screen, EditScreen) and self.screen.form.is_changed:
            self.screen.action_back()
            return
        partings = [screen.parting for screen in reversed(self.screen_stack) if isinstance(screen, DeckScreen)]
        self.leave(next(filter(None, partings), None))

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        if event.state is WorkerState.ERROR:
            self.say(f"{event.worker.group}: {event.worker.error}", error=True)
