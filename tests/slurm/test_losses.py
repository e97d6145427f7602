"""What can happen to a job that runs: a node goes down, slurmd or slurmctld is killed, another job takes its nodes. In an allocation,
where the supervisor is on the login node, and in a submitted run, where it is in the job."""

import contextlib
import itertools
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import WriteProfile, WriteScript
from tests.slurm.lab import Slurm
from tests.support import Deck, entries, wait_gone, wait_until

COUNT = entries("slurm/losses", "count")


class Launched(NamedTuple):
    """A run of two ranks on each of two nodes, and its job."""

    run: str
    job: str


@pytest.fixture(params=["allocation", "submitted"])
def launched(
    slurm: Slurm, rankdeck: Deck, write_script: WriteScript, write_profile: WriteProfile, request: pytest.FixtureRequest
) -> Iterator[Launched]:
    """A run whose ranks make steps, in both forms. A job that is suspended keeps its ranks for the usual time."""
    script = write_script("count.py", COUNT)
    options: dict[str, Any] = {"launch": {"stop_ladder": [["SIGTERM", 5], ["SIGKILL", 5]], "lease": 5}}
    if request.param == "suspended":
        del options["launch"]["lease"]
    if request.param != "allocation":
        run = rankdeck.launch(write_profile(script, 2, layout={"slurm": {"nodes": 2, "ranks_per_node": 2}}, **options))
        wait_steps(rankdeck, run)
        yield Launched(run, json.loads((rankdeck.folder(run) / "job.json").read_text())["job"])
        return
    with slurm.job("--export=NONE", "--no-requeue") as job:
        layout = {"slurm": int(job), "transport": "slurm"}
        run = rankdeck.launch(write_profile(script, 2, layout=layout, **options))
        wait_steps(rankdeck, run)
        yield Launched(run, job)


def last_steps(deck: Deck, run: str) -> list[int]:
    """The last step that each rank has written."""
    whole = [deck.log(run, rank).rpartition(b"\n")[0].splitlines() for rank in range(4)]
    return [int(lines[-1].split()[1]) if lines else 0 for lines in whole]


def wait_steps(deck: Deck, run: str) -> None:
    """Waits until each rank has made more steps."""
    before = last_steps(deck, run)
    wait_until(
        lambda: all(now > then for now, then in zip(last_steps(deck, run), before, strict=True)), what="more steps"
    )


def wait_failed(deck: Deck, run: str, words: str) -> None:
    """Waits until a run has failed, and its status has these words."""
    deck.wait_state(run, "failed")
    said = deck("status", run).stdout
    assert words in said, said


@pytest.mark.parametrize("node", ["sl1", "sl2"])
def test_a_node_that_is_set_down_ends_the_run_in_words(slurm: Slurm, rankdeck: Deck, launched: Launched, node: str):
    pids = rankdeck.pids(launched.run)
    slurm.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    wait_failed(rankdeck, launched.run, f"Slurm's job {launched.job} lost a node")
    wait_gone(*pids)
    assert all(last_steps(rankdeck, launched.run)), "the logs are kept"


def test_a_slurmd_that_comes_back_takes_nothing_away(slurm: Slurm, rankdeck: Deck, launched: Launched) -> None:
    pids = rankdeck.pids(launched.run)
    slurm.kill("sl2")
    wait_steps(rankdeck, launched.run)
    slurm.start_node("sl2")
    wait_steps(rankdeck, launched.run)
    assert rankdeck.pids(launched.run) == pids
    assert rankdeck("stop", launched.run).returncode == 0
    rankdeck.wait_state(launched.run, "stopped")
    wait_gone(*pids)


def test_a_slurmd_that_stays_away_ends_the_run_in_words(slurm: Slurm, rankdeck: Deck, launched: Launched) -> None:
    pids = rankdeck.pids(launched.run)
    slurm.kill("sl2")
    slurm.set_silence(10)
    wait_failed(rankdeck, launched.run, f"Slurm's job {launched.job} lost a node")
    wait_gone(*pids)


@pytest.mark.parametrize("launched", ["suspended"], indirect=True)
def test_a_job_that_is_suspended_is_shown_so_and_goes_on(slurm: Slurm, rankdeck: Deck, launched: Launched) -> None:
    pids = rankdeck.pids(launched.run)
    summary = rankdeck.folder(launched.run) / "summary.json"

    def later(*words: str) -> str:
        """What `ps` says as after a minute."""
        os.utime(summary, (0, 0))
        return rankdeck("ps", *words).stdout

    def signal_all(number: signal.Signals) -> None:
        """With cgroups Slurm stops each process of a job. Here it misses those that have left their session."""
        for process in itertools.chain(*slurm.processes().values()):
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(process.pid, number)

    connected = rankdeck.start("attach", launched.run)
    assert connected.stdout is not None
    assert connected.stdout.readline(), "it is connected, and prints what ranks print"
    try:
        signal_all(signal.SIGSTOP)  # all at once, as a cgroup does: who goes on would end who is stopped
        slurm.run("scontrol", "suspend", launched.job)
        words = f"job {launched.job} is suspended on sl[1-2], and goes on when"
        for asked in (["stop", "--now"], ["kill", "--rank", "0"], ["restart"], ["stacks"]):
            done = rankdeck(asked[0], launched.run, *asked[1:])
            assert (done.returncode, done.stdout) == (1, "")
            assert f"the supervisor of {launched.run} can't answer: {words}" in done.stderr, done.stderr
            assert f"scancel {launched.job} ends the run with its job" in done.stderr
        wait_until(lambda: f"job {launched.job} · main · suspended" in later(), what="ps shows it")
        wait_until(lambda: '"suspended": true' in later("--json"), what="it is a field")
        status = rankdeck.status(launched.run)
        assert (status["state"], status["job"]["suspended"], [rank["pid"] for rank in status["ranks"]]) == (
            "running",
            True,
            pids,
        )
        for attached in (connected, rankdeck.start("attach", launched.run)):
            with attached:
                assert attached.stderr is not None
                assert any(words in line for line in attached.stderr), "attach says why nothing comes"
                attached.kill()
    finally:
        signal_all(signal.SIGCONT)
        slurm.run("scontrol", "resume", launched.job)
    wait_until(lambda: "suspended" not in rankdeck("ps").stdout, what="ps shows that it goes on")
    wait_steps(rankdeck, launched.run)
    assert rankdeck.pids(launched.run) == pids
    done = rankdeck("stop", launched.run)
    assert done.returncode == 0, "that it was suspended is forgotten at once"


def test_a_controller_that_restarts_takes_nothing_away(slurm: Slurm, rankdeck: Deck, launched: Launched) -> None:
    pids = rankdeck.pids(launched.run)
    slurm.stop_controller()
    wait_steps(rankdeck, launched.run)
    slurm.start_controller()
    wait_steps(rankdeck, launched.run)
    assert rankdeck.pids(launched.run) == pids
    assert rankdeck("stop", launched.run).returncode == 0
    rankdeck.wait_state(launched.run, "stopped")
    wait_gone(*pids)


@pytest.mark.parametrize(
    "launched", ["allocation"], indirect=True
)  # slurmd tells a controller of a job's end for a minute
def test_a_run_ends_while_no_controller_answers(slurm: Slurm, rankdeck: Deck, launched: Launched, work: Path) -> None:
    slurm.stop_controller()
    (work / "finish").touch()
    rankdeck.wait_state(launched.run, "succeeded")
    slurm.start_controller()
