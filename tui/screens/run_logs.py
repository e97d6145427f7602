"""The log on the run screen: its rank, the lines shown, and the actions on it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from engine.client.editor import Frame, editor_command, pager_command
from engine.core.words import count
from tui.data.log.choice import LogChoice
from tui.data.log.saving import save_lines, save_text
from tui.data.model import RunModel
from tui.data.off_loop import off_loop
from tui.data.run_link import RunLink
from tui.screens.base import DeckScreen
from tui.screens.confirm import AskScreen
from tui.screens.outside import run_outside
from tui.text.cells import plain_line
from tui.widgets.log_rows import head
from tui.widgets.log_view import LogView


class RunLogs:
    """The log of the rank under the cursor, or of several ranks."""

    def __init__(self, screen: DeckScreen, link: RunLink, model: RunModel, rank: Callable[[], int | None]) -> None:
        self._screen, self._link, self._model, self._rank = screen, link, model, rank
        self.choice = LogChoice()

    @property
    def view(self) -> LogView:
        return self._screen.query_one(LogView)

    def show(self) -> None:
        """Shows the chosen files of the rank under the cursor; nothing happens where they are shown already."""
        rank, run, client = self._rank(), self._model.run, self._link.client
        if client is not None and run is not None and rank is not None:
            view = self._model.rank(rank)
            chosen = self.choice.choose(client, run, rank, view.node if view is not None else "?")
            if chosen is not None:
                self.view.show(chosen.log, plain_line(chosen.title))

    def action_other_stream(self) -> None:
        self.choice.next_streams()
        self.show()

    def action_fold(self) -> None:
        self.choice.toggle_folds()
        self.show()

    def action_follow(self) -> None:
        self.view.action_follow()

    def action_next_match(self) -> None:
        self.view.action_next_match()

    def action_previous_match(self) -> None:
        self.view.action_previous_match()

    # --- other attempts, other programs, a file ----------------------------------------------------------------------

    def action_attempt(self, step: int) -> None:
        run = self._model.run
        if run is None or not run.attempt:
            return
        shown = self.choice.attempt_of(run) + step
        if 0 <= shown <= run.attempt:
            self.choice.attempt = None if shown == run.attempt else shown
            self.show()
        else:
            self._screen.say("there is no earlier attempt" if step < 0 else "this is the newest attempt")

    def action_log_pager(self) -> None:
        self._open_files(lambda files: pager_command(), "pager; set PAGER")

    def action_log_editor(self) -> None:
        self._open_files(lambda files: (editor_command(Frame(str(files[0]), 1)) or [])[:-1], "editor; set EDITOR")

    def _open_files(self, command_for: Callable[[list[Path]], list[str] | None], missing: str) -> None:
        client, run, rank = self._link.client, self._model.run, self._rank()
        known = client is not None and run is not None and rank is not None
        files = self.choice.files(client, run, rank) if known else []  # type: ignore[arg-type]
        if not files:
            self._screen.say("this rank has written nothing", error=True)
        elif not (command := command_for(files)):
            self._screen.say(f"there is no {missing}", error=True)
        else:
            said = run_outside(self._screen.app, [*command, *map(str, files)], "")
            if said.is_error:
                self._screen.say(said.text, error=True)

    def action_save_log(self) -> None:
        """Asks for a file, and writes the selection into it, or every line that the filter lets through."""
        selected, log = self._screen.get_selected_text(), self.view.shown.log
        if log is None:
            return
        copied = log.copy(folds=False)
        what = "every line that the filter lets through" if self.view.is_filtered else "all of it"
        detail = f"Writes {'what is selected' if selected else what}, without colours."

        def answered(name: str | None) -> None:
            if name:
                path = Path(name).expanduser().absolute()
                write = partial(save_text, path, selected) if selected else partial(save_lines, path, copied, head)
                self._screen.begin(partial(write_file, self._screen, path, write, "line"), "save")

        name = f"{self._link.run}.log"
        self._screen.app.push_screen(AskScreen("Save the log as", name, detail), answered)


async def write_file(screen: DeckScreen, path: Path, write: Callable[[], int], what: str) -> None:
    name = plain_line(str(path))
    try:
        written = await off_loop(write)
    except FileExistsError:
        screen.say(f"{name} exists already; nothing was written", error=True)
    except OSError as error:
        screen.say(f"{name} can't be written: {error.strerror}", error=True)
    else:
        screen.say(f"{count(written, what)} written to {name}")
