"""Runs on nodes that are reached by ssh: from launch to end, and every way in which a link or a node fails meanwhile."""

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.node.agent.ranks.mpirun import ABORT_GRACE
from tests import elastic_runs
from tests.cluster.nodes import Cluster, Node
from tests.quickstart import SMALL
from tests.support import (
    WHEEL,
    Deck,
    check_err,
    entries,
    from_table,
    is_alive,
    kill_hard,
    use_mpi,
    wait_gone,
    wait_until,
)

pytestmark = pytest.mark.slow

LADDER = [["SIGTERM", 5], ["SIGKILL", 5]]

TRAIN = entries("cluster/runs", "train")

COUNT = entries("cluster/runs", "count")  # a thousand numbered lines in a second


@pytest.fixture
def launch(cluster: Cluster, rankdeck: Deck, write_script, write_profile) -> Callable[..., str]:
    """Launches a script on nodes of the cluster."""

    def launch(
        text: str,
        *,
        nodes: str = "node[1-2]:1",
        ready: str = "",
        args: tuple[str, ...] = (),
        order: str = "block",
        **sections: Any,
    ) -> str:
        recipe = {"script": str(write_script("train.py", text)), "args": list(args)}
        layout = {"nodes": nodes, "order": order, "ssh_options": cluster.ssh_options}
        settings = {"stop_ladder": LADDER, **sections.pop("launch", {})}
        profile = write_profile(recipe, layout=layout, launch=settings, **sections)
        run: str = rankdeck.launch(profile)
        for rank in range(len(rankdeck.status(run)["ranks"]) if ready else 0):
            rankdeck.wait_log(run, rank, ready.encode())
        return run

    return launch


def agents(node: Node) -> list[int]:
    """The agents and wardens of a node."""
    return [one.pid for one in node.processes() if re.match("rankdeck: (agent|warden) ", one.command)]


def numbers(deck: Deck, run: str, rank: int) -> list[int]:
    """The numbers that a rank of `COUNT` has printed, as far as they are stored."""
    whole, _, _ = deck.log(run, rank).rpartition(b"\n")
    return [int(line.split()[1]) for line in whole.splitlines() if line.startswith(b"line")]


# --- all is well -------------------------------------------------------------------------------------------------------


def test_ranks_of_two_nodes_meet_and_end(rankdeck: Deck, launch, work: Path, cluster: Cluster) -> None:
    run = launch(TRAIN, nodes="node[1-2]:2", ready="up")
    hosts = [rankdeck.log(run, rank).decode().split()[2:4] for rank in range(4)]
    assert hosts == [["node1", "0"], ["node1", "1"], ["node2", "0"], ["node2", "1"]]
    assert rankdeck.log(run, 0).split()[4] == b"10.0"
    rankdeck.ends(run, work / "finish")
    assert [rankdeck.log(run, rank).splitlines()[-1] for rank in range(4)] == [b"done %d" % rank for rank in range(4)]
    wait_until(lambda: not cluster.processes(), what="nothing is left on the nodes")


def test_every_node_says_where_its_ranks_are_whichever_answers_first(rankdeck: Deck, launch) -> None:
    run = launch("import rankdeck, signal\nprint('up', flush=True)\nwhile True: signal.pause()", ready="up")
    stopped = rankdeck.pids(run)[0]
    os.kill(stopped, signal.SIGSTOP)  # so that its node answers late

    def answers() -> list[dict[str, str]]:
        ranks: list[dict[str, str]] = json.loads(rankdeck("stacks", run, "--json").stdout)["ranks"]
        return ranks if "train.py" in ranks[1]["text"] else []

    ranks = wait_until(answers, what="rank 1 answers in time, on a busy machine too")
    os.kill(stopped, signal.SIGCONT)
    assert ranks[0]["reason"] == "it does not answer; it may be stopped"
    rankdeck("stop", run, "--now")
    rankdeck.wait_state(run, "stopped")


def test_nothing_is_left_in_the_temporary_folder_of_a_node(rankdeck: Deck, launch, tmp_path: Path) -> None:
    run = launch("print('hello', flush=True)")
    assert rankdeck("wait", run).returncode == 0
    assert rankdeck.log(run, 1) == b"hello\n"
    mine = [path for path in Path("/tmp/rankdeck-0").glob("*") if run in path.name]
    assert mine == []


@pytest.mark.parametrize("nodes", [2, 4])
def test_the_recipe_trains_with_two_ranks_on_each_node(rankdeck: Deck, write_profile, cluster: Cluster, nodes: int):
    layout = {"nodes": f"node[1-{nodes}]:2", "ssh_options": cluster.ssh_options}
    recipe = {"name": "gpt", "args": ["--steps", "6", "--checkpoint-every", "3", *SMALL]}
    run = rankdeck.launch(write_profile(recipe, layout=layout, launch={"warm": True}))
    assert rankdeck("wait", run, seconds=120 * nodes).returncode == 0, rankdeck("logs", run).stdout
    status = rankdeck.status(run)
    assert [rank["step"] for rank in status["ranks"]] == [6] * 2 * nodes
    assert [(rank["node"], rank["local_rank"]) for rank in status["ranks"]] == [
        (f"node{node}", local_rank) for node in range(1, nodes + 1) for local_rank in range(2)
    ]
    assert list((rankdeck.folder(run) / "checkpoints").iterdir())


def test_every_node_uses_the_interface_that_leads_to_the_others(rankdeck: Deck, launch, cluster: Cluster) -> None:
    run = launch(
        "import os; print(*(os.environ[n] for n in ('MASTER_ADDR', 'GLOO_SOCKET_IFNAME', 'NCCL_SOCKET_IFNAME')))"
    )
    assert rankdeck("wait", run).returncode == 0
    for rank, node in enumerate(cluster.nodes[:2]):
        words = [cluster.node(1).address, node.interface, f"={node.interface}"]
        assert rankdeck.log(run, rank).decode().split() == words


ASK_STORE = entries("cluster/runs", "ask_store")


def test_the_store_listens_only_where_the_other_nodes_reach_it(rankdeck: Deck, launch) -> None:
    run = launch(ASK_STORE)
    assert rankdeck("wait", run).returncode == 0
    assert [rankdeck.log(run, rank) for rank in (0, 1)] == [b"connected ConnectionRefusedError\n"] * 2


COUNT_ELSEWHERE = entries("cluster/runs", "count_elsewhere")


def test_the_full_disk_of_a_node_costs_output_and_no_rank(
    rankdeck: Deck, launch, cluster: Cluster, work: Path, tmp_path: Path
) -> None:
    small, node = tmp_path / "small", cluster.node(2)
    small.mkdir()
    node.hide(small, size="3m")
    run = launch(COUNT_ELSEWHERE, nodes="node2:1", ready="line 1 ", launch={"setup": f"export TMPDIR={small}"})
    (pid,) = rankdeck.pids(run)

    def counted() -> int:
        return int((work / "count").read_text())

    node.run(["dd", "if=/dev/zero", f"of={small}/filler", "bs=512"])
    began = counted()
    wait_until(lambda: counted() > began + 20, what="the rank goes on")
    assert node.run(["rm", f"{small}/filler"]).returncode == 0
    wait_until(lambda: b"bytes of output are lost here: the disk was full" in rankdeck.log(run, 0))
    status = rankdeck.status(run)
    assert (status["state"], status["ranks"][0]["pid"]) == ("running", pid)
    rankdeck.ends(run, work / "finish")
    rankdeck.wait_log(run, 0, b"last ")


def test_what_would_fail_late_is_told_while_ranks_start(rankdeck: Deck, launch, cluster: Cluster, work: Path) -> None:
    cluster.node(2).hide(work)
    run = launch(TRAIN)
    warned = wait_until(lambda: [one for one in rankdeck.journal(run) if one["event"] == "NodeWarned" and one["fails"]])
    assert [(event["node"], event["check"]) for event in warned] == [("node2", "script")]
    assert "no such file" in warned[0]["text"]
    rankdeck.wait_state(run, "holding")
    rankdeck("stop", run)
    rankdeck.wait_state(run, "failed")


def test_nodes_that_are_well_are_not_warned_of(rankdeck: Deck, launch, work: Path) -> None:
    run = launch(TRAIN, ready="up")
    rankdeck.ends(run, work / "finish")
    assert [event for event in rankdeck.journal(run) if event["event"] == "NodeWarned" and event["fails"]] == []


# --- mpi ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["openmpi", "mpich", "wheel"])
def mpi(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Puts one MPI in front of the PATH."""
    pytest.importorskip("mpi4py")
    use_mpi(request.param, tmp_path, monkeypatch)
    return str(request.param)


MPI_TRAIN = TRAIN.replace('"gloo"', '"mpi"')


def test_mpi_ranks_of_two_nodes_meet_and_end(rankdeck: Deck, launch, work: Path, cluster: Cluster, mpi: str) -> None:
    run = launch(MPI_TRAIN, nodes="node[1-2]:2", ready="up", backend={"name": "mpi"}, order="cyclic")
    words = [rankdeck.log(run, rank).decode().split()[1:5] for rank in range(4)]
    homes = [("node1", 0), ("node2", 0), ("node1", 1), ("node2", 1)]
    assert words == [[str(rank), host, str(local), "10.0"] for rank, (host, local) in enumerate(homes)]
    rankdeck.ends(run, work / "finish")
    assert [rankdeck.log(run, rank).splitlines()[-1] for rank in range(4)] == [b"done %d" % rank for rank in range(4)]
    wait_until(lambda: not cluster.processes(), what="nothing is left on the nodes")


def test_the_recipe_trains_with_mpi_on_two_nodes(rankdeck: Deck, write_profile, cluster: Cluster, mpi: str) -> None:
    layout = {"nodes": "node[1-2]:2", "ssh_options": cluster.ssh_options}  # in block order; a rank elsewhere is refused
    recipe = {"name": "gpt", "args": ["--steps", "6", "--eval-every", "0", *SMALL]}
    run = rankdeck.launch(write_profile(recipe, layout=layout, backend={"name": "mpi"}, launch={"warm": True}))
    assert rankdeck("wait", run, seconds=240).returncode == 0, rankdeck("logs", run).stdout
    assert [rank["step"] for rank in rankdeck.status(run)["ranks"]] == [6] * 4


def test_a_node_without_mpi4py_is_found_before_anything_starts(
    rankdeck: Deck, write_profile, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mpi4py = pytest.importorskip("mpi4py")
    use_mpi("openmpi", tmp_path, monkeypatch)
    hidden = tmp_path / "hidden.py"
    hidden.write_text("raise ImportError('hidden')")
    cluster.node(2).cover(Path(mpi4py.__file__), hidden)
    layout = {"nodes": "node[1-2]:1", "ssh_options": cluster.ssh_options}
    done = rankdeck("launch", write_profile(TRAIN, layout=layout, backend={"name": "mpi"}))
    check_err(done, 3, "node2: ", "has no mpi4py, and its torch was built without MPI")


def test_an_mpi_job_on_two_nodes_is_held_when_a_rank_or_a_daemon_is_killed_and_survives_supervisor_and_agents(
    rankdeck: Deck, launch, work: Path, cluster: Cluster, mpi: str
) -> None:
    run = launch(MPI_TRAIN, ready="up", backend={"name": "mpi"})
    survivor, victim = rankdeck.pids(run)
    kill_hard(victim)
    rankdeck.wait_state(run, "holding")  # perhaps because of rank 0, whose end may be told first
    wait_until(lambda: "rank 1 was killed" in rankdeck.status(run)["failure"]["headline"], what="the cause is known")
    if mpi != "wheel":  # a rank of Open MPI 5 ends itself when a peer's connection is closed
        time.sleep(3 * ABORT_GRACE)  # mpirun would have ended it by then
        assert is_alive(survivor)
    ranks = restarted(rankdeck, run, 1)
    processes = cluster.node(2).processes()
    daemon = next(one for one in processes if re.match(r"\S*(orted|prted|hydra_pmi_proxy) ", one.command))
    kill_hard(daemon.pid)
    rankdeck.wait_state(run, "holding")
    before = restarted(rankdeck, run, 2)
    wait_gone(*ranks)
    kill_supervisor_and_agents(rankdeck, run)
    rankdeck.ends(run, work / "finish")
    assert rankdeck.pids(run) == before
    wait_until(lambda: not cluster.processes(), what="nothing is left on the nodes")


def restarted(deck: Deck, run: str, attempt: int) -> list[int]:
    """Restarts a run of two ranks, and waits until they have met. Returns their processes."""
    assert f"attempt {attempt}" in deck("restart", run).stdout
    for rank in range(2):
        deck.wait_log(run, rank, b"up", attempt=attempt)
    return deck.pids(run)


def kill_supervisor_and_agents(deck: Deck, run: str) -> None:
    """Kills the supervisor of a run and then the agents of its two nodes, and waits until all are replaced."""

    def connected() -> list[dict[str, Any]]:
        return [event for event in deck.journal(run) if event["event"] == "NodeConnected"]

    def agents() -> dict[str, int]:
        return {event["node"]: event["agent_pid"] for event in connected()}

    before = len(connected())
    kill_hard(deck.supervisor(run))
    wait_until(lambda: len(connected()) == before + 2, what="the next supervisor is connected to both nodes")
    old = agents()
    for pid in old.values():
        kill_hard(pid)
    wait_until(lambda: not old.items() & agents().items(), what="both agents are replaced")


def test_a_node_without_that_mpi_is_named(
    rankdeck: Deck, launch, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_mpi("wheel", tmp_path, monkeypatch)
    cluster.node(2).hide(Path(WHEEL).parent)
    run = launch(MPI_TRAIN, backend={"name": "mpi"}, launch={"on_failure": "stop"})
    failure = rankdeck.wait_state(run, "failed")["failure"]
    assert failure["detail"] == "prted, which mpirun starts on other nodes, is missing on one of them"
    assert "install the same MPI there" in failure["hint"]


# --- links ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [5, 60])
def test_a_link_that_is_cut_for_a_while_costs_no_line(
    rankdeck: Deck, launch, work: Path, cluster: Cluster, seconds: int
) -> None:
    run = launch(COUNT, ready="line 500")
    node = cluster.node(2)
    before = rankdeck.status(run)["ranks"]
    node.cut()
    if seconds > 5:
        status = rankdeck.wait_status(run, lambda now: now["nodes"][1]["link"] == "down", what="the cut was noticed")
        assert "no message came from it" in status["nodes"][1]["reason"]
        assert [rank["note"] for rank in status["ranks"]] == ["", "node2 is unreachable"]
    start = len(numbers(rankdeck, run, 0))
    wait_until(lambda: len(numbers(rankdeck, run, 0)) > start + 800 * seconds, 4 * seconds, "node1 trains on")
    node.mend()
    (work / "finish").touch()
    assert rankdeck("wait", run, seconds=120).returncode == 0
    for rank in range(2):
        *lines, last = rankdeck.log(run, rank).splitlines()
        assert lines == [b"line %d" % number for number in range(len(lines))]
        assert last == b"last %d" % len(lines)
    assert rankdeck.pids(run) == [rank["pid"] for rank in before]


def test_a_node_that_is_away_past_its_lease_is_empty_when_it_comes_back(rankdeck: Deck, launch, cluster: Cluster):
    run = launch(COUNT, ready="line 500", launch={"lease": 4})
    node = cluster.node(2)
    node.cut()
    wait_until(lambda: not node.processes(), what="the agent has ended its ranks, and itself")
    node.mend()
    rankdeck.wait_state(run, "holding", "failed")
    rankdeck("stop", run)
    rankdeck.wait_state(run, "stopped", "failed")


def test_a_run_whose_node_is_away_can_be_stopped_and_says_so(rankdeck: Deck, launch, cluster: Cluster) -> None:
    run = launch(COUNT, ready="line 500", launch={"lease": 30})
    node = cluster.node(2)
    node.cut()
    rankdeck("stop", run)
    status = rankdeck.wait_state(run, "stopped")
    assert "node2 could not be reached: processes there end with its lease" in status["doing"]
    wait_until(lambda: not node.processes(), what="its lease is over")


@pytest.mark.parametrize("victim", ["sessions", "ssh", "sshd"])
def test_whatever_makes_the_link_is_replaced(rankdeck: Deck, launch, work: Path, cluster: Cluster, victim: str) -> None:
    run = launch(COUNT, ready="line 500")
    node = cluster.node(2)
    before = rankdeck.status(run)["ranks"]
    if victim == "ssh":
        ssh = next(one for one in rankdeck.processes() if one.command.startswith("ssh ") and " node2 " in one.command)
        kill_hard(ssh.pid)
    else:
        if victim == "sshd":
            node.stop_sshd()
        node.kill_sessions()
    rankdeck.wait_status(run, lambda status: status["nodes"][1]["link"] == "down" or victim != "sshd")
    if victim == "sshd":
        node.start_sshd()
    start = len(numbers(rankdeck, run, 1))
    wait_until(lambda: len(numbers(rankdeck, run, 1)) > start + 500, what="its lines come again")
    rankdeck.ends(run, work / "finish")
    lines = numbers(rankdeck, run, 1)
    assert lines == list(range(len(lines)))
    assert rankdeck.pids(run) == [rank["pid"] for rank in before]


def test_a_rank_that_fails_while_its_node_is_away_is_explained(rankdeck: Deck, launch, work: Path, cluster: Cluster):
    run = launch(
        "import os, time\n"
        "print('up', flush=True)\n"
        "while not os.path.exists('fail'): time.sleep(0.02)\n"
        "if os.environ['RANK'] == '1': raise ValueError('shapes do not fit')\n"
        "time.sleep(600)",
        ready="up",
    )
    node = cluster.node(2)
    node.stop_sshd()
    node.kill_sessions()
    rankdeck.wait_status(run, lambda status: status["nodes"][1]["link"] == "down")
    pid = rankdeck.pids(run)[1]
    (work / "fail").touch()
    wait_gone(pid)
    node.start_sshd()
    failure = rankdeck.wait_state(run, "holding")["failure"]
    assert "ValueError: shapes do not fit" in failure["detail"]
    rankdeck("stop", run)
    rankdeck.wait_state(run, "failed")


@pytest.mark.parametrize("words", [["stop"], ["stop", "--now"]])
def test_a_run_that_is_stopped_while_it_connects_ends(rankdeck: Deck, launch, cluster: Cluster, words: list[str]):
    for _ in range(3):
        run = launch("import time; time.sleep(600)", nodes="node[1-2]:1")
        rankdeck(*words, run)
        rankdeck.wait_state(run, "stopped")


# --- processes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", ["agent", "supervisor"])
def test_a_killed_agent_or_supervisor_is_replaced_and_ranks_of_other_machines_go_on(
    rankdeck: Deck, launch, work: Path, cluster: Cluster, victim: str
) -> None:
    run = launch(COUNT, ready="line 500")
    before = rankdeck.status(run)["ranks"]

    def connected() -> list[int]:
        events = [event for event in rankdeck.journal(run) if event["event"] == "NodeConnected"]
        return [event["agent_pid"] for event in events if event["node"] == "node2"]

    times = len(connected())
    kill_hard(rankdeck.supervisor(run) if victim == "supervisor" else connected()[0])
    wait_until(lambda: len(connected()) > times, what="the node is connected again")
    rankdeck.wait_status(run, lambda status: all(node["link"] == "up" for node in status["nodes"]))
    rankdeck.ends(run, work / "finish")
    for rank in range(2):
        lines = numbers(rankdeck, run, rank)
        assert lines == list(range(len(lines)))
    assert rankdeck.pids(run) == [rank["pid"] for rank in before]


def test_a_node_that_loses_all_its_processes_holds_the_run(rankdeck: Deck, launch, cluster: Cluster) -> None:
    run = launch(TRAIN, ready="up")
    for process in cluster.node(2).processes():
        kill_hard(process.pid)
    rankdeck.wait_status(run, lambda status: status["ranks"][1]["state"] in ("failed", "lost"))
    rankdeck.wait_state(run, "holding")
    rankdeck("stop", run)
    rankdeck.wait_state(run, "failed")


def test_a_rank_of_a_remote_node_is_restarted(rankdeck: Deck, launch, work: Path) -> None:
    run = launch(TRAIN, ready="up", launch={"warm": True})
    kill_hard(rankdeck.pids(run)[1])
    rankdeck.wait_state(run, "holding")
    assert "attempt 1" in rankdeck("restart", run).stdout
    for rank in range(2):
        rankdeck.wait_log(run, rank, b"up", attempt=1)
    rankdeck.ends(run, work / "finish")


@pytest.mark.parametrize("victims", [[0], [3], [2, 3]], ids=["head", "remote", "all-of-a-node"])
def test_dead_ranks_rejoin_on_their_node_and_the_others_keep_their_process(
    rankdeck: Deck, launch, work: Path, victims: list[int]
) -> None:
    run = launch(elastic_runs.TRAIN, nodes="node[1-2]:2", launch={"warm": True}, args=("1000000", "0.05"))
    before = elastic_runs.pids(elastic_runs.reached(rankdeck, run, 20))
    for rank in victims:
        kill_hard(before[rank])
    holding = rankdeck.wait_status(
        run, lambda now: now["state"] == "holding" and all(now["ranks"][rank]["exit"] is not None for rank in victims)
    )
    furthest = max(rank["step"] for rank in holding["ranks"])
    assert "rejoin" in rankdeck("restart", run, "--failed").stdout
    after = elastic_runs.reached(rankdeck, run, furthest + 1)
    assert (after["attempt"], [rank["node"] for rank in after["ranks"]]) == (0, ["node1"] * 2 + ["node2"] * 2)
    same = [old == new for old, new in zip(before, elastic_runs.pids(after), strict=True)]
    assert same == [rank not in elastic_runs.replaced(rankdeck, run, victims) for rank in range(4)]
    (work / "finish").touch()
    assert elastic_runs.result(rankdeck, run)


def test_ranks_that_were_ended_while_their_node_was_away_rejoin(rankdeck: Deck, launch, cluster: Cluster, work: Path):
    policy = {"warm": True, "on_failure": "restart", "max_restarts": 9, "on_disconnect": "stop"}
    run = launch(elastic_runs.TRAIN, launch=policy, args=("1000000", "0.05"))
    before = elastic_runs.pids(elastic_runs.reached(rankdeck, run, 20))
    node = cluster.node(2)
    node.cut()
    wait_until(lambda: not node.processes(), what="the agent has ended its rank, and itself")
    node.mend()
    elastic_runs.wait_for_another(rankdeck, run, 1, before[1])
    furthest = max(rank["step"] or 0 for rank in rankdeck.status(run)["ranks"])
    after = elastic_runs.reached(rankdeck, run, furthest + 1)
    assert after["attempt"] == 0
    elastic_runs.assert_kept(rankdeck, run, before, after, 0)
    rankdeck.ends(run, work / "finish")


def test_a_rank_rejoins_after_agent_and_warden_of_both_nodes_were_killed(
    rankdeck: Deck, launch, cluster: Cluster, work: Path
) -> None:
    """What ranks are told after an agent was made anew reaches the store, and so the survivors on the other node."""
    policy = {"warm": True, "on_failure": "restart", "max_restarts": 9}
    run = launch(elastic_runs.TRAIN, nodes="node[1-2]:2", launch=policy, args=("1000000", "0.05"))
    before = elastic_runs.pids(elastic_runs.reached(rankdeck, run, 20))
    for pid in [*agents(cluster.node(1)), *agents(cluster.node(2))]:
        kill_hard(pid)

    def is_connected_again(node: str) -> bool:
        return [(e["event"], e.get("node")) for e in rankdeck.journal(run)].count(("NodeConnected", node)) > 1

    wait_until(
        lambda: is_connected_again("node1") and is_connected_again("node2"), what="both nodes are connected again"
    )
    kill_hard(before[3])
    elastic_runs.wait_for_another(rankdeck, run, 3, before[3])
    furthest = max(rank["step"] or 0 for rank in rankdeck.status(run)["ranks"])
    after = elastic_runs.reached(rankdeck, run, furthest + 1)
    assert after["attempt"] == 0
    elastic_runs.assert_kept(rankdeck, run, before, after, 0, 1, 2)
    rankdeck.ends(run, work / "finish")


# --- nodes that can't start an agent ---------------------------------------------------------------------------------------


@from_table
def test_a_node_that_can_not_be_reached_is_named_with_the_reason(
    fault: str, said: str, rankdeck: Deck, launch, cluster: Cluster
) -> None:
    getattr(cluster.node(2), fault)()
    run = launch("print('never')")
    status = rankdeck.wait_state(run, "failed")
    assert "node2" in status["doing"]
    assert said in status["doing"].lower()
    assert "node1" not in status["doing"]


# --- nodes that share no folder with this machine ------------------------------------------------------------------------


def test_rsync_brings_the_code_without_what_git_ignores(rankdeck: Deck, launch, cluster: Cluster, work: Path) -> None:
    (work / ".gitignore").write_text("*.bin\n")
    (work / "big.bin").write_text("x")
    (work / "a 'b\n$(touch c)").mkdir()
    (work / "a 'b\n$(touch c)" / "helper.py").write_text("")
    rankdeck.home.mkdir()
    cluster.node(2).hide(work, rankdeck.home)
    run = launch("import os; print(sorted(os.listdir()), flush=True)", launch={"sync": "rsync"})
    assert rankdeck("wait", run).returncode == 0, rankdeck("logs", run).stdout
    here, there = (rankdeck.log(run, rank).decode().strip() for rank in range(2))
    assert "big.bin" in here
    assert there == str([".gitignore", "a 'b\n$(touch c)", "job.toml", "train.py"])


def test_code_that_can_not_be_brought_ends_the_launch_with_the_reason(
    rankdeck: Deck, launch, cluster: Cluster, work: Path
) -> None:
    cluster.node(2).hide(work)
    done = cluster.node(2).run(["mount", "-o", "remount,ro", work])
    assert done.returncode == 0, done.stderr
    run = launch("print('never')", launch={"sync": "rsync"})
    doing = rankdeck.wait_state(run, "failed")["doing"]
    assert "node2" in doing
    assert "could not be copied there" in doing


def test_what_ranks_write_comes_home_from_a_node_that_shares_nothing(
    rankdeck: Deck, launch, cluster: Cluster, work: Path
) -> None:
    rankdeck.home.mkdir()
    cluster.node(2).hide(rankdeck.home)
    run = launch(
        "import os; print(os.environ['RANKDECK_CHECKPOINTS'], flush=True); raise SystemExit(os.environ['RANK'] == '1')"
    )
    status = rankdeck.wait_state(run, "holding")
    assert status["ranks"][1]["exit"] == 1
    here, there = (rankdeck.wait_log(run, rank, b"\n").decode() for rank in range(2))
    assert here.startswith(str(rankdeck.folder(run)))
    assert not there.startswith(str(rankdeck.folder(run)))
    rankdeck("stop", run)
