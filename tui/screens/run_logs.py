"""The log on the run screen: whose it is, which lines of it are shown, and what else can be done with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from textual import on, work
from textual.widgets import Input

from engine.core.words import count
from tui.data.editor import Frame, editor_command, pager_command
from tui.data.log_saving import save_lines, save_text
from tui.data.off_loop import off_loop
from tui.screens.confirm import AskScreen
from tui.screens.outside import run_outside
from tui.screens.run_ranks import RanksScreen
from tui.text.cells import plain_line
from tui.widgets.cursor_view import CursorView
from tui.widgets.run_log import RunLog


class LogScreen(RanksScreen):
    """A screen with the log of the rank under the cursor, or of several ranks."""

    @on(CursorView.Moved)
    def _rank_highlighted(self) -> None:
        self.show_log()
        self.refresh_bindings()

    def show_log(self) -> None:
        """Shows the files of the rank under the cursor, or of all ranks, of this attempt."""
        rank = self.rank
        view = self.model.rank(rank)
        if self.link.client is not None and self.model.run is not None and rank is not None:
            node = view.node if view is not None else "?"
            self.query_one(RunLog).show_run(self.link.client, self.model.run, rank, node)

    def action_other_stream(self) -> None:
        self.query_one(RunLog).next_streams()
        self.show_log()

    def action_fold(self) -> None:
        self.query_one(RunLog).toggle_folds()
        self.show_log()

    def action_follow(self) -> None:
        self.query_one(RunLog).action_follow()

    @on(Input.Changed, "#search")
    def _search_changed(self, event: Input.Changed) -> None:
        self.query_one(RunLog).search(event.value)

    @on(Input.Changed, "#log-filter")
    def _log_filter_changed(self, event: Input.Changed) -> None:
        self.query_one(RunLog).filter(event.value)

    def action_next_match(self) -> None:
        self.query_one(RunLog).next_match()

    def action_previous_match(self) -> None:
        self.query_one(RunLog).previous_match()

    # --- other attempts, other programs, a file ----------------------------------------------------------------------

    def action_attempt(self, step: int) -> None:
        """Shows the log of the attempt before, or of the one after."""
        log, run = self.query_one(RunLog), self.model.run
        if run is None or not run.attempt:
            return
        shown = log.attempt_of(run) + step
        if 0 <= shown <= run.attempt:
            log.attempt = None if shown == run.attempt else shown
            self.show_log()
        else:
            self.say("there is no earlier attempt" if step < 0 else "this is the newest attempt")

    def action_log_pager(self) -> None:
        """Opens what the rank has written in the user's pager; the app waits for it."""
        self._open_files(pager_command(), "pager; set PAGER")

    def action_log_editor(self) -> None:
        """The same in the user's editor."""
        files = self._log_files()
        command = editor_command(Frame(str(files[0]), 1)) if files else []
        self._open_files(command and command[:-1], "editor; set EDITOR")

    def _open_files(self, command: list[str] | None, missing: str) -> None:
        files = self._log_files()
        if not files:
            self.say("this rank has written nothing", error=True)
        elif command is None:
            self.say(f"there is no {missing}", error=True)
        else:
            said = run_outside(self.app, [*command, *map(str, files)], "")
            if said.is_error:
                self.say(said.text, error=True)

    def _log_files(self) -> list[Path]:
        """The files of the rank under the cursor that have something in them."""
        client, run, rank = self.link.client, self.model.run, self.rank
        if client is None or run is None or rank is None:
            return []
        log = self.query_one(RunLog)
        files = [client.log_path(log.attempt_of(run), rank, stream) for stream in log.streams]
        return [file for file in files if file.is_file() and file.stat().st_size]

    def action_save_log(self) -> None:
        """Asks for a file, and writes into it what is selected, or every line that the filter lets through."""
        log = self.query_one(RunLog)
        selected, copied = self.get_selected_text(), log.copied()
        if copied is None:
            return
        what = "every line that the filter lets through" if log.is_filtered else "all of it"
        detail = f"Writes {'what is selected' if selected else what}, without colours."

        def answered(name: str | None) -> None:
            if name:
                path = Path(name).expanduser().absolute()
                write = partial(save_text, path, selected) if selected else partial(save_lines, path, copied, log.head)
                self.write_file(path, write, "line")

        self.app.push_screen(AskScreen("Save the log as", f"{self.run_id}.log", detail), answered)

    @work(group="save", exit_on_error=False)
    async def write_file(self, path: Path, write: Callable[[], int], what: str) -> None:
        """Writes a file and says so.

        Args:
            path: of the file.
            write: writes it, and returns how much it has of `what`.
            what: in the singular.
        """
        name = plain_line(str(path))
        try:
            written = await off_loop(write)
        except FileExistsError:
            self.say(f"{name} exists already; nothing was written", error=True)
        except OSError as error:
            self.say(f"{name} can't be written: {error.strerror}", error=True)
        else:
            self.say(f"{count(written, what)} written to {name}")
