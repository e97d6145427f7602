"""Links that break, agents and wardens that are killed, and what clearing and closing leave: nothing."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tests.agent.driver import (
    FOR_EVER,
    STUBBORN,
    Node,
    child_of,
    child_program,
    command_of,
    listens,
    open_files,
    sockets,
)
from tests.support import PATIENCE, ROOT, entries, is_alive, kill_hard, parent_of, processes_with, wait_gone, wait_until


def end(*pids: int) -> None:
    """Kills agent and warden: until they are gone, a bridge may connect, which then ends with them."""
    for pid in pids:
        kill_hard(pid)
    wait_gone(*pids)


# --- links that break


def test_a_second_bridge_finds_the_same_agent_and_all_that_it_has(node):
    bridge, first = node.connect()
    pids = node.spawn(bridge, FOR_EVER, "raise SystemExit(5)")
    bridge.expect("ended", rank=1)
    node.open_store(bridge)
    port = bridge.expect("store")["port"]
    bridge.hang_up()
    _, second = node.connect()
    assert (second["pid"], second["warden"]) == (first["pid"], first["warden"])
    assert second["store"] == [0, port]
    assert second["ranks"] == [
        {"attempt": 0, "rank": 0, "pid": pids[0], "status": None, "reason": "", "generation": 0},
        {"attempt": 0, "rank": 1, "pid": pids[1], "status": 5, "reason": "", "generation": 0},
    ]


def test_what_ended_without_a_link_is_told_to_the_next_one(node):
    bridge, _ = node.connect()
    node.spawn(bridge, "import time, sys\nwhile not os.path.exists('go'): time.sleep(0.01)\nsys.exit(9)")
    bridge.hang_up()
    (node.folder / "go").touch()
    wait_until(lambda: node.connect()[1]["ranks"][0]["status"] == 9)


def test_a_newcomer_learns_the_sizes_of_files_that_no_longer_grow(node):
    bridge, _ = node.connect()
    node.spawn(bridge, "os.write(1, b'x' * 123); import signal; signal.pause()")
    bridge.expect("grew", sizes=[[0, 123, 0, 0]])
    bridge.hang_up()
    again, _ = node.connect()
    again.expect("grew", sizes=[[0, 123, 0, 0]])


def test_a_lease_that_is_over_ends_the_ranks_and_then_the_agent(node):
    bridge, hello = node.connect(lease=0.3, stop_ladder=[["SIGTERM", 0.2], ["SIGKILL", 5]])
    (pid,) = node.spawn(bridge, STUBBORN)
    bridge.hang_up()
    wait_gone(pid, hello["pid"], hello["warden"])
    assert sockets() == []


def test_ranks_rejoin_on_a_node_whose_agent_has_left(node):
    bridge, hello = node.connect(on_disconnect="stop")
    (pid,) = node.spawn(bridge, FOR_EVER)
    bridge.hang_up()
    wait_gone(pid, hello["pid"], hello["warden"])
    assert sockets() == []
    again, second = node.connect()
    assert [(rank["pid"], rank["status"]) for rank in second["ranks"]] == [(pid, -signal.SIGINT)]
    (pid,) = node.spawn(again, FOR_EVER, generation=1)
    again.settle()
    assert is_alive(pid)


def test_a_rank_that_rejoins_while_its_agent_ends_the_others_is_left_alone(node):
    """The agent has begun to stop the ranks, since it was alone; then the supervisor is back."""
    told = "import signal; signal.signal(15, lambda *_: print('told', flush=True))\nwhile True: signal.pause()"
    bridge, _ = node.connect(on_disconnect="stop", stop_ladder=[["SIGTERM", 3.0], ["SIGKILL", 60.0]])
    node.spawn(bridge, FOR_EVER, told)
    bridge.hang_up()
    wait_until(lambda: b"told" in node.out(1), what="the agent stops its ranks")
    again, hello = node.connect()
    statuses = {rank["rank"]: rank["status"] for rank in hello["ranks"]}
    assert (statuses[0] or again.expect("ended", rank=0)["status"]) == -signal.SIGTERM
    (pid,) = node.spawn(again, FOR_EVER, generation=1)
    assert (statuses[1] or again.expect("ended", rank=1)["status"]) == -signal.SIGKILL
    again.settle()
    assert is_alive(pid)


def test_a_lease_does_not_run_while_somebody_is_connected(node):
    bridge, _hello = node.connect(lease=0.05)
    (pid,) = node.spawn(
        bridge, "import time\nfor n in range(40): print(n); time.sleep(0.01)\nimport signal; signal.pause()"
    )
    wait_until(lambda: node.out(0).endswith(b"39\n"))
    bridge.settle()
    assert is_alive(pid)


# --- an agent that is killed


def test_the_link_to_a_killed_agent_ends_at_once(node):
    """The supervisor is back as soon as it notices; until then nobody sees what happens to the ranks."""
    bridge, first = node.connect()
    node.spawn(bridge, FOR_EVER)
    kill_hard(first["pid"])
    bridge.wait_ended(2)


def test_a_bridge_that_comes_between_a_killed_agent_and_its_successor_is_answered(node):
    """The warden keeps the socket of the first agent open, and is held here: the bridge waits in that socket's queue."""
    bridge, first = node.connect()
    (pid,) = node.spawn(bridge, FOR_EVER)
    os.kill(first["warden"], signal.SIGSTOP)
    kill_hard(first["pid"])
    again = node.boot()
    wait_until(lambda: "anon_inode:[eventpoll]" in open_files(again.process.pid), what="the bridge has connected")
    os.kill(first["warden"], signal.SIGCONT)
    second = again.expect("hello")
    assert second["pid"] != first["pid"]
    assert [(rank["pid"], rank["status"]) for rank in second["ranks"]] == [(pid, None)]


def test_how_ranks_ended_while_there_was_no_agent_is_known(node):
    """The warden is held, so that nobody starts an agent before all ranks have ended; then both have much to do at once."""
    bridge, first = node.connect()
    os.mkfifo(node.folder / "gate")
    statuses = [rank % 7 + 1 for rank in range(40)]
    node.spawn(bridge, *map(str, statuses), argv=["/bin/sh", "-c", "read x < gate; exit $PROGRAM"])
    pids = [bridge.expect("spawned", rank=rank)["pid"] for rank in range(40)]
    os.kill(first["warden"], signal.SIGSTOP)
    kill_hard(first["pid"])
    while any(is_alive(pid) for pid in pids):
        with contextlib.suppress(OSError):  # ENXIO: nobody reads it now
            os.close(os.open(node.folder / "gate", os.O_WRONLY | os.O_NONBLOCK))
    os.kill(first["warden"], signal.SIGCONT)
    again, second = node.connect()
    assert second["pid"] != first["pid"]
    known = {rank["rank"]: rank["status"] for rank in second["ranks"]}
    assert sorted(known) == list(range(40))
    assert [known[rank] or again.expect("ended", rank=rank)["status"] for rank in range(40)] == statuses


def test_the_group_of_an_adopted_rank_is_killed_when_its_leader_exits(node):
    bridge, first = node.connect()
    program = child_program("signal.signal(15, signal.SIG_IGN)", then="signal.pause()")
    (_pid,) = node.spawn(bridge, program)
    child = child_of(node)
    kill_hard(first["pid"])
    again, _ = node.connect()
    again.send(type="signal", attempt=0, rank=0, signal=signal.SIGTERM)
    assert again.expect("ended")["status"] == -signal.SIGTERM
    wait_gone(child)


def test_a_rank_that_ended_unseen_is_lost_and_no_status_is_made_up(node):
    bridge, first = node.connect()
    (_pid,) = node.spawn(bridge, "import time, sys\nwhile not os.path.exists('go'): time.sleep(0.01)\nsys.exit(0)")
    end(first["warden"], first["pid"])
    again, _ = node.connect()
    (node.folder / "go").touch()
    assert "no agent" in again.expect("lost", rank=0)["reason"]


def test_a_rank_whose_end_is_not_noted_yet_is_not_forgotten(node):
    """The warden reaps, then notes; an agent that looks in between must wait for the note and not drop the rank."""
    bridge, first = node.connect()
    (pid,) = node.spawn(bridge, FOR_EVER)
    end(first["warden"], first["pid"], pid)
    again, second = node.connect()
    assert [(rank["rank"], rank["pid"], rank["status"]) for rank in second["ranks"]] == [(0, pid, None)]
    again.expect("lost", rank=0)


def test_an_agent_whose_warden_was_killed_goes_on_and_closes_without_a_trace(node):
    bridge, hello = node.connect()
    (_pid,) = node.spawn(bridge, FOR_EVER)
    kill_hard(hello["warden"])
    wait_until(lambda: parent_of(hello["pid"]) != hello["warden"])
    bridge.send(type="signal", attempt=0, rank=0, signal=signal.SIGTERM)
    assert bridge.expect("ended")["status"] == -signal.SIGTERM
    bridge.send(type="close")
    wait_gone(hello["pid"])
    assert sockets() == []


def test_the_number_of_a_dead_warden_may_be_anybodys(node, work):
    """An agent that outlives its warden must not take whoever has that number now for its own family."""
    stranger = subprocess.Popen(["/bin/sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    assert stranger.stdout is not None
    with stranger:
        child = int(stranger.stdout.readline())
        code = (
            "import os, socket, sys\n"
            "from engine.node.agent.loop import Agent\n"
            "from engine.linux.processes import become_subreaper\n"
            "become_subreaper()\n"
            f"os.chdir({str(work)!r})\n"
            f"Agent(socket.socket(), {stranger.pid}, 'nobody')._clear(0)\n"
        )
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=PATIENCE, check=True)
        alive = is_alive(child)
        kill_hard(child)
        kill_hard(stranger.pid)
    assert alive


def test_an_agent_that_listens_anew_is_found_after_it_was_killed(node):
    """The runtime folder went away with a login and came back with the next; then the agent is killed."""
    bridge, first = node.connect()
    (pid,) = node.spawn(bridge, FOR_EVER)
    folder = Path(os.environ["XDG_RUNTIME_DIR"]) / "rankdeck"
    shutil.rmtree(folder)
    wait_until(lambda: folder.exists() and list(folder.glob("*.sock")), what="the agent listens anew")
    node.connect()
    kill_hard(first["pid"])
    wait_gone(first["pid"])
    _, second = node.connect()
    assert second["pid"] != first["pid"]
    assert [rank["pid"] for rank in second["ranks"]] == [pid]


def in_family(code: str) -> list[str]:
    """Runs code that has a `state` whose node's processes are those below its own. Returns the words that it prints."""
    start = (
        "import os, signal, subprocess, sys, time\n"
        "from engine.linux.processes import all_children, become_subreaper, below, start_time\n"
        "from engine.node.agent.state import NodeState, Rank\n"
        "become_subreaper()\n"
        "state = NodeState('nobody', 0)\n"
        "def start(*argv, **options):\n"
        "    return subprocess.Popen(argv, stdout=subprocess.PIPE, **options)\n"
        "def children():\n"
        "    return set(below(os.getpid(), all_children(), set()))\n"
    )
    end = "\nfor pid in children(): os.kill(pid, 9)\n"
    argv = [sys.executable, "-c", start + code + end]
    done = subprocess.run(argv, cwd=ROOT, timeout=PATIENCE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_what_a_recorded_rank_has_started_is_not_taken_for_an_unrecorded_rank():
    words = in_family(
        entries("agent/agent_deaths", "what_a_recorded_rank_has_started_is_not_taken_for_an_unrecorded_rank")
    )
    assert words == ["True", "True", "False"]


def test_an_unrecorded_rank_that_is_just_being_forked_is_ended_too():
    words = in_family("""
forks = "import os, time\\nprint(flush=True)\\nwhile True:\\n    if os.fork() == 0: os.setsid(); time.sleep(600)\\n    time.sleep(0.001)"
template = start(sys.executable, "-c", forks, start_new_session=True)
template.stdout.readline()
state.end_unknown()
print(len(children()))
""")
    assert words == ["0"]


def test_a_rank_that_leads_no_group_yet_is_signalled():
    words = in_family("""
rank = Rank(0, [])
forked = start("sleep", "600")
rank.pid, rank.start = forked.pid, start_time(forked.pid)
rank.signal(signal.SIGKILL)
print(forked.wait())
""")
    assert words == [f"-{signal.SIGKILL:d}"]


# --- clearing and closing


def test_clear_ends_children_that_left_their_group(node):
    bridge, _ = node.connect()
    node.spawn(bridge, child_program("os.setsid()", then="sys.exit(0)"))
    bridge.expect("ended", status=0)
    child = child_of(node)
    assert is_alive(child)
    bridge.send(type="clear", attempt=0)
    bridge.expect("cleared", attempt=0, abandoned=[])
    assert not is_alive(child)


def test_clear_ends_children_that_left_everything_but_their_mark(node):
    """A data loader's daemon that forked twice, left its session and lost its agent: nothing but its environment tells."""
    bridge, first = node.connect()
    node.spawn(bridge, child_program("os.setsid(); os.fork() and os._exit(0); os.setsid()", then="sys.exit(0)"))
    bridge.expect("ended", status=0)
    child = child_of(node)
    end(first["warden"], first["pid"])
    again, _ = node.connect()
    assert is_alive(child)
    again.send(type="clear", attempt=0)
    again.expect("cleared", attempt=0, abandoned=[])
    wait_gone(child)  # its environment, by which it is found, goes a moment earlier


def test_clear_ends_children_that_have_thrown_their_environment_away(node):
    bridge, _ = node.connect()
    program = child_program(
        "os.setsid(); print('child', os.getpid()); os.write(w, b'x'); os.execve('/bin/sleep', ['sleep', '600'], {})",
        then="sys.exit(0)",
    )
    node.spawn(bridge, program)
    bridge.expect("ended", status=0)
    child = child_of(node)
    bridge.send(type="clear", attempt=0)
    bridge.expect("cleared", attempt=0, abandoned=[])
    assert not is_alive(child)


def test_clear_leaves_the_agent_and_the_next_attempt_works(node):
    bridge, _ = node.connect()
    node.spawn(bridge, STUBBORN)
    bridge.send(type="clear", attempt=0)
    bridge.expect("cleared", attempt=0, abandoned=[])
    node.spawn(bridge, "raise SystemExit(6)", attempt=1)
    assert bridge.expect("ended", attempt=1)["status"] == 6


def test_a_store_that_waits_for_its_template_while_an_older_attempt_is_cleared_can_be_asked_for_again(node, work):
    (work / "torch.py").write_text(
        "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nraise ImportError\n"
    )
    (work / "store.py").write_text("import time\ntime.sleep(600)\n")
    bridge, _ = node.connect()
    about = {
        "argv": [sys.executable, "-u", str(work / "store.py")],
        "log": str(work / "attempt_1" / "store.log"),
        "env": {"PYTHONPATH": str(work)},
        "library": str(ROOT / "engine" / "node" / "python"),
        "warm": True,
    }
    ask = {"type": "open_store", "attempt": 1, "host": "127.0.0.1", "env_defaults": {}, **about}
    bridge.send(**ask)
    bridge.send(type="clear", attempt=0)
    bridge.expect("cleared", attempt=0)
    bridge.send(**ask)
    (work / "node" / "go").touch()
    bridge.expect("store", attempt=1)


def test_a_template_with_a_job_is_not_replaced_before_it_has_done_it(node, work):
    (work / "torch.py").write_text(
        "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
        "class cuda:\n    is_initialized = _is_in_bad_fork = staticmethod(lambda: False)\n"
        "class default_generator:\n    seed = staticmethod(lambda: 0)\n"
    )
    (work / "store.py").write_text("import time\ntime.sleep(600)\n")
    bridge, _ = node.connect()
    about = {
        "argv": [sys.executable, "-u", str(work / "store.py")],
        "env_defaults": {},
        "library": str(ROOT / "engine" / "node" / "python"),
        "warm": True,
    }
    env = {"PYTHONPATH": str(work)}
    log = str(work / "attempt_0" / "store.log")
    bridge.send(type="open_store", attempt=0, host="127.0.0.1", log=log, env=env, **about)
    bridge.send(type="warm", spares=0, env={**env, "GLOO_SOCKET_IFNAME": "lo"}, **about)
    bridge.settle()
    (work / "node" / "go").touch()
    assert listens(bridge.expect("store", attempt=0)["port"])


def test_a_store_is_started_without_a_template_that_dies_with_its_job(node, work):
    (work / "torch.py").write_text("class cuda:\n    is_initialized = staticmethod(lambda: False)\n")
    (work / "store.py").write_text("import time\ntime.sleep(600)\n")
    bridge, hello = node.connect()
    about = {
        "argv": [sys.executable, "-u", str(work / "store.py")],
        "env": {"PYTHONPATH": str(work)},
        "library": str(ROOT / "engine" / "node" / "python"),
        "warm": True,
    }
    ask = {"type": "open_store", "host": "127.0.0.1", "env_defaults": {}, **about}
    bridge.send(**ask, attempt=0, log=str(work / "attempt_0" / "store.log"))
    bridge.expect("store", attempt=0)  # the template is ready

    def is_template(pid: int) -> bool:
        return command_of(pid).startswith(b"rankdeck: template") and parent_of(pid) == hello["pid"]

    (template,) = [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if is_template(pid)]
    os.kill(template, signal.SIGSTOP)
    bridge.send(**ask, attempt=1, log=str(work / "attempt_1" / "store.log"))
    bridge.settle()  # the job was handed over
    kill_hard(template)
    assert listens(bridge.expect("store", attempt=1)["port"])


def test_close_leaves_no_process_no_socket_and_no_lock(node, home):
    bridge, _ = node.connect()
    node.open_store(bridge)
    bridge.expect("store")
    node.spawn(bridge, STUBBORN, child_program("os.setsid()", then="signal.pause()"))
    child_of(node, 1)
    bridge.send(type="close")
    bridge.wait_ended()
    assert bridge.process.wait(timeout=PATIENCE) == 0
    assert processes_with("RANKDECK_HOME", str(home)) == []
    assert sockets() == []


def test_a_bridge_knows_that_its_agent_has_ended_on_purpose_also_if_it_did_not_read_the_last_request(node):
    bridge, _ = node.connect()
    (rank,) = node.spawn(bridge, FOR_EVER)
    bridge.send(type="close")
    wait_gone(rank)  # the agent ends what there is, and reads no more
    with contextlib.suppress(BrokenPipeError):
        bridge.send(type="ping")
    bridge.wait_ended()
    assert bridge.process.wait(timeout=PATIENCE) == 0


def test_agents_of_different_runs_do_not_see_each_other(node, tmp_path):
    bridge, hello = node.connect()
    (pid,) = node.spawn(bridge, FOR_EVER)
    other_folder = tmp_path / "other"
    other_folder.mkdir()
    other = Node(other_folder, "run-2")
    other_bridge, other_hello = other.connect()
    try:
        assert other_hello["pid"] != hello["pid"]
        assert other_hello["ranks"] == []
        other_bridge.send(type="close")
        wait_gone(other_hello["pid"], other_hello["warden"])
        bridge.settle()
        assert is_alive(pid)
    finally:
        other.leave()
