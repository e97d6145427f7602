"""`rankdeck recipes`: the list, a script, and a user's own that begins with it."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import engine.commands.cli
from engine.planning.profiles import read_profile
from engine.planning.recipes import names, recipes, script_of


class Said(NamedTuple):
    """What the command ended with and printed."""

    status: int
    out: str
    err: str


class Command:
    """The command line, in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *words: str) -> Said:
        self._monkeypatch.setattr(sys, "argv", ["rankdeck", *words])
        status = engine.commands.cli.main()
        said = self._capsys.readouterr()
        return Said(status, said.out, said.err)


@pytest.fixture
def rankdeck(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    monkeypatch.setenv("RANKDECK_HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return Command(monkeypatch, capsys)


def test_the_list_names_every_recipe_and_fits_80_columns(rankdeck: Command) -> None:
    said = rankdeck("recipes")
    assert (said.status, said.err) == (0, "")
    lines = said.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[1:] if not line.startswith(" ")] == list(names())
    told = " ".join(said.out.split())
    assert all(f"{name} {recipe.summary}" in told for name, recipe in recipes().items())


def test_the_list_as_json_has_the_arguments(rankdeck: Command) -> None:
    found = {one["name"]: one for one in json.loads(rankdeck("recipes", "--json").out)}
    assert list(found) == list(names())
    steps = next(argument for argument in found["gpt"]["arguments"] if argument["name"] == "steps")
    assert (steps["type"], steps["default"], steps["low"], steps["unit"]) == ("int", 800, 0, "steps")


def test_show_prints_the_script_itself(rankdeck: Command) -> None:
    assert rankdeck("recipes", "show", "gpt") == (0, script_of("gpt").read_text(), "")


@pytest.mark.parametrize("verb", [("show",), ("copy", "train.py")])
def test_an_unknown_recipe_is_named_with_the_nearest(rankdeck: Command, verb: tuple[str, ...]) -> None:
    said = rankdeck("recipes", verb[0], "liner", *verb[1:])
    assert said == (2, "", "rankdeck: there is no recipe 'liner'\n  did you mean linear?\n")
    assert rankdeck("recipes", verb[0], "zzz", *verb[1:]).err.endswith("\n  rankdeck recipes lists them\n")
    assert os.listdir() == []


@pytest.mark.parametrize("name", ["train.py", "my train.py", "a/b.py", "größe.py", "-x.py", "..py.py", "$(id).py"])
def test_a_copy_has_a_profile_that_runs_it(rankdeck: Command, name: str) -> None:
    Path("a").mkdir()
    said = rankdeck("recipes", "copy", "linear", "--", name)
    assert (said.status, said.err) == (0, "")
    assert Path(name).read_text() == script_of("linear").read_text()
    wrote, following = said.out.splitlines()
    assert wrote.startswith("wrote ")
    command = shlex.split(following.removeprefix("next: "))
    assert command[:2] == ["rankdeck", "launch"]
    profile = read_profile(Path(command[2]))
    assert profile.recipe.script == name
    planned = rankdeck("plan", *command[2:])
    assert (planned.status, planned.err) == (0, "")
    assert "4 ranks on 1 node" in planned.out


@pytest.mark.parametrize("there", ["train.py", "train.toml"])
def test_nothing_is_overwritten_and_no_half_is_left(rankdeck: Command, there: str) -> None:
    Path(there).write_text("mine")
    said = rankdeck("recipes", "copy", "linear", "train.py")
    assert (said.status, said.out) == (2, "")
    assert said.err == f"rankdeck: {there} is there already\n  choose another name: nothing is overwritten\n"
    assert os.listdir() == [there]
    assert Path(there).read_text() == "mine"


def test_a_link_to_nowhere_is_not_followed(rankdeck: Command) -> None:
    Path("train.toml").symlink_to("elsewhere")
    assert rankdeck("recipes", "copy", "linear", "train.py").status == 2
    assert os.listdir() == ["train.toml"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("train", "rankdeck: train is not the name of a Python file\n  such as: train.py\n"),
        ("no where/train.py", "rankdeck: there is no folder no where\n  mkdir -p 'no where'\n"),
        ("", "rankdeck: . is not the name of a Python file\n  such as: train.py\n"),
        ("/", "rankdeck: / is not the name of a Python file\n  such as: train.py\n"),
        ("a\nb.py", "rankdeck: 'a\\nb.py' has characters that can't be printed\n"),
        ("\x1b[31mx.py", "rankdeck: '\\x1b[31mx.py' has characters that can't be printed\n"),
        (os.fsdecode(b"\xe9.py"), "rankdeck: '\\udce9.py' has characters that can't be printed\n"),
        (f"{'x' * 300}.py", f"rankdeck: {'x' * 300}.py can't be written: File name too long\n"),
    ],
)
def test_a_name_that_can_not_be_is_refused(rankdeck: Command, name: str, said: str) -> None:
    done = rankdeck("recipes", "copy", "linear", name)
    assert done.status in (1, 2)
    assert done.out == ""
    assert done.err.startswith(said)
    assert os.listdir() == []


def test_recipes_are_completed_by_name(
    rankdeck: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_RANKDECK_COMPLETE", "bash_complete")
    for words in ("show", "copy"):
        monkeypatch.setenv("COMP_WORDS", f"rankdeck recipes {words} al")
        monkeypatch.setenv("COMP_CWORD", "3")
        with pytest.raises(SystemExit):
            rankdeck()
        assert "plain,allreduce" in capsys.readouterr().out.splitlines()
