"""What the three destructive keys ask, and what is done on a yes. The words name the target and say what happens."""

from __future__ import annotations

import signal
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, NamedTuple

from engine.client import RunClient
from engine.core.view import RankView, RunView
from tui.screens.confirm import ConfirmScreen


class Act(NamedTuple):
    """A question, and the request that a yes to it makes."""

    question: str
    detail: str
    do: str
    request: Callable[[], Coroutine[Any, Any, str]]

    def screen(self) -> ConfirmScreen:
        """The question on a screen; its default is to do nothing."""
        return ConfirmScreen(self.question, self.detail, do=self.do)


def restart_act(run: RunView, client: RunClient) -> Act:
    """A new attempt, in the words of whoever will do it."""
    return Act(f"Restart {run.name}?", f"This will {run.restart}.", "Restart", client.restart)


def kill_act(view: RankView, client: RunClient) -> Act:
    """SIGKILL to one rank."""
    detail = (
        f"SIGKILL goes to the process group of pid {view.pid}: it can save nothing any more. "
        "The run then does what its profile says about a failed rank."
    )
    kill = partial(client.kill, view.rank, signal.SIGKILL)
    return Act(f"Kill rank {view.rank} on {view.node}?", detail, "Kill", kill)


def stop_act(run: RunView, client: RunClient) -> Act:
    """The end of a run by its stop ladder; of one that is stopping, at once."""
    if run.doing.startswith("stopping"):
        detail = f"It is stopping already. SIGKILL goes to the {run.alive} ranks that are left: they can save nothing."
        return Act(f"End {run.name} at once?", detail, "End at once", partial(client.stop, at_once=True))
    detail = (
        f"Its {run.alive} ranks are asked to end, and after a while made to, as its profile says. It can be restarted."
    )
    return Act(f"Stop {run.name}?", detail, "Stop", client.stop)
