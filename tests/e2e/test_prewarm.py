"""A launch that was got ready for starts at once; one that never comes leaves nothing behind."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from engine.client.engine import LocalEngine
from engine.core.plan.profile import Profile
from engine.gate import LAUNCHED
from engine.planning.profiles import entry_of, read_profile
from tests.support import Deck, entries, is_alive, kill_hard, parent_of, wait_gone, wait_until

SAY = "import os, torch\nprint('up', os.environ['RANK'], os.environ.get('MARKED', ''), flush=True)"
STAY = SAY + "\nimport time\ntime.sleep(600)"


@pytest.fixture
def profile(write_profile, rankdeck) -> Profile:
    return read_profile(write_profile(SAY, ranks=2, launch={"warm": True}))


def prewarmed(profile: Profile) -> LocalEngine:
    engine = LocalEngine()
    asyncio.run(engine.prewarm(profile, LAUNCHED))
    return engine


def standbys(deck: Deck) -> list[Path]:
    return sorted((deck.home / "runs").glob(".standby-*"))


def warmed(deck: Deck) -> bool:
    """Whether a template has imported torch and waits: it has written nothing, and its agent has it."""
    return any(threads(pid) == 1 and has_torch(pid) for pid in deck.of_role("template"))


def threads(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0


def has_torch(pid: int) -> bool:
    try:
        return "libtorch_python" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


def test_a_launch_takes_over_what_was_warmed(rankdeck, profile):
    engine = prewarmed(profile)
    wait_until(lambda: warmed(rankdeck))
    template = rankdeck.of_role("template")[0]
    run = asyncio.run(engine.launch(profile))
    assert rankdeck("wait", run).returncode == 0
    assert standbys(rankdeck) == []
    assert [rankdeck.log(run, rank) for rank in range(2)] == [b"up 0 \n", b"up 1 \n"]
    events = [event["event"] for event in rankdeck.journal(run)]
    assert events[:2] == ["RunLaunched", "NodeConnected"]
    assert "NodeDisconnected" not in events  # the connection lasts to the end, though the agent's folder has moved
    assert rankdeck.status(run)["state"] == "succeeded"
    wait_until(lambda: not rankdeck.processes())
    assert not is_alive(template)


def test_an_environment_of_a_folder_that_is_not_trusted_runs_nothing_before_a_launch(
    rankdeck, write_profile, work, monkeypatch
):
    """It may be anybody's: it was found beside the script, and no profile names it."""
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    python, torch = work / ".venv/bin/python", work / ".venv/lib/python3.11/site-packages/torch/__init__.py"
    for path in (python, torch):
        path.parent.mkdir(parents=True)
        path.touch()
    python.write_text(f'#!/bin/sh\ntouch {work}/ran\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    entry = entry_of(write_profile(SAY, launch={"warm": True}))
    (rankdeck.home / "trusted").unlink()
    engine = LocalEngine()
    asyncio.run(engine.prewarm(entry.profile, engine.permit(entry)))
    assert not (work / "ran").exists()
    assert standbys(rankdeck) == []
    asyncio.run(engine.prewarm(entry.profile, engine.trust(entry)))
    wait_until((work / "ran").exists, what="it is prewarmed")
    asyncio.run(engine.prewarm(None))


def spares(deck: Deck, count: int) -> list[int]:
    """The processes that a template has forked ahead of their requests, once there are so many."""

    def forked() -> list[int]:
        found = deck.of_role("template")
        return [pid for pid in found if parent_of(pid) in found]

    return wait_until(lambda: found if len(found := forked()) == count else [], what=f"{count} are forked")


def test_ranks_are_forked_ahead_and_one_that_was_killed_is_missed_by_nobody(rankdeck, profile):
    engine = prewarmed(profile)
    waiting = spares(rankdeck, 3)
    kill_hard(waiting[0])
    kill_hard(waiting[1])
    wait_gone(waiting[0], waiting[1])
    run = asyncio.run(engine.launch(profile))
    assert rankdeck("wait", run).returncode == 0
    assert [rankdeck.log(run, rank) for rank in range(2)] == [b"up 0 \n", b"up 1 \n"]
    wait_until(lambda: not rankdeck.processes())


@pytest.mark.parametrize("ranks", [1, 5])
def test_a_plan_of_more_or_fewer_ranks_takes_what_there_is(rankdeck, write_script, write_profile, ranks):
    script = write_script("say.py", SAY + "\nprint('pid', os.getpid())")
    same = {"launch": {"warm": True}, "env": {"OMP_NUM_THREADS": "1"}}
    engine = prewarmed(read_profile(write_profile(script, ranks=2, **same)))
    waiting = spares(rankdeck, 3)
    run = asyncio.run(engine.launch(read_profile(write_profile(script, name="other", ranks=ranks, **same))))
    assert rankdeck("wait", run).returncode == 0
    said = [rankdeck.log(run, rank).decode().split() for rank in range(ranks)]
    assert [words[:2] for words in said] == [["up", str(rank)] for rank in range(ranks)]
    assert len({int(words[-1]) for words in said} & set(waiting)) == min(ranks, 2)
    wait_until(lambda: not rankdeck.processes())


def test_a_package_that_the_template_has_begun_to_import_is_found_where_it_is_now(rankdeck, write_profile):
    """The backend mpi is registered when torch is imported, and loads the rest of itself in the rank."""
    text = SAY + "\nimport rankdeck.c10d\nimport rankdeck.c10d.mpi\nimport rankdeck.elastic\nprint('found')"
    env = {"RANKDECK_BACKEND": "mpi"}
    profile = read_profile(write_profile(text, launch={"warm": True}, env=env))
    engine = prewarmed(profile)
    wait_until(lambda: warmed(rankdeck))
    run = asyncio.run(engine.launch(profile))
    assert rankdeck("wait", run).returncode == 0, rankdeck.log(run, 0, "err")
    assert b"found" in rankdeck.log(run, 0)


def test_a_run_of_a_standby_survives_its_agent_and_its_supervisor(rankdeck, write_profile):
    profile = read_profile(write_profile(STAY, ranks=2, launch={"warm": True}))
    engine = prewarmed(profile)
    run = asyncio.run(engine.launch(profile))
    rankdeck.wait_log(run, 0, b"up")
    rank = rankdeck.pids(run)[0]
    old = rankdeck.agent(run)
    assert parent_of(parent_of(rank)) == old
    kill_hard(old)
    wait_until(lambda: rankdeck.agent(run) != old)
    kill_hard(rankdeck.supervisor(run))
    assert rankdeck("stop", run).returncode == 0
    rankdeck.wait_state(run, "stopped")
    wait_until(lambda: not rankdeck.processes())


def test_another_environment_is_not_served_by_it(rankdeck, profile, write_profile):
    engine = prewarmed(profile)
    other = read_profile(write_profile(SAY, name="other", launch={"warm": True}, env={"MARKED": "yes"}))
    run = asyncio.run(engine.launch(other))
    assert rankdeck("wait", run).returncode == 0
    assert rankdeck.log(run, 0) == b"up 0 yes\n"
    wait_until(lambda: standbys(rankdeck) == [] and not rankdeck.processes())


@pytest.mark.parametrize("launch", [{"warm": False}, {"warm": True, "prewarm": False}])
def test_a_profile_may_say_no(rankdeck, write_profile, launch):
    prewarmed(read_profile(write_profile(SAY, launch=launch)))
    assert standbys(rankdeck) == []
    assert not rankdeck.processes()


def test_what_is_given_up_leaves_nothing(rankdeck, profile):
    engine = prewarmed(profile)
    assert len(standbys(rankdeck)) == 1
    asyncio.run(engine.prewarm(profile, LAUNCHED))
    assert len(standbys(rankdeck)) == 1
    assert rankdeck("ps", "--all", "--json").stdout.strip() == "[]"
    assert "no run" in rankdeck("status", "-").stderr
    asyncio.run(engine.prewarm(None))
    wait_until(lambda: standbys(rankdeck) == [] and not rankdeck.processes())
    assert rankdeck.sockets() == []


HOLD = entries("e2e/prewarm", "hold")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_front_end_that_is_killed_takes_its_standby_along(rankdeck, write_profile, number):
    path = write_profile(SAY, launch={"warm": True})
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.getcwd()}
    ) as front:
        assert front.stdout is not None
        assert front.stdout.readline() == b"held\n"
        assert standbys(rankdeck)
        front.send_signal(number)
    wait_until(lambda: standbys(rankdeck) == [] and not rankdeck.processes())


def test_a_standby_that_was_killed_before_it_had_its_lock_leaves_nothing_for_long(rankdeck, profile):
    folder = rankdeck.folder("x").parent / f".standby-{socket.gethostname()}-0000abcd"
    folder.mkdir(parents=True)
    engine = prewarmed(profile)
    assert folder in standbys(rankdeck)  # it may have only just begun
    asyncio.run(engine.prewarm(None))
    os.utime(folder, (0, 0))
    asyncio.run(engine.prewarm(profile, LAUNCHED))
    assert folder not in standbys(rankdeck)
    asyncio.run(engine.prewarm(None))
    wait_until(lambda: standbys(rankdeck) == [] and not rankdeck.processes())


def test_a_standby_of_another_host_is_left_alone(rankdeck, profile):
    folder = rankdeck.folder("x").parent / f".standby-not-{socket.gethostname()}-0000abcd"
    folder.mkdir(parents=True)
    os.utime(folder, (0, 0))
    engine = prewarmed(profile)
    asyncio.run(engine.prewarm(None))
    wait_until(lambda: standbys(rankdeck) == [folder] and not rankdeck.processes())


def test_a_standby_that_was_killed_is_replaced_and_its_folder_goes(rankdeck, profile):
    engine = prewarmed(profile)
    (folder,) = standbys(rankdeck)
    wait_until((folder / "supervisor.lock").exists)
    for pid in rankdeck.of_role("standby"):
        kill_hard(pid)
    run = asyncio.run(engine.launch(profile))
    assert rankdeck("wait", run).returncode == 0
    asyncio.run(engine.prewarm(profile, LAUNCHED))
    assert folder not in standbys(rankdeck)
    asyncio.run(engine.prewarm(None))
    for pid in rankdeck.of_role(
        "bridge", "warden", "agent"
    ):  # an agent whose supervisor was killed stays for its lease
        kill_hard(pid)
