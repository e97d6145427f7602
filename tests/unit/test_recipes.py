"""The declarations of the recipes: what their scripts say, what the engine reads from the source, and that both refuse the same."""

import ast
import contextlib
import importlib.util
import io
import re
import sys
import tokenize
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.backends import BACKENDS
from engine.core.arguments.argument import RecipeInfo
from engine.core.arguments.recipe import Problem, help_asked_for, problem_with, read_recipe
from engine.core.errors import CheckError, ProfileError
from engine.core.plan.document.reading import parse_with_places, profile_from_data
from engine.gate import LAUNCHED
from engine.planning.make import make_plan
from engine.planning.recipes import FOLDER, recipes, script_of
from rankdeck.recipes import read_parameters
from tests.support import entries, from_table

NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
HEAD = "from dataclasses import dataclass\nfrom rankdeck.recipes import parameter\n"


def declaration_of(source: str) -> ModuleType:
    """A module with the declaration in a script, without its imports of torch."""
    body = source.partition("@dataclass(frozen=True)\nclass Parameters")[2]
    declared = re.split(r"\n\n\n", body, maxsplit=1)[0]
    module = ModuleType("declaration")
    sys.modules["declaration"] = module
    exec(f"{HEAD}@dataclass(frozen=True)\nclass Parameters{declared}\n", vars(module))
    return module


def script_says(parameters: type[Any], words: list[str]) -> tuple[Any, str]:
    """What `read_parameters` returns and what it prints on stderr."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        try:
            return read_parameters(parameters, words), errors.getvalue()
        except SystemExit as end:
            return end.code, errors.getvalue()


ALL = entries("unit/recipes", "all")


def test_the_engine_reads_what_the_script_declares() -> None:
    said = read_recipe("all", ALL)
    assert said.summary == "Shows every kind of parameter."
    assert said.presets == ("small", "big")
    named = {one.name: one for one in said.arguments}
    assert list(named) == ["steps", "lr", "scale", "data", "sync-batchnorm", "sizes", "stages", "most"]
    steps = named["steps"]
    assert (steps.type, steps.default, steps.low, steps.high, steps.unit) == ("int", 200, 1, 10_000_000, "steps")
    assert (steps.help, steps.presets) == ("steps in all", {"small": 20, "big": 900})
    assert named["data"].choices == ("digits", "noise")
    assert (named["sync-batchnorm"].type, named["sync-batchnorm"].default) == ("bool", False)
    assert [named[name].takes for name in ("steps", "lr", "scale", "data", "most", "sync-batchnorm")] == entries(
        "unit/recipes", "the_engine_reads_what_the_script_declares"
    )


@from_table
def test_a_word_wins_over_the_preset_and_the_preset_over_the_default(words: list[str], values: list[Any]) -> None:
    got, said = script_says(declaration_of(ALL).Parameters, words)
    assert said == ""
    assert [got.steps, got.lr, got.scale, got.data, got.sync_batchnorm] == values
    assert problem_with(read_recipe("all", ALL), words) is None


@from_table
def test_a_wrong_word_is_refused_with_one_line(words: list[str], name: str, reason: str) -> None:
    status, said = script_says(declaration_of(ALL).Parameters, words)
    assert status == 2
    assert said.endswith(f" error: {reason} (--help lists the arguments)\n")
    assert said.count("\n") == 1
    problem = problem_with(read_recipe("all", ALL), words)
    assert problem is not None
    assert (problem.argument.name if problem.argument else "", problem.reason) == (name, reason)


FLAGS = ["steps", "lr", "scale", "data", "sync-batchnorm", "no-sync-batchnorm", "sizes", "stages", "most", "preset"]
WORDS = st.one_of(
    st.sampled_from([f"--{flag}" for flag in FLAGS]),
    st.sampled_from(["-h", "--help", "--", "-", "-1", "-1e3", "--x", "stray", "", "digits", "small", "4K", "2"]),
    st.builds("--{}={}".format, st.sampled_from(FLAGS), st.sampled_from(["", "1", "-1", "2.5", "nan", "noise", "big"])),
    st.integers(-2000, 2000).map(str),
    st.floats().map(str),
    st.text(max_size=5),
    st.just("9" * 400),
)


@settings(max_examples=60)
@given(words=st.lists(WORDS, max_size=6))
def test_engine_and_script_refuse_the_same_words_with_the_same_sentence(words: list[str]) -> None:
    got, said = script_says(DECLARED.Parameters, words)
    problem = problem_with(INFO, words)
    assert said.partition(": error: ")[2] == (f"{problem.reason} (--help lists the arguments)\n" if problem else "")
    assert (got == 2) == (problem is not None)


DECLARED, INFO = declaration_of(ALL), read_recipe("all", ALL)


@from_table
def test_a_wrong_declaration_in_a_copy_is_one_line(field: str, reason: str) -> None:
    source = f"@dataclass(frozen=True)\nclass Parameters:\n    {field}\n"
    status, said = script_says(declaration_of(source).Parameters, [])
    assert status == 2
    assert "error: Parameters." in said
    assert said.endswith(" (correct the script)\n")
    assert reason in said
    assert said.count("\n") == 1


def test_annotations_may_be_text() -> None:
    module = ModuleType("declaration")
    sys.modules["declaration"] = module
    body = 'steps: int = parameter(3, "x")\n    on: "bool" = parameter(True, "x")'
    exec(f"from __future__ import annotations\n{HEAD}@dataclass\nclass Parameters:\n    {body}\n", vars(module))
    got, _ = script_says(module.Parameters, ["--steps", "4", "--no-on"])
    assert (got.steps, got.on) == (4, False)


def test_the_declaration_needs_no_torch(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("alone", FOLDER / "_parameters.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["alone"] = module
    spec.loader.exec_module(module)
    assert "torch" not in vars(module)


# --- the recipes that there are


@pytest.fixture(params=recipes().values(), ids=lambda recipe: recipe.name)
def recipe(request: pytest.FixtureRequest) -> RecipeInfo:
    found: RecipeInfo = request.param
    return found


def test_every_script_is_a_recipe() -> None:
    assert sorted(script_of(name) for name in recipes()) == sorted(FOLDER.glob("[!_]*.py"))
    assert {"allreduce", "gpt", "linear"} <= set(recipes())


def test_names_and_summaries_fit(recipe: RecipeInfo) -> None:
    assert len(recipe.name) <= 16
    assert 0 < len(recipe.summary) <= 62  # with a name and two spaces before it: 80 columns
    assert recipe.summary.endswith(".")
    assert recipe.lesson
    assert all(len(argument.name) <= 16 for argument in recipe.accepted)  # the labels of the form


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_a_recipe_needs_nothing_but_torch(path: Path) -> None:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= {*sys.stdlib_module_names, "torch", "rankdeck"}


def test_a_script_has_fewer_than_150_lines_of_code(recipe: RecipeInfo) -> None:
    source = script_of(recipe.name).read_text()
    texts = [
        one for one in ast.walk(ast.parse(source)) if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)
    ]
    lines = {
        number
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in NO_CODE
        for number in range(token.start[0], token.end[0] + 1)
    }
    documented = {number for text in texts for number in range(text.lineno, (text.end_lineno or text.lineno) + 1)}
    assert len(lines - documented) < 150


def test_a_recipe_keeps_checkpoints_or_says_that_it_does_not(recipe: RecipeInfo) -> None:
    keeps = any(argument.name == "checkpoint-dir" for argument in recipe.arguments)
    assert keeps != ("It keeps no checkpoint: " in recipe.lesson)


def test_what_a_script_declares_is_valid_and_as_the_engine_reads_it(recipe: RecipeInfo) -> None:
    parameters = declaration_of(script_of(recipe.name).read_text()).Parameters
    got, said = script_says(parameters, [])
    assert said == ""
    assert {name.replace("_", "-"): value for name, value in vars(got).items()} == {
        argument.name: argument.default for argument in recipe.arguments
    }
    assert recipe.presets in ((), ("small", "minute", "big"))
    for preset in recipe.presets:
        script_says(parameters, ["--preset", preset])
        assert problem_with(recipe, ["--preset", preset]) is None


def test_help_has_every_argument(recipe: RecipeInfo, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        read_parameters(declaration_of(script_of(recipe.name).read_text()).Parameters, ["--help"])
    printed = "".join(capsys.readouterr().out.split())
    for argument in recipe.accepted:
        for text in (f"--{argument.name}", argument.takes, argument.help):
            assert text.replace(" ", "") in printed


def test_the_engine_prints_the_help_of_the_script(recipe: RecipeInfo, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        read_parameters(declaration_of(script_of(recipe.name).read_text()).Parameters, ["--help"])
    ours = help_asked_for(recipe, ["--help"], "rankdeck run x")
    assert ours.startswith("usage: rankdeck run x [-h] ")
    assert f"\n\n{recipe.summary}\n\n{recipe.lesson}\n" in ours
    assert ours.partition("\noptions:\n")[2] == capsys.readouterr().out.partition("\noptions:\n")[2] != ""


@from_table
def test_help_is_printed_where_the_script_would_print_it(words: list[str], prints: bool) -> None:
    linear = recipes()["linear"]
    assert bool(help_asked_for(linear, words, "x")) is prints
    status, _ = script_says(declaration_of(script_of("linear").read_text()).Parameters, words)
    assert (status == 0) is prints


def test_a_problem_without_an_argument_has_no_name() -> None:
    assert problem_with(recipes()["linear"], ["x"]) == Problem(None, "there is no argument 'x'", "x")


# --- what is refused before the start


@from_table
@pytest.mark.parametrize("checked", [True, False])
def test_no_plan_is_made_of_arguments_that_the_script_refuses(args: list[str], said: str, checked: bool) -> None:
    text = f'schema = 1\nname = "x"\n[recipe]\nname = "linear"\nargs = {args}\n[layout]\nnodes = "localhost:2"\n'
    profile, places = parse_with_places(text, file="p.toml")
    with pytest.raises(ProfileError) as caught:
        make_plan(profile, LAUNCHED, checked=checked, places=places)
    assert str(caught.value) == said


def made(backend: str, nodes: str, *, checked: bool, recipe: str = "parameter-server") -> None:
    data = {"schema": 1, "name": "x", "recipe": {"name": recipe}, "layout": {"nodes": nodes}}
    make_plan(profile_from_data({**data, "backend": {"name": backend}}, "x"), LAUNCHED, checked=checked)


@pytest.mark.parametrize("checked", [True, False])
def test_no_plan_is_made_where_the_recipe_can_not_run(checked: bool) -> None:
    made("gloo", "localhost:2", checked=checked)
    for backend, name in (("mpi", "mpi"), ("cpu:ucc,cuda:gloo", "ucc")):
        with pytest.raises(CheckError) as caught:
            made(backend, "localhost:2", checked=checked)
        assert caught.value.message == f"the recipe parameter-server can't run on {name}: {SERVER.refused[name]}"
        assert caught.value.hint == "set backend.name to gloo or nccl"
    with pytest.raises(CheckError, match="needs 2 ranks or more, not 1"):
        made("gloo", "localhost:1", checked=checked)


def test_a_check_counts_no_ranks_of_nodes_that_were_not_asked() -> None:
    made("gloo", "elsewhere", checked=False)


SERVER = recipes()["parameter-server"]


def test_a_script_says_where_it_can_not_run() -> None:
    source = '''"""Needs some ranks."""\nREFUSED_BACKENDS = {"mpi": "why"}\nRANKS = (None, 4)\n'''
    said = read_recipe("limited", source)
    assert (said.refused, said.ranks) == ({"mpi": "why"}, (None, 4))
    assert (SERVER.ranks, set(SERVER.refused)) == ((2, None), {"mpi", "ucc"})


def test_reasons_fit_one_line_and_name_backends(recipe: RecipeInfo) -> None:
    for backend, reason in recipe.refused.items():
        assert backend in BACKENDS
        assert 0 < len(reason) <= 90
        assert not reason.endswith(".")
    assert set(recipe.refused) < set(BACKENDS)
