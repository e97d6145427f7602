"""The command line of a user's script, read from its source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.core.catalogue import Argument
from engine.planning.script_arguments import arguments_of, read_arguments

ARGPARSE = """
import argparse, os
LR = 3e-4
def get_args():
    parser = argparse.ArgumentParser()
    group = parser.add_argument_group("training")
    parser.add_argument("data", help="a folder")
    group.add_argument("-b", "--batch-size", type=int, default=32, help="samples (default: %(default)s), 100%%")
    group.add_argument("--lr", default=LR, type=float)
    parser.add_argument("--arch", default="resnet50", choices=["resnet18", "resnet50"], help="which "
                        "model")
    parser.add_argument("--amp", action="store_true", help="mixed precision")
    parser.add_argument("--no-cuda", action="store_false", dest="cuda")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--layers", nargs="+", type=int)
    parser.add_argument("-v", action="count")
    parser.add_argument("--out", required=True, type=str)
    parser.add_argument("--seed", default=os.getpid(), type=int)
    parser.add_argument("--scale", default=2)
    parser.add_argument(f"--{LR}")
    return parser.parse_args()
"""

DATACLASS = '''
from dataclasses import dataclass, field
from typing import Literal, Optional
@dataclass
class Args:
    learning_rate: float = field(default=1e-3, metadata={"help": "peak of the rate"})
    steps: int = 100
    """optimizer steps"""
    fp16: bool = False
    name: Optional[str] = None
    mode: Literal["a", "b"] = "a"
    sizes: list[int] = field(default_factory=list)
    width: "int | None" = 8
@dataclass
class Other:
    x: int = 1
'''

CLICK = """
import click
@click.command()
@click.option("--lr", "-l", type=float, default=0.1, show_default=True, help="learning rate")
@click.option("--shuffle/--no-shuffle", default=True)
@click.option("--model", type=click.Choice(["cnn", "mlp"]), required=True)
@click.option("--epochs", type=click.IntRange(1, 90), default=3)
@click.option("--fast", is_flag=True)
@click.option("--tag", multiple=True)
@click.argument("path")
def main(**kw): ...
"""

HYDRA = """
import hydra
from dataclasses import dataclass
from hydra.core.config_store import ConfigStore
@dataclass
class Config:
    lr: float = 0.1
    resume: bool = True
ConfigStore.instance().store(name="config", node=Config)
@hydra.main(config_name="config")
def main(cfg): ...
"""


def facts(source: str) -> list[tuple[Any, ...]]:
    return [(one.word, one.type, one.default, one.off, one.choices, one.help) for one in read_arguments(source)]


def test_options_of_argparse() -> None:
    assert facts(ARGPARSE) == [
        ("--batch-size", "int", 32, None, (), "samples (default: 32), 100%"),
        ("--lr", "float", 3e-4, None, (), ""),
        ("--arch", "str", "resnet50", None, ("resnet18", "resnet50"), "which model"),
        ("--amp", "bool", False, "", (), "mixed precision"),
        ("--no-cuda", "bool", False, "", (), ""),
        ("--compile", "bool", True, "--no-compile", (), ""),
        ("--out", "str", "", None, (), " (required)"),
        ("--seed", "int", "", None, (), ""),
        ("--scale", "int", 2, None, (), ""),
    ]


@pytest.mark.parametrize(
    ("call", "lr", "fp16"),
    [
        ("HfArgumentParser((Args, TrainingArguments))", "--learning_rate", ("str", "False", None, ("True", "False"))),
        ("simple_parsing.parse(Args)", "--learning_rate", ("str", "False", None, ("True", "False"))),
        ("parser.add_arguments(Args, dest='args')", "--learning_rate", ("str", "False", None, ("True", "False"))),
        ("tyro.cli(Args)", "--learning-rate", ("bool", False, "--no-fp16", ())),
    ],
)
def test_fields_of_dataclasses(call: str, lr: str, fp16: tuple[Any, ...]) -> None:
    said = {word: rest for word, *rest in facts(f"{DATACLASS}\nargs = {call}")}
    assert said == {
        lr: ["float", 1e-3, None, (), "peak of the rate"],
        "--steps": ["int", 100, None, (), "optimizer steps"],
        "--fp16": [*fp16, ""],
        "--name": ["str", "", None, (), ""],
        "--mode": ["str", "a", None, ("a", "b"), ""],
        "--width": ["int", 8, None, (), ""],
    }


def test_options_of_click() -> None:
    assert facts(CLICK) == [
        ("--lr", "float", 0.1, None, (), "learning rate"),
        ("--shuffle", "bool", True, "--no-shuffle", (), ""),
        ("--model", "str", "", None, ("cnn", "mlp"), " (required)"),
        ("--epochs", "int", 3, None, (), ""),
        ("--fast", "bool", False, "", (), ""),
    ]
    epochs = read_arguments(CLICK)[3]
    assert (epochs.low, epochs.high) == (1, 90)


def test_structured_configurations_of_hydra() -> None:
    assert facts(HYDRA) == [
        ("lr=", "float", 0.1, None, (), ""),
        ("resume=", "str", "true", None, ("true", "false"), ""),
    ]


@pytest.mark.parametrize(
    "source",
    [
        "",
        "def broken(:",
        "\0",
        "(" * 5000,
        f"x = {'-' * 20000}1",
        "parser.add_argument()",
        "parser.add_argument('--x y')",
        "p.add_argument(*names, **more)",
        "sub = parser.add_subparsers()\nsub.add_argument('--x')",
        DATACLASS,
    ],
)
def test_what_has_no_options_gives_none(source: str) -> None:
    assert read_arguments(source) == ()


def test_texts_of_strangers_are_printable() -> None:
    source = "p.add_argument('--x', default='a\\x1b[31m', help='a\\x1b]0;b\\nc', choices=['d', 'e\\x07'])\n"
    assert facts(source) == [("--x", "str", "", None, ("d",), "a ]0;b c")]
    assert facts("p.add_argument('--x\\x1b')") == []


def test_nothing_is_run_and_no_large_or_missing_file_is_read(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\np.add_argument('--x', default=1)\n")
    assert [one.name for one in arguments_of(script)] == ["x"]
    assert not (tmp_path / "ran").exists()
    script.write_text("#" * 1_000_001)
    assert arguments_of(script) == arguments_of(tmp_path) == arguments_of(tmp_path / "none") == ()
    script.write_bytes(b"\xff\xfe")
    assert arguments_of(script) == ()


def test_words_of_a_bool() -> None:
    def flags(**more: Any) -> dict[str, bool]:
        return Argument(name="x", default=False, help="", **{"type": "bool", **more}).flags

    assert flags() == {"--x": True, "--no-x": False}
    assert flags(word="-x", off="") == {"-x": True}
    assert flags(type="str") == {}
