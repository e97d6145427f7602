"""The parts of `rankdeck.elastic` that need no second process; the rest is in tests/e2e/test_elastic.py."""

import concurrent.futures
import linecache
import queue
import socket
import struct
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch

from rankdeck.elastic import PeerLostError, State, _replacement, _session
from rankdeck.elastic._leaving import let_go, listeners, may_be_peers_fault, shut_down, sockets, stand_in, words_of
from rankdeck.elastic._share import Standing
from rankdeck.elastic._stop import Stop
from rankdeck.elastic._store import board as _board
from rankdeck.elastic._store.news import News
from tests.support import PATIENCE, from_table, wait_until


def test_parts_of_a_state_are_attributes_that_may_be_changed() -> None:
    state = State(step=3, seen=7, model=torch.nn.Linear(2, 2))
    state.seen += 1
    assert (state.step, state.seen) == (3, 8)
    assert set(state._read()) == {"step", "seen", "model"}


@pytest.mark.parametrize("name", ["_hidden", "commit"])
def test_a_name_that_a_state_has_already_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        State(**{name: 1})


def test_a_state_goes_back_to_its_last_commit_with_all_its_parts() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    state = State(model=model, optimizer=optimizer, names=["a"], at=torch.zeros(2))

    def advance() -> None:
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        state.names.append("b")
        state.at += 1
        state.step += 1

    advance()
    state.commit()
    weights, moments = model.weight.detach().clone(), optimizer.state[model.weight]["exp_avg"].clone()
    advance()
    assert not torch.equal(model.weight, weights)
    for _ in range(2):  # and once more: going back must not use the commit up
        state._return()
        assert torch.equal(model.weight, weights)
        assert torch.equal(optimizer.state[model.weight]["exp_avg"], moments)
        assert (state.step, state.names, state.at.tolist()) == (1, ["a", "b"], [1, 1])
        advance()
    assert state._progress == (1, 2)


def test_without_a_commit_nothing_goes_back() -> None:
    state = State(step=1)
    state.step = 5
    state._return()
    assert state.step == 5


@from_table
def test_only_errors_that_a_peer_may_cause_wait_for_the_supervisor_s_word(text: str, may_be: bool) -> None:
    assert may_be_peers_fault(RuntimeError(text)) == may_be


@pytest.mark.parametrize("comes", [True, False])
def test_a_rank_says_why_it_waits_for_the_report_of_a_loss(capsys: pytest.CaptureFixture[str], comes: bool) -> None:
    waits: list[float] = []

    class Late(News):
        lost = -1

        def __init__(self) -> None: ...

        def await_condition(self, condition: Callable[[], bool], seconds: float | None = None) -> bool:
            waits.append(seconds or 0)
            return comes and len(waits) == 2

    session = object.__new__(_session._Session)
    session.news, session.standing = Late(), Standing(rank=1, world=2, generation=0)
    session.stop = Stop(State(), session.standing)
    assert session._is_peers_fault(RuntimeError("Connection closed by peer [127.0.0.1]:5. This is")) == comes
    assert sum(waits) == _session.LOSS_REPORT_TIMEOUT
    said = "rankdeck: rank 1 waits up to 60 s for a report of a lost peer: Connection closed by peer [127.0.0.1]:5\n"
    assert capsys.readouterr().err == said


def test_a_store_that_has_ended_is_not_waited_for_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))
    monkeypatch.setattr(_board, "CONNECT_TIMEOUT", 0.1)
    with pytest.raises(RuntimeError, match="timed out"):
        _board.connect()
    assert _board.has_ended()
    with socket.create_server(("127.0.0.1", port)):
        assert not _board.has_ended()


def test_an_error_is_told_in_a_sentence() -> None:
    error = RuntimeError(
        "[/x/gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:5. This is typically caused by\nmore"
    )
    assert words_of(error) == "Connection closed by peer [127.0.0.1]:5"
    assert words_of(PeerLostError()) == "PeerLostError"


def test_what_an_exception_has_come_through_is_let_go() -> None:
    class Held:
        pass

    import gc
    import weakref

    seen: list[Any] = []

    def inner() -> None:
        held = Held()
        seen.append(weakref.ref(held))
        raise RuntimeError("lost")

    try:
        try:
            inner()
        except RuntimeError as error:
            raise PeerLostError from error
    except PeerLostError as error:
        kept = error
        let_go(kept)
    gc.collect()
    assert seen[0]() is None


def frame_of(wait: Callable[[], object]) -> Callable[[], FrameType | None]:
    """Runs this in a thread. Returns what gives the innermost frame of the thread."""
    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return lambda: sys._current_frames().get(thread.ident or 0)


def is_collective(frame: FrameType | None) -> bool:
    return frame is not None and _replacement.is_collective(frame)


def is_at_a_lock(frame: FrameType | None) -> bool:
    """Whether a thread waits as everything of Python does. Fails if it looks like a collective, there or on the way."""
    assert not is_collective(frame), frame
    return frame is not None and ".acquire(" in linecache.getline(frame.f_code.co_filename, frame.f_lineno)


def test_a_main_thread_that_waits_for_its_own_threads_is_not_stuck_in_a_collective() -> None:
    """As for batches of a data loader, or for the result of a checkpoint that is written in the background."""
    over, lock = threading.Event(), threading.Lock()
    lock.acquire()
    batches: queue.Queue[int] = queue.Queue()
    result: concurrent.futures.Future[int] = concurrent.futures.Future()

    def wait_for_a_batch() -> None:
        batches.get()

    def wait_for_a_result() -> None:
        result.result()

    def wait_for_an_event() -> None:
        over.wait()

    def wait_for_a_lock() -> None:
        lock.acquire()

    for wait in (wait_for_a_batch, wait_for_a_result, wait_for_an_event, wait_for_a_lock):
        frame = frame_of(wait)
        wait_until(lambda frame=frame: is_at_a_lock(frame()), what=wait.__name__)  # type: ignore[misc]
    batches.put(1)
    result.set_result(1)
    over.set()
    lock.release()


def test_a_main_thread_that_waits_for_other_ranks_is_in_a_collective() -> None:
    futures: list[torch.futures.Future[int]] = [torch.futures.Future() for _ in range(2)]
    chained = futures[0].then(lambda future: future.value())
    source = "def all_reduce(future):\n    return future.wait()"
    inside: dict[str, Any] = {}
    exec(compile(source, torch.distributed.distributed_c10d.__file__, "exec"), inside)

    def wait_for_a_future() -> None:
        futures[1].wait()

    def wait_for_a_work() -> None:
        chained.wait()  # of C++, without a frame of its own

    def wait_in_torch() -> None:
        inside["all_reduce"](chained)

    for wait in (wait_for_a_future, wait_for_a_work, wait_in_torch):
        frame = frame_of(wait)
        wait_until(lambda frame=frame: is_collective(frame()), what=wait.__name__)  # type: ignore[misc]
    for future in futures:
        future.set_result(1)


def test_only_the_connections_that_are_meant_are_shut_down() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        others = sockets()
        first = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        mine = sockets() - others
        second = socket.create_connection(server.getsockname())
        kept, _ = server.accept()
        with first, accepted, second, kept:
            assert len(mine) == 2
            shut_down(mine)
            assert first.recv(1) == b""
            second.sendall(b"x")
            assert kept.recv(1) == b"x"
            third = socket.create_connection(server.getsockname())  # the listening socket was left alone
            third.close()


def test_a_group_that_forms_gets_a_closed_connection_in_place_of_each_peer():
    with socket.create_server(("127.0.0.1", 0)) as older:
        known = listeners()
        with socket.create_server(("127.0.0.1", 0)) as group:
            stand_in(known, 3)
            group.settimeout(PATIENCE)
            pairs = []
            for _ in range(3):
                with group.accept()[0] as peer:
                    pairs.append(struct.unpack("=q", peer.recv(8, socket.MSG_WAITALL))[0])
                    assert peer.recv(1) == b""
        older.setblocking(False)
        with pytest.raises(BlockingIOError):
            older.accept()
    assert pairs == [0, 1, 2]
