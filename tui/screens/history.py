"""The history: every run that is kept, sorted and filtered, to compare, launch again, annotate and remove."""

import time
from functools import partial

import msgspec
from textual import work
from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Static

from engine.core.errors import RankdeckError
from engine.core.numbers import size_words
from engine.core.run.state import ENDED_WORDS
from engine.core.views import history as past
from engine.core.views.history import HistoryEntry, sort_key
from engine.core.views.view import RunNote
from engine.core.words import count
from tui.data.off_loop import off_loop
from tui.keys import bindings, first_key
from tui.screens.base import DeckScreen
from tui.screens.confirm import AskScreen, ConfirmScreen
from tui.screens.relaunch import Relaunching
from tui.text.cells import plain_line
from tui.text.history import Look, group_table, history_details, history_heading, history_lines
from tui.widgets.headers import TitleBar
from tui.widgets.key_bar import KeyBar
from tui.widgets.line_list import LineList
from tui.widgets.search_line import SearchLine
from tui.widgets.text_pane import TextPane

SORTS = [
    *map(sort_key, ("launched", "duration", "state", "size", "starred"))
]  # the orders that a key goes through, before the metrics
READ_SECONDS = 5.0  # seconds after which runs are read again
MOST_NAMED = 8  # runs that the question names before they are removed


class HistoryList(LineList):
    BINDINGS = bindings("past")
    OPEN = "screen.watch"


class HistoryScreen(DeckScreen):
    BINDINGS = bindings("history")
    AUTO_FOCUS = "#history"

    def __init__(self) -> None:
        super().__init__()
        self._entries: list[HistoryEntry] | None = None
        self._shown: list[HistoryEntry] = []
        self._marked: set[str] = set()
        self._sort = SORTS[0]
        self._reverse = False
        self._settings: list[str] = []  # those that the shown sweep varies
        self._over = ""  # the setting in which the runs of a line differ; empty: each run has a line
        self._filter = ""
        self._is_reading = False
        self.add_parts(Relaunching(self, lambda: entry.summary if (entry := self._entry()) is not None else None))

    def compose(self) -> ComposeResult:
        yield TitleBar("History", ascii=self.deck.ascii)
        yield Static(id="heading", markup=False)
        yield HistoryList(id="history", empty="reading")
        yield TextPane(id="details", ascii=self.deck.ascii, focus=False)
        words = "words to look for; !word leaves out"
        yield SearchLine("history-filter", words, changed=self._filter_changed, done=self._filter_done)
        yield KeyBar()

    def on_mount(self) -> None:
        self._read()
        self.set_interval(READ_SECONDS, self._read_if_seen)

    def on_resize(self) -> None:
        self.call_after_refresh(self._show)

    def on_screen_resume(self) -> None:
        if self._entries is not None:
            self._read()

    @work(group="history", exit_on_error=False)
    async def _read(self) -> None:
        if self._is_reading:
            return
        self._is_reading = True
        try:
            self._entries = await off_loop(self.engine.history)
        finally:
            self._is_reading = False
        self._marked &= {entry.summary.run for entry in self._entries}
        self._show()

    def _read_if_seen(self) -> None:
        if self.is_current:
            self._read()

    # --- what is shown ------------------------------------------------------------------------------------------------

    @property
    def _list(self) -> HistoryList:
        return self.query_one(HistoryList)

    def _entry(self) -> HistoryEntry | None:
        chosen = self._list.chosen
        return next((entry for entry in self._shown if entry.summary.run == chosen), None)

    @property
    def _chosen(self) -> list[HistoryEntry]:
        """The marked runs in the order of the list; without marks, the one under the cursor."""
        entry = self._entry()
        marked = [one for one in self._entries or () if one.summary.run in self._marked]
        return marked or ([entry] if entry is not None else [])

    def _show(self) -> None:
        if self._entries is None or not self.is_mounted:
            return
        found = past.filter_history(self._entries, self._filter.split())
        self._shown = past.sort_history(found, self._sort, reverse=self._reverse)
        width = self._list.scrollable_content_region.width
        look = Look(width, self._sort, self._reverse, self._marked, self.deck.ascii, self.deck.units)
        self._list.say_when_empty("Nothing matches." if self._entries else "No runs yet. Launch a profile from home.")
        self._settings = past.swept_names(self._shown)
        if self._over in self._settings:
            ids, (heading, *groups) = group_table(self._shown, self._over, look)
            self._list.set_entries(ids, lambda most: groups[:most])
        else:
            heading, ids = history_heading(self._shown, look), [entry.summary.run for entry in self._shown]
            self._list.set_entries(ids, lambda most: history_lines(self._shown, look, most))
        self.query_one("#heading", Static).update(heading)
        size = sum(entry.size or 0 for entry in self._shown)
        marks = f", {len(self._marked)} marked" if self._marked else ""
        words = f" with {plain_line(self._filter)}" if self._filter.strip() else ""
        order = "newest first" if self._sort == SORTS[0] and not self._reverse else f"by {plain_line(self._sort.words)}"
        order = f"mean over {plain_line(self._over)}" if self._over in self._settings else order
        title = f"History{words}, {order}"
        self.query_one(TitleBar).show(title, f"{count(len(self._shown), 'run')}, {size_words(size)}{marks}")
        self._show_details()

    def _show_details(self) -> None:
        entry = self._entry()
        pane = self.query_one("#details", TextPane)
        ascii, units = self.deck.ascii, self.deck.units
        if entry is None:
            pane.show_text(lambda width: Content(""), title="")
        else:
            title = plain_line(entry.summary.run)
            pane.show_text(
                lambda width: history_details(entry, width, time.time(), ascii=ascii, units=units), title=title
            )
        self.refresh_bindings()

    def on_option_list_option_highlighted(self) -> None:
        self._show_details()

    # --- keys ---------------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "group":
            return bool(self._settings)
        if action == "clear":
            return bool(self._filter or self._marked)
        if action == "remove":
            return any(entry.summary.state in ENDED_WORDS for entry in self._chosen) if self.is_mounted else False
        if action in ("watch", "mark", "star", "note", "compare", "launch_again", "change_run", "change_arguments"):
            return self.is_mounted and self._entry() is not None
        return True

    def action_watch(self) -> None:
        if (entry := self._entry()) is not None:
            self.deck.open_run(entry.summary.run)

    def action_mark(self) -> None:
        """Marks the run under the cursor, or takes the mark away, and goes on to the next."""
        if (entry := self._entry()) is not None:
            self._marked ^= {entry.summary.run}
            self._show()
            if entry is not self._shown[-1]:
                self._list.action_cursor_down()

    def action_sort(self, step: int) -> None:
        """Goes on to the next order, or back: the columns, then each metric."""
        orders = [*past.sweep_keys(self._shown), *SORTS, *map(sort_key, past.metric_names(self._entries or ()))]
        self._sort = orders[(orders.index(self._sort) + step) % len(orders)] if self._sort in orders else orders[0]
        self._order(reverse=False)

    def action_group(self) -> None:
        """Goes on to another setting whose runs are one line, from the last one, which is often the seed; at last to none."""
        orders = ["", *self._settings[::-1]]
        self._over = orders[(orders.index(self._over) + 1) % len(orders)] if self._over in orders else orders[1]
        self._order(reverse=False)

    def action_reverse(self) -> None:
        self._order(reverse=not self._reverse)

    def _order(self, *, reverse: bool) -> None:
        """Shows the list in another order, from its first line: who sorts looks for what comes first."""
        self._reverse = reverse
        self._show()
        self._list.action_first()

    def action_compare(self) -> None:
        """Compares the marked runs; a single one with the run of the same name before it."""
        chosen = [entry.summary.run for entry in reversed(self._chosen)]
        entry = self._entry()
        if len(chosen) == 1 and entry is not None:
            same = [one.summary.run for one in self._entries or () if one.summary.name == entry.summary.name]
            at = same.index(chosen[0]) + 1 if chosen[0] in same else len(same)
            if at >= len(same):
                mark = first_key("past.mark", self.deck.keymap)
                self.say(f"{mark} marks another run to compare with; there is no run of this profile before it")
                return
            chosen = [same[at], chosen[0]]
        self.deck.open_compare(tuple(chosen))

    def action_star(self) -> None:
        if (entry := self._entry()) is not None:
            self._write_note(entry, msgspec.structs.replace(entry.note, starred=not entry.note.starred))

    def action_note(self) -> None:
        if (entry := self._entry()) is None:
            return

        def answered(text: str | None) -> None:
            if text is not None:
                self._write_note(entry, msgspec.structs.replace(entry.note, text=text))

        question = f"Note of {plain_line(entry.summary.run)}"
        self.app.push_screen(AskScreen(question, entry.note.text, "An empty note removes it.", empty=True), answered)

    @work(group="note", exit_on_error=False)
    async def _write_note(self, entry: HistoryEntry, note: RunNote) -> None:
        try:
            await off_loop(self.engine.write_note, entry.summary.run, note)
        except RankdeckError as error:
            self.deck.show_error("The note was not saved", error)
        self._read()

    def action_remove(self) -> None:
        """Asks, then removes the marked runs that have ended, or the one under the cursor."""
        chosen = [entry for entry in self._chosen if entry.summary.state in ENDED_WORDS]
        if not chosen:
            return
        names = "\n".join(plain_line(entry.summary.run) for entry in chosen[:MOST_NAMED])
        more = f"\nand {len(chosen) - MOST_NAMED} more" if len(chosen) > MOST_NAMED else ""
        size = size_words(sum(entry.size or 0 for entry in chosen))
        detail = f"Logs, curves and checkpoints are deleted: {size}.\n{names}{more}"
        question = ConfirmScreen(f"Delete {count(len(chosen), 'run')}?", detail, do="Delete")
        self.ask(question, partial(self._remove, chosen))

    @work(group="remove", exit_on_error=False)
    async def _remove(self, chosen: list[HistoryEntry]) -> None:
        for entry in chosen:
            try:
                await off_loop(self.engine.remove_run, entry.summary.run)
            except RankdeckError as error:
                self.deck.show_error(f"{plain_line(entry.summary.run)} was not deleted", error)
                break
        self._read()

    # --- the filter ---------------------------------------------------------------------------------------------------

    def action_filter(self) -> None:
        self.query_one(SearchLine).open()

    def action_clear(self) -> None:
        self.query_one(SearchLine).close()
        self._filter = ""
        self._marked.clear()
        self.set_focus(self._list)
        self._show()

    def _filter_changed(self, words: str) -> None:
        self._filter = words
        self._show()

    def _filter_done(self, words: str) -> None:
        self.query_one(SearchLine).display = bool(words)
        self.set_focus(self._list)
