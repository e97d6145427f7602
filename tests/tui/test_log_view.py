"""The log view: what stands where while files grow."""

import contextlib
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.color import Color
from textual.app import App, ComposeResult
from textual.pilot import Pilot

from tests.support import PATIENCE
from tests.tui.hostile import CORPUS
from tests.tui.waiting import SIZES, lines, until
from tui.data.log import merged as merged_log
from tui.data.log.file import LogFile, Piece
from tui.data.log.merged import MergedLog
from tui.text.cells import segments_line
from tui.text.log import search_words
from tui.theme import CSS
from tui.widgets import log_rows
from tui.widgets.log_view import LogView


class LogApp(App[None]):
    CSS_PATH = CSS

    def __init__(self, log: MergedLog | LogFile | None, *, ascii_only: bool = False) -> None:
        super().__init__()
        self.view = LogView(ascii=ascii_only)
        self.log_to_show = log

    def compose(self) -> ComposeResult:
        yield self.view

    def on_mount(self) -> None:
        self.view.focus()
        self.view.show(self.log_to_show, "rank 0")


def append(path: Path, *texts: str) -> None:
    with path.open("ab") as file:
        file.write("".join(f"{text}\n" for text in texts).encode())


def steps(begin: int, end: int) -> list[str]:
    return [f"step {index}" for index in range(begin, end)]


async def seen(pilot: Pilot[Any], view: LogView, text: str) -> None:
    """Waits until a text is on the screen, looking at the files meanwhile."""
    await until(pilot, lambda: any(text in line for line in lines(view)), f"{text!r} among {lines(view)}", view.poll)


@contextlib.asynccontextmanager
async def log_app(
    log: MergedLog | LogFile, text: str, size: tuple[int, int] = (40, 5)
) -> AsyncIterator[tuple[Pilot[Any], LogApp]]:
    """Shows a log in a terminal of this size, and begins when a text of it is on the screen."""
    app = LogApp(log)
    async with app.run_test(size=size) as pilot:
        await seen(pilot, app.view, text)
        yield pilot, app


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rank 0's.out"


async def test_a_log_is_shown_from_its_end_and_followed(path):
    append(path, *steps(0, 100))
    async with log_app(LogFile(path), "step 99") as (pilot, app):
        assert lines(app.view) == steps(95, 100)
        append(path, *steps(100, 103))
        await seen(pilot, app.view, "step 102")
        assert lines(app.view) == steps(98, 103)
        assert app.view.shown.follows
        assert app.view.badge == "follow"


async def test_what_is_on_the_screen_is_what_the_view_says(path):
    append(path, *steps(0, 100))
    async with log_app(LogFile(path), "step 99") as (pilot, app):
        append(path, *steps(100, 200))
        await seen(pilot, app.view, "step 199")
        await pilot.pause()
        shown = [strip.text.rstrip() for strip in app.screen._compositor.render_strips()]
        assert [line[:8] for line in shown] == steps(195, 200)


async def test_traps_1_and_3_a_reader_s_text_does_not_move_in_a_flood_and_new_lines_are_counted(path, monkeypatch):
    monkeypatch.setattr(merged_log, "MAX_LINES", 3000)
    append(path, *steps(0, 1000))
    async with log_app(LogFile(path), "step 999", size=(40, 10)) as (pilot, app):
        await pilot.press("pageup", "k")
        before = lines(app.view)
        assert not app.view.shown.follows
        for begin in range(1000, 5000, 250):
            append(path, *steps(begin, begin + 250))
            await until(
                pilot,
                lambda end=begin + 250: app.view.shown.new_lines >= min(end - 1000, 2000),  # type: ignore[misc]
                "the count",
                app.view.poll,
            )
            assert lines(app.view) == before
        assert app.view.badge == f"+{app.view.shown.new_lines:,} new"
        await until(pilot, lambda: str(app.view.border_subtitle) == app.view.badge, "the badge")
        await pilot.press("G")
        await seen(pilot, app.view, "step 4999")
        assert (app.view.badge, app.view.shown.new_lines) == ("follow", 0)


async def test_trap_1_a_full_log_goes_on_being_painted(path, monkeypatch):
    monkeypatch.setattr(merged_log, "MAX_LINES", 200)
    path.touch()
    app = LogApp(LogFile(path))
    async with app.run_test(size=(40, 10)) as pilot:
        for begin in range(0, 1000, 50):
            append(path, *steps(begin, begin + 50))
            await seen(pilot, app.view, f"step {begin + 49}")
        await pilot.pause()
        shown = [strip.text.rstrip() for strip in app.screen._compositor.render_strips()]
        assert shown[-1].startswith("step 999")


async def test_a_reader_at_the_edge_of_a_full_log_keeps_the_text_and_can_go_on(path, monkeypatch):
    monkeypatch.setattr(merged_log, "HISTORY", 50)
    monkeypatch.setattr(merged_log, "MAX_LINES", 120)
    monkeypatch.setattr(merged_log, "CHUNK", 300)
    append(path, *steps(0, 600))
    async with log_app(LogFile(path), "step 599", size=(40, 10)) as (pilot, app):
        await pilot.press("g")
        await seen(pilot, app.view, "step 0")
        place = 0
        while place < 560:
            app.view.action_page_down()
            app.view.poll()
            await pilot.pause()
            first = int(lines(app.view)[0].split()[1])
            assert place <= first <= place + 9
            assert lines(app.view) == steps(first, first + 10)
            place = first


@pytest.mark.parametrize("key", ["up", "k", "pageup", "ctrl+u", "g", "home"])
async def test_any_way_up_ends_following_and_the_end_takes_it_up_again(path, key):
    append(path, *steps(0, 100))
    async with log_app(LogFile(path), "step 99") as (pilot, app):
        await pilot.press(key)
        assert (app.view.shown.follows, app.view.badge) == (False, "paused")
        await pilot.press("g", "end" if key in ("g", "home") else "G")
        assert app.view.shown.follows
        await seen(pilot, app.view, "step 99")


async def test_a_view_that_stops_following_keeps_the_text_where_it_is(path):
    append(path, *steps(0, 100))
    async with log_app(LogFile(path), "step 99") as (pilot, app):
        app.view.action_follow()
        append(path, *steps(100, 110))
        await until(pilot, lambda: app.view.shown.new_lines == 10, "the count", app.view.poll)
        assert lines(app.view) == steps(95, 100)
        app.view.action_follow()
        await seen(pilot, app.view, "step 109")


async def test_the_wheel_and_the_scrollbar_move_the_view(path):
    append(path, *steps(0, 100))
    async with log_app(LogFile(path), "step 99", size=(40, 10)) as (pilot, app):
        app.view.scroll_relative(y=-30, animate=False)
        await pilot.pause()
        assert lines(app.view) == steps(60, 70)
        assert not app.view.shown.follows
        app.view.scroll_to(y=20, animate=False)
        await pilot.pause()
        assert lines(app.view) == steps(20, 30)
        assert app.view.vertical_scrollbar.position == 20
        assert app.view.vertical_scrollbar.window_virtual_size == 100


async def test_a_terminal_that_changes_its_size_goes_on_following(path):
    append(path, *steps(0, 100))
    async with log_app(LogFile(path), "step 99") as (pilot, app):
        for size in ((40, 30), (40, 3), (1, 1), (80, 24)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            assert app.view.shown.follows
        assert lines(app.view) == steps(76, 100)


async def test_older_lines_are_loaded_at_the_top_without_moving_the_text(path):
    append(path, *steps(0, 12_000))
    log = MergedLog([LogFile(path)])
    async with log_app(log, "step 11999") as (pilot, app):
        held = len(log.lines)
        assert held < 12_000
        app.view.scroll_to(y=0, animate=False)
        before = lines(app.view)
        await until(pilot, lambda: len(log.lines) > held, "older lines", app.view.poll)
        assert lines(app.view) == before
        await pilot.press("k")
        assert lines(app.view)[1:] == before[:-1]


async def test_g_goes_to_the_first_line_of_the_file_and_G_to_its_last(path):
    append(path, *steps(0, 300_000))
    async with log_app(LogFile(path), "step 299999") as (pilot, app):
        await pilot.press("g")
        await seen(pilot, app.view, "step 0")
        assert lines(app.view) == steps(0, 5)
        await pilot.press("G")
        await seen(pilot, app.view, "step 299999")


async def test_lines_of_stderr_and_of_several_ranks_say_so(tmp_path):
    for rank in (0, 11):
        append(tmp_path / f"{rank}.out", "fine")
        append(tmp_path / f"{rank}.err", "warning")
        os.utime(tmp_path / f"{rank}.err", (1000 + rank, 1000 + rank))
        os.utime(tmp_path / f"{rank}.out", (2000 + rank, 2000 + rank))
    log = MergedLog(
        [
            LogFile(tmp_path / f"{rank}.{stream}", rank=rank, stream=stream)
            for rank in (0, 11)
            for stream in ("out", "err")
        ]
    )
    async with log_app(log, "fine") as (pilot, app):
        assert lines(app.view)[:4] == ["▌[r0]  warning", "▌[r11] warning", " [r0]  fine", " [r11] fine"]
    app = LogApp(MergedLog(log.sources[:2]), ascii_only=True)
    async with app.run_test(size=(40, 5)) as pilot:
        await seen(pilot, app.view, "fine")
        assert lines(app.view)[:2] == ["!warning", " fine"]


async def test_an_unfinished_line_is_shown_last_and_goes_on(path):
    path.write_bytes(b"one\n 10%|#")
    async with log_app(LogFile(path), "10%") as (pilot, app):
        with path.open("ab") as file:
            file.write(b"\r 20%|##")
        await seen(pilot, app.view, "20%")
        with path.open("ab") as file:
            file.write(b"\r100%|####\ntwo\n")
        await seen(pilot, app.view, "two")
        assert lines(app.view)[:3] == ["one", "100%|####", "two"]


async def test_colours_of_the_output_are_kept(path):
    append(path, "\x1b[31mred\x1b[0m plain")
    async with log_app(LogFile(path), "red plain") as (_pilot, app):
        inks = [segment.style.color for segment in app.view.render_line(0) if segment.style and segment.text == "red"]
        assert inks == [Color.from_ansi(1)]


async def test_no_color_leaves_the_colours_out(path, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    append(path, "\x1b[31mred\x1b[0m plain")
    async with log_app(LogFile(path), "red plain") as (_pilot, app):
        assert app.view.render_line(0)._segments[0].text == "red plain"


async def test_long_lines_are_cut_moved_sideways_or_wrapped(path):
    append(path, "0123456789" * 10, "end")
    async with log_app(LogFile(path), "end", size=(41, 6)) as (pilot, app):
        assert lines(app.view)[:2] == ["0123456789" * 4, "end"]
        await pilot.press("l")
        assert lines(app.view)[0] == ("0123456789" * 5)[8:48]
        await pilot.press("h", "h", "w")
        assert lines(app.view)[:4] == ["0123456789" * 4, "0123456789" * 4, "0123456789" * 2, "end"]
        await pilot.press("w")
        assert lines(app.view)[:2] == ["0123456789" * 4, "end"]


async def test_every_row_of_wrapped_lines_can_be_reached(path):
    append(path, *(f"{index:02}" * 30 for index in range(20)))
    async with log_app(LogFile(path), "1919", size=(21, 7)) as (pilot, app):
        await pilot.press("w")
        assert lines(app.view) == ["17" * 10] + ["18" * 10] * 3 + ["19" * 10] * 3
        rows = [lines(app.view)[0]]
        for _ in range(60):
            app.view.action_cursor_up()
            rows.append(lines(app.view)[0])
        assert rows[-1] == "00" * 10
        assert {row[:2] for row in rows} == {f"{index:02}" for index in range(18)}
        for _ in range(80):
            app.view.action_cursor_down()
        assert lines(app.view)[-1] == "19" * 10
        await pilot.press("g", "pagedown", "ctrl+d", "ctrl+u", "pageup")
        assert lines(app.view)[0] == "00" * 10


async def test_wrapped_lines_are_followed_to_their_last_row(path):
    append(path, *("x" * 100 for _ in range(10)))
    app = LogApp(LogFile(path))
    async with app.run_test(size=(21, 7)) as pilot:
        app.view.wrap = True
        await seen(pilot, app.view, "x")
        append(path, "y" * 50 + "Z")
        await seen(pilot, app.view, "Z")
        assert lines(app.view)[-1] == "y" * 10 + "Z"


async def search(pilot: Pilot[Any], view: LogView, pattern: str, what: str) -> None:
    view.search(pattern)
    await found(pilot, view, what)


async def found(pilot: Pilot[Any], view: LogView, what: str) -> None:
    """Waits until the border would say this of the search, looking at the files meanwhile."""

    def words() -> str:
        return search_words(view.finder.pattern, view.finder.found, view.finder.wrapped, view.finder.error)

    await until(pilot, lambda: what in words(), what, view.poll)


async def test_a_search_goes_to_the_nearest_match_above_on_from_there_and_around_the_end(path):
    append(path, *(f"step {index}" + (" ERROR here" if index in (10, 50, 90) else "") for index in range(100)))
    async with log_app(LogFile(path), "step 99") as (pilot, app):
        await search(pilot, app.view, "error", "match 3 of 3 for 'error'")
        assert not app.view.shown.follows
        for step, words, line in (
            (app.view.action_previous_match, "match 2 of 3", "step 50"),
            (app.view.action_previous_match, "match 1 of 3", "step 10"),
            (app.view.action_previous_match, "wrapped to the last: match 3 of 3", "step 90"),
            (app.view.action_next_match, "wrapped to the first: match 1 of 3", "step 10"),
            (app.view.action_next_match, "match 2 of 3", "step 50"),
        ):
            step()
            await found(pilot, app.view, words)
            await seen(pilot, app.view, line)
        app.view.search("Error")
        await found(pilot, app.view, "no match for 'Error'")  # capitals count
        await search(pilot, app.view, "ERROR", "match 3 of 3")
        app.view.search(None)
        assert app.view.finder.found is None


async def test_a_search_is_a_regular_expression_and_one_that_is_wrong_is_told(path):
    append(path, *(f"loss {index}.5" for index in range(20)), "loss nan")
    async with log_app(LogFile(path), "loss nan") as (pilot, app):
        await search(pilot, app.view, r"loss 1\d\.", "match 10 of 10")
        await search(pilot, app.view, "loss (nan|inf)$", "match 1 of 1")
        for wrong, why in (("loss [", "unterminated character set"), ("(a", "missing )")):
            await search(pilot, app.view, wrong, f"can't be sought: {why}")
        app.view.action_next_match()
        await search(pilot, app.view, "nan", "match 1 of 1")


async def test_a_search_that_is_typed_begins_where_its_first_letter_was_typed(path):
    append(path, *(f"line {index} {'stop' if index == 20 else 'step' if index == 30 else ''}" for index in range(40)))
    async with log_app(LogFile(path), "line 39") as (pilot, app):
        await search(pilot, app.view, "sto", "match 1 of 1")
        await seen(pilot, app.view, "line 20")
        await search(pilot, app.view, "st", "match 2 of 2")
        await seen(pilot, app.view, "line 30")


async def test_lines_that_are_written_during_a_search_are_counted(path):
    append(path, "a needle", *steps(0, 10))
    async with log_app(LogFile(path), "step 9") as (pilot, app):
        await search(pilot, app.view, "needle", "match 1 of 1")
        append(path, "another needle")
        await found(pilot, app.view, "match 1 of 2")
        app.view.action_next_match()
        await found(pilot, app.view, "match 2 of 2")
        await seen(pilot, app.view, "another needle")


async def test_no_match_is_passed_over_because_its_line_has_to_be_read_first(path, monkeypatch):
    monkeypatch.setattr(merged_log, "HISTORY", 50)
    monkeypatch.setattr(merged_log, "MAX_LINES", 120)
    monkeypatch.setattr(merged_log, "CHUNK", 300)
    append(path, "needle one", *steps(0, 600), "needle two", *steps(600, 1200), "needle three", "end")
    async with log_app(LogFile(path), "end") as (pilot, app):
        await search(pilot, app.view, "needle", "match 3 of 3")
        for number, word in ((2, "two"), (1, "one"), (3, "three"), (2, "two")):
            app.view.action_previous_match()
            await found(pilot, app.view, f"match {number} of 3")
            await seen(pilot, app.view, f"needle {word}")


async def test_every_match_is_marked_and_the_current_one_differently(path):
    append(path, "loss and loss", "Loss")
    async with log_app(LogFile(path), "Loss") as (pilot, app):
        await search(pilot, app.view, "loss", "match 2 of 2")
        marked = [
            (segment.text, segment.style.bgcolor)
            for y in (0, 1)
            for segment in app.view.render_line(y)
            if segment.style and segment.style.underline
        ]
        assert [text for text, _ in marked] == ["loss", "loss", "Loss"]
        assert marked[0][1] == marked[1][1] != marked[2][1]


async def test_levels_stand_out_without_colour_and_a_match_stands_out_from_them(path, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    append(path, "10:00:00 ERROR bad", "WARNING: careful", "the ERROR")
    async with log_app(LogFile(path), "the ERROR") as (pilot, app):

        def standing_out() -> list[list[str]]:
            rows = [app.view.render_line(y) for y in range(3)]
            return [
                [one.text for one in row if one.style and (one.style.reverse or one.style.underline)] for row in rows
            ]

        assert standing_out() == [["ERROR"], [], []]
        await search(pilot, app.view, "bad|care", "match 2 of 2")
        assert standing_out() == [["ERROR", "bad"], ["care"], []]
        app.view.action_errors()
        await found(pilot, app.view, "error 1 of 1")
        assert standing_out() == [["ERROR"], [], []]


async def test_a_match_far_to_the_right_is_brought_into_view(path):
    append(path, "x" * 300 + "needle" + "x" * 300)
    async with log_app(LogFile(path), "xxx") as (pilot, app):
        app.view.search("needle")
        await until(pilot, lambda: "needle" in lines(app.view)[0], "the needle")


async def test_a_search_finds_lines_that_are_not_held_and_goes_on_from_there(path):
    append(path, "the needle", *steps(0, 40_000), "a needle", *steps(40_000, 80_000))
    async with log_app(LogFile(path), "step 79999") as (pilot, app):
        await search(pilot, app.view, "needle", "match 2 of 2")
        await seen(pilot, app.view, "a needle")
        assert lines(app.view) == ["step 39998", "step 39999", "a needle", "step 40000", "step 40001"]
        app.view.action_previous_match()
        await seen(pilot, app.view, "the needle")
        app.view.action_page_down()
        assert lines(app.view)[-1] == "step 7"
        await pilot.press("G")
        await seen(pilot, app.view, "step 79999")


async def test_a_search_that_is_open_finds_its_text_in_the_log_that_is_shown_next(path, tmp_path):
    append(path, "a needle", *steps(0, 100))
    app = LogApp(None)
    async with app.run_test(size=(40, 5)) as pilot:
        app.view.search("needle")
        app.view.show(LogFile(path))
        await found(pilot, app.view, "match 1 of 1")
        await seen(pilot, app.view, "a needle")


async def test_y_copies_what_is_in_view(path):
    append(path, *steps(0, 100), "\x1b[31mred")
    async with log_app(LogFile(path), "red", size=(40, 3)) as (pilot, app):
        await pilot.press("y")
        assert app.clipboard == "step 98\nstep 99\nred"


async def test_y_copies_what_was_selected_with_the_mouse(path):
    append(path, "one two three", "four five six")
    async with log_app(LogFile(path), "four") as (pilot, app):
        await pilot.mouse_down(LogView, offset=(4, 0))
        await pilot.hover(LogView, offset=(8, 1))
        await pilot.mouse_up(LogView, offset=(8, 1))
        await pilot.press("y")
        assert app.clipboard == "two three\nfour five"


async def test_nothing_to_show_is_no_error(path):
    app = LogApp(None)
    async with app.run_test(size=(40, 5)) as pilot:
        await pilot.press(*"jkgGwyhl", "pageup", "pagedown", "ctrl+d", "ctrl+u")
        assert lines(app.view) == [""] * 5
        app.view.show(LogFile(path))
        await seen(pilot, app.view, "The log is empty.")


async def test_trap_2_hostile_output_is_shown_as_harmless_text(path):
    path.write_bytes(b"\n".join(CORPUS.values()) + b"\n")
    async with log_app(LogFile(path), "[red]text [bold", size=(80, 40)) as (pilot, app):
        await pilot.press("w", "k", "k", "w")
        for line in lines(app.view):
            assert not any(ord(character) < 32 or 0x7F <= ord(character) <= 0x9F for character in line)


@pytest.mark.parametrize("size", SIZES)
async def test_any_size_is_drawn(path, size):
    path.write_bytes(b"".join(b"%d \xe6\x97\xa5\xe6\x9c\xac %s\n" % (index, b"x" * index) for index in range(300)))
    app = LogApp(LogFile(path))
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.view.max_scroll_y > 0, "lines", app.view.poll)
        await pilot.press("k", "w", "k", "pageup", "j", "G", "g", "w", "l")
        for y in range(app.view.size.height):
            assert app.view.render_line(y).cell_length == max(0, app.view.size.width - 1)


@pytest.fixture
def hanging(path: Path) -> Iterator[LogFile]:
    release = threading.Event()

    class Hanging(LogFile):
        def tail(self, lines: int) -> list[Piece]:
            release.wait(PATIENCE)
            return super().tail(lines)

    append(path, "at last")
    yield Hanging(path)
    release.set()


async def test_trap_5_a_file_server_that_hangs_does_not_stop_the_loop(hanging):
    app = LogApp(hanging)
    async with app.run_test(size=(40, 5)) as pilot:
        for _ in range(10):
            app.view.poll()
            await pilot.pause()
        assert "at last" not in "".join(lines(app.view)), "the server still hangs"


async def test_of_a_flood_only_the_lines_that_are_seen_are_drawn(path, monkeypatch):
    drawn: list[bytes] = []

    def draw(data: bytes, **how: Any) -> Any:
        drawn.append(data)
        return segments_line(data, **how)

    monkeypatch.setattr(log_rows, "segments_line", draw)
    path.touch()
    log = MergedLog([LogFile(path)])
    app = LogApp(log)
    async with app.run_test(size=(160, 45)) as pilot:
        await pilot.pause()
        for begin in range(0, 20_000, 1000):
            drawn.clear()
            append(path, *(f"12:41:07 step {index} loss 1.613 tok/s 2566" for index in range(begin, begin + 1000)))
            count, batch = len(log.lines), log.fetch("newer")
            log.apply(batch)
            app.view.shown.absorb(count, len(batch.lines))
            for _ in range(3):
                assert f"step {begin + 999} " in lines(app.view)[-1]
            assert len(drawn) <= 45
