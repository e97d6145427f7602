"""The supervisor reads event files beside its work: a file server that hangs stops neither a look nor the end of an attempt."""

import asyncio
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from engine.core.metrics.event_records import Scalar
from engine.core.metrics.progress import RankProgress
from engine.core.run.state import Alive
from engine.runs.foreign.event_files import read_new
from engine.supervisor.output.ingest import Ingest
from engine.supervisor.run import SupervisedRun
from engine.supervisor.watches import events as event_watch
from engine.supervisor.watches.events import EventWatch
from tests.support import wait_until

RECORDED = Path(__file__).resolve().parent.parent / "data" / "event_files" / "tensorboard"


class Taken:
    """Takes scalars as `Ingest` does."""

    def __init__(self) -> None:
        self.offsets: dict[Path, int] = {}
        self.progress = [RankProgress()]
        self.scalars: list[Scalar] = []

    def file_offset(self, path: Path) -> int:
        return self.offsets.get(path, 0)

    def take_scalars(self, rank: int, path: Path, found: list[Scalar], offset: int, progress: RankProgress) -> None:
        assert (rank, progress) == (0, self.progress[0])
        self.offsets[path] = offset
        self.scalars += found


@pytest.fixture
def taken() -> Taken:
    return Taken()


@pytest.fixture
def watch(tmp_path: Path, taken: Taken) -> EventWatch:
    state = SimpleNamespace(ranks=(Alive(pid=41, since=1000.0),), launched_at=1000.0)
    plan = SimpleNamespace(workdir=str(tmp_path), program=SimpleNamespace(args=()))
    run = SimpleNamespace(state=state, plan=plan, tasks=asyncio.TaskGroup())
    shutil.copy(RECORDED, tmp_path / "events.out.tfevents.1000.node.41.0")
    return EventWatch(cast("SupervisedRun", run), cast("Ingest", taken))


@pytest.fixture
def server() -> Iterator[threading.Event]:
    """Set when a file server that hangs answers again."""
    answers = threading.Event()
    yield answers
    answers.set()


def has_taken(watch: EventWatch, taken: Taken) -> bool:
    watch.look(0.0)
    return any(one.tag == "train/loss" for one in taken.scalars)


def has_asked(watch: EventWatch, asked: threading.Event) -> bool:
    watch.look(0.0)
    return asked.is_set()


def test_files_are_found_and_read_once(watch: EventWatch, taken: Taken) -> None:
    wait_until(lambda: has_taken(watch, taken), what="scalars")
    asyncio.run(watch.finish())
    assert [one.tag for one in taken.scalars].count("train/loss") == 6


def test_a_file_that_no_look_has_seen_is_read_at_the_end(
    watch: EventWatch, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_watch, "END_TIME", 60.0)
    watch.look(0.0)
    asyncio.run(watch.finish())
    assert [one.tag for one in taken.scalars].count("train/loss") == 6


def test_a_rank_that_writes_with_two_trackers_is_read_once(watch: EventWatch, taken: Taken, tmp_path: Path) -> None:
    wait_until(lambda: has_taken(watch, taken), what="scalars")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "debug.log").write_text("2026-11-25 18:51:06,839 INFO    MainThread:41 [wandb_setup.py")
    (tmp_path / "run-x.wandb").write_text("refused if it is read")
    asyncio.run(watch.finish())
    assert set(taken.offsets) == {tmp_path / "events.out.tfevents.1000.node.41.0"}


@pytest.mark.parametrize("hangs", ["find_files", "read_new"])
def test_a_file_server_that_hangs_stops_nothing(
    watch: EventWatch, taken: Taken, monkeypatch: pytest.MonkeyPatch, server: threading.Event, hangs: str
) -> None:
    real, asked = getattr(event_watch, hangs), threading.Event()

    def hang(*arguments: object) -> object:
        asked.set()
        server.wait()
        return real(*arguments)

    monkeypatch.setattr(event_watch, hangs, hang)
    wait_until(lambda: has_asked(watch, asked), what="the server is asked")
    for _ in range(20):
        watch.look(0.0)
    assert taken.scalars == []
    assert len([one for one in threading.enumerate() if one.name.startswith("reads event files")]) <= 2
    server.set()
    wait_until(lambda: has_taken(watch, taken), what="scalars")


def test_another_attempt_begins_while_the_rest_of_the_files_is_read(
    watch: EventWatch, taken: Taken, server: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def begin() -> None:
        async with watch._run.tasks:
            watch.start_attempt()
            assert taken.scalars == []
            server.set()

    wait_until(lambda: watch.look(0.0) or watch._files._files, what="the file is found")  # type: ignore[func-returns-value]
    taken.scalars.clear()
    taken.offsets.clear()
    monkeypatch.setattr(event_watch, "END_TIME", 60.0)
    monkeypatch.setattr(event_watch, "read_new", lambda *place: server.wait() and read_new(*place))
    asyncio.run(begin())
    assert [one.tag for one in taken.scalars].count("train/loss") == 6


@pytest.mark.parametrize("is_last", [True, False])
def test_an_attempt_ends_while_a_file_server_hangs(
    watch: EventWatch, taken: Taken, monkeypatch: pytest.MonkeyPatch, server: threading.Event, is_last: bool
) -> None:
    asked = threading.Event()
    monkeypatch.setattr(event_watch, "END_TIME", 0.01)

    def hang(path: Path, offset: int) -> tuple[list[Scalar], int]:
        asked.set()
        server.wait()
        return [], offset

    monkeypatch.setattr(event_watch, "read_new", hang)
    wait_until(lambda: has_asked(watch, asked), what="the server is asked")
    asyncio.run(watch._files.finish(is_last=is_last))
    assert taken.scalars == []
