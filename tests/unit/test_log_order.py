"""The order of the ranks' output: noted as files grow, and replayed from it."""

import math
from pathlib import Path

import pytest

from engine.commands.tail import Chunk, Follower
from engine.runs import log_order
from engine.runs.log_order import OrderIndex, OrderWriter, read_order
from engine.runs.paths import RunPaths


def order_of(folder: Path, *notes: tuple[int, int, int, float]) -> Path:
    path = folder / "run" / "attempt_0" / "order"
    path.parent.parent.mkdir(exist_ok=True)
    writer = OrderWriter(path)
    for note in notes:
        writer.note(*note)
    writer.flush()
    return path


def write(folder: Path, **files: bytes) -> RunPaths:
    paths = RunPaths(folder / "run")
    paths.attempt(0).mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (paths.attempt(0) / f"rank_{name[1:].replace('_', '.')}").write_bytes(data)
    return paths


def told(chunks: list[Chunk]) -> list[tuple[int, str, bytes]]:
    return [(chunk.rank, chunk.stream, chunk.data) for chunk in chunks]


def test_what_was_noted_is_read_back(tmp_path: Path) -> None:
    path = order_of(tmp_path, (0, 0, 10, 5.0), (70000, 1, 1 << 40, 5.001), (0, 1, 7, 1.7e9))
    assert list(read_order(path, 1 << 17)) == [
        (5.0, 0, "out", 10),
        (5.001, 70000, "err", 1 << 40),
        (1.7e9, 0, "err", 7),
    ]
    assert [growth.rank for growth in read_order(path, 1)] == [0, 0]


def test_growth_of_one_file_with_nothing_in_between_is_one_record(tmp_path: Path) -> None:
    path = order_of(tmp_path, (0, 0, 1, 5.0), (0, 0, 2, 5.01), (0, 0, 3, 5.02), (0, 1, 1, 5.03))
    assert [(growth.stream, growth.size) for growth in read_order(path, 1)] == [("out", 1), ("out", 3), ("err", 1)]


def test_a_torn_or_missing_file_is_no_error(tmp_path: Path) -> None:
    path = order_of(tmp_path, (0, 0, 10, 5.0))
    path.write_bytes(path.read_bytes() + b"torn")
    assert len(list(read_order(path, 1))) == 1
    path.unlink()
    assert list(read_order(path, 1)) == []
    path.mkdir()
    assert list(read_order(path, 1)) == []
    OrderWriter(path).note(0, 0, 1, 1.0)


def test_lines_are_replayed_in_their_order_and_the_rest_follows(tmp_path: Path) -> None:
    paths = write(tmp_path, r0_out=b"a\nb1b2\nc\n", r0_err=b"x\ny\n", r1_out=b"p\n")
    order = order_of(tmp_path, (0, 0, 4, 1.0), (0, 1, 2, 2.0), (1, 0, 2, 3.0), (0, 0, 7, 4.0), (0, 1, 4, 5.0))
    follower = Follower(paths, 0, [0, 1])
    replayed = list(follower.replay(read_order(order, 2)))
    assert told(replayed) == [
        (0, "out", b"a\n"),  # the next line is complete later
        (0, "err", b"x\n"),
        (1, "out", b"p\n"),
        (0, "out", b"b1b2\n"),
        (0, "err", b"y\n"),
    ]
    assert [chunk.at for chunk in replayed] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert told(list(follower.drain())) == [(0, "out", b"c\n")]
    follower.close()


def test_an_order_that_tells_of_more_than_there_is_ends_with_the_files(tmp_path: Path) -> None:
    paths = write(tmp_path, r0_out=b"a\n")
    order = order_of(tmp_path, (0, 0, 1 << 50, 1.0), (0, 1, 9, 2.0), (5, 0, 9, 2.0))
    follower = Follower(paths, 0, [0])
    assert told(list(follower.replay(read_order(order, 6)))) == [(0, "out", b"a\n")]
    follower.close()


@pytest.mark.parametrize("block", [16, 48, 1 << 20])
def test_the_positions_of_sizes_grow_in_the_order_of_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
):
    monkeypatch.setattr(log_order, "_BLOCK", block)
    index = OrderIndex(tmp_path / "order")
    assert not index.refresh()
    writer = OrderWriter(tmp_path / "order")
    for step in range(1, 6):
        writer.note(0, 0, 10 * step, step)
        writer.note(1, 1, 100 * step, step)
    writer.flush()
    assert index.refresh()
    assert [index.position(0, "out", 10 * step) for step in range(1, 6)] == [0, 2, 4, 6, 8]
    assert [index.position(1, "err", 100 * step - 99) for step in range(1, 6)] == [1, 3, 5, 7, 9]
    assert [index.size(0, "out", position) for position in range(6)] == [0, 10, 10, 20, 20, 30]
    assert (index.position(0, "out", 51), index.size(0, "out", math.inf)) == (math.inf, 50)
    assert (index.position(2, "out", 1), index.size(2, "out", 3)) == (math.inf, 0)
    writer.note(2, 0, 7, 9)
    writer.flush()
    assert index.refresh()
    assert index.position(2, "out", 7) == 10


def test_an_index_forgets_what_nobody_asks_for_and_finds_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(log_order, "_BLOCK", 64)
    monkeypatch.setattr(log_order, "_KEPT", 160)
    writer, whole = OrderWriter(tmp_path / "order"), OrderIndex(tmp_path / "order")
    index, reads = OrderIndex(tmp_path / "order"), list[int]()
    for step in range(1, 101):
        if step < 5:
            writer.note(2, 1, step, step)
        writer.note(0, 0, 10 * step, step)
        writer.note(1, 0, 20 * step, step)
        writer.flush()
        assert index.refresh()
        reads.append(index._end - index._begin)
    assert max(reads) <= 2 * 160
    real = index._read
    monkeypatch.setattr(index, "_read", lambda begin, end: pytest.fail("reads back"))
    assert index.size(2, "err", math.inf) == 4, "of a file that does not grow any more"
    assert index.position(2, "err", 5) == math.inf
    monkeypatch.setattr(index, "_read", real)
    assert whole.refresh()
    for end in (1000, 990, 505, 1, 700):
        for rank, factor in ((0, 1), (1, 2)):
            assert index.position(rank, "out", end * factor) == whole.position(rank, "out", end * factor)
        for position in (0, 1, 7, 8, 9, 50, 203):
            assert [index.size(rank, "out", position) for rank in range(3)] == [
                whole.size(rank, "out", position) for rank in range(3)
            ]
            assert index.size(2, "err", position) == whole.size(2, "err", position)
        assert index.refresh()


def test_a_file_that_nobody_has_written_is_looked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_order, "_BLOCK", 64)
    monkeypatch.setattr(log_order, "_KEPT", 160)
    writer, index = OrderWriter(tmp_path / "order"), OrderIndex(tmp_path / "order")

    def grow(steps: range, *ranks: int) -> None:
        for step in steps:
            for rank in ranks:
                writer.note(rank, 0, step, step)
        writer.flush()
        assert index.refresh()

    grow(range(1, 100), 0, 1)
    assert (index.position(2, "out", 1), index.size(3, "out", math.inf)) == (math.inf, 0)
    grow(range(100, 101), 0, 1)
    assert index._end - index._begin <= 2 * 160, "what was looked through in vain is forgotten"
    with monkeypatch.context() as patched:
        patched.setattr(index, "_read", lambda begin, end: pytest.fail("reads back again"))
        assert (index.position(2, "out", 1), index.size(3, "out", math.inf)) == (math.inf, 0)
    grow(range(1, 50), 2, 0)
    assert index.position(2, "out", 1) == 200
    assert index.size(2, "out", 200) == 0
