"""The recipes `hello` and `collectives`: what they print, over each backend and by each way to meet."""

import re
from pathlib import Path

import pytest
import torch.distributed as dist

from engine.planning.recipes import recipes
from rankdeck.recipes import collectives
from tests.recipe_ranks import Gang, Launcher, run_recipe, start_recipe

pytestmark = pytest.mark.slow

# --- hello


@pytest.mark.parametrize(("world", "launcher"), [(2, "torchrun"), (4, "rankdeck")])
def test_hello_says_who_is_there(tmp_path: Path, world: int, launcher: Launcher):
    # Two ranks meet where torchrun says, four at an address.
    store = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    words = ("--init", f"tcp://127.0.0.1:{store.port}") if launcher == "rankdeck" else ()
    done = run_recipe(tmp_path, "hello", *words, world=world, launcher=launcher)
    assert set(done.statuses) == {0}, done.outputs
    for rank, output in enumerate(done.outputs):
        assert f"rank {rank} of {world} on " in output
        assert ": backend gloo, device cpu\n" in output
        assert output.endswith(f"rank {rank}: has left the process group\n")
        is_even = rank % 2 == 0
        place = f"rank {rank}: rank {rank // 2} of {world // 2} in the group of the even ranks, which add up to"
        assert (f"{place} {sum(range(0, world, 2))}\n" in output) is is_even
    assert f"rank 0: all {world} ranks have come to the barrier\n" in done.outputs[0]


def test_hello_ranks_meet_in_a_file_without_a_launcher(tmp_path: Path):
    # Two processes that know nothing of each other: each is given its rank on its command line.
    words = ("--init", f"file://{tmp_path / 'meeting point'}", "--world-size", "2", "--rank")
    gangs = [start_recipe(tmp_path, "hello", *words, str(rank), launcher="python") for rank in (0, 1)]
    assert [gang.wait() for gang in gangs] == [[0], [0]], [gang.log(0) for gang in gangs]
    assert [f"rank {rank} of 2 on " in gang.log(0) for rank, gang in enumerate(gangs)] == [True, True]


def test_hello_says_what_it_needs_to_know(tmp_path: Path):
    done = run_recipe(tmp_path, "hello", "--init", "tcp://127.0.0.1:1", launcher="python")
    assert done.statuses == [2]
    assert done.outputs[0].startswith("hello: --init tcp://127.0.0.1:1 needs to know who this is: give --rank")
    assert "Traceback" not in done.outputs[0]


# --- collectives


@pytest.mark.parametrize(("world", "launcher"), [(2, "torchrun"), (4, "rankdeck")])
def test_collectives_draws_every_one_and_all_are_right(tmp_path: Path, world: int, launcher: Launcher):
    done = run_recipe(tmp_path, "collectives", world=world, launcher=launcher)
    assert set(done.statuses) == {0}, done.outputs
    assert done.outputs[0].rstrip().endswith("done: collectives drawn: 16, every result was right")
    assert "arning" not in "".join(done.outputs)
    drawn = re.findall(r"^(\w+): .+\n((?:  rank \d .+\n)+)", done.outputs[0], re.MULTILINE)
    assert len(drawn) == 16
    assert all(len(lines.splitlines()) == world for _, lines in drawn)
    whole = dict(drawn)
    if world == 2:
        assert whole["scatter"] == "  rank 0   [0, 10]  ->  0\n  rank 1   -        ->  10\n"
        assert whole["all_reduce_product"] == "  rank 0   1  ->  2\n  rank 1   2  ->  2\n"
    else:
        assert whole["isend_irecv"].split()[-1] == "2"


def test_collectives_draws_one_alone_also_with_one_rank(tmp_path: Path):
    done = run_recipe(tmp_path, "collectives", "--only", "all_to_all", launcher="python")
    assert done.statuses == [0]
    assert done.outputs[0].endswith("  rank 0   [0]  ->  [0]\n\ndone: collectives drawn: 1, every result was right\n")


def test_collectives_that_can_be_chosen_are_those_that_are_drawn():
    only = next(argument for argument in recipes()["collectives"].arguments if argument.name == "only")
    assert only.choices == ("all", *collectives.PICTURES)


def test_collectives_notices_a_wrong_result(tmp_path: Path):
    script = tmp_path / "broken.py"
    script.write_text(
        "from rankdeck.recipes import collectives\n"
        "collectives.PICTURES['gather'] = lambda rank, world: collectives.Picture(1, 2, 3 if rank else 2)\n"
        "collectives.main()\n"
    )
    gang = Gang(tmp_path / "run", [str(script)], 2)
    assert gang.wait() == [1, 1]
    assert "  rank 1   1  ->  2   wrong: 3 is right\n" in gang.log(0)
    assert all(gang.log(rank).endswith("collectives: gather over gloo gave a wrong result\n") for rank in (0, 1))
