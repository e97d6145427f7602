"""Whatever of rankdeck is killed while ranks run: no rank dies, nothing is lost, and the run ends as it should."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.core.views.view import PROTOCOL
from engine.runs.paths import RunPaths
from engine.runs.replay import stored_snapshot
from engine.supervisor.server import CLOSE_TIMEOUT
from tests.faults.test_guard import guard_of
from tests.support import (
    COMMAND,
    LIGHT,
    PATIENCE,
    ROOT,
    Deck,
    check_err,
    entries,
    from_table,
    is_alive,
    kill_hard,
    listener_of_another_user,
    parent_of,
    process_state,
    run_program,
    wait_gone,
    wait_until,
)

COUNT = entries("faults/faults", "count")

FOR_EVER = "import signal; print('up', flush=True)\nwhile True: signal.pause()"


class Counting:
    """A run whose ranks count until they are told to finish."""

    def __init__(self, deck: Deck, run: str, work: Path, ranks: int) -> None:
        self.deck, self.run, self.work, self.ranks = deck, run, work, ranks
        self.pids = [rank["pid"] for rank in self.wait_running()["ranks"]]

    def wait_running(self) -> dict[str, Any]:
        """Waits until every rank has counted a little."""
        return self.deck.wait_status(self.run, lambda status: all((rank["step"] or 0) > 5 for rank in status["ranks"]))

    @property
    def supervisor(self) -> int:
        return self.deck.supervisor(self.run)

    @property
    def agent(self) -> int:
        """The agent that lives: after one was killed, its successor."""
        return wait_until(lambda: next((p.pid for p in self.family() if parent_of(p.pid) == self.warden), 0))

    @property
    def warden(self) -> int:
        """The one of the agent's family that leads its session and has no connection, as a bridge has."""

        def find() -> int:
            with contextlib.suppress(OSError):  # a bridge that has just ended
                for process in self.family():
                    pid: int = process.pid
                    if os.getsid(pid) == pid and os.readlink(f"/proc/{pid}/fd/0") == os.devnull:
                        return pid
            return 0

        return wait_until(find, what="there is a warden")

    @property
    def bridge(self) -> int:
        return wait_until(lambda: next((p.pid for p in self.family() if parent_of(p.pid) == self.supervisor), 0))

    def kill_supervisor_and_guard(self) -> None:
        """Until the next command nobody starts a supervisor."""
        pid = self.supervisor
        guard = guard_of(self.deck, pid)
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: process_state(pid) == "T")
        kill_hard(guard)
        wait_gone(guard)
        kill_hard(pid)
        wait_gone(pid)

    def family(self) -> list[Any]:
        """Bridge, warden and agent: what was booted through stdin."""
        pids = self.deck.of_role("bridge", "warden", "agent")
        return [process for process in self.deck.processes() if process.pid in pids]

    def steps(self) -> list[int]:
        """How far each rank has counted, by its own file."""
        return [len(self.deck.log(self.run, rank).splitlines()) for rank in range(self.ranks)]

    def assert_ranks_go_on(self) -> None:
        """The same processes as in the beginning, and they count."""
        before = self.steps()
        wait_until(lambda: all(now > then for now, then in zip(self.steps(), before, strict=True)), what="ranks go on")
        assert all(is_alive(pid) for pid in self.pids)

    def assert_status_works(self) -> None:
        """`status` shows the same processes, and numbers that grow."""
        status = self.deck.wait_state(self.run, "running")
        assert [rank["pid"] for rank in status["ranks"]] == self.pids
        assert {rank["state"] for rank in status["ranks"]} == {"running"}
        reached = max(rank["step"] or 0 for rank in status["ranks"])
        self.deck.wait_status(self.run, lambda now: all((rank["step"] or 0) > reached for rank in now["ranks"]))

    def finish(self, *words: str) -> dict[str, Any]:
        """Lets the ranks end. Returns the last status."""
        (self.work / "finish").touch()
        self.deck("wait", self.run, seconds=30)
        return self.deck.status(self.run)

    def points(self, rank: int) -> int:
        """Points of a rank's loss that went into its curve."""
        dumps = stored_snapshot(RunPaths(self.deck.folder(self.run))).series
        return sum(bucket.count for dump in dumps if (dump.rank, dump.key) == (rank, "loss") for bucket in dump.buckets)

    def assert_nothing_lost(self) -> None:
        """Every line is stored, once and in order; `logs` gives it; the last step is known."""
        # A supervisor saves the curves when those who follow know that the run has ended.
        wait_until(lambda: self.deck.processes() == [], what="nothing of the run is left")
        status = self.deck.status(self.run)
        for rank in range(self.ranks):
            lines = self.deck.log(self.run, rank).decode().splitlines()
            total = len(lines) - 1
            assert lines == [*map(str, range(1, total + 1)), f"total {total}"]
            assert status["ranks"][rank]["step"] == total
            assert self.points(rank) == total, "every point of the curve is there, and none is twice"
            assert self.deck.raw("logs", self.run, "--rank", str(rank)).stdout == self.deck.log(self.run, rank)


@pytest.fixture
def launch_counting(rankdeck, work, launch) -> Callable[..., Counting]:
    def launch_it(*words: str, ranks: int = 2) -> Counting:
        return Counting(rankdeck, launch(COUNT, ranks, args=words), work, ranks)

    return launch_it


@pytest.fixture
def counting(launch_counting: Callable[..., Counting]) -> Counting:
    return launch_counting(ranks=3)


# --- one of rankdeck's own processes is killed


@pytest.mark.parametrize("victim", ["supervisor", "agent", "warden", "bridge"])
def test_ranks_survive_and_the_run_ends_as_it_should_when_one_is_killed(counting, victim):
    if victim == "supervisor":  # the next one goes on from curves that were saved; below one starts without
        saved = counting.deck.folder(counting.run) / "series.json"
        wait_until(saved.exists, what="the curves are saved")
    kill_hard(getattr(counting, victim))
    counting.assert_ranks_go_on()
    counting.assert_status_works()
    status = counting.finish()
    assert status["state"] == "succeeded"
    assert [(rank["state"], rank["exit"], rank["attempt"]) for rank in status["ranks"]] == [("exited", 0, 0)] * 3
    counting.assert_nothing_lost()


def test_ranks_survive_when_all_of_rankdeck_is_killed_at_once(counting):
    """As after an OOM killer's bad day. Nobody saw how the ranks ended later, and no status is made up."""
    for pid in (counting.warden, counting.agent, counting.bridge, counting.supervisor):
        kill_hard(pid)
    counting.assert_ranks_go_on()
    counting.assert_status_works()
    counting.finish()
    status = counting.deck.wait_status(  # a run holds as soon as one rank is lost
        counting.run, lambda now: {rank["state"] for rank in now["ranks"]} <= {"lost", "exited"}
    )
    assert {rank["exit"] for rank in status["ranks"]} <= {None, 0}
    counting.deck("stop", counting.run)
    counting.deck.wait_state(counting.run, "stopped", "failed", "succeeded")
    counting.assert_nothing_lost()


def test_a_rank_that_ends_while_the_agent_is_dead_has_its_true_exit_status(launch_counting):
    """The warden is held, so that no new agent comes before the ranks have ended."""
    counting = launch_counting("7", ranks=3)
    warden = counting.warden
    os.kill(warden, signal.SIGSTOP)
    kill_hard(counting.deck.agent(counting.run))
    (counting.work / "finish").touch()
    wait_gone(*counting.pids)
    os.kill(warden, signal.SIGCONT)
    status = counting.deck.wait_status(
        counting.run, lambda status: all(rank["state"] in ("exited", "failed", "lost") for rank in status["ranks"])
    )
    assert [(rank["state"], rank["exit"]) for rank in status["ranks"]] == [("exited", 0), ("failed", 7), ("exited", 0)]


def test_ranks_that_end_while_the_supervisor_is_dead_are_known_to_the_next_one(counting):
    kill_hard(counting.supervisor)
    (counting.work / "finish").touch()
    wait_gone(*counting.pids)
    assert counting.deck("wait", counting.run).returncode == 0
    status = counting.deck.status(counting.run)
    assert [rank["exit"] for rank in status["ranks"]] == [0, 0, 0]
    counting.assert_nothing_lost()


def test_a_following_launch_outlives_its_supervisor(rankdeck, write_profile, work):
    profile = write_profile(COUNT, ranks=2)
    with rankdeck.start("launch", profile) as following:
        run = following.stdout.readline().strip()
        assert following.stdout.readline().startswith("[r")
        rankdeck.wait_state(run, "running")
        pid = rankdeck.supervisor(run)
        kill_hard(pid)
        wait_until(lambda: rankdeck.supervisor(run) != pid)
        (work / "finish").touch()
        out, _ = following.communicate(timeout=PATIENCE)
        assert following.returncode == 0
    for rank in range(2):
        own = rankdeck.log(run, rank).decode().splitlines()
        assert [line for line in out.splitlines() if line.startswith(f"[r{rank} ")][
            -1
        ] == f"[r{rank} localhost] {own[-1]}"


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.05, 0.1, 0.2])
def test_a_supervisor_that_is_killed_while_ranks_start_leaves_one_process_for_each(rankdeck, delay, launch):
    run = launch(FOR_EVER, ranks=4)
    moment = time.monotonic() + delay
    wait_until(lambda: time.monotonic() >= moment)
    kill_hard(rankdeck.supervisor(run))
    status = rankdeck.wait_state(run, "running")
    pids = [rank["pid"] for rank in status["ranks"]]
    for rank in range(4):
        rankdeck.wait_log(run, rank, b"up")
    assert [rankdeck.log(run, rank) for rank in range(4)] == [b"up\n"] * 4
    ours = [process.pid for process in rankdeck.processes() if "job.py" in process.command]
    assert sorted(ours) == sorted(pids)


def test_a_stop_goes_on_when_the_supervisor_is_killed_in_the_middle(rankdeck, launch):
    stubborn = "import signal\nsignal.signal(15, signal.SIG_IGN)\n" + FOR_EVER
    run = launch(stubborn, launch={"stop_ladder": [["SIGTERM", 1], ["SIGKILL", 5]]}, says=b"up")
    supervisor = rankdeck.supervisor(run)
    rankdeck("stop", run, "--no-wait")
    kill_hard(supervisor)
    rankdeck.wait_state(run, "stopped")
    wait_until(lambda: rankdeck.processes() == [])


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_a_supervisor_does_not_mind_the_signals_of_a_terminal(counting, number):
    pid = counting.supervisor
    os.kill(pid, number)
    counting.assert_ranks_go_on()
    assert counting.deck.supervisor(counting.run) == pid
    counting.assert_status_works()
    assert counting.supervisor == pid


def test_two_that_attach_at_once_start_one_supervisor(counting):
    kill_hard(counting.supervisor)
    started = [counting.deck.start("status", counting.run, "--json") for _ in range(4)]
    for one in started:
        out, err = one.communicate(timeout=PATIENCE)
        assert one.returncode == 0, err
        assert [rank["pid"] for rank in json.loads(out)["ranks"]] == counting.pids

    def supervisors() -> list[int]:
        found: list[int] = counting.deck.of_role("supervisor")
        return found

    # One that came second says so first and is gone a moment later.
    wait_until(lambda: supervisors() == [counting.supervisor])


# --- the store


@pytest.mark.slow
def test_a_store_that_is_killed_ends_no_rank_that_does_not_need_it(rankdeck, counting):
    stores = wait_until(lambda: rankdeck.of_role("store"))
    assert len(stores) == 1
    kill_hard(stores[0])
    counting.assert_ranks_go_on()
    rankdeck.wait_status(counting.run, lambda status: "store" in status["doing"])
    assert counting.finish()["state"] == "succeeded"


# --- terminals and those who follow


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL])
def test_a_following_launch_that_is_killed_leaves_the_run_alone(rankdeck, write_profile, number):
    with rankdeck.start("launch", write_profile(FOR_EVER)) as following:
        run = following.stdout.readline().strip()
        rankdeck.wait_log(run, 0, b"up")
        following.send_signal(number)
        following.communicate(timeout=PATIENCE)
    rankdeck.wait_state(run, "running")


def test_a_following_launch_under_nohup_follows_on_without_its_terminal(rankdeck, write_profile, work):
    script = "import os, time\nprint('up', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.02)\nprint('end', flush=True)\n"
    profile, before = write_profile(script), signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        following = rankdeck.start("launch", profile)
    finally:
        signal.signal(signal.SIGHUP, before)
    with following:
        rankdeck.wait_log(following.stdout.readline().strip(), 0, b"up")
        following.send_signal(signal.SIGHUP)
        (work / "go").touch()
        assert "end" in following.communicate(timeout=PATIENCE)[0]


def test_a_follower_that_does_not_read_does_not_hold_the_ranks_up(launch_counting):
    counting = launch_counting()
    with counting.deck.start("attach", counting.run) as attached:
        attached.stdout.readline()
        os.kill(attached.pid, signal.SIGSTOP)
        counting.assert_ranks_go_on()
        counting.assert_status_works()
        assert counting.finish()["state"] == "succeeded"
        os.kill(attached.pid, signal.SIGCONT)
        out, _ = attached.communicate(timeout=PATIENCE)
        assert attached.returncode == 0
    assert "[r0 localhost] total" in out


# --- the journal


def stored_equals_status(deck: Deck, run: str) -> None:
    """Replaying the journal gives what `status` shows, numbers of a moment apart."""
    stored = stored_snapshot(RunPaths(deck.folder(run)))
    status = deck.status(run)
    assert (stored.run.state, stored.run.attempt) == (status["state"], status["attempt"])
    for view, shown in zip(stored.ranks, status["ranks"], strict=True):
        told = msgspec.to_builtins(view)
        for key in ("rank", "node", "local_rank", "pid", "state", "exit", "attempt", "generation", "note"):
            assert told[key] == shown[key], key


def test_replaying_the_journal_gives_the_status(launch_counting):
    counting = launch_counting("7", ranks=3)
    stored_equals_status(counting.deck, counting.run)
    kill_hard(counting.pids[0])
    counting.deck.wait_state(counting.run, "holding")
    stored_equals_status(counting.deck, counting.run)
    counting.deck("restart", counting.run)
    counting.deck.wait_status(counting.run, lambda status: status["attempt"] == 1 and status["state"] == "running")
    stored_equals_status(counting.deck, counting.run)
    counting.deck("stop", counting.run)
    counting.deck.wait_state(counting.run, "stopped")
    stored_equals_status(counting.deck, counting.run)


def test_a_journal_that_is_damaged_in_the_middle_is_named_and_left_as_it_is(counting):
    journal = counting.deck.folder(counting.run) / "journal.jsonl"
    counting.kill_supervisor_and_guard()
    whole = journal.read_bytes()
    lines = whole.split(b"\n")
    journal.write_bytes(b"\n".join([lines[0], b"damaged", *lines[2:]]))
    done = counting.deck("status", counting.run)
    damaged = journal.read_bytes()
    journal.write_bytes(whole)
    assert done.returncode == 1
    assert f"{journal}:2" in done.stderr
    assert "Traceback" not in done.stderr
    assert b"damaged" in damaged
    counting.assert_status_works()


# --- a defect in the supervisor

DEFECT = entries("faults/faults", "defect")  # a sitecustomize that breaks one part of each supervisor


@from_table
def test_a_defect_in_one_watch_costs_only_that_part(module, name, part, rankdeck, tmp_path, monkeypatch, launch):
    text = DEFECT.format(light=str(LIGHT / "sitecustomize.py"), product=str(ROOT), module=module, name=name)
    (tmp_path / "sitecustomize.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{LIGHT}")
    script = "import os, time\nprint('step 1', flush=True)\nwhile not os.path.exists('finish'): time.sleep(0.01)"
    run = launch(script)
    supervisor = rankdeck.supervisor(run)
    wanted = f"{part} has failed 5 times, and stays off: KeyError: 'defect'"
    wait_until(lambda: [one for one in rankdeck.journal(run) if wanted in one.get("text", "")])
    rankdeck.wait_state(run, "running")
    assert rankdeck.supervisor(run) == supervisor
    Path("finish").touch()
    assert rankdeck("wait", run).returncode == 0
    assert len([one for one in rankdeck.journal(run) if wanted in one.get("text", "")]) == 1


STOP_DEFECT = entries("faults/faults", "stop_defect")
"""A sitecustomize that breaks the state machine of each supervisor for one event."""


def test_a_run_whose_supervisor_can_not_stop_it_is_stopped_without_it(rankdeck, tmp_path, monkeypatch, launch):
    text = STOP_DEFECT.format(light=str(LIGHT / "sitecustomize.py"), product=str(ROOT))
    (tmp_path / "sitecustomize.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{LIGHT}")
    run = launch(FOR_EVER)
    rankdeck.wait_state(run, "running")
    supervisor = rankdeck.supervisor(run)
    refused = rankdeck("stop", run)
    check_err(refused, 1, "a defect: KeyError: 'defect'", f"rankdeck stop --now {run} ends it without a supervisor")
    assert rankdeck.supervisor(run) == supervisor
    assert rankdeck("stop", run, "--now").returncode == 0
    wait_until(lambda: rankdeck.processes() == [])
    assert rankdeck.sockets() == []
    assert f"{run} stopped" in " ".join(rankdeck("ps", "--all").stdout.split())


OUTSIDE = entries("faults/faults", "outside")  # a sitecustomize that breaks each supervisor outside of its parts


@pytest.fixture
def break_supervisors(tmp_path, monkeypatch) -> Callable[[str], None]:
    def write(code: str) -> None:
        text = OUTSIDE.format(light=str(LIGHT / "sitecustomize.py"), product=str(ROOT), code=code)
        (tmp_path / "sitecustomize.py").write_text(text)
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{LIGHT}")

    return write


def test_a_defect_after_the_end_of_a_run_starts_no_other_supervisor(rankdeck, break_supervisors, launch):
    break_supervisors(entries("faults/faults", "a_defect_after_the_end_of_a_run_starts_no_other_supervisor"))
    run = launch("print('up')")
    assert rankdeck("wait", run).returncode == 0
    wait_until(lambda: rankdeck.processes() == [])
    log = (rankdeck.folder(run) / "supervisor.log").read_text()
    assert log.count("KeyError: 'defect'") == 1
    assert not (rankdeck.folder(run) / "supervisor.json").exists()
    assert rankdeck.sockets() == []


def test_a_defect_at_the_start_of_supervisors_ends_their_row_and_the_run_can_be_stopped(
    rankdeck, break_supervisors, launch
):
    break_supervisors(
        entries("faults/faults", "a_defect_at_the_start_of_supervisors_ends_their_row_and_the_run_can_be_stopped")
    )
    run = launch(FOR_EVER, says=b"up")
    rankdeck.wait_state(run, "running")
    (rank,), log = rankdeck.pids(run), rankdeck.folder(run) / "supervisor.log"
    kill_hard(rankdeck.supervisor(run))
    wait_until(lambda: "no other one is started" in log.read_text(), what="the guard gives up")
    wait_until(lambda: not rankdeck.of_role("guard", "supervisor"))
    assert f"3 supervisors of {run} have died in a row" in log.read_text()
    assert is_alive(rank)
    check_err(rankdeck("status", run), 1, "a defect of the supervisor: KeyError: 'defect'")
    refused = rankdeck("stop", run)
    assert (refused.returncode, f"rankdeck stop --now {run} ends it without a supervisor" in refused.stderr) == (
        1,
        True,
    )
    assert is_alive(rank)
    assert rankdeck("stop", run, "--now").returncode == 0
    wait_until(lambda: rankdeck.processes() == [])
    assert rankdeck.sockets() == []
    assert rankdeck("clean", run, "--yes").returncode == 0


# --- the socket


class Client:
    """A connection to a run's supervisor that says whatever a test wants."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE)
        wait_until(lambda: self._connects(path), what="the supervisor takes connections")
        self.file = self.socket.makefile("rb")

    def _connects(self, path: Path) -> bool:
        """False: so many wait already that the kernel takes no more."""
        try:
            self.socket.connect(str(path))
        except BlockingIOError:
            return False
        return True

    def say(self, **message: Any) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def hear(self) -> dict[str, Any]:
        line = self.file.readline()
        answer: dict[str, Any] = json.loads(line) if line else {}
        return answer

    def close(self) -> None:
        self.file.close()
        self.socket.close()


@pytest.fixture
def supervised(rankdeck, launch) -> str:
    """A run whose rank waits for ever."""
    run: str = launch(FOR_EVER, says=b"up")
    rankdeck.wait_state(run, "running")
    return run


@pytest.fixture
def connect(rankdeck, supervised) -> Iterator[Callable[[], Client]]:
    clients: list[Client] = []

    def new() -> Client:
        clients.append(Client(rankdeck.socket(supervised)))
        return clients[-1]

    yield new
    for client in clients:
        client.close()


def test_the_socket_is_private_says_whose_it_is_and_refuses_another_protocol_with_both_versions(
    rankdeck, supervised, connect
):
    path = rankdeck.socket(supervised)
    assert [one.stat().st_mode & 0o777 for one in (path, path.parent)] == [0o600, 0o700]
    client = connect()
    client.say(type="hello", protocol=PROTOCOL, version="0")
    welcome = client.hear()
    assert (welcome["type"], welcome["protocol"], welcome["run"]) == ("welcome", PROTOCOL, supervised)
    assert welcome["pid"] == rankdeck.supervisor(supervised)
    other = connect()
    other.say(type="hello", protocol=PROTOCOL + 1, version="99.0")
    refused = other.hear()
    assert (refused["type"], "99.0" in refused["reason"], other.hear()) == ("refused", True, {})
    rankdeck.wait_state(supervised, "running")


def test_a_command_that_meets_a_run_of_another_version_says_so_and_can_end_it(rankdeck, supervised):
    """As if another rankdeck had started the supervisor: nothing is started anew."""
    code = (
        "import sys\nimport engine.core.views.view, engine.client.connection\nengine.client.connection.PROTOCOL = 999\n"
        "from engine.commands.cli import main\nsys.exit(main())"
    )

    def other(*words: str) -> subprocess.CompletedProcess[str]:
        command, cwd = [sys.executable, "-c", code, *words], Path(COMMAND[1]).parent
        return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE, check=False)

    for words in (("status", supervised), ("stop", supervised), ("attach", supervised)):
        done = other(*words)
        assert (done.returncode, done.stdout) == (1, "")
        assert f"{supervised} runs with rankdeck" in done.stderr
        assert f"rankdeck stop --now {supervised}" in done.stderr
        assert "Traceback" not in done.stderr
    rankdeck.wait_state(supervised, "running")
    done = other("stop", "--now", supervised)
    assert (done.returncode, done.stderr) == (0, "")
    rankdeck.wait_state(supervised, "stopped")


NO_HELLO = (
    b"\0" * 100,
    b"\xff\xfe\n",
    b"{}\n",
    b"[]\n",
    b"null\n",
    b"\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b'{"type":"stop"}\n',
    b"x" * (3 << 20),
)
NO_REQUEST = (b"\xff\n", b"{}\n", b'{"type":"stop"}\n', b'{"type":"kill","by":"x","rank":"all","signal":9}\n', b"[" * 100_000 + b"\n", b"y" * (3 << 20))  # fmt: skip
ODD_KILLS = ((10**30, 9), (0, 10**30), (0, -1), (-1, 9))  # rank and signal


def test_bytes_that_are_no_hello_or_no_request_and_odd_numbers_hurt_nobody(rankdeck, supervised, connect):
    pid = rankdeck.supervisor(supervised)
    for data in NO_HELLO:
        client = connect()
        with contextlib.suppress(OSError):
            client.socket.sendall(data)
            client.socket.shutdown(socket.SHUT_WR)
            client.file.read()
    for data in NO_REQUEST:
        client = connect()
        client.say(type="hello", protocol=PROTOCOL, version="0")
        client.hear()
        with contextlib.suppress(OSError):
            client.socket.sendall(data)
            assert client.hear().get("type") in ("refused", None)
    for rank, number in ODD_KILLS:
        client = connect()
        client.say(type="hello", protocol=PROTOCOL, version="0")
        client.hear()
        client.say(type="kill", by="x", rank=rank, signal=number)
        client.hear()
    (rank,) = rankdeck.wait_state(supervised, "running")["ranks"]
    assert (rank["state"], is_alive(rank["pid"]), rankdeck.supervisor(supervised)) == ("running", True, pid)
    assert "Traceback" not in (rankdeck.folder(supervised) / "supervisor.log").read_text()


def test_silent_connections_hold_nobody_up(rankdeck, supervised, connect):
    count = 400
    for _ in range(count):
        connect()
    rankdeck.wait_state(supervised, "running")
    rankdeck("stop", supervised)
    rankdeck.wait_state(supervised, "stopped")
    assert CLOSE_TIMEOUT * count > PATIENCE, "it has not waited for one after the other"


FLOOD = entries("faults/faults", "flood")


def resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_subscribers_that_never_read_cost_nothing(rankdeck, work, launch):
    run = launch(FLOOD, ranks=2)
    rankdeck.wait_status(run, lambda status: (status["step"] or 0) > 500)
    path, pid = rankdeck.socket(run), rankdeck.supervisor(run)
    clients = [Client(path) for _ in range(20)]
    try:
        for client in clients:
            client.say(type="hello", protocol=PROTOCOL, version="0")
            client.say(type="subscribe")
        before = rankdeck.status(run)["step"]
        size = resident(pid)
        wait_until(lambda: rankdeck.status(run)["step"] > before + 10_000, what="ranks go on")
        assert resident(pid) - size < 40 << 20
        assert rankdeck("stop", run).returncode == 0
        rankdeck.wait_state(run, "stopped")
    finally:
        for client in clients:
            client.close()


def test_another_user_is_refused(rankdeck, supervised, needs_root):
    """The folder is closed to others; should it ever be open, the socket still asks who is there."""
    path = rankdeck.socket(supervised)
    code = (
        "import os, socket, sys\n"
        "s = socket.socket(socket.AF_UNIX)\n"
        "s.settimeout(60)\n"
        "for path in (os.path.dirname(os.path.dirname(sys.argv[1])), os.path.dirname(sys.argv[1]), sys.argv[1]):\n"
        "    os.chmod(path, 0o777)\n"
        "os.setuid(65534)\n"
        "s.connect(sys.argv[1])\n"
        "print(s.makefile().readline())"
    )
    done = run_program([sys.executable, "-c", code, str(path)])
    assert done.stdout, done.stderr
    assert json.loads(done.stdout) == {
        "type": "refused",
        "reason": "this run belongs to another user",
        "defect": False,
        "version": "",
    }
    path.parent.chmod(0o700)
    path.chmod(0o600)
    rankdeck.wait_state(supervised, "running")


def test_a_socket_of_another_user_is_not_talked_to(rankdeck, supervised, needs_root):
    path = rankdeck.socket(supervised)
    note = rankdeck.folder(supervised) / "supervisor.json"
    where = note.read_text()
    other = path.with_name("other.sock")
    assert str(path) in where
    note.write_text(where.replace(str(path), str(other)))
    with listener_of_another_user(other):
        done = rankdeck("stop", supervised)
    check_err(done, 1, "belongs to another user")
    note.write_text(where)
    rankdeck.wait_state(supervised, "running")


# --- homes that can't be used


@pytest.mark.parametrize("place", ["/dev/null/home", "/proc/home", "/sys/home", "a-file"])
def test_a_home_that_can_not_be_made_is_status_3(rankdeck, write_profile, work, place):
    (work / "a-file").write_text("x")
    profile = write_profile(FOR_EVER)
    done = rankdeck("launch", profile, env={"RANKDECK_HOME": place})
    assert done.returncode == 3
    assert "RANKDECK_HOME" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_home_that_is_read_only_is_status_3(rankdeck, write_profile, tmp_path, needs_root):
    home = tmp_path / "read-only"
    home.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "ro,size=64k", "none", str(home)],
        timeout=PATIENCE,
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip("this machine does not let us mount a tmpfs")
    try:
        profile = write_profile(FOR_EVER)
        done = rankdeck("launch", profile, env={"RANKDECK_HOME": str(home)})
        listed = rankdeck("ps", "--all", env={"RANKDECK_HOME": str(home)})
    finally:
        subprocess.run(["umount", str(home)], timeout=PATIENCE, check=True)
    check_err(done, 3, "Read-only")
    assert listed.returncode == 0


@pytest.mark.parametrize("verb", ["ps", "status", "profiles", "clean"])
def test_reading_verbs_work_without_a_home(rankdeck, verb):
    done = rankdeck(verb, *(["-"] if verb == "status" else []), env={"RANKDECK_HOME": "/dev/null/home"})
    assert done.returncode == (2 if verb == "status" else 0), done.stderr
    assert "Traceback" not in done.stderr


# --- a rank that can't be ended at once


def test_a_rank_that_is_stopped_and_ignores_everything_ends_with_the_run(rankdeck, launch):
    stubborn = "import signal\n[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]\n" + FOR_EVER
    run = launch(
        stubborn, ranks=2, launch={"stop_ladder": [["SIGINT", 0.2], ["SIGTERM", 0.2], ["SIGKILL", 5]]}, says=b"up"
    )
    pids = rankdeck.pids(run)
    os.kill(pids[0], signal.SIGSTOP)
    wait_until(lambda: process_state(pids[0]) == "T")
    rankdeck("stop", run)
    rankdeck.wait_state(run, "stopped")
    assert not any(is_alive(pid) for pid in pids)
