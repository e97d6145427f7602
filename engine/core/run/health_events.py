"""Reactions to ranks that hang and to losses that are not finite, and whose signal ended a rank."""

from msgspec.structs import replace

from engine.core.run import actions as act
from engine.core.run import events as ev
from engine.core.run import state as st
from engine.core.run.events import AnyEvent
from engine.core.run.moves import Step, ignore, stop

SIGKILL = 9

ON_NAN = "launch.on_nan"
"""Stands for the user whose signal ended a rank. If it ends a rank, the user decides what follows, whatever `launch.on_failure` says."""

STAYED = "exception"
"""Stands for the user whose signal ended a rank that stayed after the exception which ended its main thread."""

MOST_NOTICES = 500  # lines of the story about health: ranks that hang again and again would fill the journal


def health_noticed(state: st.RunState, event: ev.HealthNoticed) -> Step:
    """Ends the run, or the ranks whose loss is not finite, as the profile says."""
    match state.phase:
        case st.Running() | st.Holding() | st.Starting():
            if event.policy == "finish":
                return stop(state, st.Outcome(word="stopped", reason=event.text, is_early=True), event.at)
            if event.policy == "stop":
                return stop(state, st.Outcome(word="failed", reason=f"{event.text} ({ON_NAN})"), event.at)
            if event.policy == "ignore" and state.notices >= MOST_NOTICES:
                return ignore(state, "its health was reported several times already")
            late = event if event.kind in ("early", "waits") else state.late
            state = replace(state, notices=state.notices + 1, late=late)
            ranks = [one for one in event.ranks if one < len(state.ranks) and isinstance(state.ranks[one], st.Alive)]
            if event.policy == "ignore" or not ranks:
                return state, ()
            return state, tuple(
                act.SignalRank(node=state.node_of(rank).name, attempt=state.attempt, rank=rank, signal=SIGKILL)
                for rank in ranks
            )
        case st.Opening() | st.Stopping() | st.Clearing() | st.Closing() | st.Ended():
            return ignore(state, "the ranks do not train any more")


class Kills:
    """The newest signal that a user sent to each process of a rank. It explains only the end of that process."""

    def __init__(self) -> None:
        self._newest: dict[int, tuple[str, int]] = {}  # (user, signal) by rank

    def take(self, event: AnyEvent) -> None:
        """Notes a signal, or the end of a rank."""
        match event:
            case ev.KillRequested():
                self._newest[event.rank] = event.by, event.signal
            case ev.HealthNoticed(policy="hold"):
                self._newest |= dict.fromkeys(event.ranks, (ON_NAN if event.kind == "nan" else STAYED, SIGKILL))
            case ev.RankSpawned() | ev.RankEnded() | ev.RankLost():
                self._newest.pop(event.rank, None)

    def sender(self, rank: int, status: int) -> str:
        """The user whose signal ended a rank; empty: no user sent one."""
        by, number = self._newest.get(rank, ("", 0))
        return by if number == -status else ""
