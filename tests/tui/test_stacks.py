"""The stacks of a run: taken when asked for, shown as text, taken again."""

import pytest
from rich.cells import cell_len

from tests.tui.fake_engine import FakeRun
from tests.tui.hostile import CORPUS
from tests.tui.seen import after, showing, until
from tui.app import RankdeckApp
from tui.text.run import stacks_text
from tui.widgets.text_pane import TextPane


async def test_a_long_answer_scrolls(app: RankdeckApp, run: FakeRun):
    run.stacks = [f"    call_{number}  /x.py:{number}" for number in range(200)]
    async with showing(app, "t stacks") as pilot:
        await after(pilot, "t", "call_0")
        await until(pilot, lambda: app.screen.query_one(TextPane).has_focus, "the stacks")
        await after(pilot, "end", "call_199")
        await after(pilot, "g space", gone="call_0 ")


async def test_hostile_paths_and_names_are_shown_as_text(app: RankdeckApp, run: FakeRun):
    run.change(name="[/x[red")
    run.stacks = ["rank 0: in [bold (\x1b[2Ja.py:1)", "    [/f  /tmp/\x1b]52;c;ZXZpbA==\x07[red/\x9b2J\u202ea.py:1"]
    async with showing(app, "t stacks") as pilot:
        text = await after(pilot, "t", "Stacks of [/x[red", "rank 0: in [bold (a.py:1)", "    [/f  /tmp/[red/a.py:1")
        assert not {"\x1b", "\x9b", "\u202e"} & set(text)


# --- the text --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", CORPUS.values(), ids=CORPUS.keys())
@pytest.mark.parametrize("width", [1, 20, 80])
def test_whatever_is_in_a_line_nothing_but_text_gets_out_and_no_line_is_too_long(data: bytes, width: int):
    written = data.decode(errors="replace")[:5000].replace("\n", " ")
    for line in stacks_text([f"rank 0: {written}", f"    {written}"], width).plain.split("\n"):
        assert line.isprintable()
        assert cell_len(line.lstrip(" ")) <= max(width, 2)


def test_the_end_of_a_long_path_can_be_read():
    lines = stacks_text([f"    step  /{'folder/' * 20}train.py:41"], 80).plain.split("\n")
    assert lines[0].startswith("    step  /folder/")
    assert lines[-1].endswith("train.py:41")
    assert all(line.startswith("      folder/") and line.endswith("/") for line in lines[1:-1])
    assert "".join(line.strip() for line in lines) == f"step  /{'folder/' * 20}train.py:41"


def test_no_rank_at_all_is_said():
    assert stacks_text([], 80).plain == "No rank has a stack."
