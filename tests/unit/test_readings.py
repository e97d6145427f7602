"""What comes from ranks, files and profiles can fail a reading, never the supervisor."""

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.client import run as client_run
from engine.client.run import LocalRun
from engine.commands.tail import Follower
from engine.core.errors import SupervisorError
from engine.core.metrics.lines.reader import MetricReader
from engine.core.metrics.progress import RankProgress
from engine.core.metrics.readings import take_lines
from engine.core.run import events as ev
from engine.core.run.state import rank_word
from engine.core.views.views import run_view
from engine.linux.files import open_regular
from engine.runs.paths import RunPaths
from engine.runs.record import read_results, read_tail
from engine.runs.replay import read_journal
from engine.supervisor import run as supervised
from engine.supervisor import runner, snapshots
from engine.supervisor.journal import Journal
from engine.supervisor.nodes import rank_ends
from engine.supervisor.output import ingest
from engine.supervisor.output.rank_files import KINDS, Kind
from engine.supervisor.runner import Runner
from engine.supervisor.snapshots import Snapshots
from tests.played_run import hear, play_run


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Runner]:
    with play_run(tmp_path) as made:
        made.run.paths.attempt(0).mkdir()
        yield made


def write(run: Runner, rank: int, kind: Kind, data: bytes) -> None:
    """A rank writes, and its node says so."""
    path = run.run.paths.rank_file(0, rank, kind)
    with path.open("ab") as file:
        file.write(data)
    sizes = [path.stat().st_size if one == kind else 0 for one in KINDS]
    node = run.run.plan.places[rank].node
    hear(run, {"type": "grew", "attempt": 0, "sizes": [[rank, *sizes]]}, node)
    while run.ingest.read_slice():
        pass


def warnings(run: Runner) -> list[str]:
    return [warning for node in run.run.state.nodes for warning in node.warnings]


def fail(*_: object, **__: object) -> None:
    raise KeyError("throughput")


# --- patterns of a profile


def test_a_pattern_may_name_what_ranks_report_themselves():
    progress = RankProgress()
    (point,) = take_lines(0, progress, 1.0, MetricReader((r"@@ (?P<throughput>\d+)",)).feed(b"@@ 5\n"))
    assert (point.key, point.value, progress.throughput) == ("throughput", 5.0, 5.0)


def test_numbers_that_no_file_can_hold_are_passed_over():
    progress = RankProgress()
    reader = MetricReader((r"of (?P<steps>\S+)", r"at (?P<step>\S+)", r"-> (?P<loss>\S+)"))
    take_lines(0, progress, 1.0, reader.feed(b"of 1e300 at 1e300 -> 2\n"))
    assert (progress.steps, progress.step, progress.loss) == (None, None, 2.0)


@pytest.mark.parametrize("hostile", [r"(a+)+(?P<bad>\d)$", r"(?:.*a){30}(?P<bad>\d)", r"(?:x|y|xy)+(?P<bad>\d)"])
def test_a_pattern_that_takes_too_long_is_not_used_any_more(tmp_path: Path, hostile: str):
    with play_run(tmp_path, metrics={"patterns": [hostile, r"acc (?P<acc>\S+)"]}) as run:
        run.run.paths.attempt(0).mkdir()
        write(run, 0, "out", b"ab" * 30_000 + b"xy" * 1000 + b"!\nacc 0.5 step 1\n" + b"a" * 60 + b"\n")
        write(run, 1, "out", b"a" * 60_000 + b"xy" * 1000 + b"!\nacc 0.75 step 1\n" + b"a" * 60 + b"\n")
        assert [(point.rank, point.key, point.value) for point in run.ingest.points] == [
            (0, "acc", 0.5),
            (1, "acc", 0.75),
        ]
        assert warnings(run) == [f"output: metrics.patterns: {hostile!r} takes too long, and is not used any more"]


# --- a defect in what reads


@pytest.mark.parametrize(("kind", "part"), [("out", "take_lines"), ("metrics", "take_record")])
def test_a_file_that_can_t_be_read_is_left_out_with_a_warning(
    run: Runner, monkeypatch: pytest.MonkeyPatch, kind: Kind, part: str
):
    data = b'{"t": 1.0, "step": 7, "loss": 0.5}\n' if kind == "metrics" else b"step 7 loss 0.5\n"
    with monkeypatch.context() as broken:
        broken.setattr(ingest, part, fail)
        write(run, 0, kind, data)
        write(run, 0, kind, data)
    write(run, 0, kind, data)
    write(run, 1, kind, data)
    word = "stdout" if kind == "out" else "metrics"
    assert warnings(run) == [f"output: no numbers are read from {word}: KeyError: 'throughput'"]
    assert [progress.step for progress in run.ingest.progress] == [None, 7, None, None]
    assert "no numbers are read" in run.run.story[-1].text


async def test_an_end_that_can_t_be_explained_is_an_end(run: Runner, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rank_ends, "is_secondary", fail)
    async with run.run.tasks:
        hear(run, {"type": "ended", "attempt": 0, "rank": 0, "status": 1, "reason": "", "generation": 0})
    assert warnings(run) == ["output: the failure of a rank is not explained: KeyError: 'throughput'"]
    assert rank_word(run.run.state.ranks[0]) == "failed"


def test_a_failure_that_can_t_be_explained_is_shown_without(run: Runner, monkeypatch: pytest.MonkeyPatch):
    whole = run_view

    def fail_with_tails(state, plan, progress, tails, waits, *more):
        return fail() if tails else whole(state, plan, progress, tails, waits, *more)

    monkeypatch.setattr(snapshots, "run_view", fail_with_tails)
    shown = Snapshots(run.run, run.ingest)
    run.run.tails[0] = b"whatever"
    run.run.note_change(0)
    shown.refresh()
    assert shown.run_view.state == "running"
    assert warnings(run) == ["output: failures are not explained: KeyError: 'throughput'"]


async def test_recorded_collectives_that_can_t_be_read_are_left_out(run: Runner, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runner, "read_traces", fail)
    run._read_again = True
    await run._take_traces()
    assert warnings(run) == ["output: recorded collectives are not read: KeyError: 'throughput'"]


async def test_a_part_of_the_supervisor_that_fails_begins_again_and_is_told_once(
    run: Runner, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(supervised, "PAUSE", 0.0)
    begun, has_worked = 0, asyncio.Event()

    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun < supervised.MOST_FAILURES:
            fail()
        has_worked.set()
        await asyncio.Event().wait()

    async with asyncio.TaskGroup() as tasks:
        kept = tasks.create_task(run.run.keep("the watch of health", work))
        await has_worked.wait()
        kept.cancel()
    assert begun == supervised.MOST_FAILURES
    assert warnings(run) == []


async def test_a_part_that_fails_five_times_in_a_row_stays_off_and_the_run_says_so(
    run: Runner, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(supervised, "PAUSE", 0.0)

    async def work() -> None:
        fail()

    await run.run.keep("the watch of health", work)
    assert warnings(run) == ["output: the watch of health has failed 5 times, and stays off: KeyError: 'throughput'"]


async def test_a_part_that_fails_while_its_failure_is_told_begins_again(run: Runner, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(supervised, "PAUSE", 0.0)
    monkeypatch.setattr(run.run, "handle", fail)
    begun = asyncio.Semaphore(0)

    async def work() -> None:
        begun.release()
        fail()

    async with asyncio.TaskGroup() as tasks:
        kept = tasks.create_task(run.run.keep("the watch of health", work))
        for _ in range(3):
            await begun.acquire()
        kept.cancel()


@pytest.mark.parametrize("step", ["true", "1" + "0" * 400, "1.5", '"7"'])
def test_a_step_that_no_journal_can_hold_is_not_written_into_it(run: Runner, step: str):
    write(run, 0, "metrics", f'{{"t": 1.0, "step": 3}}\n{{"t": 2.0, "step": {step}}}\n'.encode())
    hear(run, {"type": "ended", "attempt": 0, "rank": 0, "status": 0, "reason": "", "generation": 0})
    (end,) = [event for event in read_journal(run.run.paths.journal) if isinstance(event, ev.RankEnded)]
    assert end.step == 3


async def test_a_rank_that_nothing_can_end_is_told_as_that(run: Runner):
    async with run.run.tasks:
        hear(run, {"type": "lost", "attempt": 0, "rank": 0, "reason": "SIGKILL", "alive": True, "generation": 0})
    (lost,) = [event for event in read_journal(run.run.paths.journal) if isinstance(event, ev.RankLost)]
    assert lost.alive


# --- something else in place of a file


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def make_link(path: Path) -> None:
    secret = path.with_name("secret")
    secret.write_text("not a rank's\n")
    path.symlink_to(secret)


MADE: list[Callable[[Path], None]] = [
    make_pipe,
    make_socket,
    make_link,
    lambda path: path.symlink_to("/dev/zero"),
    Path.mkdir,
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", MADE, ids=["pipe", "socket", "link", "device", "folder"])
def test_what_is_no_file_neither_blocks_nor_misleads(run: Runner, make: Callable[[Path], None]):
    paths = run.run.paths
    for kind in KINDS:
        make(paths.rank_file(0, 0, kind))
        with pytest.raises(OSError, match="not a regular file"):
            open_regular(paths.rank_file(0, 0, kind))
    hear(run, {"type": "grew", "attempt": 0, "sizes": [[0, 10, 10, 10]]})
    while run.ingest.read_slice():
        pass
    assert run.ingest.progress[0].last_line == ""
    assert run.ingest.stored_sizes(0) == [0, 0, 0]
    assert read_tail(paths.log(0, 0, "out")) == b""
    assert read_results(paths, 0) == []
    follower = Follower(paths, 0, [0])
    assert list(follower.poll()) == []
    assert list(follower.drain()) == []
    follower.close()


def test_a_log_that_was_truncated_is_followed_on(run: Runner):
    path = run.run.paths.log(0, 0, "out")
    path.write_bytes(b"one\ntwo\n")
    follower = Follower(run.run.paths, 0, [0])
    assert [chunk.data for chunk in follower.poll()] == [b"one\ntwo\n"]
    path.write_bytes(b"new\n")
    assert [chunk.data for chunk in follower.poll()] == [b"new\n"]
    follower.close()


@pytest.mark.parametrize("kind", ["out", "metrics"])
def test_numbers_of_a_log_that_was_truncated_are_read_on_and_none_twice(run: Runner, kind: Kind):
    def line(step: int) -> bytes:
        text = f'{{"t": {step}.0, "step": {step}, "loss": 0.5}}' if kind == "metrics" else f"step {step} loss 0.5"
        return text.encode() + b"\n"

    write(run, 0, kind, line(1) + line(2) + line(3) + line(4)[:9])
    os.truncate(run.run.paths.rank_file(0, 0, kind), 0)
    write(run, 0, kind, line(5))
    write(run, 0, kind, line(6) + line(7) + line(8) + line(9))
    assert [point.step for point in run.ingest.points if point.key == "loss"] == [1, 2, 3, 5, 6, 7, 8, 9]


# --- the journal


def refuse(_: int) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_a_request_that_was_refused_is_not_replayed(run: Runner, monkeypatch: pytest.MonkeyPatch):
    before = run.run.state
    with monkeypatch.context() as sick:
        sick.setattr(os, "fsync", refuse)
        with pytest.raises(OSError, match="Input/output"):
            run.handle(ev.KillRequested(at=9.0, by="alice", rank=0, signal=9))
    assert run.run.state is before
    assert not any(isinstance(event, ev.KillRequested) for event in read_journal(run.run.paths.journal))
    run.handle(ev.KillRequested(at=10.0, by="bob", rank=1, signal=9))
    kills = [event for event in read_journal(run.run.paths.journal) if isinstance(event, ev.KillRequested)]
    assert [event.by for event in kills] == ["bob"]


def test_an_end_that_is_not_on_the_disk_yet_is_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    journal = Journal(tmp_path / "journal.jsonl")
    monkeypatch.setattr(os, "fsync", refuse)
    journal.append(ev.NodeClosed(at=1.0, node="localhost"), durable=True)
    journal.close()
    assert len(read_journal(tmp_path / "journal.jsonl")) == 1


# --- a supervisor that ends again and again


async def test_a_client_does_not_start_supervisors_without_end(run: Runner, monkeypatch: pytest.MonkeyPatch):
    started: list[RunPaths] = []

    def start(paths: RunPaths) -> None:
        started.append(paths)

    monkeypatch.setattr(client_run, "start_supervisor", start)
    monkeypatch.setattr(client_run, "_stored_snapshot", lambda _: Snapshots(run.run, run.ingest).snapshot())
    client = LocalRun(run.run.paths)
    for _ in range(100):
        with pytest.raises(SupervisorError) as error:
            await client.stop()
    assert len(started) == client_run.MAX_STARTS
    assert "have ended within" in error.value.message
