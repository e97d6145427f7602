"""The state machine, told as stories: what happens to a run, and what it does then, in `tests/data/runs/*.txt`.

A story begins with `# ` and a fact; then one step stands on each line:

    each NAMES VALUES…          the story is told once for each; `{NAME}` stands for the value, and `~` in it for a space
    nodes a:0,1 b:2 …           a run with these ranks on these nodes; the arguments of `Story` follow
    rejoining …                 `rejoining()`; `left_its_job`: a run that waits for another job
    run, end 2 -9, join …       methods of `Story`; `restart soon=1`: so many seconds after the newest generation has begun
    StoreLost reason=x …        events; `back NODE RANK:STATUS…`: a node connects again and knows these ranks; `continue NODES`: in another job

After it come looks:

    does ACTION; ACTION         what follows from the last event, or `nothing`; `also ACTION`: among others
    ignored, same               the last event has no effect; the state is as before
    is WORD, phase NAME THEN, then REASON, ends WORD REASON, no_restart REASON, cause RANK, refuses yes     of the run; `…` ends a beginning
    ranks WORDS, pids PIDS, generations NUMBERS, waits NUMBERS, apart RANKS, on NODES, state FIELD=VALUE…   of its ranks, its nodes and the rest
    says TEXT, activity TEXT, why TEXT, patience NAME, replays                                         what is told, and what a rejoin waits for
"""

import ast
import re
import shlex
from collections.abc import Callable
from typing import Any

import pytest

from engine.core.metrics.progress import RankProgress
from engine.core.run import actions as act
from engine.core.run import events as ev
from engine.core.run import rejoin
from engine.core.run import state as st
from engine.core.run.health_events import Kills
from engine.core.run.machine import replay
from engine.core.run.moves import UNREACHABLE_PATIENCE
from engine.core.run.requests import refuses_restart
from engine.core.views.activity import current_activity
from engine.core.views.story import tell_all
from tests.run_story import TWO, Story, rejoining
from tests.support import ROOT

LIMITS = {name: getattr(rejoin, name) for name in ("APART_LIMIT", "MEETING_LIMIT")} | {"none": None}


def stories() -> list[Any]:
    """All stories, as parameters of a test."""
    found = []
    for file in sorted((ROOT / "tests" / "data" / "runs").glob("*.txt")):
        for part in file.read_text(encoding="utf-8").removeprefix("# ").rstrip("\n").split("\n\n# "):
            fact, *steps = part.split("\n")
            names, values = [], [""]
            if steps[0].startswith("each "):
                _, joined, *values = steps.pop(0).split()
                names = joined.split(",")
            for one in values:
                cells = [cell.replace("~", " ") for cell in one.split(",")]
                told = [step.format(**dict(zip(names, cells, strict=True))) if names else step for step in steps]
                found.append(pytest.param(told, id=f"{file.stem}-{fact.replace(' ', '_')}{one and f'-{one}'}"))
    return found


def value(word: str) -> Any:
    """A literal of Python, or the word itself."""
    if word.startswith("frozenset"):
        return frozenset(ast.literal_eval(word[10:-1] or "()"))
    try:
        return ast.literal_eval(word)
    except (ValueError, SyntaxError):
        return rejoin.EXIT_TO_BE_REPLACED if word == "MAKES_WAY" else word


def arguments(words: str) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call that are written as words."""
    lexer = shlex.shlex(re.sub(r"(?<==)\((.*?)\)", r'"(\1)"', words), posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    pairs = [word.partition("=") for word in lexer]
    return [value(word) for word, equals, _ in pairs if not equals], {
        name: value(text) for name, equals, text in pairs if equals
    }


def nodes_of(words: list[str]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    pairs = (word.partition(":") for word in words)
    return tuple((name, tuple(map(int, ranks.split(",")))) for name, _, ranks in pairs)


def words_of(action: act.AnyAction) -> str:
    """An action in short: its attempt is told if it is not the first."""
    match action:
        case act.Ignore(reason=reason):
            return f"ignore {reason}"
        case act.SpawnRanks(node=node, ranks=ranks, generations=generations):
            said = f"spawn {node} {','.join(map(str, ranks))}"
            said += f" in {','.join(map(str, generations))}" if any(generations) else ""
        case act.TellRanks(number=number, news=news):
            said = f"tell {number} {' '.join(map(str, news))}"
        case act.SignalRank(rank=rank, signal=number):
            said = f"signal {rank} {number}"
        case act.OpenNode(node=node, patience=patience):
            assert patience in (None, UNREACHABLE_PATIENCE)
            return f"open {node}{'' if patience is None else ' for UNREACHABLE_PATIENCE'}"
        case act.CloseNode(node=node):
            return f"close {node}"
        case act.OpenStore(node=node):
            said = f"open_store {node}"
        case act.StopRanks(node=node, at_once=at_once) | act.ClearNode(node=node, at_once=at_once):
            said = f"{'stop' if isinstance(action, act.StopRanks) else 'clear'} {node}{' at once' if at_once else ''}"
    return f"{said} @{action.attempt}" if action.attempt else said


class Teller:
    """Tells one story."""

    story: Story
    before: st.RunState

    def happen(self, verb: str, words: str) -> None:
        """Something happens to the run."""
        if verb == "nodes":
            pairs = [word for word in words.split() if re.fullmatch(r"\w+:[\d,]+", word)]
            self.story = Story(nodes_of(pairs), **arguments(words)[1])
            return
        if verb in ("rejoining", "left_its_job"):
            stopped = verb == "left_its_job" and Story(TWO).run().stop(again=True).end(0, -2).end(1, -2).end(2, -2)
            self.story = stopped.clear().close() if stopped else rejoining(**arguments(words)[1])
            return
        story, (positional, named) = self.story, arguments(words)
        self.before = story.state
        match verb:
            case "back":
                node, *known = words.split()
                told = [
                    (int(rank), int(status) if status else None)
                    for rank, _, status in (k.partition(":") for k in known)
                ]
                ranks = tuple(
                    ev.KnownRank(attempt=0, rank=rank, pid=100 + rank, status=status) for rank, status in told
                )
                story.tell(ev.NodeConnected(at=story.at(), node=node, agent_pid=7, ranks=ranks))
            case "continue":
                story.tell(ev.RunContinued(at=story.at(), job="7", nodes=nodes_of(words.split())))
            case "restart" if named:
                begun = max(story.state.generation_since, story.state.attempt_since)
                story.tell(ev.RestartRequested(at=begun + named["soon"], by="alice"))
            case _ if verb[0].isupper():
                story.tell(getattr(ev, verb)(at=story.at(), **named))
            case _:
                getattr(story, verb)(*positional, **named)

    def looks(self, words: str) -> dict[str, Callable[[], tuple[object, object]]]:
        """By the verb of each look: what is so, and what should be."""
        story, state = self.story, self.story.state
        actions = [words_of(action) for action in story.actions]
        told = words.split()
        numbers = [int(word) for word in told] if re.fullmatch(r"[-\d ]*", words) else []
        cause = st.root_cause(state)

        def ended() -> tuple[object, object]:
            said = " ".join(story.outcome()).rstrip()
            return (said[: len(words) - 1], words[:-1]) if words.endswith("…") else (said, words)

        def phase() -> str:
            then = getattr(state.phase, "then", None)
            return (
                f"{type(state.phase).__name__} {type(then).__name__}"
                if then is not None
                else type(state.phase).__name__
            )

        return {
            "activity": lambda: (current_activity(state, [RankProgress()] * len(state.ranks)).words, words),
            "also": lambda: (words in actions, True),
            "apart": lambda: (rejoin.apart(state), numbers),
            "cause": lambda: (str(cause[0]) if cause else "none", words),
            "does": lambda: ("; ".join(actions) or "nothing", words),
            "ends": ended,
            "generations": lambda: ([state.generation_of(rank) for rank in range(len(state.ranks))], numbers),
            "ignored": lambda: (isinstance(story.actions[0], act.Ignore), True),
            "is": lambda: (st.run_word(state), words),
            "no_restart": lambda: (state.phase.outcome.no_restart, words),  # type: ignore[union-attr]
            "on": lambda: (tuple((node.name, node.ranks) for node in state.nodes), nodes_of(told)),
            "patience": lambda: (rejoin.patience(state), LIMITS[words]),
            "phase": lambda: (phase().split()[: len(told)], told),
            "pids": lambda: ([rank.pid for rank in state.ranks if isinstance(rank, st.Alive)], numbers),
            "ranks": lambda: ([st.rank_word(rank) for rank in state.ranks], told),
            "refuses": lambda: (bool(refuses_restart(state)), words == "yes"),
            "replays": lambda: (replay(story.journal), state),
            "same": lambda: (state, self.before),
            "says": lambda: (tell_all(story.journal)[-1].text, words),
            "state": lambda: ({name: getattr(state, name) for name in arguments(words)[1]}, arguments(words)[1]),
            "then": lambda: (state.phase.then.reason, words),  # type: ignore[union-attr]
            "waits": lambda: ([state.waits_of(rank) for rank in range(len(state.ranks))], numbers),
            "why": lambda: (
                words in rejoin.why_no_rejoin(state) if words else rejoin.why_no_rejoin(state),
                words and True,
            ),
        }


@pytest.mark.parametrize("steps", stories())
def test_a_run_does_what_a_story_tells(steps: list[str]) -> None:
    teller = Teller()
    for step in steps:
        verb, _, words = step.partition(" ")
        if hasattr(teller, "story") and verb in (looks := teller.looks(words)):
            found, wanted = looks[verb]()
            assert found == wanted, step
        else:
            teller.happen(verb, words)


# --- what no story can tell


@pytest.mark.parametrize("policy", ["hold", "restart"])
@pytest.mark.parametrize("status", [rejoin.EXIT_TO_BE_REPLACED, 1])
def test_ranks_that_die_in_turn_while_they_rejoin_come_to_an_end(policy: str, status: int) -> None:
    story = rejoining(policy, restarts=1).end(3, -9)
    if policy == "hold":
        story.restart()
    for number in range(50):
        if not isinstance(story.state.phase, st.Starting | st.Running):
            break
        story.spawn(*[rank for rank, phase in enumerate(story.state.ranks) if isinstance(phase, st.Pending)])
        story.end(number % 3, status)
    assert isinstance(story.state.phase, st.Holding if policy == "hold" else st.Stopping)
    assert story.state.generation <= 2 + len(story.state.ranks)


def test_ends_of_ranks_that_slurm_ends_are_no_failures_and_slurm_tells_why() -> None:
    story = Story(TWO, on_failure="restart").run()
    story.tell(ev.JobEnding(at=story.at(), reason="Slurm ends job 1"))
    assert story.actions == tuple(act.StopRanks(node=node, attempt=0, at_once=False) for node in "ab")
    story.end(0, 0).end(1, -15).end(2, 1)
    found = ev.Found(told_at=1.0, newest=ev.Checkpoint(name="step_3", at=2.0, step=3))
    story.tell(ev.CheckpointsFound(at=story.at(), attempt=0, found=found))
    story.clear().close()
    assert st.run_word(story.state) == "running", "it waits for the reason"
    assert st.ends_with_job(story.state), "which the next supervisor asks for, too"
    story.tell(ev.JobEnded(at=story.at(), reason="Slurm's job 1 was preempted by another job"))
    assert not st.ends_with_job(story.state)
    assert story.outcome() == ("failed", "Slurm's job 1 was preempted by another job")
    assert {st.rank_word(rank) for rank in story.state.ranks} == {"stopped"}
    assert story.state.saved is not None


@pytest.mark.parametrize(("by_job", "word"), [(True, "queued"), (False, "stopped")])
def test_a_stop_by_a_signal_in_the_job_gives_way_to_what_slurm_does_with_the_job(*, by_job: bool, word: str) -> None:
    story = Story(TWO).run()
    story.tell(ev.StopRequested(at=story.at(), by="SIGTERM in Slurm's job 1", by_job=by_job))
    story.end(0, -15).end(1, -15).end(2, -15).clear()
    story.tell(ev.StopRequested(at=story.at(), by="Slurm", at_once=True, again=True))
    story.tell(ev.JobEnded(at=story.at(), reason="Slurm has taken the nodes away"))
    assert story.outcome()[0] == word


def test_a_stop_of_a_user_wins_over_a_stop_by_the_job() -> None:
    story = Story(TWO).run()
    story.tell(ev.StopRequested(at=story.at(), by="SIGTERM in Slurm's job 1", by_job=True))
    story.tell(ev.StopRequested(at=story.at(), by="ann"))
    story.tell(ev.JobEnding(at=story.at(), reason="Slurm ends job 1"))
    story.end(0, -15).end(1, -15).end(2, -15).clear()
    story.tell(ev.StopRequested(at=story.at(), by="Slurm", at_once=True, again=True))
    story.tell(ev.JobEnded(at=story.at(), reason="Slurm has taken the nodes away"))
    assert story.outcome() == ("stopped", "stopped by ann")


@pytest.mark.parametrize("nodes", [(("a", (0,)),), (("a", (0, 1)),)])
def test_that_another_backend_takes_over_is_told_once_with_the_rank_that_is_why(
    nodes: tuple[tuple[str, tuple[int, ...]], ...],
) -> None:
    story = Story(nodes, backends=("nccl", "gloo")).run().end(0, 1, setup_error="rank 1: leaves the group")
    for rank in nodes[0][1][1:]:
        story.end(rank, -2)
    told = [line.text for line in tell_all(story.journal) if "running on gloo" in line.text]
    assert told == ["rank 0 failed: exit 1; nccl failed on a, rank 0: rank 1: leaves the group; running on gloo"]


def test_a_kill_explains_the_death_that_it_caused_and_no_later_one() -> None:
    kills = Kills()
    kills.take(ev.KillRequested(at=1.0, by="alice", rank=1, signal=9))
    assert (kills.sender(1, -9), kills.sender(1, -15), kills.sender(0, -9)) == ("alice", "", "")
    kills.take(ev.RankEnded(at=2.0, attempt=0, rank=1, status=-9))
    assert kills.sender(1, -9) == ""


def test_a_kill_of_a_process_that_was_replaced_explains_nothing() -> None:
    kills = Kills()
    kills.take(ev.KillRequested(at=1.0, by="alice", rank=1, signal=9))
    kills.take(ev.RankSpawned(at=2.0, attempt=0, rank=1, pid=7, generation=1))
    assert kills.sender(1, -9) == ""
