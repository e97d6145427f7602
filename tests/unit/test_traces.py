"""Files of torch's flight recorder: composed here in the layout that torch 2.13 gives its pickles, and harmless whatever is in them."""

import os
import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.runs.foreign.traces import MAX_SIZE, read_traces

SENTENCE = "rank 1 has not called all_reduce #57 of default_pg (4 x float32); ranks 0, 2 wait in it"


def trace(number: int, *, done: bool) -> dict[str, Any]:
    """What a rank of three has recorded. Keys that are not read are left out but one."""
    entry = {
        "frames": [{"name": "train", "filename": "train.py", "line": 7}],
        "record_id": 0,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_790_000_000_000_000_000,
        "duration_ms": None,
        "input_sizes": [[4]],
        "input_dtypes": ["Float"],
        "state": "completed" if done else "started",
        "retired": done,
        "is_p2p": False,
    }
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}
    return {"version": "2.10", "nccl_version": "2.27.5", "pg_config": config, "pg_status": {}, "entries": [entry]}


@pytest.fixture
def write(tmp_path: Path) -> Callable[[int, object], Path]:
    def write(rank: int, value: object) -> Path:
        path = tmp_path / f"nccl_trace_rank_{rank}"
        path.write_bytes(value if isinstance(value, bytes) else pickle.dumps(value, protocol=2))
        return path

    return write


@pytest.fixture(autouse=True)
def composed(write: Callable[[int, object], Path]) -> None:
    for rank in range(3):
        write(rank, trace(56, done=True) if rank == 1 else trace(57, done=False))


def said(folder: Path) -> list[str]:
    return [wait.sentence for wait in read_traces(folder, 3, 0.0).waits]


def test_who_waited_for_whom_is_told(tmp_path: Path) -> None:
    traces = read_traces(tmp_path, 3, 0.0)
    assert [(wait.sentence, wait.late) for wait in traces.waits] == [(SENTENCE, (1,))]
    assert traces.damaged == ()


def test_ranks_without_a_file_are_silent(tmp_path: Path) -> None:
    (tmp_path / "nccl_trace_rank_1").unlink()
    assert said(tmp_path) == [
        "ranks 0, 2 wait in all_reduce #57 of default_pg (4 x float32); rank 1 does not report its collectives"
    ]


def test_where_nothing_was_written_nothing_is_said(tmp_path: Path) -> None:
    for rank in range(3):
        (tmp_path / f"nccl_trace_rank_{rank}").unlink()
    (tmp_path / "nccl_trace_rank_7").write_bytes(b"of no rank of this run")
    assert read_traces(tmp_path, 3, 0.0) == read_traces(tmp_path / "nowhere", 3, 0.0) == ((), ())


class Call:
    """Unpickled as usual, it would make a file."""

    def __init__(self, function: Callable[..., Any], *arguments: object) -> None:
        self._call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return self._call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_in_a_file_is_called(tmp_path: Path, write: Callable[[int, object], Path], protocol: int) -> None:
    harm = tmp_path / "harm"
    write(0, pickle.dumps(Call(os.mkdir, str(harm)), protocol=protocol))
    traces = read_traces(tmp_path, 3, 0.0)
    assert not harm.exists()
    (damage,) = traces.damaged
    assert "nccl_trace_rank_0 can't be read: it names " in damage
    assert traces.waits[0].sentence.startswith("rank 1 has not called all_reduce #57")


def test_a_file_that_ends_anywhere_is_told_in_a_sentence(tmp_path: Path, write: Callable[[int, object], Path]) -> None:
    whole = pickle.dumps(trace(57, done=False), protocol=2)
    for size in range(len(whole)):
        path = write(2, whole[:size])
        (damage,) = read_traces(tmp_path, 3, 0.0).damaged
        assert damage.startswith(f"{path} can't be read: ")


@pytest.mark.parametrize(
    "value", [b"", b"\x80\x02.", b"\x80\x02Ptext\n.", b"\x80\x02\x82\x01.", 7, [1], {"entries": 3}, {"entries": [{}]}]
)
def test_what_is_no_trace_is_told(tmp_path: Path, write: Callable[[int, object], Path], value: object) -> None:
    write(0, value)
    (damage,) = read_traces(tmp_path, 3, 0.0).damaged
    assert "\n" not in damage
    assert said(tmp_path)[0].startswith("rank 1 has not called all_reduce #57")


def test_what_was_written_before_the_last_rejoin_is_not_looked_at(tmp_path: Path) -> None:
    os.utime(tmp_path / "nccl_trace_rank_1", (100, 100))
    assert read_traces(tmp_path, 3, 100.0).waits[0].late == (1,)
    assert read_traces(tmp_path, 3, 100.5).waits[0].sentence.endswith("; rank 1 does not report its collectives")
    for rank in range(3):
        os.utime(tmp_path / f"nccl_trace_rank_{rank}", (100, 100))
    assert read_traces(tmp_path, 3, 100.5) == ((), ())


def shared(levels: int) -> bytes:
    """An entry whose sizes are lists of one and the same list: 1,000 times at each level."""
    sizes: Any = [4] * 1000
    for _ in range(levels):
        sizes = [sizes] * 1000
    whole = trace(57, done=False)
    return pickle.dumps({**whole, "entries": [{**whole["entries"][0], "input_sizes": sizes}] * 1000}, protocol=2)


@pytest.mark.parametrize(
    "bomb",
    [
        pytest.param(b"\x80\x02Nr\x00\x00\x00\x04.", id="place in the memo"),
        pytest.param(b"\x80\x05\x96" + (1 << 30).to_bytes(8, "little") + b".", id="bytearray"),
        pytest.param(b"\x80\x05\x95" + (1 << 40).to_bytes(8, "little") + b".", id="frame"),
        pytest.param(b"\x80\x05\x8e" + (1 << 40).to_bytes(8, "little") + b".", id="bytes"),
        pytest.param(b"\x80\x04" + b"\x8f" * 1_000_000 + b".", id="sets"),
        pytest.param(shared(1), id="lists of one list"),
        pytest.param(shared(2), id="lists of lists of one list"),
    ],
)
def test_a_small_file_takes_little_memory(tmp_path: Path, write: Callable[[int, object], Path], bomb: bytes) -> None:
    write(0, bomb)
    tracemalloc.start()
    try:
        read_traces(tmp_path, 3, 0.0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 26


def test_a_refusal_is_short_and_harmless(tmp_path: Path, write: Callable[[int, object], Path]) -> None:
    path = write(0, b"cos\n\x1b[31m" + b"x" * (1 << 20) + b"\n.")
    (damage,) = read_traces(tmp_path, 3, 0.0).damaged
    assert damage.startswith(f"{path} can't be read: it names os.\\x1b[31mxxx")
    assert damage.isprintable()
    assert len(damage) < len(str(path)) + 300


def test_only_files_of_some_size_are_opened(tmp_path: Path) -> None:
    large, pipe, link = (tmp_path / f"nccl_trace_rank_{rank}" for rank in range(3))
    os.truncate(large, MAX_SIZE + 1)
    for path in (pipe, link):
        path.unlink()
    os.mkfifo(pipe)
    link.symlink_to("/dev/zero")
    assert [damage.rpartition(": ")[2] for damage in read_traces(tmp_path, 3, 0.0).damaged] == [
        "it is larger than 16 MiB",
        "it is not a regular file",
        "it is not a regular file",
    ]
