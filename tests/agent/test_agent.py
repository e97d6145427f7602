"""The real agent, driven over its wire as a supervisor drives it: boot, ranks, groups, the stop ladder."""

import asyncio
import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from engine.core.failures import ssh as connect_trouble
from engine.core.wire import agent_reports as reports
from engine.core.wire import agent_requests as requests
from engine.node.agent.wire import EXIT_CUT_OFF, PROTOCOL, SYNC
from engine.supervisor.nodes.bridge import agent_program, boot_command
from engine.supervisor.nodes.link import Link
from tests.agent.driver import FOR_EVER, STUBBORN, child_of, child_program, open_files
from tests.support import PATIENCE, ROOT, entries, is_alive, process_state, rows, run_program, wait_gone, wait_until

# --- what it is made of


def test_the_agent_is_small_enough_to_send_at_every_boot():
    assert len(agent_program()) < 36 * 1024


# --- booting


async def failures_of_boot(node, shell: str) -> list[str]:
    """Connects through a shell command that ends with `exec "$@"`, and closes the agent. Returns what was reported to fail."""
    argv = ["sh", "-c", shell, "sh", *boot_command(sys.executable)]
    greeted, closed = asyncio.Event(), asyncio.Event()
    failed: list[str] = []

    def fail(reason: str) -> None:
        failed.append(reason)
        greeted.set()
        closed.set()

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        link = Link(
            tasks,
            "localhost",
            argv,
            msgspec.convert(node.hello(), requests.Greeting),
            on_news=lambda news: greeted.set() if isinstance(news, reports.Hello) else None,
            on_down=fail,
            on_failed=lambda reason, _: fail(reason),
            on_closed=closed.set,
            explain=lambda status, said: connect_trouble.explain(
                "localhost", status=status, said=said, python=sys.executable, setup=False
            ),
            gate=asyncio.Semaphore(1),
            preamble=agent_program(),
        )
        link.open(0.0)
        await greeted.wait()
        link.close()
        await closed.wait()
    return failed


async def test_it_boots_past_what_a_login_shell_prints_first(node):
    """A `.bashrc` that greets, and part of what the agent itself would say, must not look like frames."""
    noise = "echo 'Welcome to gpu01!'; printf '\\0RANKDECK-AGENT'; head -c 20000 /dev/zero; echo; exec \"$@\""
    assert await failures_of_boot(node, noise) == []


@pytest.mark.parametrize(
    "death",
    ["kill -9 $$", f"printf '\\0RANKDECK-AGENT {PROTOCOL}\\n'; exit 0"],
    ids=["before-it-starts", "before-it-answers"],
)
async def test_an_agent_that_is_killed_while_it_starts_is_started_again(node, death):
    assert await failures_of_boot(node, f'if mkdir {node.folder}/once; then {death}; fi; exec "$@"') == []


async def test_an_agent_that_is_killed_again_and_again_is_given_up(node):
    (reason,) = await failures_of_boot(node, "kill -9 $$")
    assert "SIGKILL" in reason


def test_the_wire_carries_nothing_before_the_sync_string(node):
    _bridge, hello = node.connect()
    assert hello["ranks"] == []
    assert hello["store"] is None
    assert hello["python"] == "{}.{}.{}".format(*sys.version_info[:3])


def test_another_protocol_is_refused(node):
    bridge = node.boot({**node.hello(), "protocol": PROTOCOL + 1})
    refused = bridge.expect("refused")
    assert str(PROTOCOL + 1) in refused["reason"]
    node.connect()


def test_a_wire_that_ends_in_the_middle_of_the_source_ends_the_boot():
    argv = boot_command(sys.executable)
    done = subprocess.run(argv, input=agent_program()[:1000], capture_output=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout) == (EXIT_CUT_OFF, b"")


def test_a_wire_that_ends_before_the_first_frame_starts_no_agent(home):
    argv = boot_command(sys.executable)
    done = subprocess.run(argv, input=agent_program() + b"\0\0", capture_output=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout) == (EXIT_CUT_OFF, SYNC)


def test_the_agent_has_left_the_session_the_folder_and_the_wire_of_its_boot(node):
    bridge, hello = node.connect()
    for pid in (hello["pid"], hello["warden"]):
        assert os.getsid(pid) == hello["warden"] != os.getsid(0)
        assert os.readlink(f"/proc/{pid}/cwd") == str(node.folder / "node")  # its own, wherever it was booted
        names = open_files(pid)
        assert not [name for name in names if name.startswith(("/dev/pts", "/dev/tty"))]
        assert bridge.process.stdout is not None
        assert os.readlink(f"/proc/self/fd/{bridge.process.stdout.fileno()}") not in names


def test_a_module_on_pythonpath_does_not_stop_the_agent(node, tmp_path):
    """It is for ranks, and a training repository may well have a `socket.py` or `json.py` on it."""
    for name in ("socket", "json", "selectors", "ctypes"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')")
    bridge = node.boot(env={"PYTHONPATH": str(tmp_path)})
    hello = bridge.expect("hello")
    node.agents.add(hello["pid"])
    node.spawn(bridge, "print(os.environ['PYTHONPATH'].split(':')[1:])")
    bridge.expect("ended", status=0)
    assert node.out(0) == f"{[str(tmp_path)]}\n".encode()


# --- ranks


def test_a_rank_tells_when_it_started_and_how_it_ended(node):
    bridge, _ = node.connect()
    pids = node.spawn(bridge, "print('hello')", "raise SystemExit(7)", "os.kill(os.getpid(), 11)")
    assert len(set(pids)) == 3
    assert [bridge.expect("ended", rank=rank, attempt=0)["status"] for rank in range(3)] == [0, 7, -11]
    assert node.out(0) == b"hello\n"


def test_a_rank_leads_a_session_of_its_own_and_has_no_input(node):
    bridge, _ = node.connect()
    (_pid,) = node.spawn(
        bridge, "import sys; print(os.getpid() == os.getsid(0) == os.getpgid(0), repr(sys.stdin.read()))"
    )
    bridge.expect("ended", status=0)
    assert node.out(0) == b"True ''\n"


def test_a_rank_inherits_no_descriptor_of_the_agent(node):
    bridge, _ = node.connect()
    node.open_store(bridge)
    bridge.expect("store")
    node.spawn(bridge, "print(sorted(n for n in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + n)))")
    bridge.expect("ended", status=0)
    assert node.out(0) == b"['0', '1', '2']\n"


def test_ranks_have_the_signal_handling_of_a_fresh_process(node):
    """Python ignores SIGPIPE; a rank that inherits that, or a blocked signal, behaves unlike the same script in a shell."""
    bridge, _ = node.connect()
    node.spawn(bridge, "print(*[l for l in open('/proc/self/status') if l[:6] in ('SigBlk', 'SigIgn')])")
    bridge.expect("ended", status=0)
    own = subprocess.run(
        [
            "env",
            "--default-signal",
            sys.executable,
            "-c",
            "print(*[l for l in open('/proc/self/status') if l[:6] in ('SigBlk', 'SigIgn')])",
        ],
        capture_output=True,
        timeout=PATIENCE,
        check=True,
    )
    assert node.out(0) == own.stdout


def test_a_command_that_does_not_exist_ends_with_127_and_a_reason(node):
    bridge, _ = node.connect()
    node.spawn(bridge, "", argv=["/no/such/python", "x.py"])
    ended = bridge.expect("ended", rank=0)
    assert ended["status"] == 127
    assert "/no/such/python" in ended["reason"]


def test_arguments_get_the_values_of_variables_that_the_rank_has(node):
    bridge, _ = node.connect()
    argv = ["/bin/echo", "{env.PLACE}/a", "{{env.PLACE}}", "{{env.PLACE}:1}", "{env.PLACE", "{env.PROGRAM}"]
    node.spawn(bridge, "mine", argv=argv, env={"PLACE": "/x {env.HOME}"})
    bridge.expect("ended", status=0)
    assert node.out(0).decode() == "/x {env.HOME}/a {env.PLACE} {/x {env.HOME}:1} {env.PLACE mine\n"
    node.spawn(bridge, "", attempt=1, argv=["/bin/echo", "{env.NOWHERE}"])
    assert bridge.expect("ended", attempt=1)["reason"] == "can't start: 'NOWHERE' is not set"


def test_a_command_that_may_not_be_run_ends_with_126(node):
    bridge, _ = node.connect()
    (node.folder / "plain.txt").write_text("x")
    node.spawn(bridge, "", argv=[str(node.folder / "plain.txt")])
    assert bridge.expect("ended", rank=0)["status"] == 126


def test_a_working_directory_that_is_missing_is_named(node):
    bridge, _ = node.connect()
    node.spawn(bridge, "", argv=[sys.executable, "-c", ""], cwd=str(node.folder / "gone"))
    ended = bridge.expect("ended", rank=0)
    assert ended["status"] == 127
    assert str(node.folder / "gone") in ended["reason"]


def test_files_hold_exactly_the_bytes_that_were_written(node):
    bridge, _ = node.connect()
    node.spawn(
        bridge,
        "import hashlib\n"
        "data = bytes(range(256)) * 4000 + b'\\r\\n\\r\\xff\\xfe' + b'x' * 1000000 + b'no newline'\n"
        "view = memoryview(data)\n"
        "while view: view = view[os.write(1, view[:7777]):]\n"
        "os.write(2, hashlib.sha256(data).hexdigest().encode())",
    )
    bridge.expect("ended", status=0)
    wanted = Path(node.files(0)["err"]).read_text()
    assert hashlib.sha256(node.out(0)).hexdigest() == wanted


def test_sizes_are_told_before_the_end(node):
    """Whoever reads files by the sizes that it was told has all of them when it hears of the end."""
    bridge, _ = node.connect()
    node.spawn(bridge, "os.write(1, b'x' * 1000); os.write(2, b'y' * 10)")
    bridge.expect("ended")
    seen = [message["sizes"] for message in bridge.messages if message["type"] == "grew"]
    assert seen[-1] == [[0, 1000, 10, 0]]


def test_a_rank_that_is_asked_for_twice_starts_once(node):
    bridge, _ = node.connect()
    (pid,) = node.spawn(bridge, FOR_EVER)
    node.spawn(bridge, FOR_EVER, argv=[sys.executable, "-c", "print('twice')"])
    bridge.settle()
    assert not [message for message in bridge.messages if message["type"] == "spawned"]
    assert is_alive(pid)


def test_ranks_of_an_attempt_that_was_cleared_do_not_start(node):
    bridge, _ = node.connect()
    bridge.send(type="clear", attempt=3)
    bridge.expect("cleared", attempt=3, abandoned=[])
    node.spawn(bridge, "", attempt=3, argv=[sys.executable, "-c", "pass"])
    bridge.settle()
    assert not [message for message in bridge.messages if message["type"] in ("spawned", "ended")]


# --- groups


def test_the_group_of_a_rank_is_killed_when_its_leader_exits(node):
    bridge, _ = node.connect()
    node.spawn(bridge, child_program("[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]", then="sys.exit(3)"))
    assert bridge.expect("ended")["status"] == 3
    wait_gone(child_of(node))


ORDER = entries("agent/agent", "order")
"""Writes down in which order the real functions are called, and whether the leader was still there."""


@pytest.mark.parametrize("who", rows("agent/agent", "the_group_is_killed_before_its_leader_is_reaped"))
def test_the_group_is_killed_before_its_leader_is_reaped(work, who):
    """Once the leader is reaped its number may be another process's, and a signal to the group hits the wrong one."""
    code = f"{ORDER}{who}\nprint(seen)"
    done = run_program([sys.executable, "-c", code, str(work)], cwd=ROOT)
    assert done.stdout == "[('kill', 'Z'), ('reap', 'Z')]\n", done.stderr


def test_a_signal_reaches_the_whole_group_of_one_rank(node):
    bridge, _ = node.connect()
    _first, second = node.spawn(bridge, child_program("pass", then="signal.pause()"), FOR_EVER)
    child = child_of(node)
    bridge.send(type="signal", attempt=0, rank=0, signal=signal.SIGTERM)
    assert bridge.expect("ended", rank=0)["status"] == -signal.SIGTERM
    wait_gone(child)
    assert is_alive(second)


def test_a_signal_for_another_attempt_is_not_sent(node):
    bridge, _ = node.connect()
    (pid,) = node.spawn(bridge, FOR_EVER, attempt=1)
    bridge.send(type="signal", attempt=0, rank=0, signal=signal.SIGKILL)
    bridge.settle()
    assert is_alive(pid)


# --- the stop ladder


DEAF = (
    "import signal; [signal.signal(n, signal.SIG_IGN) for n in {}]; print('up'); [signal.pause() for _ in iter(int, 1)]"
)
"""Ignores these signals. The kernel decides when a signal is sent whether it ends such a rank, however slow that is."""


def test_the_stop_ladder_goes_on_to_harder_signals(node):
    ladder = [["SIGUSR1", 0.1], ["SIGUSR2", 0.1], ["SIGHUP", 0.1], ["SIGKILL", 5]]
    bridge, _ = node.connect(stop_ladder=ladder)
    node.spawn(bridge, *[DEAF.format(ignored) for ignored in ("()", "(10,)", "(10, 12)", "(1, 10, 12)")])
    wait_until(lambda: all(node.out(rank) == b"up\n" for rank in range(4)))
    bridge.send(type="stop", attempt=0, at_once=False)
    ends = [bridge.expect("ended", rank=rank)["status"] for rank in range(4)]
    assert ends == [-signal.SIGUSR1, -signal.SIGUSR2, -signal.SIGHUP, -signal.SIGKILL]


def test_a_rank_may_take_a_signal_of_the_ladder_as_a_request(node):
    bridge, _ = node.connect(stop_ladder=[["SIGINT", 600], ["SIGKILL", 5]])
    node.spawn(
        bridge, "import signal\ntry:\n    print('up')\n    signal.pause()\nexcept KeyboardInterrupt:\n    os._exit(7)"
    )
    wait_until(lambda: node.out(0) == b"up\n")
    bridge.send(type="stop", attempt=0, at_once=False)
    assert bridge.expect("ended")["status"] == 7


SAVES = entries("agent/agent", "saves")
"""Saves a checkpoint on SIGTERM, until there is a file `go`."""

WRAPPERS = [[], ["env"], ["sh", "-c", '"$@"; exit $?', "sh"]]


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_the_ladder_begins_with_the_signal_that_the_program_handles_and_waits_for_its_save(node, wrapper):
    bridge, _ = node.connect(stop_ladder=[["auto", 0.1], ["SIGKILL", 5]], stop_patience=600.0)
    node.spawn(bridge, SAVES, argv=[*wrapper, sys.executable, "-u", "-c", "import os; exec(os.environ['PROGRAM'])"])
    wait_until(lambda: node.out(0) == b"up\n")
    bridge.send(type="stop", attempt=0, at_once=False)
    assert bridge.expect("saving")["ranks"] == [0]
    (node.folder / "go").touch()
    assert bridge.expect("ended")["status"] == 9


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_program_without_a_handler_gets_sigint(node, wrapper):
    bridge, _ = node.connect(stop_ladder=[["auto", 600], ["SIGKILL", 5]])
    program = "print('up')\ntry:\n    while True: time.sleep(9)\nexcept KeyboardInterrupt:\n    os._exit(7)"
    node.spawn(bridge, "", argv=[*wrapper, sys.executable, "-u", "-c", f"import os, time\n{program}"])
    wait_until(lambda: node.out(0) == b"up\n")
    bridge.send(type="stop", attempt=0, at_once=False)
    assert bridge.expect("ended")["status"] in (7, -signal.SIGINT)  # sh itself ends by the signal


def test_a_rank_that_is_stopped_by_a_signal_is_ended_too(node):
    bridge, _ = node.connect(stop_ladder=[["SIGTERM", 600], ["SIGKILL", 5]])
    (pid,) = node.spawn(bridge, FOR_EVER)
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: process_state(pid) == "T")
    bridge.send(type="stop", attempt=0, at_once=False)
    assert bridge.expect("ended")["status"] == -signal.SIGTERM


def test_at_once_kills_without_waiting_for_the_ladder(node):
    bridge, _ = node.connect(stop_ladder=[["SIGINT", 600], ["SIGKILL", 5]])
    node.spawn(bridge, STUBBORN)
    wait_until(lambda: node.out(0) == b"up\n")
    bridge.send(type="stop", attempt=0, at_once=False)
    bridge.send(type="stop", attempt=0, at_once=True)
    assert bridge.expect("ended")["status"] == -signal.SIGKILL


def test_a_second_stop_does_not_start_the_ladder_again(node):
    """The kernel keeps each real-time signal that was sent, and gives those with the lowest number first."""
    bridge, _ = node.connect(stop_ladder=[["SIGRTMIN", 600], ["SIGKILL", 5]])
    node.spawn(
        bridge,
        "import signal\n"
        "awaited = {signal.SIGRTMIN, signal.SIGRTMAX}\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, awaited)\n"
        "print('up')\n"
        "while signal.sigwait(awaited) != signal.SIGRTMAX: print('asked')\n",
    )
    wait_until(lambda: node.out(0) == b"up\n")
    for _ in range(3):
        bridge.send(type="stop", attempt=0, at_once=False)
    bridge.send(type="signal", attempt=0, rank=0, signal=signal.SIGRTMAX)
    assert bridge.expect("ended")["status"] == 0
    assert node.out(0) == b"up\nasked\n"
