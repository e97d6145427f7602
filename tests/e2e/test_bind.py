"""`layout.bind`: ranks are bound to cores from their first instruction on, however they start."""

import os
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from engine.node.limits import shares
from engine.node.probe.allowed import cpu_words
from tests.conftest import WriteProfile
from tests.support import Deck, checked, wait_until

SHOW = "import os; print(sorted(os.sched_getaffinity(0)), flush=True)"
STAY = SHOW + "\nimport signal\nwhile True: signal.pause()"


@pytest.fixture
def cores() -> list[list[int]]:
    """The CPUs of each of up to two ranks, as many as this machine has cores for."""
    allowed = os.sched_getaffinity(0)
    for count in (2, 1):
        try:
            return shares("core", count, allowed=sorted(allowed))
        except ValueError:
            pass
    raise AssertionError("a machine has a core")


def logs(rankdeck: Deck, run: str, cores: Sequence[object]) -> list[str]:
    return [rankdeck.log(run, rank).decode().strip() for rank in range(len(cores))]


@pytest.mark.parametrize(
    "how", [{"launch": {"warm": True}}, {"launch": {"warm": False}}, {"rank": {"wrap": ["env", "A=1"]}}]
)
def test_each_rank_has_cores_of_its_own(
    rankdeck: Deck, write_profile: WriteProfile, cores: list[list[int]], how: dict[str, Any]
) -> None:
    profile = write_profile(SHOW, len(cores), layout={"bind": "core"}, **how)
    assert f"0 ({cpu_words(cores[0])})" in rankdeck("plan", profile).stdout
    finding = checked(rankdeck, profile, "--quick")["localhost", "cores"]
    assert finding["text"].startswith(f"core: rank 0 on {cpu_words(cores[0])}")
    run = rankdeck.launch(profile)
    rankdeck.wait_state(run, "succeeded")
    assert logs(rankdeck, run, cores) == [str(cpus) for cpus in cores]


def test_a_rank_that_is_restarted_gets_the_same_cores(rankdeck, write_profile, cores: list[list[int]]):
    launch = {"stop_ladder": [["SIGTERM", 5], ["SIGKILL", 5]]}
    layout = {"bind": "core"}
    run = rankdeck.launch(write_profile(STAY, len(cores), layout=layout, launch=launch))
    wait_until(lambda: all(logs(rankdeck, run, cores)), what="all ranks are up")
    assert rankdeck("kill", run, "--rank", "0").returncode == 0
    rankdeck.wait_state(run, "holding")
    assert rankdeck("restart", run).returncode == 0
    wait_until(lambda: rankdeck.log(run, 0, attempt=1), what="rank 0 is up again")
    assert rankdeck.log(run, 0, attempt=1).decode().strip() == str(cores[0])
    assert rankdeck("stop", run).returncode == 0
    rankdeck.wait_state(run, "stopped")


def test_ranks_get_only_cores_that_the_agent_may_use(rankdeck, write_profile):
    last = max(os.sched_getaffinity(0))
    launch = {"setup": f"taskset -cp {last} $$", "python": sys.executable}
    profile = write_profile(SHOW, 1, layout={"bind": "socket"}, launch=launch)
    run = rankdeck.launch(profile)
    rankdeck.wait_state(run, "succeeded")
    assert rankdeck.log(run, 0).decode().strip() == f"[{last}]"
