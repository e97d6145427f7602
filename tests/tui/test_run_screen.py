"""The run screen: what it shows of a run, and what its keys do to it."""

import contextlib
from functools import partial
from pathlib import Path

import msgspec
import pytest
from rich.color import ColorSystem
from rich.style import Style
from textual.widgets import Input

from engine.core.metrics.series import Point
from engine.core.views.view import JobView, StallView
from tests.tui.fake_engine import FakeEngine, FakeRun
from tests.tui.seen import after, run_screen, showing, text_of, until, until_gone, until_seen
from tui.app import RankdeckApp
from tui.data.model import RunModel
from tui.text.run import header_lines
from tui.widgets.rank_table import RankTable


async def test_the_script_is_opened_where_the_traceback_ends_and_the_app_goes_on(
    app: RankdeckApp, run: FakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    script, editor, asked = tmp_path / "train.py", tmp_path / "vim", tmp_path / "asked"
    script.touch()
    editor.write_text(f'#!/bin/sh\nprintf "%s " "$@" > {tmp_path}/asked\n')
    editor.chmod(0o755)
    monkeypatch.setenv("EDITOR", str(editor))
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setattr(app, "suspend", contextlib.nullcontext)
    async with showing(app, "● running", size=(120, 40)) as pilot:
        await pilot.press("E")  # nothing has failed
        run.change(stall=StallView(ranks=(2,), since=run.now, late=(2,), place=(str(script), 7)))
        await until_seen(pilot, "Stalled", "E  open the script where ranks hang")
        await pilot.press("E")
        await until(pilot, lambda: asked.exists() and asked.read_text() == f"+7 {script} ", "the editor at the hang")
        run.change(stall=None)
        asked.unlink()
        run.fail(2, traceback=f'Traceback:\n  File "{script}", line 3, in main\nValueError: boom')
        await until_seen(pilot, "✖ failed")
        await pilot.press("E")
        said = f"{script}:3 was open; r restarts"  # on the screen it may be wrapped
        await until(pilot, lambda: any(said in notice.message for notice in app._notifications), said)
        await until_seen(pilot, "✖ failed")
    assert (tmp_path / "asked").read_text().split() == ["+3", str(script)]


async def test_the_card_of_a_small_screen_has_what_went_wrong_and_the_key(app: RankdeckApp, run: FakeRun):
    async with showing(app, "● running") as pilot:
        run.fail(2)
        text = await until_seen(pilot, "often the kernel, out of memory", "r  stop the 3 that run and start")
        assert text.index("rank 2 was killed") < text.index("often the kernel") < text.index("r  stop the 3")


async def test_a_chart_is_saved_with_two_keys(
    app: RankdeckApp, run: FakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    async with showing(app, "● running", size=(120, 40)) as pilot:
        await after(pilot, "2", "Chart")
        await after(pilot, "S", "Save the chart as", "quickstart-7f3a-loss.svg")
        await after(pilot, "enter", "there are no values of loss yet")
        run.tick(1, loss=2.0)
        run.change(points=(Point(0, "../a b", run.now, 1, 1.0),))
        await until(pilot, lambda: run_screen(app).model.points > 1, "a value")
        await after(pilot, "S enter", "1 chart")
        path = tmp_path / "quickstart-7f3a-loss.svg"
        assert path.read_text().startswith("<svg")
        assert path.stat().st_mode & 0o777 == 0o600
        await pilot.press("S", "enter")
        await until_seen(pilot, "nothing")  # was written; where the line breaks depends on the path
        await after(pilot, "m S", "quickstart-7f3a-.._a_b.svg")


# --- what ends something asks first ----------------------------------------------------------------------------------


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("width", [60, 80, 99, 100, 120])
def test_attempt_and_generation_leave_room_for_the_step(run: FakeRun, width: int, ascii_only: bool):
    run.change(attempt=12, generation=34, name="a-name-that-is-too-long-for-it", steps=100_000, step=99_999)
    model = RunModel()
    model.apply(run.snapshot())
    header = model.header(run.now)
    assert header is not None
    first, _ = header_lines(header, width, ascii=ascii_only)
    words = "attempt 12.34 " if width < 100 else f"attempt 12 {'|' if ascii_only else '·'} generation 34 "
    assert words in first.plain
    assert first.cell_length <= max(width, 72)
    assert "step  99999/100000" in first.plain


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_the_title_has_the_id_of_one_of_several_runs_however_long_its_name(
    engine: FakeEngine, size: tuple[int, int], ascii_only: bool
):
    name = "a-name-that-is-too-long-for-it"
    engine.add_run(f"{name}-7f3a")
    app = RankdeckApp(engine, open_run=f"{name}-7f3a", ascii=ascii_only)
    async with showing(app, "running", size=size) as pilot:
        assert "7f3a" not in text_of(app).splitlines()[0]
        engine.add_run(f"{name}-80b1")
        await until(pilot, lambda: "-7f3a  " in text_of(app).splitlines()[0], "the end of the id in the title")


@pytest.mark.parametrize("width", [80, 120])
def test_the_header_tells_the_epoch_other_bars_and_a_derived_throughput(run: FakeRun, width: int):
    run.change(
        step=240,
        steps=500,
        epoch=3.0,
        epochs=5,
        epoch_step=40,
        epoch_steps=100,
        aside="validation 12/40",
        is_derived=True,
    )
    model = RunModel()
    model.apply(run.snapshot())
    header = model.header(run.now)
    assert header is not None
    first, second = header_lines(header, width, ascii=False)
    assert ("epoch 3/5 · step  40/100 · 240 in all" if width >= 100 else "epoch 3/5  40/100") in first.plain
    assert max(first.cell_length, second.cell_length) <= width
    assert "validation 12/40" in second.plain
    assert " ~" in second.plain


def test_the_header_says_which_job_ends_when_and_that_the_run_will_not_be_done_by_then(tmp_path: Path):
    run = FakeRun(tmp_path)
    model = RunModel()

    def seen(ends_in: float, last_step: int | None = None) -> str:
        run.change(job=JobView(job="109", partition="main", ends_at=run.now + ends_in, last_step=last_step))
        model.apply(run.snapshot())
        header = model.header(run.now)
        assert header is not None
        return header_lines(header, 120, ascii=False)[1].plain

    assert "job 109 · main · ends in 8:10, before step 100" in seen(490, last_step=100)
    assert "ends in 20:00 " in seen(1200) + " "


# --- coming and going ------------------------------------------------------------------------------------------------


# --- panes and the log -----------------------------------------------------------------------------------------------


async def test_lines_of_all_ranks_stand_in_the_order_in_which_they_were_written(app: RankdeckApp, run: FakeRun):
    for step in range(6):
        for rank in (2, 0, 3):
            run.write(rank, f"step {step} of {rank}\n", stream="err" if step % 2 else "out")
    async with showing(app, "step 5 of 0", size=(80, 40)) as pilot:
        text = await after(pilot, "a 3 3", "step 0 of 2", "step 5 of 3")
        shown = [
            line.split("]", 1)[1].split("│")[0].strip() for line in text.splitlines() if " of " in line and "]" in line
        ]
        assert shown == [f"step {step} of {rank}" for step in range(6) for rank in (2, 0, 3)]
        await after(pilot, ("slash", *"of 3", "enter", "N", "N"), "match 4 of 6")


async def test_the_log_of_the_ranks_of_a_node(app: RankdeckApp, run: FakeRun):
    for rank in range(4):
        run.write(rank, f"line of rank {rank}\n")
        run.ranks[rank] = msgspec.structs.replace(run.ranks[rank], node=f"gpu0{1 + rank // 2}")
    nodes = [msgspec.structs.replace(run.view.nodes[0], name=f"gpu0{1 + n}", ranks=(2 * n, 2 * n + 1)) for n in (0, 1)]
    run.view = msgspec.structs.replace(run.view, nodes=tuple(nodes))
    async with showing(app, "Log: rank 0 on gpu01", "line of rank 0", size=(120, 40)) as pilot:
        await after(pilot, "a", "Log: 2 ranks of gpu01", "line of rank 1")
        assert "] line of rank 2" not in text_of(app)
        await after(pilot, "a", "Log: all 4 ranks", "line of rank 3")


async def test_what_the_filter_lets_through_is_saved_to_a_new_file(app: RankdeckApp, run: FakeRun, tmp_path: Path):
    for rank in range(4):
        run.write(rank, f"one {rank}\n\x1b[31mtwo\x1b[0m\n")
    saved = tmp_path / "a name.log"
    async with showing(app, "one 0", size=(120, 40)) as pilot:
        await after(pilot, ("a", "3", "ampersand", *"!one", "enter"), "only '!one'")
        for word in ("4 lines written to", "already"):  # the notice has the whole path, and breaks its lines anywhere
            await after(pilot, "S", "Save the log as", "every line that the filter lets through")
            app.screen.query_one(Input).value = str(saved)
            await after(pilot, "enter", word)
            assert saved.read_text() == "".join(f"[r{rank}] two\n" for rank in range(4))
        assert saved.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("key", "variable"), [("p", "PAGER"), ("P", "EDITOR")])
async def test_the_file_of_the_rank_is_opened_in_the_pager_or_the_editor(
    app: RankdeckApp, run: FakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, variable: str
):
    program = tmp_path / "program"
    program.write_text(f'#!/bin/sh\nprintf "%s " "$@" >{tmp_path}/opened\n')
    program.chmod(0o700)
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv(variable, f"{program} -x")
    monkeypatch.setattr(type(app), "suspend", lambda self: contextlib.nullcontext())
    run.write(1, "hello\n")
    async with showing(app, "running", size=(120, 40)) as pilot:
        await after(pilot, ("3", key), "this rank has written nothing")
        await pilot.press("1", "down", "3", key)
        await until(pilot, (tmp_path / "opened").exists, "the program")
    assert (tmp_path / "opened").read_text() == f"-x {run.log_path(0, 1, 'out')} "


async def test_hostile_lines_notes_and_names_are_shown_as_text(app: RankdeckApp, run: FakeRun):
    run.change(name="[/x[red")
    run.write(0, "markup [/ and [red and \x1b]52;c;aGVsbG8=\x07 and \x9b2J gone\n")
    run.ranks[3] = msgspec.structs.replace(run.ranks[3], node="[bold", note="[/note", last_line="[link=x")
    run.change(ranks=tuple(run.ranks), event=("event [/ [red", "warning"), doing="[doing")
    async with app.run_test(notifications=True, size=(120, 40)) as pilot:
        text = await until_seen(pilot, "[/x[red", "[doing", "[bold", "[/note", "markup [/ and [red and")
        assert "\x1b" not in text
        assert "\x9b" not in text
        await after(pilot, "4", "event [/ [red")
        await pilot.press("end")
        await after(pilot, "s", "Stop [/x[red?")


async def test_a_covered_screen_paints_nothing(app: RankdeckApp, run: FakeRun):
    async with showing(app, "● running") as pilot:
        await after(pilot, "question_mark", "Help")
        screen = run_screen(app)
        assert not screen.is_seen
        run.tick(77)
        await until(pilot, lambda: screen.model.run is not None and screen.model.run.step == 77, "the fold")
        await after(pilot, "escape", "77/100")


async def test_64_ranks_with_many_lines_keep_up(engine: FakeEngine):
    run = engine.add_run("wide-6464", ranks=64)
    app = RankdeckApp(engine, open_run="wide-6464")
    async with showing(app, "64/64 ranks", size=(120, 40)) as pilot:
        for step in range(1, 21):
            run.tick(step)
            for rank in range(64):
                run.write(rank, "".join(f"step {step} line {number} of rank {rank}\n" for number in range(50)))
            await pilot.pause()
        await after(pilot, "a", "Log: all 64 ranks", "step 20 line 49 of rank", "20/100")
        await pilot.press("1", "G")
        await until(pilot, lambda: app.screen.query_one(RankTable).cursor_rank == 63, "the last rank")


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_the_card_shows_the_key_that_rescues_and_takes_the_whole_screen(
    app: RankdeckApp, run: FakeRun, size: tuple[int, int]
):
    trace = "Traceback (most recent call last):\n" + "\n".join(f"  line {number}" for number in range(8))
    run.fail(2, traceback=trace)
    run.offer_rejoin(2)
    run.news = "new since train-x7k2: --bs 64"
    async with showing(app, "rank 2 was killed by SIGKILL", "r  rejoin rank 2", size=size) as pilot:
        await after(pilot, "5 5", "line 7", "new since train-x7k2: --bs 64")
        card = app.screen.query_one("#why")
        await until(pilot, lambda: card.outer_size.width == size[0], "the card in the whole width")


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_ranks_that_hang_are_marked_and_who_waits_for_whom_is_shown_without_asking(
    app: RankdeckApp, run: FakeRun, size: tuple[int, int]
):
    async with showing(app, "● running", size=size) as pilot:
        stalled = [msgspec.structs.replace(view, health="stalled", health_since=run.now - 40) for view in run.ranks]
        stalled[2] = msgspec.structs.replace(stalled[2], note="others wait for it")
        stall = StallView(
            ranks=(0, 1, 2, 3),
            since=run.now - 40,
            waits=("rank 2 has not called all_reduce #60 [/]",),
            doing=("rank 2: in load (train.py:17)",),
            late=(2,),
        )
        run.change(ranks=tuple(stalled), stall=stall)
        await until_seen(pilot, "▲ stalled", "Stalled", "has not called all_reduce #60 [/]", "in load (train.py:17)")
        await until_seen(pilot, "Log: rank 2 on localhost", "others wait", "no step for")
        assert app.screen.query_one(RankTable).cursor_rank == 2
        run.change(ranks=tuple(run.ranks), stall=None)
        await until_gone(pilot, "Stalled")


async def test_the_footer_of_80_columns_keeps_log_why_and_search(app: RankdeckApp, run: FakeRun):
    run.fail(2)
    run.offer_rejoin(2)
    async with showing(app, "rank 2 was killed by SIGKILL") as pilot:

        def shows(words: tuple[str, ...]) -> bool:
            return all(word in text_of(app).splitlines()[-1] for word in words)

        for words in (("enter log", "5 why", "/ filter", "q detach"), ("/ search", "5 why", "q detach")):
            await until(pilot, partial(shows, words), f"the footer with {words}")
            await pilot.press("enter")


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_the_footer_under_a_dialog_has_the_keys_of_the_dialog(
    app: RankdeckApp, run: FakeRun, size: tuple[int, int]
):
    async with showing(app, "● running", "r restart", size=size) as pilot:
        await after(pilot, "s", "Stop quickstart?")
        footer = text_of(app).splitlines()[-1]
        assert "restart" not in footer
        assert "detach" not in footer
        assert "y " in footer
        await pilot.press("n")
        await until(pilot, lambda: "r restart" in text_of(app).splitlines()[-1], "the footer of the run")


@pytest.mark.parametrize("theme", ["rankdeck-dark", "rankdeck-light", "ansi-dark"])
async def test_what_is_selected_in_the_log_is_seen_and_y_says_where_it_is(
    app: RankdeckApp, run: FakeRun, theme: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tui.data.clipboard.to_tmux", lambda text: theme == "rankdeck-light")
    app.theme = theme
    run.write(0, "one two three\n\x1b[31mfour\x1b[0m five six\n")
    async with showing(app, "four five six", size=(120, 40)) as pilot:
        shown = text_of(app).splitlines()
        row = next(number for number, line in enumerate(shown) if "one two three" in line)
        column = shown[row].index("one two")
        await pilot.mouse_down(offset=(column, row))
        await pilot.hover(offset=(column + 8, row + 1))
        await pilot.mouse_up(offset=(column + 8, row + 1))

        def drawn(row: int) -> list[tuple[str, Style]]:
            strip = app.screen._compositor.render_strips()[row]
            return [(letter, part.style or Style()) for part in strip for letter in part.text]

        def differs() -> bool:
            return drawn(row)[column][1].bgcolor != drawn(row)[column + 40][1].bgcolor

        await until(pilot, differs, "the selection")
        for line in (row, row + 1):
            for letter, style in drawn(line)[column : column + 8]:
                for system in (ColorSystem.TRUECOLOR, ColorSystem.EIGHT_BIT):
                    assert style.color is not None
                    assert style.bgcolor is not None
                    text, ground = (one.downgrade(system) for one in (style.color, style.bgcolor))
                    assert letter == " " or text.get_truecolor() != ground.get_truecolor(), (letter, system)
        await pilot.press("y")
        where = "copied to tmux's buffer" if theme == "rankdeck-light" else "sent to the terminal's clipboard"
        await until(pilot, lambda: any(where in notice.message for notice in app._notifications), where)
        assert app.clipboard == "one two three\nfour five"


async def test_a_broad_screen_shows_chart_and_log_beside_each_other_and_the_explanation_above_them(engine: FakeEngine):
    run = engine.add_run()
    for rank in range(4):
        run.write(rank, "a line of the log\n")
    for step in range(5):
        run.tick(step)
    app = RankdeckApp(engine, open_run=run.view.run)
    async with showing(app, "a line of the log", "┤", size=(170, 50)) as pilot:
        run.fail(1)
        lines = (await until_seen(pilot, "look at the memory", "┤", "a line of the log")).splitlines()
        why, chart, log = (
            next(at for at, line in enumerate(lines) if text in line)
            for text in ("look at the memory", "┤", "a line of the log")
        )
        assert why < min(chart, log)
        await pilot.resize_terminal(120, 50)
        await until(pilot, lambda: "┤" not in text_of(app))
        await pilot.press("2", "2")
        await pilot.resize_terminal(170, 50)
        await until(pilot, lambda: "┤" in text_of(app) and "a line of the log" not in text_of(app))
