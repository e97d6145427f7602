"""Profiles of programs that are named on the command line."""

import os
from pathlib import Path

import pytest

from engine.core.errors import ProfileError, UsageError
from engine.core.plan.document.checks import profile_name
from engine.core.plan.profile import Backend, Launch, Layout, Recipe
from engine.planning.programs import Wanted, make_profile
from engine.planning.pythons.interpreters import interpreter_of
from tests.support import entries, from_table, parse_profile

BASE = entries("unit/programs", "base")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a script whose name is a recipe's too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RANKDECK_HOME", str(tmp_path / "home"))
    for name in ("train.py", "linear"):
        (tmp_path / name).write_text("pass")
    return tmp_path


def test_a_script_needs_no_profile():
    profile, _ = make_profile(Wanted(program="train.py", args=("--lr", "0.1", "-n")))
    assert (profile.name, profile.backend, profile.layout) == ("train", Backend(name="auto"), Layout())
    assert profile.recipe == Recipe(script="train.py", args=("--lr", "0.1", "-n"))


def test_what_the_command_line_names_is_in_the_profile():
    wanted = Wanted(program="train.py", name="mine", backend="gloo", nodes="gpu[1-2]", ranks=4, python="/opt/python")
    profile, _ = make_profile(wanted)
    assert (profile.name, profile.backend.name) == ("mine", "gloo")
    assert profile.layout == Layout(nodes="gpu[1-2]", ranks_per_node=4)
    assert profile.launch == Launch(python="/opt/python")


def test_the_rest_comes_from_another_profile():
    base = parse_profile(BASE, file="base.toml")
    profile, _ = make_profile(Wanted(program="train.py", ranks=2), base)
    assert profile.layout == Layout(hostfile="hosts.txt", ranks_per_node=2)
    assert (profile.launch, profile.recipe) == (base.launch, Recipe(script="train.py"))
    assert make_profile(Wanted(program="train.py", nodes="lab1"), base)[0].layout == Layout(
        nodes="lab1", ranks_per_node=8
    )


def test_an_override_wins_and_is_named_in_errors():
    profile, places = make_profile(Wanted(program="train.py", ranks=2, overrides=["layout.ranks_per_node=3"]))
    assert profile.layout.ranks_per_node == 3
    assert places.where(("layout", "ranks_per_node")) == "--set"
    with pytest.raises(ProfileError, match=r"--set layout\.orde: unknown key"):
        make_profile(Wanted(program="train.py", overrides=["layout.orde=block"]))


def test_a_recipe_runs_by_its_name_unless_there_is_such_a_file():
    assert make_profile(Wanted(program="allreduce"))[0].recipe == Recipe(name="allreduce")
    assert make_profile(Wanted(program="linear"))[0].recipe == Recipe(script="linear")


def test_a_module_is_not_looked_for():
    profile, _ = make_profile(Wanted(program="project.train", is_module=True))
    assert (profile.name, profile.recipe) == ("train", Recipe(module="project.train"))


@from_table
def test_what_can_not_be_run_is_named_with_the_next_step(program: str, words: str):
    with pytest.raises(UsageError) as raised:
        make_profile(Wanted(program=program))
    assert words in f"{raised.value}\n{raised.value.hint}"


@pytest.mark.parametrize("word", ["./project/train.py", "project/train.py", "project/train"])
def test_a_path_is_no_module(word: str):
    with pytest.raises(UsageError, match="is a file, not a module") as raised:
        make_profile(Wanted(program=word, is_module=True))
    assert raised.value.hint == "leave out -m, or name the module: -m project.train"


def test_a_wrong_value_is_an_error_of_the_command_line():
    with pytest.raises(ProfileError, match=r"the command line: backend\.name: there is no backend 'mpx'"):
        make_profile(Wanted(program="train.py", backend="mpx"))


@pytest.mark.parametrize(
    ("program", "name"),
    [("src/train.py", "train"), ("-x y.py", "x-y"), ("été.py", "t-"), ("é.py", "run"), ("a" * 99 + ".py", "a" * 64)],
)
def test_the_name_of_a_profile_is_always_valid(program: str, name: str):
    assert profile_name(program) == name


def test_words_that_are_not_utf8_are_refused_with_their_key():
    odd = os.fsdecode(b"\xe9")
    with pytest.raises(ProfileError, match=r"recipe\.args: is not UTF-8"):
        make_profile(Wanted(program="train.py", args=("--name", odd)))
    with pytest.raises(ProfileError, match=r"layout\.nodes: is not UTF-8"):
        make_profile(Wanted(program="train.py", nodes=odd))
    with pytest.raises(ProfileError, match=r"--set env\.NAME: is not UTF-8"):
        make_profile(Wanted(program="train.py", overrides=(f"env.NAME={odd}",)))


def test_a_script_whose_path_is_not_utf8_runs_through_a_link(folder: Path):
    path = folder / os.fsdecode(b"\xe9.py")
    path.write_text("pass")
    profile, _ = make_profile(Wanted(program=path.name))
    assert profile.recipe.script is not None
    assert Path(profile.recipe.script).resolve() == path


@from_table
def test_what_runs_a_script_is_in_its_first_bytes(first: str, mode: int, words: list[str] | None, tmp_path: Path):
    script = tmp_path / "program"
    script.write_bytes(first.encode("latin-1"))
    script.chmod(mode)
    found = None if words is None else tuple(words)
    assert interpreter_of(script) == found
    (tmp_path / "link").symlink_to(script)
    assert interpreter_of(tmp_path / "link") == found
    assert interpreter_of(tmp_path / "missing") is None
