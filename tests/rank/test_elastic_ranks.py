"""What survivors and newcomers of an elastic training do when something goes wrong while a generation forms."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.rank.elastic_ranks import Ranks, without_numpy
from tests.support import entries, kill_hard
from tests.warm_ranks import Template

pytestmark = pytest.mark.slow

TRAIN = entries("rank/elastic_ranks", "train")

RESULT = "result -42.0"  # two ranks, six steps, and a gradient of 1 in the first step, 2 in the second

Launch = Callable[..., Ranks]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Prepares ranks that run the text of a script."""
    made: list[Ranks] = []

    def launch(text: str, world: int = 2, template: Template | None = None, secret: str = "") -> Ranks:
        script = tmp_path / "script.py"
        script.write_text(text)
        made.append(Ranks(tmp_path, [str(script)], world, template, secret))
        return made[-1]

    yield launch
    for ranks in made:
        ranks.close()


def lose_rank_1(ranks: Ranks) -> None:
    """Begins a training of two ranks, and kills one of them in the middle."""
    ranks.start(0)
    ranks.start(1)
    assert ranks.end(1) == -signal.SIGKILL
    ranks.tell("lost", 0)


def check_that_all_end_well(ranks: Ranks, generation: int) -> None:
    """Rank 0 is its first process, and rank 1 the one of this generation; both have trained as if nothing had been."""
    assert ranks.end(0) == 0, ranks.said(0)
    assert ranks.end(1, generation) == 0, ranks.said(1, generation)
    assert RESULT in ranks.said(0)
    assert RESULT in ranks.said(1, generation)
    assert "enter 3" in ranks.said(1, generation)


def test_a_step_that_is_repeated_finds_no_gradients_of_the_first_try(launch: Launch) -> None:
    ranks = launch(TRAIN.format(prologue=""))
    lose_rank_1(ranks)
    ranks.start(1, 1)
    ranks.tell("generation", 1)
    check_that_all_end_well(ranks, 1)


DIES_WHILE_FORMING = """
if born == 1:
    dist.distributed_c10d._new_process_group_helper = lambda *a, **b: os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_death_while_a_generation_forms_leaves_the_next_one_possible(launch: Launch) -> None:
    ranks = launch(TRAIN.format(prologue=DIES_WHILE_FORMING))
    lose_rank_1(ranks)
    ranks.start(1, 1)
    ranks.tell("generation", 1)
    assert ranks.end(1, 1) == -signal.SIGKILL
    ranks.tell("lost", 1)
    ranks.start(1, 2)
    ranks.tell("generation", 2)
    check_that_all_end_well(ranks, 2)


def test_what_a_stranger_writes_into_the_store_is_ignored(launch: Launch) -> None:
    ranks = launch(TRAIN.format(prologue=""), secret="5ec7e7")
    for generation in (0, 1):
        for name in ("0", "1", "complete", "formed/0", "formed/1", "result"):
            ranks.forge(f"{generation}.0/{name}", "lost")
    for key in ("news/0", "news/0/0", "news/0/1", "news/1/0", "news/1/1", "news/2/3"):
        ranks.forge(key, '["generation", 7]')
    for key in ("news", "listeners"):
        ranks.forge(key, "1000000000")
    lose_rank_1(ranks)
    ranks.start(1, 1)
    ranks.tell("generation", 1)
    check_that_all_end_well(ranks, 1)
    assert "rank 0 ignores a value in the store that is not from this run" in ranks.said(0)


IS_LATE = entries("rank/elastic_ranks", "is_late")


def test_a_rank_that_joins_too_late_costs_nobody_the_state(launch: Launch) -> None:
    ranks = launch(TRAIN.format(prologue=IS_LATE))
    lose_rank_1(ranks)
    ranks.start(1, 1)
    ranks.tell("generation", 1)
    ranks.wait_for("and tries again", 0)
    (ranks.folder / "go on").touch()
    check_that_all_end_well(ranks, 1)


SOURCE_DIES = entries("rank/elastic_ranks", "source_dies")


def test_a_source_that_dies_leaves_the_receivers_as_they_were(launch: Launch) -> None:
    ranks = launch(SOURCE_DIES)
    ranks.start(0)
    ranks.start(1)
    assert ranks.end(1) == -signal.SIGKILL
    assert ranks.end(0) == 0, ranks.said(0)
    assert "received 3\n" in ranks.said(0), "the object and the first tensor had come"
    assert "kept {'a': tensor([0., 0., 0.]), 'b': tensor([0., 0., 0., 0.]), 'step': 0}" in ranks.said(0)


ALL_KINDS = entries("rank/elastic_ranks", "all_kinds")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Template]:
    """A template whose ranks find no numpy."""
    template = without_numpy(tmp_path_factory.mktemp("bare") / "site")
    yield template
    template.close()


def test_tensors_of_every_kind_are_shared_without_numpy(launch: Launch, bare: Template) -> None:
    ranks = launch(ALL_KINDS, template=bare)
    for rank in (0, 1):
        ranks.start(rank)
    for rank in (0, 1):
        assert ranks.end(rank) == 0, ranks.said(rank)
        assert "well False" in ranks.said(rank)


LATE_NEWS = entries("rank/elastic_ranks", "late_news")


def test_news_that_come_while_the_interpreter_ends_do_no_harm(launch: Launch) -> None:
    ranks = launch(LATE_NEWS, world=1)
    ranks.start(0)
    ranks.wait_for("ends", 0)
    ranks.tell("lost", 0)
    (ranks.folder / "told").touch()
    assert ranks.end(0) == 0, ranks.said(0)
    assert ranks.said(0) == "ends\n"


def test_recipes_train_and_rejoin_without_numpy(tmp_path: Path, bare: Template) -> None:
    small = ["--steps", "60", "--batch", "2", "--block", "8", "--layers", "1", "--heads", "1", "--width", "8"]
    ranks = Ranks(tmp_path, ["-m", "rankdeck.recipes.gpt", *small, "--checkpoint-every", "0"], 2, bare)
    try:
        ranks.start(0)
        kill_hard(ranks.start(1).pid)
        ranks.wait_for("", 0)
        ranks.tell("lost", 0)
        ranks.start(1, 1)
        ranks.tell("generation", 1)
        for rank, generation in ((0, 0), (1, 1)):
            assert ranks.end(rank, generation) == 0, ranks.said(rank, generation)
            assert "done after step 60" in ranks.said(rank, generation)
    finally:
        ranks.close()


RUNS = {
    "linear": "rank 1: done after step",
    "collectives": "done: collectives drawn: 16, every result was right",
    "parameter_server": "rank 0: applied 50 updates of 1 trainers",
}


@pytest.mark.parametrize("recipe", RUNS)
def test_recipes_run_without_numpy(tmp_path: Path, bare: Template, recipe: str) -> None:
    words = [] if recipe == "collectives" else ["--preset", "small"]
    ranks = Ranks(tmp_path, ["-m", f"rankdeck.recipes.{recipe}", *words], 2, bare)
    try:
        for rank in (0, 1):
            ranks.start(rank)
        for rank in (0, 1):
            assert ranks.end(rank) == 0, ranks.said(rank)
        assert RUNS[recipe] in ranks.said(0) + ranks.said(1)
    finally:
        ranks.close()
