"""A rank dies, a new process takes its place, the others keep their process, and the result is what it would have been."""

import json
import os
import random
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.core.words import rank_words
from tests.elastic_runs import TRAIN, assert_kept, pids, reached, replaced, result, wait_for_another
from tests.support import LIGHT, ROOT, Deck, is_alive, kill_hard, run_program, wait_until

STUCK = TRAIN.replace(
    "state.seen += 8",
    """state.seen += 8
        if (state.step, os.environ["RANK"], os.environ["RANKDECK_GENERATION"]) == (20, "1", "0"):
            state.step += 1
            torch.futures.Future().wait()""",
)
"""Rank 1 waits for ever where it would wait for its peers."""

STUCK_LEAVING = TRAIN.replace(
    "steps, pause =",
    """if (os.environ["RANK"], os.environ["RANKDECK_GENERATION"]) == ("1", "0"):
    dist.distributed_c10d._abort_process_group = lambda *group: torch.futures.Future().wait()
steps, pause =""",
)
"""Rank 1 waits for ever where it takes the group apart, for the part of gloo that does."""

STUCK_FORMING = TRAIN.replace(
    "steps, pause =",
    """from rankdeck.elastic._replacement import Replacement
if os.environ["RANK"] == "1" and not os.path.exists("stuck"):
    make_group, is_redundant = dist.init_process_group, Replacement._is_redundant
    def make(*args, **options):
        if "formed" in os.environ or os.environ["RANKDECK_GENERATION"] != "0":
            open("stuck", "w").close()
            torch.futures.Future().wait()
        os.environ["formed"] = "yes"
        make_group(*args, **options)
    def look(self, *args):
        open("asked", "w").close()
        while not os.path.exists("look"):
            time.sleep(0.05)
        return is_redundant(self, *args)
    dist.init_process_group, Replacement._is_redundant = make, look
steps, pause =""",
)
"""Rank 1 waits for ever in a generation that forms. Before it asks whether others have its state, it waits for a file."""


@pytest.fixture
def hold(work: Path) -> Path:
    """The file that holds the end of a training until `result` is asked for."""
    path = work / "hold"
    path.touch()
    return path


@pytest.fixture
def launch(rankdeck, write_profile, hold):
    """Launches an elastic training of so many ranks and steps, whose end is held."""

    def launch(ranks: int = 4, steps: int = 120, pause: float = 0.01, **sections):
        sections["launch"] = {"warm": True, **sections.get("launch", {})}
        hold.touch()
        return rankdeck.launch(write_profile(TRAIN, ranks=ranks, **sections, args=[str(steps), str(pause)]))

    return launch


UNBROKEN: dict[int, str] = {}
"""Results of trainings that nothing interrupted, by their steps: they are the same in every run."""


def unbroken(deck: Deck, launch: Callable[..., str], steps: int = 120) -> str:
    """What a training of four ranks says at its end where nothing interrupts it."""
    if steps not in UNBROKEN:
        UNBROKEN[steps] = result(deck, launch(steps=steps, pause=0))
    return UNBROKEN[steps]


def entered(deck: Deck, run: str, rank: int) -> list[int]:
    return [int(step) for step in re.findall(rb"enter (\d+)", deck.log(run, rank))]


@pytest.mark.parametrize("victims", [[0], [2], [0, 1, 2]], ids=str)
def test_dead_ranks_rejoin_together_and_no_step_is_lost(rankdeck, launch, hold, victims):
    run = launch()
    before = pids(reached(rankdeck, run, 20))
    for victim in victims:
        kill_hard(before[victim])
    others = {*range(4)} - {*victims}
    waits = f"waits for {rank_words(victims)}"
    holding = rankdeck.wait_status(
        run,
        lambda status: all(
            rank["note"] == waits if rank["rank"] in others else rank["state"] == "failed" for rank in status["ranks"]
        ),
    )
    assert all(is_alive(before[rank]) for rank in others)
    # a step that only the dead ranks had finished is gone with them
    furthest = max(holding["ranks"][rank]["step"] for rank in others)
    done = rankdeck("restart", run, "--failed")
    keep = "the other keeps running" if len(others) == 1 else f"the other {len(others)} keep running"
    assert f"rejoin {rank_words(victims)}; {keep}" in done.stdout
    hold.unlink()
    after = reached(rankdeck, run, furthest + 1)
    assert after["attempt"] == 0
    same = [old == new for old, new in zip(before, pids(after), strict=True)]
    assert same == [rank not in replaced(rankdeck, run, victims) for rank in range(4)]
    assert result(rankdeck, run) == unbroken(rankdeck, launch)
    for rank in range(4):
        assert all(step >= furthest for step in entered(rankdeck, run, rank)[-1:])


def test_three_kills_at_random_steps_change_no_bit_of_the_result(rankdeck, launch):
    run = launch(launch={"on_failure": "restart", "max_restarts": 9})
    dice = random.Random(int(time.time()))
    for low in (10, 45, 80):
        victim = dice.randrange(4)
        status = reached(rankdeck, run, low + dice.randrange(30))
        kill_hard(pids(status)[victim])
        wait_for_another(rankdeck, run, victim, pids(status)[victim])
    assert result(rankdeck, run) == unbroken(rankdeck, launch)
    assert rankdeck.status(run)["attempt"] == 0


def test_a_second_death_during_the_rejoin_is_taken_along(rankdeck, launch):
    run = launch(launch={"on_failure": "restart", "max_restarts": 9})
    before = pids(reached(rankdeck, run, 20))
    kill_hard(before[1])
    newcomer = wait_for_another(rankdeck, run, 1, before[1])
    kill_hard(newcomer)
    kill_hard(before[3])
    after = rankdeck.wait_status(
        run, lambda status: status["state"] == "running" and pids(status)[1] not in (before[1], newcomer, None)
    )
    assert_kept(rankdeck, run, before, after, 0, 2)
    assert result(rankdeck, run) == unbroken(rankdeck, launch)


@pytest.mark.parametrize("script", [STUCK, STUCK_LEAVING], ids=["in a collective", "as it leaves"])
def test_a_survivor_that_is_stuck_makes_way(rankdeck, write_profile, hold, script):
    """As when gloo misses that a connection has closed: the main thread waits for another for ever."""
    run = rankdeck.launch(write_profile(script, ranks=3, launch={"warm": True}, args=["60", "0.01"]))
    before = pids(reached(rankdeck, run, 20))
    kill_hard(before[2])
    rankdeck.wait_state(run, "holding")
    rankdeck("restart", run)
    assert result(rankdeck, run, 3).startswith("returned 60 480")
    after = rankdeck.status(run)
    assert after["attempt"] == 0
    assert_kept(rankdeck, run, before, after, 0)
    assert b"a new process takes its place" in rankdeck.log(run, 1, "err")


def test_a_survivor_that_is_stuck_makes_way_although_further_generations_are_lost(rankdeck, write_profile, hold, work):
    run = rankdeck.launch(write_profile(STUCK_FORMING, ranks=3, launch={"warm": True}, args=["60", "0.01"]))
    reached(rankdeck, run, 20)

    def kill() -> None:
        status = rankdeck.wait_status(run, lambda status: pids(status)[2] is not None)
        kill_hard(pids(status)[2])
        rankdeck.wait_state(run, "holding")

    for name in ("stuck", "asked"):
        kill()
        rankdeck("restart", run)
        wait_until((work / name).exists, what=f"rank 1: {name}")
    kill()
    (work / "look").touch()
    rankdeck("restart", run)
    assert result(rankdeck, run, 3).startswith("returned 60 480")
    assert rankdeck.status(run)["attempt"] == 0
    assert b"a new process takes its place" in rankdeck.log(run, 1, "err")


def test_the_only_survivor_hands_its_state_over_when_it_is_stuck(rankdeck, write_profile, hold):
    run = rankdeck.launch(write_profile(STUCK, ranks=3, launch={"warm": True}, args=["60", "0.01"]))
    before = pids(reached(rankdeck, run, 20))
    kill_hard(before[0])
    kill_hard(before[2])
    rankdeck.wait_status(run, lambda status: sum(rank["state"] == "failed" for rank in status["ranks"]) == 2)
    rankdeck("restart", run)
    assert result(rankdeck, run, 3).startswith("returned 60 480")
    assert rankdeck.status(run)["attempt"] == 0
    assert [entered(rankdeck, run, rank) for rank in range(3)] == [[0, 21]] * 3
    assert b"a new process takes its place" in rankdeck.log(run, 1, "err")
    assert not list(rankdeck.folder(run).glob("attempt_0/*.state*"))


def test_a_commit_is_what_every_rank_goes_back_to(rankdeck, write_profile, hold):
    """Also a rank that came later, and has no commit of its own yet."""
    text = TRAIN.replace("rankdeck.log(", "state.step % 20 or state.commit()\n        rankdeck.log(")
    run = rankdeck.launch(
        write_profile(text, ranks=3, launch={"warm": True, "on_failure": "restart"}, args=["120", "0.01"])
    )
    for victim, step in ((0, 45), (1, 55), (2, 85)):
        before = pids(reached(rankdeck, run, step))
        kill_hard(before[victim])
        wait_for_another(rankdeck, run, victim, before[victim])
    assert result(rankdeck, run, 3).startswith("returned 120 960")
    assert all(step % 20 == 0 for rank in range(3) for step in entered(rankdeck, run, rank))


def test_a_run_that_is_stopped_again_and_again_loses_no_step_and_changes_no_bit(rankdeck, launch):
    run = launch()
    for attempt, step in enumerate((15, 45, 75)):
        rankdeck.wait_status(run, lambda status, attempt=attempt: status["attempt"] == attempt)
        reached(rankdeck, run, step)
        assert rankdeck("stop", run).returncode == 0
        status = rankdeck.status(run)
        saved, furthest = status["saved"], max(rank["step"] for rank in status["ranks"])
        assert saved["found"]["newest"]["step"] == furthest
        assert saved["after_signal"] is not None
        rankdeck("restart", run)
    assert result(rankdeck, run, attempt=3) == unbroken(rankdeck, launch)
    assert [path.name for path in (rankdeck.folder(run) / "checkpoints").iterdir()] == [f"elastic-step-{furthest}.pt"]


def test_when_all_ranks_are_dead_all_start_again(rankdeck, launch):
    run = launch()
    before = pids(reached(rankdeck, run, 10))
    for pid in before:
        kill_hard(pid)
    rankdeck.wait_status(run, lambda status: all(rank["state"] == "failed" for rank in status["ranks"]))
    done = rankdeck("restart", run, "--failed")
    assert "start attempt 1 of all 4 ranks; " in done.stdout
    assert "(no rejoin: no rank that has the state is left)" in done.stdout
    rankdeck.wait_status(
        run, lambda status: status["attempt"] == 1 and status["ranks"][0]["step"], what="attempt 1 trains"
    )
    rankdeck("stop", run)


def test_a_rank_that_dies_before_it_has_joined_costs_a_new_attempt(rankdeck, write_profile):
    run = rankdeck.launch(
        write_profile(
            "import os, signal, time\nif os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(600)",
            ranks=2,
            launch={"warm": True},
        )
    )
    rankdeck.wait_state(run, "holding")
    assert "does not use rankdeck.elastic" in rankdeck("restart", run, "--failed").stdout
    rankdeck("stop", run, "--now")


def test_an_error_of_the_script_is_not_taken_for_a_lost_peer(rankdeck, write_profile):
    text = TRAIN.replace(
        "state.seen += 8", "state.seen += 8\n        if state.step == 5: raise RuntimeError('shapes do not fit')"
    )
    run = rankdeck.launch(write_profile(text, ranks=2, launch={"warm": True, "on_failure": "stop"}, args=["100", "0"]))
    rankdeck("wait", run)
    status = rankdeck.status(run)
    assert status["state"] == "failed"
    assert "shapes do not fit" in status["failure"]["traceback"]


def test_a_stop_reaches_ranks_that_wait_for_a_peer(rankdeck, launch):
    run = launch()
    kill_hard(pids(reached(rankdeck, run, 10))[2])
    rankdeck.wait_status(run, lambda status: status["ranks"][0]["note"].startswith("waits"))
    rankdeck("stop", run)
    rankdeck.wait_state(run, "failed")
    wait_until(lambda: not rankdeck.processes())


@pytest.mark.parametrize("role", ["supervisor", "agent"])
def test_a_supervisor_or_an_agent_that_dies_while_ranks_wait_can_still_let_them_rejoin(rankdeck, launch, role):
    run = launch()
    before = pids(reached(rankdeck, run, 10))
    kill_hard(before[2])
    rankdeck.wait_state(run, "holding")
    old = getattr(rankdeck, role)(run)
    kill_hard(old)
    if role == "agent":
        wait_until(lambda: rankdeck.agent(run) != old)
    rankdeck("restart", run, "--failed")
    after = reached(rankdeck, run, 60)
    assert_kept(rankdeck, run, before, after, 0)
    assert after["attempt"] == 0
    rankdeck("stop", run)


@pytest.mark.parametrize("how", ["python", "torchrun"])
def test_the_same_script_runs_without_rankdeck(write_script, work, how):
    script = str(write_script("train.py", TRAIN))
    command = (
        [sys.executable]
        if how == "python"
        else [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    )
    environment = {**os.environ, "PYTHONPATH": f"{LIGHT}:{ROOT}"}
    done = run_program([*command, script, "20", "0"], env=environment, cwd=work)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("returned") == (1 if how == "python" else 2)


def held(pid: int) -> tuple[int, int, int]:
    """Descriptors, threads, and memory in KiB of a process."""
    with open(f"/proc/{pid}/status") as file:
        memory = next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))
    return len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task")), memory


def made_way(deck: Deck, run: str) -> int:
    """How often a process of rank 3 said that another takes its place."""
    return deck.log(run, 3, "err").count(b"a new process takes its place")


def ends(deck: Deck, run: str) -> str:
    """How processes of rank 3 ended, with what happened before, and what they wrote last."""
    events = [json.dumps(event) for event in deck.journal(run)]
    last = [number for number, event in enumerate(events) if '"rank": 3' in event and "Rank" in event]
    told = events[max(0, last[-1] - 40) : last[-1] + 20] if last else events[-60:]
    return "\n".join([*told, deck.log(run, 3, "err").decode()[-4000:]])


def shake(deck: Deck, run: str, kills: int, dice: random.Random) -> int:
    """Kills ranks other than 3 at any moment, and waits until all train again. Returns the process of rank 3."""
    killed = set()
    for _ in range(kills):
        victim = deck.status(run)["ranks"][dice.randrange(3)]
        if victim["pid"] and victim["state"] == "running":
            kill_hard(victim["pid"])
            killed.add(victim["pid"])
        time.sleep(0.1 + dice.random() * 0.3)
        if deck.status(run)["state"] == "holding":
            deck("restart", run)
    deck.wait_status(  # the last steps of a killed rank look like those of a living one until its death is known
        run,
        lambda status: all(rank["pid"] not in killed or rank["state"] != "running" for rank in status["ranks"]),
        what="every kill is known",
    )
    try:
        wait_until(lambda: all_train(deck, run), 60, "all ranks train")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{deck('stacks', run).stdout}") from None
    return pids(deck.status(run))[3]


def test_fifty_kills_at_any_moment_leave_a_run_that_finishes_and_a_survivor_that_has_not_grown(rankdeck, launch, work):
    run = launch(steps=1_000_000, pause=0.05)
    dice = random.Random(50)
    reached(rankdeck, run, 5)
    # Where gloo leaves rank 3 hanging, a new process replaces it, and its log says so. The new one is measured from then on.
    survivor, before, survived, said = 0, (0, 0, 0), 0, 0
    for _ in range(60):
        was, survivor = survivor, shake(rankdeck, run, 10, dice)
        survived += 10
        if survivor != was:
            assert not was or made_way(rankdeck, run) > said, ends(rankdeck, run)
            before, survived, said = held(survivor), 0, made_way(rankdeck, run)
        elif survived >= 40:
            break
    assert survived >= 40, "in 600 kills no process of rank 3 survived 40 in a row"
    after = held(survivor)
    rankdeck.ends(run, work / "finish")
    status = rankdeck.status(run)
    assert (status["attempt"], pids(status)[3]) == (0, survivor)
    (files, threads, memory), (files_then, threads_then, memory_then) = before, after
    assert files_then <= files + 2
    assert threads_then <= threads + 2
    assert memory_then <= memory * 1.1 + 10_000


def all_train(deck: Deck, run: str) -> bool:
    """Whether every rank finishes steps; brings back what is dead."""
    status = deck.status(run)
    if status["state"] == "holding":
        deck("restart", run)
        return False
    then = [rank["step"] or 0 for rank in status["ranks"]]
    for _ in range(20):  # on a busy machine a step of four ranks takes its time
        time.sleep(0.3)
        now = [rank["step"] or 0 for rank in deck.status(run)["ranks"]]
        if all(later > before for before, later in zip(then, now, strict=True)):
            return True
    return False
