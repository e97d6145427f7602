"""Messages between a front end and a supervisor: one JSON object a line.

client      Hello, then any of Subscribe, Stop, Restart, Kill, AskStacks
supervisor  Welcome or Refused, then an Answer (or Stacks) to each request in order, and, after Subscribe, Snapshot and Updates
"""

import msgspec

from engine.core.failures.stacks import RankStack
from engine.core.run.events import Scope
from engine.core.views.view import Snapshot, Update

ENDING = "the run is ending; ask again in a moment"  # answer to a request that comes after a run's last event


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """One line."""


class Hello(Message, frozen=True, kw_only=True, tag="hello"):
    """The first line of a client."""

    protocol: int
    version: str


class Subscribe(Message, frozen=True, kw_only=True, tag="subscribe"):
    """Send a snapshot, then what changes."""


class Stop(Message, frozen=True, kw_only=True, tag="stop"):
    """End the run; see `StopRequested`, which has the same fields."""

    by: str
    at_once: bool = False
    again: bool = False
    by_job: bool = False


class Restart(Message, frozen=True, kw_only=True, tag="restart"):
    """Restart ranks; see `RestartRequested`, which has the same fields."""

    by: str
    scope: Scope = "smallest"
    attempt: int | None = None
    generation: int | None = None


class Kill(Message, frozen=True, kw_only=True, tag="kill"):
    """Send a signal to a rank; see `KillRequested`, which has the same fields."""

    by: str
    rank: int
    signal: int
    pid: int | None = None


class AskStacks(Message, frozen=True, kw_only=True, tag="ask_stacks"):
    """Show the Python stacks of every rank."""


Request = Subscribe | Stop | Restart | Kill | AskStacks


class Welcome(Message, frozen=True, kw_only=True, tag="welcome"):
    """The first line of a supervisor."""

    protocol: int
    version: str
    run: str
    pid: int


class Refused(Message, frozen=True, kw_only=True, tag="refused"):
    """The supervisor does not serve this client, or can't do what it asks. `defect`: an error of the supervisor itself. `version`: the
    supervisor's, if it speaks another protocol than the client."""

    reason: str
    defect: bool = False
    version: str = ""


class Answer(Message, frozen=True, kw_only=True, tag="answer"):
    """The answer to a request. `done`: False if it was ignored; `text` has the reason. `ending`: the request came after the run's last
    event; the next supervisor may accept it. `early`: the rank is about to start; the same request may be accepted then. `refused`: the
    request is not carried out; else it is already under way."""

    text: str
    done: bool
    ending: bool = False
    early: bool = False
    refused: bool = False


class Stacks(Message, frozen=True, kw_only=True, tag="stacks"):
    """The stacks of every rank."""

    ranks: tuple[RankStack, ...]


Reply = Welcome | Refused | Answer | Stacks | Snapshot | Update
