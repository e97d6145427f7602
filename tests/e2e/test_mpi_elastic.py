"""A rank of an elastic training over mpi dies and comes back over gloo, and the others keep their process and their state."""

import os
from collections.abc import Callable

import pytest

from tests.elastic_runs import TRAIN, assert_kept, pids, reached, result, wait_for_another
from tests.support import Deck, is_alive, kill_hard, process_state, use_mpi, wait_until

INSIDE = TRAIN.replace(
    "        state.optimizer.zero_grad()",
    """        if (state.step, os.environ["RANK"], os.environ["RANKDECK_GENERATION"]) == (20, "1", "0"):
            from rankdeck.c10d._mpi.collectives import Collectives
            Collectives._all_reduce = lambda *arguments: os.kill(os.getpid(), 9)
        state.optimizer.zero_grad()""",
)
"""Rank 1 ends where the others are inside MPI already."""


@pytest.fixture(params=["openmpi", "mpich", "wheel"])
def launch(request, rankdeck, write_profile, work, tmp_path, monkeypatch) -> Callable[..., str]:
    """Launches an elastic training of 120 steps over an MPI, whose end is held."""
    pytest.importorskip("mpi4py")
    use_mpi(request.param, tmp_path, monkeypatch)

    def launch(ranks: int = 3, text: str = TRAIN, rejoin: str = "auto", **settings: object) -> str:
        (work / "hold").touch()
        settings = {"on_failure": "restart", "max_restarts": 9, **settings}
        backend = {"name": "mpi", "rejoin": rejoin}
        run: str = rankdeck.launch(
            write_profile(text, ranks=ranks, backend=backend, launch=settings, args=["120", "0.01"])
        )
        return run

    return launch


def kill(deck: Deck, run: str, step: int, *victims: int) -> None:
    """Kills ranks after a step, and waits until they are back and the others have kept their process."""
    before = pids(reached(deck, run, step))
    for victim in victims:
        kill_hard(before[victim])
    for victim in victims:
        wait_for_another(deck, run, victim, before[victim])
    furthest = max(rank["step"] or 0 for rank in deck.status(run)["ranks"])
    after = reached(deck, run, furthest + 1)
    assert_kept(deck, run, before, after, *({*range(len(before))} - {*victims}))
    assert (after["attempt"], after["backend"]) == (0, "mpi")
    assert after["doing"] == "over gloo instead of mpi until the next attempt"


@pytest.mark.parametrize("victims", [[0], [1], [0, 2]], ids=str)
def test_dead_ranks_come_back_and_no_step_is_lost(rankdeck, launch, victims):
    run = launch()
    kill(rankdeck, run, 20, *victims)
    kill(rankdeck, run, 60, 2)
    assert result(rankdeck, run, 3).startswith("returned 120 960")
    assert {rank["exit"] for rank in rankdeck.status(run)["ranks"]} == {0}
    wait_until(lambda: not rankdeck.processes())


def test_survivors_that_are_inside_mpi_get_out_and_wait_without_a_core(rankdeck, launch):
    run = launch(text=INSIDE, on_failure="hold")
    rankdeck.wait_state(run, "holding")
    before = rankdeck.pids(run)
    rankdeck.wait_status(run, lambda status: {status["ranks"][rank]["note"] for rank in (0, 2)} == {"waits for rank 1"})
    wait_until(lambda: states_of_threads(before[0]) | states_of_threads(before[2]) == {"S"}, what="no thread runs")
    assert "rejoin rank 1; the other 2 keep running" in rankdeck("restart", run).stdout
    after = reached(rankdeck, run, 40)
    assert_kept(rankdeck, run, before, after, 0, 2)
    assert result(rankdeck, run, 3).startswith("returned 120 960")
    wait_until(lambda: not rankdeck.processes())


def states_of_threads(pid: int) -> set[str]:
    return {process_state(int(thread)) for thread in os.listdir(f"/proc/{pid}/task")}


@pytest.mark.parametrize("is_back", [False, True], ids=["over mpi", "after a rejoin"])
def test_a_stop_saves_the_last_step_and_the_next_attempt_is_over_mpi(rankdeck, launch, is_back):
    run = launch()
    if is_back:
        kill(rankdeck, run, 20, 1)
    reached(rankdeck, run, 30)
    assert rankdeck("stop", run).returncode == 0
    status = rankdeck.status(run)
    assert status["saved"]["found"]["newest"]["step"] == max(rank["step"] for rank in status["ranks"])
    wait_until(lambda: not rankdeck.processes())
    rankdeck("restart", run)
    rankdeck.wait_status(
        run,
        lambda status: status["attempt"] == 1 and all(rank["step"] for rank in status["ranks"]) and not status["doing"],
    )
    assert result(rankdeck, run, 3, attempt=1).startswith("returned 120 960")


def test_without_a_rejoin_all_ranks_start_again(rankdeck, launch):
    run = launch(rejoin="off", on_failure="hold")
    kill_hard(pids(reached(rankdeck, run, 20))[1])
    survivor = rankdeck.wait_state(run, "holding")["ranks"][0]["pid"]
    assert is_alive(survivor)
    assert 'no rejoin: backend.rejoin is "off"' in rankdeck("restart", run).stdout
    rankdeck.wait_status(run, lambda status: status["attempt"] == 1 and status["state"] == "running")
    rankdeck("stop", run)
