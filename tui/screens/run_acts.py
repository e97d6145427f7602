"""What the three destructive keys ask, and what is done on a yes. The words name the target and say what happens."""

from __future__ import annotations

import signal
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, NamedTuple

from engine.client.protocols import RunClient
from engine.core.views.view import RankView, RunView
from engine.core.words import rank_words
from tui.screens.confirm import ConfirmScreen


class Act(NamedTuple):
    """A question, and the request that a yes to it makes. `stops`: whether the run ends by it.
    `restarts`: whether what it does depends on which ranks are alive by then."""

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
    """A rejoin or a new attempt, in the words of whoever will do it."""
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
        "The run then does what launch.on_failure in its profile says."
    )
    kill = partial(client.kill, view.rank, signal.SIGKILL)
    return Act(f"Kill rank {view.rank} on {view.node}?", detail, "Kill", kill)


def stop_act(run: RunView, client: RunClient, *, again: bool) -> Act:
    """Ends a run by its stop ladder.

    Args:
        run: the run.
        client: the connection to it.
        again: the run is stopping already: it is ended at once.
    """
    if again:
        left = _ranks("the", run.alive)
        detail = f"It is stopping already. SIGKILL goes to {left} still alive: nothing can be saved any more."
        if run.alive == 0:
            detail = "It is stopping already, and none of its ranks is alive. What is left of it is ended at once."
        return Act(f"End {run.name} at once?", detail, "End at once", partial(client.stop, at_once=True), stops=True)
    asked = f"{_ranks('Its', run.alive)} {'is' if run.alive == 1 else 'are'} asked to end, and after a while made to"
    detail = f"{asked}, as its profile says. It can be restarted."
    if run.alive == 0:
        detail = "None of its ranks is alive: it ends as it is. It can be restarted."
    return Act(f"Stop {run.name}?", detail, "Stop", client.stop, stops=True)


def _ranks(whose: str, count: int) -> str:
    """Ranks in words: `Its rank`, `Its 4 ranks`."""
    return f"{whose} rank" if count == 1 else f"{whose} {count} ranks"
