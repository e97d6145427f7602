"""`rankdeck check`: what a launch would trip over is found before it, on this machine and on others."""

import asyncio
import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.core.checks.findings import CHECKS, Begun, Finding
from engine.core.errors import CheckError
from engine.core.plan.plan import PlannedNode, Reach
from engine.gate import LAUNCHED, Permit
from engine.node.probe import torch_import
from engine.node.probe.machine import leftovers
from engine.planning import check as node_check
from engine.planning import make as planning
from engine.planning.probes import probe_on
from engine.planning.profiles import read_profile
from tests import fake_ssh as hosts
from tests.conftest import WriteProfile, WriteScript
from tests.fake_ssh import FakeSsh
from tests.support import PATIENCE, Deck, check_out, checked, from_table, processes_with, wait_gone, wait_until

fake_ssh, fake_ssh_hosts = hosts.fake_ssh, hosts.fake_ssh_hosts  # fixtures, for this module

SAYS_NOTHING = "import signal\nwhile True:\n    signal.pause()\n"  # a torch whose import hangs


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test has asked of a node, another must ask itself."""
    monkeypatch.setattr(node_check, "_kept", {})


# --- this machine ------------------------------------------------------------------------------------------------------


def test_a_machine_that_can_train_passes_every_check(rankdeck: Deck):
    found = checked(rankdeck, "quickstart")
    assert [check for _, check in found] == list(CHECKS)
    # Other tests run on this machine, and some leave ranks without an agent for a while.
    assert {one["state"] for (_, check), one in found.items() if check != "leftovers"} == {"ok", "skip"}
    assert found["localhost", "backend"]["text"] == "gloo is in this torch"
    assert found["localhost", "torch"]["text"][0].isdigit()
    assert sys.executable in found["localhost", "python"]["text"]


def test_the_result_is_a_table_for_people(rankdeck: Deck):
    done = rankdeck("check", "quickstart", "--quick")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["CHECK", "STATE", "localhost"]
    assert any(line.startswith("torch ") and "● ok" in line and "not imported" in line for line in lines)
    assert lines[-1] in ("no problems found", "1 warning")
    ascii_only = rankdeck("--ascii", "check", "quickstart", "--quick")
    assert "* ok" in ascii_only.stdout
    assert ascii_only.stdout.isascii()


def test_what_is_missing_is_told_with_the_next_step(rankdeck: Deck, write_profile: WriteProfile, work: Path):
    profile = write_profile(work / "gone.py", launch={"workdir": "nowhere"})
    done = rankdeck("check", profile, "--quick")
    check_out(done, 3, f"✖ fail  localhost, script: {work}/gone.py: no such file or directory\n  keep it in a folder")
    assert f"✖ fail  localhost, workdir: {work}/nowhere: no such file or directory\n  create it there" in done.stdout
    # A warning is of what other runs left on this machine.
    assert done.stdout.splitlines()[-1] in ("2 failures", "2 failures, 1 warning")


def test_a_python_that_is_not_there_fails_its_check(rankdeck: Deck, write_profile: WriteProfile):
    found = checked(rankdeck, write_profile({"name": "linear"}, launch={"python": "/no/such/python"}))
    assert found["localhost", "python"]["state"] == "fail"
    assert "/no/such/python" in found["localhost", "python"]["text"]
    assert found["localhost", "torch"]["state"] == "skip"


@from_table
def test_a_torch_beside_the_script_is_the_one_that_ranks_get(
    torch: str, text: str, rankdeck: Deck, write_script: WriteScript, write_profile: WriteProfile
):
    write_script("torch.py", torch)
    found = checked(rankdeck, write_profile(""))
    assert (found["localhost", "torch"]["state"], found["localhost", "torch"]["text"]) == ("fail", text)
    assert found["localhost", "backend"]["state"] == "skip"
    assert found["localhost", "disk"]["state"] == "ok"


def test_modules_of_the_user_do_not_break_the_probe(rankdeck, write_script, write_profile, work, monkeypatch):
    for name in ("json", "socket", "hashlib", "subprocess", "tempfile", "zlib", "metadata", "platform", "ctypes"):
        write_script(f"modules/{name}.py", f"raise RuntimeError('{name} is not what you think')")
    monkeypatch.setenv("PYTHONPATH", "")
    profile = write_profile("", env={"PYTHONPATH": str(work / "modules")})
    found = checked(rankdeck, profile)
    assert found["localhost", "python"]["state"] == "ok"
    assert found["localhost", "torch"]["state"] == "fail"
    assert "is not what you think" in found["localhost", "torch"]["text"]


def test_a_python_that_does_not_start_as_a_rank_says_why(rankdeck, write_profile, work):
    found = checked(rankdeck, write_profile({"name": "linear"}, env={"PYTHONHOME": "/no/such/home"}), "--quick")
    assert found["localhost", "python"]["state"] == "fail"
    assert "does not start with the settings of a rank" in found["localhost", "python"]["text"]


def test_a_module_is_looked_for_where_a_rank_would_find_it(rankdeck, write_script, write_profile):
    write_script("there/pkg/__init__.py", "raise SystemExit('it must not be run')")
    inside = write_profile({"module": "pkg.train"}, launch={"workdir": "there"}, name="inside")
    outside = write_profile({"module": "pkg.train"}, name="outside")
    assert checked(rankdeck, inside, "--quick")["localhost", "script"]["state"] == "ok"
    assert checked(rankdeck, outside, "--quick")["localhost", "script"]["text"] == "there is no module pkg"


def test_setup_lines_come_before_the_probe(rankdeck: Deck, write_profile: WriteProfile, work: Path):
    (work / "python9").symlink_to(sys.executable)
    lines = {"python": "python9", "setup": f"export PATH=$PATH:'{work}'\necho noise"}
    found = checked(rankdeck, write_profile({"name": "linear"}, launch=lines), "--quick")
    assert found["localhost", "python"]["state"] == "ok"
    broken = write_profile({"name": "linear"}, launch={"setup": "module() { return 1; }; module load cuda"}, name="b")
    found = checked(rankdeck, broken, "--quick")
    assert found["localhost", "python"]["state"] == "fail"
    assert "launch.setup failed" in found["localhost", "python"]["text"]


def test_nodes_are_checked_inside_a_container(rankdeck, write_script, write_profile, work):
    image = write_script("image/python-inside", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    image.chmod(0o755)
    launch = {"wrap": ["env", f"PATH={image.parent}:/usr/bin:/bin"], "python": "python-inside"}
    found = checked(rankdeck, write_profile({"name": "linear"}, launch=launch))
    assert [found["localhost", check]["state"] for check in ("python", "torch")] == ["ok", "ok"]
    launch["python"] = "python-outside"
    found = checked(rankdeck, write_profile({"name": "linear"}, launch=launch, name="wrong"))
    trouble = found["localhost", "python"]
    assert trouble["state"] == "fail"
    assert trouble["text"].startswith("launch.wrap does not start python-outside there: env: ")
    assert trouble["hint"] == "correct launch.wrap; launch.python is the Python inside it"


def test_processes_of_a_run_without_an_agent_are_leftovers(rankdeck: Deck):
    env = {**os.environ, "RANKDECK_MARK": "old-ab2c-0123456789ab", "RANKDECK_RUN": "old-ab2c"}
    with subprocess.Popen(["sleep", "600"], env=env) as left:
        try:
            found = checked(rankdeck, "smoke", "--quick")["localhost", "leftovers"]
            mine = next(one for one in leftovers() if one["run"] == "old-ab2c")
        finally:
            left.kill()
    assert found["state"] == "warn"
    assert (mine["pids"], mine["owned"]) == ([left.pid], False)


def test_a_run_that_is_looked_after_is_no_leftover(rankdeck, launch):
    run = launch("print('up')\nimport signal\nsignal.pause()\n", says=b"up")
    assert [one["owned"] for one in leftovers() if one["run"] == run] == [True]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_nothing_is_left_of_a_check_that_was_ended(rankdeck, write_script, write_profile, number: signal.Signals):
    script = write_script("train.py", "")
    write_script("torch.py", SAYS_NOTHING)
    with rankdeck.start("check", write_profile(script)) as command:
        wait_until(lambda: len(rankdeck.processes()) >= 3, what="command, probe and import")
        others = [process.pid for process in rankdeck.processes() if process.pid != command.pid]
        command.send_signal(number)
        _, said = command.communicate(timeout=PATIENCE)
    assert "Traceback" not in said
    wait_gone(*others)


@pytest.mark.parametrize("end", ["kill -SEGV $$", "exec sleep 600"])
def test_a_libucc_that_crashes_or_hangs_is_not_known_to_be_missing(
    rankdeck: Deck, write_profile: WriteProfile, work: Path, end: str
):
    python = work / "python"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *RANKDECK_LIBUCC*) {end};; esac\nexec {shlex.quote(sys.executable)} "$@"\n'
    )
    python.chmod(0o755)
    profile = write_profile("", backend={"name": "ucc"}, launch={"python": str(python)})
    backend = checked(rankdeck, profile, "--quick")["localhost", "backend"]
    assert (backend["state"], "libucc that ranks find" in backend["text"]) == ("skip", True)
    wait_until(lambda: not rankdeck.processes())


def test_a_missing_libucc_is_told_with_the_next_step(rankdeck, write_script, write_profile, work):
    write_script("light/torch/__init__.py", "")  # importing the real one may take longer than a quick check waits
    write_script("light/torch/distributed.py", "def is_ucc_available(): return False")
    env = {"RANKDECK_LIBUCC": str(work / "libucc.so.1"), "PYTHONPATH": str(work / "light")}
    profile = write_profile("", backend={"name": "ucc"}, env=env)
    backend = checked(rankdeck, profile, "--quick")["localhost", "backend"]
    assert backend["state"] == "fail"
    assert backend["text"].startswith("UCC can't be loaded")
    assert "libucc-dev" in backend["hint"]


# --- other machines ----------------------------------------------------------------------------------------------------


@pytest.fixture
def on(rankdeck: Deck, write_profile: WriteProfile, fake_ssh: FakeSsh) -> Any:
    """Writes a profile for nodes that the fake ssh reaches."""

    def write(*nodes: str, **sections: Any) -> Path:
        ranks = sections.pop("ranks", 1)
        return write_profile({"name": "linear"}, ranks, layout={"nodes": list(nodes)}, **sections)

    return write


def test_each_node_is_told_of_by_itself(rankdeck: Deck, on: Any):
    done = rankdeck("check", on("host1", "refused1", "denied1", "noisy1", "nopython1"), "--quick")
    assert done.returncode == 3
    head, *rows = (re.split("  +", line) for line in done.stdout.split("\n\n")[0].splitlines())
    assert (head[0], [row[0] for row in rows]) == ("CHECK", list(CHECKS))
    states = {node: [row[number] for row in rows] for number, node in enumerate(head[1:], 1)}
    failed = {node: sum(state.endswith("fail") for state in found) for node, found in states.items()}
    assert failed == {"host1": 0, "refused1": 1, "denied1": 1, "noisy1": 0, "nopython1": 1}
    assert "refused1, ssh: " in done.stdout
    assert "nopython1, python: " in done.stdout
    assert any(line.startswith("rankdeck: host1: ") and "failure" not in line for line in done.stderr.splitlines())
    assert "rankdeck: denied1: 1 failure" in done.stderr.splitlines()


def test_a_full_check_imports_torch_over_there(rankdeck: Deck, on: Any):
    found = checked(rankdeck, on("host1"))
    assert found["host1", "backend"]["text"] == "gloo is in this torch"
    assert found["host1", "head"]["text"] == "one node needs no network"


def test_every_node_tries_the_way_to_the_first(rankdeck: Deck, on: Any):
    found = checked(rankdeck, on("host1", "host2", "host3"), "--quick")
    if found["host2", "head"]["state"] == "fail":
        assert "only local addresses" in found["host2", "head"]["text"]
        return
    assert found["host1", "head"]["text"].startswith("all others reach it at ")
    assert found["host3", "head"]["text"].startswith("host1 is reached at ")
    assert found["host3", "interface"]["text"].endswith(" connects to host1")


def test_a_head_that_is_silent_is_not_blamed_on_the_others(rankdeck: Deck, on: Any):
    found = checked(rankdeck, on("refused1", "host2"), "--quick")
    assert found["refused1", "ssh"]["state"] == "fail"
    assert (found["host2", "head"]["state"], found["host2", "ssh"]["state"]) == ("skip", "ok")


def test_paths_that_are_nowhere_here_are_no_error_of_a_plan_for_elsewhere(rankdeck, on: Any, work, write_profile):
    profile = on("host1", "host2", launch={"workdir": "nowhere", "python": sys.executable})
    assert rankdeck("plan", profile).returncode == 0
    found = checked(rankdeck, profile, "--quick")
    assert {node for (node, check), one in found.items() if one["state"] == "fail" and check == "workdir"} == {"host1", "host2"}  # fmt: skip
    here = write_profile({"name": "linear"}, launch={"workdir": "nowhere"}, name="here")
    assert rankdeck("plan", here).returncode == 3


async def findings(profile: Path, *, full: bool = False) -> list[Finding]:
    """Everything that a check of nodes says, in order."""
    plan = planning.make_plan(read_profile(profile), LAUNCHED, checked=False)
    async with contextlib.aclosing(node_check.check(plan, LAUNCHED, full=full)) as stream:
        return [news async for news in stream if isinstance(news, Finding)]


async def test_a_node_that_says_nothing_is_given_up(on: Any, monkeypatch: pytest.MonkeyPatch, fake_ssh: FakeSsh):

    def probe_on_soon_given_up(
        node: PlannedNode, reach: Reach, python: Sequence[str], seconds: float, permit: Permit
    ) -> Any:
        return probe_on(node, reach, python, 1.0 if node.name == "silent1" else seconds, permit)

    monkeypatch.setattr(node_check, "probe_on", probe_on_soon_given_up)
    found = await findings(on("silent1", "host2"))
    assert [one.node for one in found if one.state == "fail"] == ["silent1"]
    assert {one.check for one in found if one.node == "silent1"} == set(CHECKS)
    assert len(fake_ssh.calls("silent1")) == 1


async def test_as_many_nodes_as_there_are_places_are_asked_at_once(on: Any, monkeypatch, fake_ssh):
    monkeypatch.setattr(node_check, "AT_ONCE", 1)
    found = await findings(on("host1", "host2", "host3"))
    assert {one.node for one in found if one.check == "ssh" and one.state == "ok"} == {"host1", "host2", "host3"}
    assert len(fake_ssh.calls()) == 3


async def test_who_stops_listening_ends_every_probe(on: Any, fake_ssh: FakeSsh):
    plan = planning.make_plan(read_profile(on("host1", "silent1", "host2")), LAUNCHED, checked=False)
    stream = node_check.check(plan, LAUNCHED, full=False)
    assert await anext(stream) == Begun(nodes=("host1", "silent1", "host2"))
    await anext(stream)
    await stream.aclose()
    assert not processes_with("FAKE_SSH_LOG", str(fake_ssh.log))
    assert len(asyncio.all_tasks()) == 1


# --- ranks that nodes count for themselves -------------------------------------------------------------------------------


def ranks_of(profile: Path) -> dict[str, int]:
    """How many ranks a plan gives to each node."""
    return {node.name: len(node.ranks) for node in planning.make_plan(read_profile(profile), LAUNCHED).nodes}


def test_nodes_count_their_own_ranks_and_are_asked_once_a_minute(on: Any, fake_ssh, monkeypatch):
    cores = len(os.sched_getaffinity(0))
    assert ranks_of(on("host1", "host2:3", ranks="auto")) == {"host1": cores, "host2": 3}
    assert [call.host for call in fake_ssh.calls()] == ["host1"]
    ranks_of(on("host1", "host2:3", ranks="auto"))
    assert len(fake_ssh.calls()) == 1
    monkeypatch.setattr(node_check, "KEPT", 0.0)
    ranks_of(on("host1", "host2:3", ranks="auto"))
    assert len(fake_ssh.calls()) == 2


def test_a_plan_with_its_own_counts_connects_to_nobody(on: Any, fake_ssh: FakeSsh):
    assert ranks_of(on("refused1", "silent1", ranks=2)) == {"refused1": 2, "silent1": 2}
    assert fake_ssh.calls() == []


def test_every_node_that_can_not_be_asked_is_named_with_what_helps(on: Any, fake_ssh: FakeSsh):
    with pytest.raises(CheckError) as caught:
        ranks_of(on("host1", "refused1", "denied1", ranks="auto"))
    assert "refused1" in caught.value.message
    assert "denied1" in caught.value.message
    assert "host1" not in caught.value.message
    assert "layout.ranks_per_node" in (caught.value.hint or "")


# --- GPUs, as nvidia-smi tells of them -------------------------------------------------------------------------------------


@from_table
def test_devices_are_read_from_nvidia_smi(said: str, status: int, found: list[list[str | int]], work, monkeypatch):
    smi = work / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\ncat <<'END'\n{said}END\nexit {status}\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{work}:{os.environ['PATH']}")
    monkeypatch.setattr(torch_import, "count_gpus", lambda: 2)
    assert [[one["name"], one["total"] >> 20, one["free"] >> 20] for one in torch_import.devices()] == found
    monkeypatch.setattr(torch_import, "count_gpus", lambda: 0)
    assert torch_import.devices() == []
