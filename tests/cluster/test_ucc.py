"""Runs over ucc on several nodes, which UCX takes for machines of their own; and a node that lacks a part of the library."""

import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.nodes import Cluster, Node
from tests.quickstart import SMALL
from tests.support import PATIENCE, Deck, checked, kill_hard, wait_until
from tests.ucc.system import PROBE, need_ucc

pytestmark = pytest.mark.slow

NODES = "node[1-2]:2"

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

MEBIBYTES = 4

TRAIN = f"""
import os, socket, time, torch, torch.distributed as dist
dist.init_process_group("ucc")
rank = dist.get_rank()
def reduced(value=rank + 1, size=1000):
    tensor = torch.ones(size) * value
    dist.all_reduce(tensor)
    return tensor[-1].item()
assert reduced(size={MEBIBYTES} << 18) == 10.0
print("up", rank, socket.gethostname(), os.environ["UCX_NET_DEVICES"], reduced(), flush=True)
while not reduced(os.path.exists("finish")):
    time.sleep(0.05)
print("done", rank, flush=True)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def components() -> Path:
    """The folder in which UCC finds its parts."""
    done = subprocess.run([need_ucc(), PROBE], capture_output=True, text=True, timeout=PATIENCE, check=True)
    return Path(done.stdout.split()[1]).resolve().parent / "ucc"


@pytest.fixture
def machines(cluster: Cluster, tmp_path: Path) -> list[Node]:
    """Two nodes whose kernels seem to have booted apart, each with an interface more that leads nowhere: UCX would take either for
    the way to the other node, and their shared memory before both."""
    nodes = cluster.nodes[:2]
    for node in nodes:
        other = tmp_path / f"boot_id of {node.name}"
        other.write_text(f"{uuid.uuid4()}\n")
        node.cover(BOOT_ID, other)
        node.add_dead_end(f"172.18.0.{node.name[-1]}/16")
    return nodes


@pytest.fixture
def profile(cluster: Cluster, write_profile) -> Callable[..., Path]:
    """Writes a profile over ucc on two nodes."""

    def profile(recipe: Any, **sections: Any) -> Path:
        backend = {"name": "ucc", **sections.pop("backend", {})}
        layout = {"nodes": NODES, "ssh_options": cluster.ssh_options}
        launch = {"python": str(need_ucc()), **sections.pop("launch", {})}
        path: Path = write_profile(recipe, layout=layout, backend=backend, launch=launch, **sections)
        return path

    return profile


def received(node: Node) -> int:
    """Bytes that have come in over the cable of a node."""
    return int(node.run(["cat", f"/sys/class/net/{node.interface}/statistics/rx_bytes"]).stdout)


def test_ranks_of_two_machines_meet_by_the_interface_that_leads_there(
    rankdeck: Deck, profile, write_script, machines: list[Node], cluster: Cluster, work: Path
) -> None:
    before = [received(node) for node in machines]
    run = rankdeck.launch(profile(write_script("train.py", TRAIN)))
    for rank in range(4):
        node = machines[rank // 2]
        rankdeck.wait_log(run, rank, f"up {rank} {node.name} {node.interface} 10.0\n".encode())
    assert all(received(node) - old > MEBIBYTES << 20 for node, old in zip(machines, before, strict=True))
    rankdeck.ends(run, work / "finish")
    assert [rankdeck.log(run, rank).splitlines()[-1] for rank in range(4)] == [b"done %d" % rank for rank in range(4)]
    wait_until(lambda: not cluster.processes(), what="nothing is left on the nodes")


def test_the_recipe_trains_on_two_machines(rankdeck: Deck, profile, machines: list[Node]) -> None:
    recipe = {"name": "gpt", "args": ["--steps", "6", "--checkpoint-every", "3", *SMALL]}
    run = rankdeck.launch(profile(recipe, launch={"warm": True}))
    assert rankdeck("wait", run, seconds=240).returncode == 0, rankdeck("logs", run).stdout
    assert [rank["step"] for rank in rankdeck.status(run)["ranks"]] == [6] * 4


def test_a_rank_that_is_killed_is_the_cause_and_all_start_again(
    rankdeck: Deck, profile, write_script, machines: list[Node], work: Path
) -> None:
    run = rankdeck.launch(profile(write_script("train.py", TRAIN), launch={"on_failure": "hold"}))
    for rank in range(4):
        rankdeck.wait_log(run, rank, b"up")
    kill_hard(rankdeck.pids(run)[3])
    held = rankdeck.wait_state(run, "holding")
    assert held["failure"]["headline"] == "rank 3 was killed by SIGKILL"
    rankdeck.wait_log(run, 2, b"the process of rank 3 has ended", stream="err")
    assert rankdeck("restart", run).returncode == 0
    for rank in range(4):
        rankdeck.wait_log(run, rank, b"up", attempt=1)
    rankdeck.ends(run, work / "finish")


def test_a_node_without_the_parts_of_ucc_is_found_before_anything_starts(
    rankdeck: Deck, profile, write_script, cluster: Cluster, components: Path, home: Path
) -> None:
    cluster.node(2).hide(components)
    done = rankdeck("launch", profile(write_script("train.py", TRAIN)))
    assert done.returncode == 3, done.stderr
    fact, hint = done.stderr.splitlines()[-2:]
    assert fact.startswith("rankdeck: node2: UCC at ")
    assert "is without its components" in fact
    assert "libucc-dev" in hint
    assert not list(home.glob("**/journal.jsonl"))


def test_another_backend_takes_over_where_a_node_lacks_ucc(
    rankdeck: Deck, profile, write_script, cluster: Cluster, components: Path
) -> None:
    cluster.node(2).hide(components)
    script = write_script("train.py", "import os; print(os.environ['RANKDECK_BACKEND'])")
    path = profile(script, backend={"fallback": ["gloo"]})
    assert "ucc can't run: node2: UCC at " in rankdeck("plan", path).stdout
    run = rankdeck.launch(path)
    assert rankdeck("wait", run).returncode == 0
    assert [rankdeck.log(run, rank) for rank in range(4)] == [b"gloo\n"] * 4


@pytest.mark.parametrize("quick", [["--quick"], []])
def test_the_check_tells_which_ucc_a_node_has_and_what_is_missing(
    rankdeck: Deck, profile, write_script, cluster: Cluster, components: Path, quick: list[str]
) -> None:
    cluster.node(2).hide(components)
    path = profile(write_script("train.py", TRAIN))

    def answers() -> list[Any]:
        """A quick check skips what a busy node does not answer in time."""
        found = checked(rankdeck, path, *quick)
        both = [found[node, "backend"] for node in ("node1", "node2")]
        return both if all(one["state"] != "skip" for one in both) else []

    whole, half = wait_until(answers, what="both nodes answer in time")
    assert (whole["state"], half["state"]) == ("ok", "fail")
    assert whole["text"].startswith("UCC 1.")
    assert "is without its components" in half["text"]
    assert "libucc-dev" in half["hint"]
