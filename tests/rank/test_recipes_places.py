"""Each recipe on 2 and 4 ranks over gloo, and on 2 over mpi and ucc: it learns, or the check says before the start why it can't run.

The ranks of a place run all recipes one after the other. So each also finds what those before it have left behind.
"""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from engine.core.errors import CheckError
from engine.core.plan.document.reading import profile_from_data
from engine.gate import LAUNCHED
from engine.planning.make import make_plan
from engine.planning.recipes import recipes
from tests.recipe_ranks import Backend, Ran, run_series

pytestmark = pytest.mark.slow


class Place(NamedTuple):
    """Where all recipes run."""

    backend: Backend
    world: int


class Short(NamedTuple):
    """A short run of a recipe."""

    words: str = ""
    says: str = ""  # a line of rank 0
    least: float = 0.0  # the accuracy in its final line is higher; 0: it has none
    most: float = 0.0  # the loss in its final line is lower; 0: it has none


PLACES = (Place("gloo", 2), Place("gloo", 4), Place("mpi", 2), Place("ucc", 2))

TRANSFORMER = "--batch 8 --block 16 --layers 1 --heads 2 --width 16"

SHORT = {
    "spawn": Short(
        "--start-method fork --steps 40 --processes 1", most=2.0
    ),  # the first: it forks, so there may be no thread
    "hello": Short(says="rank 0: all {world} ranks have come to the barrier"),
    "collectives": Short(says="done: collectives drawn: 16, every result was right"),
    "allreduce": Short("--collectives all --sizes 4,4K --seconds 0.001", says="{world} ranks, {backend} on cpu"),
    "var-gather": Short("--rows 100 --repeat 3", says="done: every result was right"),
    "linear": Short("--steps 60", most=0.05),
    "linear-allreduce": Short("--steps 60", most=0.05),
    "linear-hooks": Short("--steps 60", most=0.05),
    "ddp-mlp": Short("--epochs 3", least=0.7),
    "ddp-cnn": Short("--epochs 2 --batch 32 --lr 0.2 --sync-batchnorm", least=0.5),
    "comm-hooks": Short("--hidden 64 --steps 40", least=0.6),
    "gpt": Short(f"--steps 30 --lr 0.03 --warmup 2 {TRANSFORMER}", most=3.5),
    "fsdp-gpt": Short(f"--steps 20 --lr 0.01 --checkpoint-every 10 {TRANSFORMER}", most=3.5),
    "tensor-parallel": Short("--steps 30 --lr 0.02 --width 32 --checkpoint-every 30", least=0.8),
    "pipeline": Short("--steps 35 --batch 96 --micro-batches 4 --width 32 --layers 4 --lr 0.01", least=0.9),
    "model-parallel": Short("--steps 60 --batch 32 --lr 0.02", least=0.85),
    "two-backends": Short("--preset small --steps 60 --hidden 16", least=0.7),
    "local-sgd": Short("--steps 60 --batch 16 --hidden 16 --every 7", least=0.7),
    "elastic": Short("--steps 30 --width 32 --lr 0.3", least=0.75),
    "parameter-server": Short("--steps 80 --hidden 16 --lr 0.2", least=0.7),
}


def test_every_recipe_is_here():
    assert sorted(SHORT) == sorted(recipes())


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place.backend}-{place.world}")
def test_each_recipe_runs_here_or_says_why_not(place: Place, tmp_path: Path, subtests: pytest.Subtests):
    # One test: several would share a fixture, which each worker that gets some of them would run anew.
    runs = {name: tuple(short.words.split()) for name, short in SHORT.items() if not _refuses(name, place)}
    ran = run_series(tmp_path, runs, place.world, place.backend)
    for name in SHORT:
        with subtests.test(name):
            if name in ran:
                _check(SHORT[name], ran[name], place)
            else:
                _check_refusal(name, place)


def _refuses(name: str, place: Place) -> bool:
    return place.backend in recipes()[name].refused


def _check(short: Short, done: Ran, place: Place) -> None:
    assert done.statuses == [0] * place.world, "\n".join(done.outputs)
    assert "Traceback" not in "".join(done.outputs)
    says = short.says.format(world=place.world, backend=place.backend)
    assert re.search(rf"^{re.escape(says)}", done.outputs[0], re.MULTILINE)
    if short.least:
        assert done.final("accuracy") > short.least
    if short.most:
        assert done.final("loss") < short.most


def _check_refusal(name: str, place: Place) -> None:
    layout = {"nodes": "localhost", "ranks_per_node": place.world}
    data = {"schema": 1, "name": "x", "recipe": {"name": name}, "backend": {"name": place.backend}, "layout": layout}
    with pytest.raises(CheckError, match=f"the recipe {name} can't run on {place.backend}: "):
        make_plan(profile_from_data(data, "x"), LAUNCHED)
