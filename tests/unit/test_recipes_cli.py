"""`rankdeck recipes`: the list, a script, and a user's own that begins with it."""

import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import engine.commands.cli
from engine.planning.profiles import read_profile
from engine.planning.recipes import names, recipe, recipes, script_of
from tests.support import entries, from_table, rows


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
    assert [line.split(maxsplit=1) for line in lines[1:]] == [[name, one.summary] for name, one in recipes().items()]


def test_the_list_as_json_has_the_arguments(rankdeck: Command) -> None:
    found = {one["name"]: one for one in json.loads(rankdeck("recipes", "--json").out)}
    assert list(found) == list(names())
    warmup = next(argument for argument in found["gpt"]["arguments"] if argument["name"] == "warmup")
    assert (warmup["type"], warmup["default"], warmup["low"], warmup["unit"]) == ("int", 50, 0, "steps")


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


@pytest.mark.parametrize("words", [("run", "-n", "2", "linear", "--help"), ("new", "linear", "--steps", "3", "-h")])
def test_help_of_a_recipe_is_printed_and_nothing_starts(rankdeck: Command, words: tuple[str, ...]) -> None:
    said = rankdeck(*words)
    assert (said.status, said.err) == (0, "")
    assert said.out.startswith(f"usage: rankdeck {words[0]} linear [-h] ")
    assert all(f"--{one.name}" in said.out for one in recipe("linear").accepted)
    assert said.out.endswith(f"\nOptions such as -n come before linear; rankdeck {words[0]} --help lists them.\n")
    assert not Path(os.environ["RANKDECK_HOME"]).exists()


@pytest.mark.parametrize("there", ["train.py", "train.toml"])
def test_nothing_is_overwritten_and_no_half_is_left(rankdeck: Command, there: str) -> None:
    Path(there).write_text("mine")
    said = rankdeck("recipes", "copy", "linear", "train.py")
    assert (said.status, said.out) == (2, "")
    assert said.err == f"rankdeck: {there} already exists\n  choose another name: nothing is overwritten\n"
    assert os.listdir() == [there]
    assert Path(there).read_text() == "mine"


def test_a_link_to_nowhere_is_not_followed(rankdeck: Command) -> None:
    Path("train.toml").symlink_to("elsewhere")
    assert rankdeck("recipes", "copy", "linear", "train.py").status == 2
    assert os.listdir() == ["train.toml"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        *rows("unit/recipes_cli", "a_name_that_can_not_be_is_refused"),
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


Complete = Callable[[str, str], list[str]]


@pytest.fixture
def complete(rankdeck: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Complete:
    """What the command prints for a shell that completes the last of some words, which may be empty."""

    def ask(shell: str, line: str) -> list[str]:
        words = line.split(" ")
        monkeypatch.setenv("_RANKDECK_COMPLETE", f"{shell}_complete")
        monkeypatch.setenv("COMP_WORDS", f"rankdeck {line}")
        monkeypatch.setenv("COMP_CWORD", words[-1] if shell == "fish" else str(len(words)))
        with pytest.raises(SystemExit):
            rankdeck()
        return [item for item in capsys.readouterr().out.splitlines() if item]

    return ask


@pytest.mark.parametrize("words", ["recipes show", "recipes copy", "run", "run -n 2", "new"])
def test_recipes_are_completed_by_name(complete: Complete, words: str) -> None:
    assert "plain,allreduce" in complete("bash", f"{words} al")


@pytest.mark.parametrize("name", names())
def test_a_shell_completes_every_argument_of_a_recipe_and_every_choice(complete: Complete, name: str) -> None:
    accepted = recipe(name).accepted
    flags = {f"--{one.name}" for one in accepted} | {f"--no-{one.name}" for one in accepted if one.type == "bool"}
    for line in (f"run -n 2 {name} ", f"new {name} --"):
        assert {item.removeprefix("plain,") for item in complete("bash", line)} == flags
    for one in accepted:
        if one.choices:
            offered = [f"plain,{choice}" for choice in one.choices]
            assert complete("bash", f"run {name} --{one.name} ") == offered
            assert complete("bash", f"run {name} --{one.name} =") == offered  # as bash parts --name=
            assert complete("bash", f"run {name} --{one.name} {one.choices[0]}")[0] == offered[0]


@from_table
def test_a_shell_completes_what_may_come_next(line: str, wanted: list[str], complete: Complete) -> None:
    assert complete("bash", line) == wanted


SCRIPT = entries("unit/recipes_cli", "script")


@from_table
def test_a_shell_completes_what_a_script_declares(line: str, wanted: list[str], complete: Complete) -> None:
    Path("train.py").write_text(SCRIPT)
    assert complete("bash", line) == wanted


def test_a_new_profile_of_a_script_names_its_arguments(rankdeck: Command) -> None:
    Path("train.py").write_text(SCRIPT)
    done = rankdeck("new", "-n", "1", "train.py", "--lrr", "3", "--other")
    assert done.status == 0
    assert "\ntrain.py takes: --lr --opt --amp\n" in done.out
    assert done.err == "train.py declares no --lrr; did you mean --lr?\n"


def test_zsh_and_fish_show_the_help_of_an_argument(complete: Complete) -> None:
    said = "samples per rank and step"
    assert complete("zsh", "run linear --bat") == ["plain", "--batch", said]
    assert complete("fish", "run linear --bat") == [f"plain,--batch\t{said}"]
