"""Files of Weights & Biases: read in pieces, over the borders of blocks, damaged and foreign."""

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.metrics.event_records import Scalar
from engine.core.metrics.wandb_records import BLOCK, scalars, whole_records
from engine.runs.foreign.event_files import SLICE, find_files, read_new

BEGIN = b":W&B\xe1\xbe\x00"


def field(number: int, content: bytes) -> bytes:
    """A field of a protobuf message whose content is bytes."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes((*out, number))


def history(step: int, values: dict[str, object]) -> bytes:
    """A record of one call of `log`."""
    numbers = {**values, "_step": step, "_timestamp": 1000.0 + step}
    items = (
        b"".join(field(2, part.encode()) for part in name.split("."))
        + field(16, (value if isinstance(value, str) else json.dumps(value)).encode())
        for name, value in numbers.items()
    )
    return b"\x08\x01" + field(2, b"".join(field(1, item) for item in items))


def file_of(messages: list[bytes]) -> bytes:
    """A file as LevelDB's log_writer.cc makes it."""
    data = bytearray(BEGIN)
    for message in messages:
        rest, first = message, True
        while first or rest:
            room = BLOCK - len(data) % BLOCK
            if room < 7:
                data += bytes(room)
                continue
            part, rest = rest[: room - 7], rest[room - 7 :]
            kind = (1 if first else 4) if not rest else (2 if first else 3)
            data += struct.pack("<IHB", 0, len(part), kind) + part
            first = False
    return bytes(data)


LOGGED = [history(step, {"loss": 1 / step, "eval.top": step, "text": '"a"', "on": True}) for step in range(1, 5)]
LARGE = field(9, bytes(2 * SLICE))


def test_numbers_of_every_call_are_read_with_their_step_and_time() -> None:
    found = list(scalars(whole_records(file_of(LOGGED), 0).messages))
    assert found[:3] == [
        Scalar(1001.0, 1, "loss", 1.0),
        Scalar(1001.0, 1, "eval.top", 1.0),
        Scalar(1002.0, 2, "loss", 0.5),
    ]
    assert len(found) == 8
    (odd, endless) = scalars([history(7, {"loss": "NaN", "x": "-Infinity", "y": "9" * 65})])
    assert odd.value != odd.value
    assert endless.value == float("-inf")


@given(st.integers(1, 300), st.lists(st.integers(0, 3 * BLOCK), max_size=4))
def test_a_file_that_is_read_while_it_grows_gives_the_same(size: int, lengths: list[int]) -> None:
    messages = [*LOGGED, *(field(9, bytes(length)) for length in lengths), *LOGGED]
    data, found, offset = file_of(messages), list[bytes](), 0
    for reach in (*range(size, len(data), max(size, len(data) // 60)), len(data)):
        records = whole_records(data[offset:reach], offset)
        assert offset <= records.end <= reach
        found += records.messages
        offset = records.end
    assert found == messages
    assert offset == len(data)


def test_a_record_that_is_larger_than_what_is_read_at_once_is_passed_over(tmp_path: Path) -> None:
    path, found, offset = tmp_path / "run-1.wandb", list[Scalar](), 0
    path.write_bytes(file_of([*LOGGED, LARGE, *LOGGED]))
    while (part := read_new(path, offset))[1] > offset:
        found += part[0]
        offset = part[1]
    assert [one.step for one in found if one.tag == "loss"] == [1, 2, 3, 4] * 2
    assert offset == path.stat().st_size


@given(st.binary(max_size=300), st.integers(0, 900), st.binary(max_size=8))
def test_damaged_records_are_skipped(message: bytes, place: int, damage: bytes) -> None:
    list(scalars([message, field(2, field(1, message))]))
    data = bytearray(file_of(LOGGED))
    data[place : place + len(damage)] = damage
    try:
        messages = whole_records(bytes(data), 0).messages
    except ValueError:
        return
    list(scalars(messages))


def test_what_is_no_such_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.wandb").write_text("a text")
    with pytest.raises(ValueError, match="does not begin as"):
        read_new(tmp_path / "notes.wandb", 0)
    with pytest.raises(ValueError, match="a part of"):
        whole_records(BEGIN + b"\xff" * 30, 0)


def test_files_of_ranks_are_found_by_the_process_that_their_log_names(tmp_path: Path) -> None:
    for pid, name in ((41, "offline-run-1"), (42, "run-2"), (43, "run-of-another")):
        (tmp_path / "wandb" / name / "logs").mkdir(parents=True)
        (tmp_path / "wandb" / name / "run-x.wandb").touch()
        line = f"2026-11-25 18:51:06,839 INFO    MainThread:{pid} [wandb_setup.py:_flush():81] Current SDK version\n"
        (tmp_path / "wandb" / name / "logs" / "debug.log").write_text(line)
    (tmp_path / "wandb" / "run-without-a-log").mkdir()
    (tmp_path / "wandb" / "run-without-a-log" / "run-x.wandb").touch()
    (tmp_path / "wandb" / "latest-run").symlink_to("run-2")
    assert find_files(tmp_path, {41: 0, 42: 1}, 1000.0, 60.0) == {
        tmp_path / "wandb/offline-run-1/run-x.wandb": 0,
        tmp_path / "wandb/run-2/run-x.wandb": 1,
    }
    assert find_files(tmp_path, {41: 0, 42: 1}, 1e12, 60.0) == {}, "from before the run"
