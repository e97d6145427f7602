"""The recipes `comm-hooks` and `var-gather`: what is sent, what is saved, and that it is right."""

import re
from pathlib import Path

import pytest

from tests.recipe_ranks import Ran, resumed, run_recipe, same_under_torchrun

pytestmark = pytest.mark.slow

# --- comm-hooks


def table(done: Ran) -> dict[str, tuple[float, float]]:
    """Kilobytes of a step and accuracy, by hook."""
    found = re.findall(r"^(\w+) +([\d.]+) +[\d.]+ +([\d.]+)$", done.outputs[0], re.MULTILINE)
    return {name: (float(kilobytes), float(accuracy)) for name, kilobytes, accuracy in found}


def test_compressed_gradients_are_smaller_and_learn_too(tmp_path: Path):
    words = ("--hidden", "64", "--steps", "40")
    done = run_recipe(tmp_path, "comm-hooks", *words)
    assert done.statuses == [0, 0], done.outputs
    sizes = {name: kilobytes for name, (kilobytes, _) in table(done).items()}
    # 64 * 64 + 64 + 64 * 64 + 64 + 64 * 10 + 10 numbers
    assert sizes["none"] == pytest.approx(8970 * 4 / 1000, abs=0.06)
    assert sizes["fp16"] == pytest.approx(8970 * 2 / 1000, abs=0.06)
    assert sizes["powersgd"] < sizes["none"] / 2
    assert done.final("accuracy") == min(accuracy for _, accuracy in table(done).values())
    assert done.final("accuracy") > 0.6


def test_hooks_give_the_same_under_torchrun(tmp_path: Path):
    words = ("--hidden", "16", "--steps", "20")
    ours = run_recipe(tmp_path / "rankdeck", "comm-hooks", *words)
    same_under_torchrun(ours, tmp_path / "torchrun", "comm-hooks", *words)


def test_a_restart_measures_the_hooks_that_are_left(tmp_path: Path):
    words = ("--hidden", "16", "--steps", "20", "--checkpoint")
    unbroken = run_recipe(tmp_path / "unbroken", "comm-hooks", *words)
    again = resumed(unbroken, tmp_path / "broken", "comm-hooks", *words, killed_at=30, after=20)
    assert table(again) == table(unbroken)
    other = run_recipe(tmp_path / "broken", "comm-hooks", *words, "--rank", "3")
    assert other.statuses == [1, 1]
    assert "is of another training: rank is 2 there, and 3 here" in other.outputs[0]


def test_matrices_of_full_rank_lose_nothing(tmp_path: Path):
    words = ("--hidden", "16", "--steps", "30", "--lr", "0.02", "--rank", "64", "--start", "0")
    powersgd, plain = (
        run_recipe(tmp_path / kind, "comm-hooks", *words, "--hooks", kind).losses() for kind in ("powersgd", "none")
    )
    assert len(plain) == 30
    assert powersgd == pytest.approx(plain, abs=1e-4)
    compressed = run_recipe(tmp_path / "low", "comm-hooks", *words[:-4], "--start", "0", "--hooks", "powersgd").losses()
    assert compressed != pytest.approx(plain, abs=1e-4)


# --- var-gather


@pytest.mark.parametrize("world", [2, 4])
def test_every_rank_gets_the_rows_of_all(tmp_path: Path, world: int):
    done = run_recipe(tmp_path, "var-gather", "--rows", "100", "--repeat", "3", world=world)
    assert set(done.statuses) == {0}, done.outputs
    lengths = [*range(100, 100 + world - 1), 500]
    whole = sum(lengths) * 0.256
    lines = done.outputs[0].splitlines()
    assert lines[0] == f"rows: {', '.join(map(str, lengths))}; {whole:,.1f} kB in all"
    assert lines[2].split()[:3] == ["padded", f"{world * 500 * 0.256:,.1f}", f"{sum(lengths) / world / 500:.0%}"]
    assert lines[3].split()[:3] == ["broadcasts", f"{whole:,.1f}", "100%"]
    assert lines[4:] == ["done: every result was right"]


@pytest.mark.parametrize(
    "words", [("--rows", "0"), ("--rows", "3", "--skew", "0"), ("--skew", "1", "--preset", "small")]
)
def test_ranks_may_have_nothing(tmp_path: Path, words: tuple[str, ...]):
    done = run_recipe(tmp_path, "var-gather", *words, "--repeat", "1", launcher="torchrun")
    assert done.statuses == [0, 0], done.outputs
    assert done.outputs[0].endswith("done: every result was right\n")
