"""Lines of files that grow, in memory that does not."""

import os
import threading
from pathlib import Path

import pytest

from tests.support import PATIENCE
from tui.data.log import merged as merged_log
from tui.data.log.file import LogFile, Piece
from tui.data.log.filter import LogFilter
from tui.data.log.merged import HISTORY, MergedLog, Place, Where
from tui.data.log.reader import LogReader
from tui.text.cells import MAX_RAW


def numbered(begin: int, end: int) -> bytes:
    return b"".join(b"line %d\n" % index for index in range(begin, end))


def texts(log: MergedLog) -> list[str]:
    return [line.data.decode() for line in log.lines]


def partials(log: MergedLog) -> list[str]:
    return [line.data.decode() for line in log.partials]


def read(log: MergedLog, where: Where = "newer") -> None:
    """One request, and what it brings."""
    log.apply(log.fetch(where))


def read_log(*files: LogFile) -> MergedLog:
    log = MergedLog(list(files))
    read(log)
    return log


def read_all(log: MergedLog) -> None:
    read(log)
    while not log.caught_up:
        read(log)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a name with ' and \n in it.out"


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_a_file_is_opened_at_its_end(path):
    path.write_bytes(numbered(0, 20_000))
    log = read_log(LogFile(path))
    assert texts(log) == [f"line {index}" for index in range(20_000 - HISTORY, 20_000)]
    assert log.has_older
    assert log.caught_up


def test_a_gigabyte_is_opened_by_reading_a_megabyte_at_its_end(path, monkeypatch):
    with path.open("wb") as file:
        file.truncate(1 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + numbered(0, 6_000))
    log = MergedLog([LogFile(path)])
    sizes: list[int] = []
    pread = os.pread

    def counted(file: int, count: int, offset: int) -> bytes:
        sizes.append(count)
        return pread(file, count, offset)

    monkeypatch.setattr(os, "pread", counted)
    read(log)
    assert sum(sizes) <= 1 << 20
    assert texts(log)[-1] == "line 5999"


def test_older_lines_are_read_back_to_the_first(path):
    path.write_bytes(numbered(0, 50_000))
    log = read_log(LogFile(path))
    number_of_last = log.first + len(log.lines) - 1
    while log.has_older:
        read(log, "older")
    assert texts(log) == [f"line {index}" for index in range(50_000)]
    assert log.first + len(log.lines) - 1 == number_of_last


def test_growth_is_appended_and_numbers_stay(path):
    path.write_bytes(numbered(0, 10))
    log = read_log(LogFile(path))
    append(path, numbered(10, 12))
    read(log)
    assert texts(log) == [f"line {index}" for index in range(12)]
    assert log.first == 0


def test_a_file_that_does_not_exist_yet_is_empty_until_it_does(path):
    log = read_log(LogFile(path))
    assert (texts(log), partials(log), log.caught_up) == ([], [], True)
    path.write_bytes(b"first\n")
    read(log)
    assert texts(log) == ["first"]


def test_a_line_without_its_end_is_shown_and_replaced_by_the_whole(path):
    path.write_bytes(b"one\ntw")
    log = read_log(LogFile(path))
    assert (texts(log), partials(log)) == (["one"], ["tw"])
    append(path, b"o")
    read(log)
    assert (texts(log), partials(log)) == (["one"], ["two"])
    append(path, b"!\nthree")
    read(log)
    assert (texts(log), partials(log)) == (["one", "two!"], ["three"])


def test_a_line_of_which_a_request_has_read_a_part_is_not_taken_for_one_that_is_still_being_written(path, monkeypatch):
    monkeypatch.setattr(merged_log, "CHUNK", 100)
    path.write_bytes(numbered(0, 50) + b"the last")
    log = read_log(LogFile(path))
    read(log, "start")
    while not log.caught_up:
        assert partials(log) == []
        read(log)
    assert (texts(log), partials(log)) == ([f"line {index}" for index in range(50)], ["the last"])


def test_an_unfinished_line_stands_below_lines_that_arrive_later(tmp_path):
    out, err = tmp_path / "out", tmp_path / "err"
    err.write_bytes(b" 10%|#")
    log = read_log(LogFile(out), LogFile(err, stream="err"))
    append(out, b"step 1\n")
    append(err, b"\r 20%|##")
    read(log)
    assert (texts(log), partials(log)) == (["step 1"], [" 10%|#\r 20%|##"])


@pytest.mark.parametrize("chunk", [7, 64, 1000])
def test_lines_are_the_same_however_they_are_cut_into_reads(path, monkeypatch, chunk):
    monkeypatch.setattr(merged_log, "CHUNK", chunk)
    lines = [f"{'é' * (index % 50)} {index}" for index in range(300)]
    path.write_bytes(b"")
    log = read_log(LogFile(path))
    append(path, "\n".join(lines).encode() + b"\n")
    read_all(log)
    assert texts(log) == lines


def test_a_file_that_was_cut_off_begins_anew(path):
    path.write_bytes(numbered(0, 100))
    log = read_log(LogFile(path))
    number = log.first + len(log.lines)
    path.write_bytes(b"new\n")
    read(log)
    assert texts(log) == ["new"]
    assert log.first >= number, "no number is given twice"


def test_a_file_that_was_replaced_by_a_longer_one_begins_anew(path, tmp_path):
    path.write_bytes(b"old\n")
    log = read_log(LogFile(path))
    other = tmp_path / "other"
    other.write_bytes(b"new 1\nnew 2\nnew 3\n")
    other.rename(path)
    read(log)
    assert texts(log) == ["new 1", "new 2", "new 3"]


def test_a_file_that_was_deleted_keeps_what_was_read(path):
    path.write_bytes(b"kept\n")
    log = read_log(LogFile(path))
    path.unlink()
    read(log)
    assert texts(log) == ["kept"]


def test_a_megabyte_without_line_feed_is_held_in_part(path):
    path.write_bytes(b"begin" + b"x" * 2_000_000 + b"\nnext\n")
    log = read_log(LogFile(path))
    assert log.lines[-1].data == b"next"
    assert all(len(line.data) <= MAX_RAW for line in log.lines)
    append(path, b"y" * 1_000_000)
    read_all(log)
    assert [len(line.data) for line in log.partials] == [MAX_RAW]
    append(path, b"\nlast\n")
    read_all(log)
    assert texts(log)[-1] == "last"


def test_a_megabyte_of_a_progress_bar_is_held_as_its_newest_state(path):
    path.write_bytes(b"")
    log = read_log(LogFile(path))
    append(path, b"".join(b"\r %d%%" % (index % 100) for index in range(200_000)))
    read_all(log)
    assert len(log.partials[0].data) <= MAX_RAW
    assert log.partials[0].data.endswith(b" 99%")


def test_bytes_are_kept_as_they_are(path):
    path.write_bytes(b"\xff\x00\x1b[31m\r\n")
    log = read_log(LogFile(path))
    assert log.lines[0].data == b"\xff\x00\x1b[31m\r"


def test_lines_of_several_ranks_stand_in_order_of_arrival(tmp_path):
    paths = [tmp_path / str(rank) for rank in range(3)]
    log = read_log(*(LogFile(path, rank=rank) for rank, path in enumerate(paths)))
    for rank in (2, 0, 1, 0):
        append(paths[rank], b"rank %d\n" % rank)
        read(log)
    assert texts(log) == ["rank 2", "rank 0", "rank 1", "rank 0"]
    assert [log.sources[line.source].rank for line in log.lines] == [2, 0, 1, 0]


def test_the_file_that_was_written_to_last_stands_last_when_opened(tmp_path):
    out, err = tmp_path / "out", tmp_path / "err"
    err.write_bytes(b"warning\n")
    out.write_bytes(b"step\n")
    os.utime(err, (1000, 1000))
    log = read_log(LogFile(out), LogFile(err, stream="err"))
    assert texts(log) == ["warning", "step"]


def test_one_loud_rank_does_not_silence_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(merged_log, "CHUNK", 1000)
    paths = [tmp_path / str(rank) for rank in range(3)]
    log = read_log(*(LogFile(path, rank=rank) for rank, path in enumerate(paths)))
    append(paths[0], numbered(0, 10_000))
    append(paths[1], b"heard\n")
    append(paths[2], b"heard too\n")
    for _ in range(6):
        read(log)
    assert not log.caught_up
    assert {"heard", "heard too"} <= set(texts(log))


def test_a_full_log_drops_its_oldest_lines_and_reads_them_again(path, monkeypatch):
    monkeypatch.setattr(merged_log, "MAX_LINES", 1000)
    path.write_bytes(numbered(0, 500))
    log = read_log(LogFile(path))
    append(path, numbered(500, 1500))
    read(log)
    assert log.is_full
    dropped = log.trim(len(log.lines))
    assert dropped == 500
    assert texts(log)[0] == "line 500"
    assert (log.first, log.has_older) == (500, True)
    read(log, "older")
    assert texts(log) == [f"line {index}" for index in range(1500)]
    assert log.first == 0


def test_a_log_that_is_not_full_drops_nothing(path):
    path.write_bytes(numbered(0, 10))
    log = read_log(LogFile(path))
    assert log.trim(10) == 0


def test_the_start_is_read_from_the_first_line_on_and_the_end_from_the_last_back(path):
    path.write_bytes(numbered(0, 100_000))
    log = read_log(LogFile(path))
    read(log, "start")
    assert texts(log)[0] == "line 0"
    assert not log.has_older
    assert not log.caught_up
    read(log, "end")
    assert texts(log)[-1] == "line 99999"
    assert log.caught_up


def test_a_thousand_files_are_opened_without_keeping_one_open(tmp_path):
    for rank in range(1000):
        (tmp_path / str(rank)).write_bytes(b"rank %d\n" % rank)
    log = MergedLog([LogFile(tmp_path / str(rank), rank=rank) for rank in range(1000)])
    before = len(os.listdir("/proc/self/fd"))
    read(log)
    assert len(log.lines) == 1000
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_server_that_hangs_does_not_hold_up_the_reader_s_owner():
    release = threading.Event()

    class Hanging(LogFile):
        def tail(self, lines: int) -> list[Piece]:
            release.wait(PATIENCE)
            return [Piece(b"at last", 8)]

    arrived = threading.Event()
    reader = LogReader(arrived.set)
    log = MergedLog([Hanging(Path("nowhere"))])
    reader.poll(log, newer=True)
    assert reader.take() is None
    release.set()
    assert arrived.wait(PATIENCE)
    taken = reader.take()
    assert taken is not None
    assert taken[1].lines[0].data == b"at last"
    assert reader.take() is None
    reader.close()


def test_a_line_of_several_ranks_is_held_once_and_counts_them(tmp_path):
    paths = [tmp_path / str(rank) for rank in range(3)]
    for path in paths:
        append(path, b"config\nstep 1\n")
    log = MergedLog([LogFile(path, rank=rank) for rank, path in enumerate(paths)], folds=True)
    read(log)
    assert [(line.data, len(line.others)) for line in log.lines] == [(b"config", 2), (b"step 1", 2)]
    append(paths[0], b"step 2\nstep 2\n")
    append(paths[1], b"step 2\n")
    read(log)
    assert [(line.data, len(line.others)) for line in log.lines[2:]] == [(b"step 2", 0), (b"step 2", 1)]
    append(paths[2], b"step 2\nlast\n")
    batch = log.fetch("newer")
    assert list(batch.changed) == [3]
    log.apply(batch)
    assert [(line.data, len(line.others)) for line in log.lines[2:]] == [(b"step 2", 0), (b"step 2", 2), (b"last", 0)]
    assert [log.index(Place(2, offset)) for offset in (0, 7, 14, 21)] == [0, 1, 3, 4]


@pytest.mark.parametrize("text", ["line 77", "!line", "7 & !77", "x"])
def test_a_filter_reads_on_until_it_has_enough(path, monkeypatch, text):
    monkeypatch.setattr(merged_log, "CHUNK", 4000)
    monkeypatch.setattr(merged_log, "HISTORY", 10)
    path.write_bytes(numbered(0, 3_000))
    log = MergedLog([LogFile(path)], shown=LogFilter(text))
    read(log)
    while log.has_older:
        read(log, "older")
    words, hidden = {"line 77": ("line 77", "-"), "!line": ("line", "line"), "7 & !77": ("7", "77"), "x": ("x", "-")}[
        text
    ]
    everything = [f"line {index}" for index in range(3_000)]
    assert texts(log) == [one for one in everything if words in one and hidden not in one]
