"""The table of keys: everything in it is bound, explained and shown where it does something."""

from collections import Counter
from pathlib import Path

import pytest
from textual.binding import Binding
from textual.content import Content
from textual.dom import DOMNode
from textual.keys import _character_to_key

from tests.tui.fake_engine import FakeEngine
from tests.tui.seen import after, showing
from tui.app import RankdeckApp
from tui.keys import KEYS, PLACES, TABLE, Key, keys_of, rebound
from tui.screens.check import CheckScreen
from tui.screens.compare import CompareScreen
from tui.screens.confirm import AskScreen, ConfirmScreen, LeaveScreen, NoticeScreen
from tui.screens.edit import EditScreen
from tui.screens.edit_form import EditForm
from tui.screens.edit_saving import Saving
from tui.screens.help import HelpScreen
from tui.screens.history import HistoryList, HistoryScreen
from tui.screens.home import HomeScreen
from tui.screens.home_lists import ProfileList, RunList
from tui.screens.relaunch import Relaunching
from tui.screens.run import RunScreen
from tui.screens.run_acts import RunActs
from tui.screens.run_logs import RunLogs
from tui.screens.run_panes import RunPanes
from tui.screens.script import ScriptScreen
from tui.screens.stacks import StacksScreen
from tui.text.help import help_text
from tui.text.marks import CHECK_MARKS, RUN_MARKS, signs
from tui.widgets.check_grid import CheckGrid
from tui.widgets.choice import Choice
from tui.widgets.log_view import LogView
from tui.widgets.node_grid import NodeGrid
from tui.widgets.rank_table import RankTable
from tui.widgets.run_charts import RunCharts
from tui.widgets.text_pane import TextPane

OWNERS: dict[str, tuple[type[DOMNode], ...]] = {
    "app": (RankdeckApp,),
    "list": (ProfileList, RunList, RankTable, LogView, TextPane, CheckGrid, NodeGrid),
    "home": (HomeScreen,),
    "profiles": (ProfileList,),
    "runs": (RunList,),
    "history": (HistoryScreen,),
    "past": (HistoryList,),
    "compare": (CompareScreen,),
    "run": (RunScreen,),
    "ranks": (RankTable, NodeGrid),
    "table": (RankTable,),
    "nodes": (NodeGrid,),
    "chart": (RunCharts,),
    "log": (LogView,),
    "stacks": (StacksScreen,),
    "check": (CheckScreen,),
    "cells": (CheckGrid,),
    "edit": (EditScreen,),
    "choice": (Choice,),
    "confirm": (ConfirmScreen, LeaveScreen),
    "leave": (LeaveScreen,),
    "notice": (NoticeScreen,),
    "ask": (AskScreen,),
    "help": (HelpScreen,),
    "script": (ScriptScreen,),
}


PARTS: dict[type[DOMNode], tuple[type[object], ...]] = {
    RunScreen: (RunActs, RunLogs, RunPanes, Relaunching),
    EditScreen: (EditForm, Saving),
    HomeScreen: (Relaunching,),
    HistoryScreen: (Relaunching,),
}


def bound(owner: type[DOMNode]) -> dict[str, Binding]:
    return {
        binding.key: binding for bindings in owner._merge_bindings().key_to_bindings.values() for binding in bindings
    }


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.id)
def test_every_key_is_bound_by_its_id_where_the_table_says(key: Key):
    for owner in OWNERS[key.where]:
        found = bound(owner)
        for name in key.keys.split(","):
            binding = found[name if len(name) > 1 else _character_to_key(name)]
            assert (binding.action, binding.id) == (key.action, key.id), owner


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.id)
def test_every_key_leads_to_an_action_that_exists(key: Key):
    name = key.action.partition("(")[0]
    target, dot, action = name.rpartition(".")
    owners: tuple[type[DOMNode], ...] = OWNERS[key.where]
    if dot and target == "app":
        owners = (RankdeckApp,)
    elif dot:
        owners = (HistoryScreen,) if key.where == "past" else (RunScreen,)
        owners = (HomeScreen,) if key.where in ("profiles", "runs") else owners
    for owner in owners:
        assert any(hasattr(one, f"action_{action}") for one in (owner, *PARTS.get(owner, ()))), owner


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.id)
def test_every_key_stands_in_the_help(key: Key):
    text = str(help_text("", 200, ascii=False))
    assert any(line.startswith(key.shown) and rebound(key, {}).help in line for line in text.splitlines())


def test_every_id_is_there_once_and_every_place_has_a_heading():
    assert [one for one, count in Counter(key.id for key in KEYS).items() if count > 1] == []
    assert {key.where for key in KEYS} == set(PLACES) == set(OWNERS)


def test_every_line_of_the_table_is_a_place_or_a_key_and_is_listed_where_there_is_a_list():
    lines = [line for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    assert [line for line in lines if len(line.split("\t")) not in (2, 3, 6)] == []
    assert len(lines) == len(PLACES) + len(KEYS)
    assert {word for key in KEYS for word in key.lists} == {"bar", "end", "palette", "changes", "-"}


def test_no_place_gives_one_key_two_meanings():
    for where in PLACES:
        names = [name for key in keys_of(where) for name in key.keys.split(",")]
        assert [name for name, count in Counter(names).items() if count > 1] == [], where


def test_what_a_widget_does_with_a_key_no_screen_around_it_does_with_the_same_key():
    """A key of a pane would hide the screen's, and do something else than the footer says."""
    around: dict[str, tuple[str, ...]] = {
        "run": ("ranks", "table", "nodes", "chart", "log", "list"), "home": ("profiles", "runs", "list"), "history": ("past", "list"), "compare": ("list",), "help": ("list",), "stacks": ("list",), "check": ("cells", "list"), "edit": ("choice",),
    }  # fmt: skip
    allowed = {"left", "right", "h", "l"}
    for screen, widgets in around.items():
        outer = {name for key in keys_of(screen) for name in key.keys.split(",")}
        inner = {name for where in widgets for key in keys_of(where) for name in key.keys.split(",")}
        assert outer & inner - allowed == set(), screen


def test_the_keys_that_users_know_are_there():
    known = {name for key in KEYS for name in key.keys.split(",")}
    assert {"up", "down", "left", "right", "h", "j", "k", "l", "enter", "slash", "f", "r", "x", "s", "q",
            "question_mark", "colon", "ctrl+p", "n", "e", "d", "1", "2", "3", "4", "5", "tab", "escape"} <= known  # fmt: skip


def test_the_help_can_be_searched_and_says_when_there_is_nothing():
    found = str(help_text("restart", 80, ascii=False))
    assert "Dead ranks rejoin" in found
    assert "Search the log" not in found
    assert "No match for '[/zzz'." in str(help_text("[/zzz", 80, ascii=False))


def test_the_help_explains_every_state_and_word():
    text = str(help_text("", 80, ascii=False))
    states = [f"{mark.unicode} {word}" for word, mark in RUN_MARKS.items()]
    states += [f"{sign} {word}" for word, sign in signs(ascii=False).ranks.items()]
    states += [f"{mark.unicode} {word or 'checking'}" for word, mark in CHECK_MARKS.items()]
    for word in (*states, "attempt", "generation", "supervisor"):
        assert word in text


def test_the_help_is_ascii_where_that_is_wanted():
    content = help_text("", 80, ascii=True)
    assert isinstance(content, Content)
    assert str(content).isascii()


async def test_keys_of_the_focused_pane_come_first_in_bar_help_and_palette(tmp_path: Path):
    engine = FakeEngine(tmp_path)
    engine.add_run("quickstart-7f3a")
    async with showing(RankdeckApp(engine, open_run="quickstart-7f3a"), "● running", size=(120, 40)) as pilot:
        await after(pilot, "2", "m metrics  p choose metric  u smooth  Y log scale")
        await after(pilot, ("colon", *"smooth"), "smooth (u)")
        text = await after(pilot, "escape question_mark", "A run: in the chart", "Draw the next metrics")
        assert "Everywhere" not in text.split("A run: in the chart", maxsplit=1)[0]
        await after(pilot, "escape 3", "/ search  & grep")
        await after(pilot, ("colon", *"fold"), "fold (z)")


def test_a_key_that_ends_restarts_or_saves_something_means_the_same_everywhere():
    for letter in ("s", "x", "S", "delete", "R", "E"):
        keys = [key for key in KEYS if letter in key.keys.split(",") and key.where not in ("confirm", "leave")]
        assert len({key.label.split()[0] for key in keys}) == 1, letter
