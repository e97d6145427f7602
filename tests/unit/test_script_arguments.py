"""The command line of a user's script, read from its source."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.core.arguments.argument import Argument
from engine.core.arguments.declarations import MOST
from engine.core.arguments.script import read_arguments
from engine.planning.programs import arguments_of
from tests.support import entries, from_table, rows

DATACLASS = entries("unit/script_arguments", "dataclass")


def facts(source: str) -> list[tuple[Any, ...]]:
    return [
        (one.word, one.type, one.default, one.off, one.choices, one.help + " (required)" * one.is_required)
        for one in read_arguments(source)
    ]


@from_table
def test_what_a_script_declares(source: str, expected: list[list[Any]]) -> None:
    found = facts(source if "\n" in source or "(" in source else entries("unit/script_arguments", source))
    assert [[*one[:4], list(one[4]), one[5]] for one in found] == expected


def test_what_facts_do_not_tell() -> None:
    epochs = read_arguments(entries("unit/script_arguments", "click"))[3]
    assert (epochs.low, epochs.high) == (1, 90)
    sizes, betas = (one for one in read_arguments(entries("unit/script_arguments", "tyro")) if one.many)
    assert (sizes.many, sizes.count, betas.many, betas.count) == ("words", 0, "words", 2)
    betas = read_arguments(entries("unit/script_arguments", "hydra_groups"))[1]
    assert betas.words("1 2") == ["optimizer.betas=[1,2]"]


@from_table
def test_fields_of_dataclasses(call: str, lr: str, fp16: list[Any]) -> None:
    said = {word: rest for word, *rest in facts(f"{DATACLASS}\nargs = {call}")}
    assert said == {
        lr: ["float", 1e-3, None, (), "peak of the rate"],
        "--steps": ["int", 100, None, (), "optimizer steps"],
        "--fp16": [*fp16[:-1], tuple(fp16[-1]), ""],
        "--name": ["str", "", None, (), ""],
        "--mode": ["str", "a", None, ("a", "b"), ""],
        "--sizes": ["int", "", None, (), ""],
        "--width": ["int", 8, None, (), ""],
    }


@from_table
def test_options_of_argparse_with_several_values(call: str, many: str, count: int) -> None:
    found = read_arguments(f"p.add_argument('--x', default=[1, 2], {call})")
    assert [(one.many, one.count, one.default) for one in found] == [(many, count, "1 2")]


@from_table
def test_options_that_no_line_of_a_form_can_write_are_left_out(call: str) -> None:
    assert read_arguments(f"p.add_argument('--x', {call})") == ()


def test_an_option_whose_value_may_be_left_out_says_what_it_means_then() -> None:
    found = read_arguments("p.add_argument('--resume', nargs='?', const='auto', default='')")
    assert [(one.word, one.alone, one.takes) for one in found] == [("--resume", "auto", "a text; --resume alone: auto")]
    assert found[0].words("auto") == ["--resume"]
    assert found[0].words("last.pt") == ["--resume", "last.pt"]
    found = read_arguments("p.add_argument('--every', nargs='?', const=True, type=int, choices=[1, 5])")
    assert [one.problem(text) for one in found for text in ("True", "5")] == ["", ""]
    assert found[0].problem("2") == "'2' is not one of 1, 5"


def test_positional_arguments_of_argparse() -> None:
    calls = ["'data', help='a folder'", "'epochs', type=int", "'size', nargs=2, type=int, default=[1, 2]"]
    calls += ["'out', nargs='?', default='runs'", "'more', nargs='*'"]
    source = "p = argparse.ArgumentParser()\n" + "".join(f"p.add_argument({call})\n" for call in calls)
    found = read_arguments(f"{source}p.add_argument('-v', '--lr', type=float)")
    assert [(one.name, one.type, one.is_positional, one.many, one.count, one.is_optional) for one in found] == [
        ("data", "str", True, "", 0, False),
        ("epochs", "int", True, "", 0, False),
        ("size", "int", True, "words", 2, False),
        ("out", "str", True, "", 0, True),
        ("more", "str", True, "words", 0, True),
        ("lr", "float", False, "", 0, False),
    ]
    assert (found[0].help, found[0].is_required) == ("a folder", True)
    assert found[-1].aliases == ("-v",)
    assert found[0].problem("-x") == "'-x' would be read as an option"
    assert (found[2].words("3 4"), found[3].words("a b")) == (["3", "4"], ["a b"])


@from_table
def test_positional_arguments_whose_places_are_not_known_have_no_lines(source: str) -> None:
    assert read_arguments(source) == ()


@pytest.mark.parametrize("number", ["argparse.REMAINDER", "REMAINDER", "'...'", "'A...'"])
def test_a_script_that_passes_the_rest_of_its_words_on_has_no_form(number: str) -> None:
    source = f"p = ArgumentParser()\np.add_argument('--lr')\np.add_argument('command', nargs={number})"
    assert read_arguments(source) == ()


def test_fields_of_many_classes_that_inherit_from_each_other_are_read_once() -> None:
    source = "@dataclass\nclass A0:\n    x: int = 1\n" + "".join(
        f"@dataclass\nclass A{place + 1}(A{place}, A{place}):\n    y: int = 1\n" for place in range(60)
    )
    assert [one.word for one in read_arguments(f"{source}tyro.cli(A60)")] == ["--x", "--y"]


def test_a_short_script_does_not_declare_millions_of_arguments() -> None:
    source = "@dataclass\nclass A0:\n    x: int = 1\n" + "".join(
        f"@dataclass\nclass A{place + 1}:\n    a: A{place}\n    b: A{place}\n    y: int = 1\n" for place in range(25)
    )
    assert len(read_arguments(f"{source}tyro.cli(A25)")) <= MOST
    assert len(read_arguments("".join(f"p.add_argument('--x{place}')\n" for place in range(2 * MOST)))) == MOST


@pytest.mark.parametrize(
    "source",
    [*rows("unit/script_arguments", "what_has_no_options_gives_none"), "(" * 5000, f"x = {'-' * 20000}1", DATACLASS],
)
def test_what_has_no_options_gives_none(source: str) -> None:
    assert read_arguments(source) == ()


def test_a_deep_tree_hides_no_options() -> None:
    assert [one.word for one in read_arguments(f"x = {'-' * 1200}1\np.add_argument('--x')")] == ["--x"]


def test_nothing_is_run_and_no_large_or_missing_file_is_read(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\np.add_argument('--x', default=1)\n")
    assert [one.name for one in arguments_of(script)] == ["x"]
    assert not (tmp_path / "ran").exists()
    script.write_text("#" * 1_000_001)
    assert arguments_of(script) == arguments_of(tmp_path) == arguments_of(tmp_path / "none") == ()
    script.write_bytes(b"\xff\xfe")
    assert arguments_of(script) == ()


def test_words_of_several_values() -> None:
    one = Argument(name="x", type="int", default="", help="", many="words", count=2)
    assert one.words("1 2") == ["--x", "1", "2"]
    assert msgspec.structs.replace(one, many="again").words("1 2") == ["--x", "1", "--x", "2"]
    assert msgspec.structs.replace(one, many="list", word="x=").words("1 2") == ["x=[1,2]"]
    assert one.takes == "2 values, each a whole number"
    assert one.problem("1 2") == ""
    assert one.problem("1") == "'1' is not 2 values, each a whole number"
    assert one.problem("1 b") == "'b' is not a whole number"
    assert one.problem("1 '") == "can't be read as words: no closing quotation"


@from_table
def test_a_value_that_looks_like_an_option_is_one_word_with_its_flag(word: str, value: str, words: list[str]) -> None:
    one = Argument(name="x", type="str", default="", help="", word=word)
    assert one.words(value) == words
    if word.startswith("-"):
        assert msgspec.structs.replace(one, many="again").words(f"'{value}'") == words


def test_words_of_a_bool() -> None:
    def flags(**more: Any) -> dict[str, bool]:
        return Argument(name="x", default=False, help="", **{"type": "bool", **more}).flags

    assert flags() == {"--x": True, "--no-x": False}
    assert flags(word="-x", off="") == {"-x": True}
    assert flags(type="str") == {}
