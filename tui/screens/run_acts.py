"""The keys that change a run: restart, kill, stop. Each asks first; the question names the target and says what happens."""

import signal
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, NamedTuple

from engine.client.editor import Frame, frame_to_edit
from engine.client.protocols import RunClient
from engine.core.errors import RankdeckError
from engine.core.views.view import RankView, RunView
from engine.core.words import rank_words
from tui.data.model import RunModel
from tui.data.run_link import RunLink
from tui.keys import first_key
from tui.screens.base import DeckScreen
from tui.screens.confirm import ConfirmScreen
from tui.screens.outside import open_in_editor
from tui.text.cells import plain_line


class Act(NamedTuple):
    """A question, and the request that follows a yes. `stops`: the request ends the run. `restarts`: its effect depends on
    which ranks are alive."""

    question: str
    detail: str
    do: str
    request: Callable[[], Coroutine[Any, Any, str]]
    stops: bool = False
    restarts: bool = False

    def screen(self) -> ConfirmScreen:
        """The question on a screen; its default is to do nothing."""
        return ConfirmScreen(self.question, self.detail, do=self.do)


def restart_act(run: RunView, client: RunClient) -> Act:
    """A rejoin or a new attempt; the supervisor has put its effect into words."""
    detail = f"This will {run.restart}."
    request = partial(client.restart, attempt=run.attempt, generation=run.generation)
    if run.restart_kind == "rejoin":
        ranks = rank_words(run.restart_ranks)
        return Act(f"Bring back {ranks} of {run.name}?", detail, "Bring back", request, restarts=True)
    return Act(f"Restart {run.name}?", detail, "Restart", request, restarts=True)


def again_question(run: RunView) -> ConfirmScreen:
    """Asks before a run that has succeeded is launched again, as a new run."""
    detail = f"{run.name} has succeeded. Its profile is launched as a new run; this one stays as it is."
    return ConfirmScreen(f"Run {run.name} again?", detail, do="Launch")


def kill_act(view: RankView, client: RunClient) -> Act:
    """SIGKILL to one rank."""
    detail = (
        f"SIGKILL goes to the process group of pid {view.pid}: it can't save anything. "
        "launch.on_failure of the profile decides what follows."
    )
    kill = partial(client.kill, view.rank, signal.SIGKILL, pid=view.pid)
    return Act(f"Kill rank {view.rank} on {view.node}?", detail, "Kill", kill)


def stop_act(run: RunView, client: RunClient, *, again: bool) -> Act:
    """Ends a run by its stop ladder; `again`: it is stopping already, and is ended at once."""
    if again:
        left = _ranks("the", run.alive)
        detail = f"It is stopping already. SIGKILL goes to {left} still alive: nothing can be saved any more."
        if run.alive == 0:
            detail = (
                "It is stopping already, and none of its ranks is alive. Its other processes are killed immediately."
            )
        return Act(f"End {run.name} at once?", detail, "End at once", partial(client.stop, at_once=True), stops=True)
    gets = f"{_ranks('Its', run.alive)} {'gets' if run.alive == 1 else 'get'}"
    detail = f"{gets} the signals of launch.stop_ladder one after the other; the last is SIGKILL. You can restart it."
    if run.alive == 0:
        detail = "None of its ranks is alive, so it ends immediately. You can restart it."
    return Act(f"Stop {run.name}?", detail, "Stop", client.stop, stops=True)


def _ranks(whose: str, count: int) -> str:
    """Ranks in words: `Its rank`, `Its 4 ranks`."""
    return f"{whose} rank" if count == 1 else f"{whose} {count} ranks"


class _Asking(NamedTuple):
    """A question that is open, the run as it was then, and what makes the question for the run as it is now."""

    screen: ConfirmScreen
    run: RunView
    act: Act
    make: Callable[[RunView], Act]


def _changed(asked: RunView, now: RunView, before: Act, act: Act) -> str:
    """Why an answer no longer is one to the question that was asked; empty: it is."""
    if now.attempt != asked.attempt:
        return f"attempt {now.attempt} has begun"
    if now.generation != asked.generation:
        return f"generation {now.generation} has begun"
    if act.restarts and now.restart_kind != asked.restart_kind:
        return "what a restart does has changed"
    return "what it does has changed" if act.do != before.do else ""


class RunActs:
    """The keys that change a run. `rank`: tells which rank is under the cursor; None where a filter shows none. `again`: launches the run
    again, as a new run. `watch`: begins to follow a run that had ended."""

    def __init__(
        self,
        screen: DeckScreen,
        link: RunLink,
        model: RunModel,
        rank: Callable[[], int | None],
        *,
        again: Callable[[], None],
        watch: Callable[[], object],
    ) -> None:
        self._screen, self._link, self._model, self._rank = screen, link, model, rank
        self._again, self._watch = again, watch
        self._requesting = False  # whether a request is unanswered: no other is made meanwhile
        self._asking: _Asking | None = None  # the question that is open
        self._stopped: int | None = None
        """The attempt that was stopped from here, before the supervisor reports that it is stopping."""

    def offers(self, action: str) -> bool:
        """Whether `restart`, `stop`, `kill` or `editor` would do something now."""
        run = self._model.run
        if action == "editor":
            return self._frame_to_edit() is not None
        if run is None or self._link.client is None or self._requesting:
            return False
        if action == "restart":
            return run.restart_kind != "none" or run.state == "succeeded"
        view = self._model.rank(self._rank())
        can_kill = view is not None and view.pid is not None and view.exit is None
        return not self._model.ended and (action != "kill" or can_kill)

    def action_restart(self) -> None:
        """Asks, then restarts; a run that has succeeded is launched again as a new run."""
        run = self._model.run
        if run is None or self._link.client is None:
            return
        if run.state == "succeeded":
            self._screen.ask(again_question(run), self._again)
        else:
            self._ask(partial(restart_act, client=self._link.client))

    def action_kill(self) -> None:
        view = self._model.rank(self._rank())
        if view is not None and self._link.client is not None:
            act = kill_act(view, self._link.client)
            self._ask(lambda _: act)

    def action_stop(self) -> None:
        """Asks, then stops the run; one that is stopping already is ended at once."""
        if self._model.run is not None and self._link.client is not None:
            client = self._link.client
            self._ask(lambda run: stop_act(run, client, again=self.is_stopping))

    def action_editor(self) -> None:
        """Opens the file in which the failure's traceback ends, or in which ranks hang, in the user's editor; the app waits for it."""
        if (frame := self._frame_to_edit()) is None:
            return
        said = open_in_editor(
            self._screen.app, frame, f"; {first_key('run.restart', self._screen.deck.keymap)} restarts"
        )
        self._screen.say(said.text, error=said.is_error)

    def _frame_to_edit(self) -> Frame | None:
        run = self._model.run
        if run is not None and run.failure is not None:
            return frame_to_edit(run.failure.traceback)
        place = run.stall.place if run is not None and run.stall is not None else None
        return None if place is None else Frame(*place)

    def _ask(self, make: Callable[[RunView], Act]) -> None:
        """Asks. `make`: the question and the request for the run as it is now."""
        asked = self._model.run
        assert asked is not None
        act = make(asked)

        def answered(yes: bool | None) -> None:
            self._asking = None
            now = self._model.run
            if not yes or now is None:
                return
            if change := _changed(asked, now, act, make(now)):
                self._screen.say(f"{change} in the meantime; nothing was changed", error=True)
            else:
                self._screen.begin(partial(self._request, make(now)), "request")

        self._asking = _Asking(act.screen(), asked, act, make)
        self._screen.app.push_screen(self._asking.screen, answered)

    def update_question(self) -> None:
        """Lets a question that is open say what holds now: another rank may have failed since it was asked."""
        asking, now = self._asking, self._model.run
        if asking is None or now is None:
            return
        act = asking.make(now)
        if change := _changed(asking.run, now, asking.act, act):
            asking.screen.show(
                asking.act.question, f"{change.capitalize()} in the meantime: a yes changes nothing. Ask again."
            )
        else:
            asking.screen.show(act.question, act.detail)

    async def _request(self, act: Act) -> None:
        if self._requesting:
            return
        self._requesting = True
        self._screen.refresh_bindings()
        over = self._model.ended
        self._stopped = self._model.attempt if act.stops else None
        try:
            self._screen.say(plain_line(await act.request()))
        except RankdeckError as error:
            self._stopped = None
            self._screen.deck.show_error(f"{act.question} This failed.", error)
        else:
            if over:
                self._watch()
        finally:
            self._requesting = False
            self._screen.refresh_bindings()

    @property
    def is_stopping(self) -> bool:
        """Whether the run is stopping, or will stop because of a request from this screen."""
        run = self._model.run
        return run is not None and (run.activity == "stopping" or self._stopped == run.attempt)
