"""Sweeps: what they set, which points of a grid they run, and what of the queue may start."""

import random
import shlex
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from engine.core.arguments.script import read_arguments
from engine.core.arguments.setting import with_argument
from engine.core.errors import UsageError
from engine.core.plan.plan import Swept
from engine.core.sweeps.grid import argument_axis, grid, key_axis
from engine.core.sweeps.queue import ALL, Active, Entry, Gpu, Needs, Place, Queue, Wait, waits
from tests.support import entries, from_table

SCRIPT = entries("unit/sweeps", "script")


@from_table
def test_an_argument_is_set_in_the_form_that_the_command_line_has(before: str, name: str, value: str, after: str):
    assert with_argument(shlex.split(before), name, value, ()) == shlex.split(after)


def test_the_program_says_how_an_argument_is_written_that_the_command_line_lacks() -> None:
    declared = read_arguments(SCRIPT)
    assert with_argument(["data"], "batch_size", "4", declared) == ["data", "--batch-size", "4"]
    assert with_argument(["--lr", "1", "data"], "lr", "2", declared) == ["--lr", "2", "data"]
    hydra = read_arguments("import hydra\n@hydra.main()\ndef main(cfg): pass\n")
    assert with_argument(["x=1"], "lr", "2", hydra) == ["x=1", "lr=2"]


@from_table
def test_an_argument_that_takes_no_single_value_is_refused(args: str, name: str, value: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        with_argument(shlex.split(args), name, value, read_arguments(SCRIPT))


@from_table
def test_values_of_an_argument_that_can_not_be_meant_are_refused(word: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        argument_axis(word)


@from_table
def test_values_of_a_key_that_can_not_be_meant_are_refused(word: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        key_axis(word)


def test_the_grid_is_the_product_of_its_axes_in_order() -> None:
    axes = [key_axis("layout.ranks_per_node=[1, 2]"), argument_axis('betas="0.9,0.99",x')]
    assert grid(axes) == [(1, "0.9,0.99"), (1, "x"), (2, "0.9,0.99"), (2, "x")]
    for wrong, words in (([], "needs values"), ([axes[1], argument_axis("--betas=1")], "given twice")):
        with pytest.raises(UsageError, match=words):
            grid(wrong)
    large = [argument_axis(f"{name}=" + ",".join(map(str, range(40)))) for name in "ab"]
    with pytest.raises(UsageError, match="the most is 1000"):
        grid(large)
    with pytest.raises(UsageError, match="has 4 points"):
        grid(axes, 5, random.Random(1).sample)


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=6), number=st.integers(1, 20), seed=st.integers(0))
def test_a_draw_has_no_point_twice_and_is_the_same_for_a_seed(sizes: list[int], number: int, seed: int) -> None:
    axes = [argument_axis(f"a{at}=" + ",".join(map(str, range(size)))) for at, size in enumerate(sizes)]
    try:
        drawn = grid(axes, number, random.Random(seed).sample)
    except UsageError:
        return
    assert len({*drawn}) == number
    assert drawn == grid(axes, number, random.Random(seed).sample)
    assert all(value in axis.values for point in drawn for axis, value in zip(axes, point, strict=True))


# --- the queue --------------------------------------------------------------------------------------------------------


ONE = Needs(ranks=1)


def entry(number: int, needs: Needs = ONE, **facts: Any) -> Entry:
    return Entry(number=number, name="job", profile="", place="here", needs=needs, **facts)


def active(run: str, needs: Needs = ONE, sweep: str = "") -> Active:
    return Active(run=run, needs=needs, sweep=sweep)


def swept(sweep: str = "s") -> Swept:
    return Swept(sweep=sweep, values={}, number=1, runs=1)


def reasons(entries: Sequence[Entry], used: Sequence[Active] = (), cores: int = 4) -> list[str]:
    queue = Queue(last=len(entries), entries=tuple(entries))
    return [waits(queue, used, cores).get(one.number, Wait("not asked")).reason for one in entries]


def test_an_entry_waits_for_cores_gpus_and_nodes_that_others_have() -> None:
    two, all_gpus = Needs(ranks=2), Needs(ranks=1, gpus=(ALL,))
    assert reasons([entry(1, two), entry(2, two), entry(3)]) == ["", "", "4 of 4 cores taken"]
    assert reasons([entry(1, Needs(ranks=9))]) == [""]
    assert reasons([entry(1, Needs(ranks=9))], [active("a")]) == ["1 of 4 cores taken"]
    assert reasons([entry(1, all_gpus)], [active("a", all_gpus)]) == ["GPUs are taken"]
    chosen = [Needs(ranks=1, gpus=gpus) for gpus in (("0",), ("1", "2"), ("2",))]
    both = [entry(1, chosen[1]), entry(2, chosen[2])]
    assert reasons(both, [active("a", chosen[0])]) == ["", "GPUs are taken"]
    assert reasons([entry(1, chosen[0])], [active("a", all_gpus)]) == ["GPUs are taken"]
    far = Needs(nodes=("n1", "n2"))
    assert reasons([entry(1, far)], [active("a", Needs(nodes=("n2",)))]) == ["n2 is taken"]
    assert reasons([entry(1, far)], [active("a", Needs(ranks=4))]) == [""]


def gpu_waits(needs: Needs, *used: Needs, then: Needs | None = None, busy: str = "", visible: str = "") -> list[Wait]:
    """Why each of two entries waits on a machine with four GPUs."""
    place = Place(folder=b"/", environment=(f"CUDA_VISIBLE_DEVICES={visible}".encode(),) if visible else ())
    queue = Queue(entries=(entry(1, needs), entry(2, then or needs)), places={"here": place})
    gpus = [Gpu(str(number), f"GPU-{number}a", str(number) in busy) for number in range(4)]
    return [*waits(queue, [active(f"run{n}", one) for n, one in enumerate(used)], 99, gpus).values()]


def test_an_entry_gets_gpus_that_neither_runs_nor_other_processes_have() -> None:
    two = Needs(ranks=2, gpus=(ALL,))
    taken = Needs(ranks=1, gpus=("GPU-1",))
    assert gpu_waits(two) == [Wait(gpus=("0", "1")), Wait(gpus=("2", "3"))]
    assert gpu_waits(two, two) == [Wait(gpus=("2", "3")), Wait("0 of 2 GPUs free")]
    assert gpu_waits(two, taken) == [Wait(gpus=("0", "2")), Wait("1 of 2 GPUs free")]
    assert gpu_waits(two, busy="02") == [Wait(gpus=("1", "3")), Wait("0 of 2 GPUs free", is_watched=True)]
    assert gpu_waits(two, taken, then=replace(two, ranks=1), busy="012") == [
        Wait("1 of 2 GPUs free", is_watched=True),
        Wait("an earlier entry comes first"),
    ]
    assert gpu_waits(two, visible="GPU-3,2,9") == [Wait(gpus=("3", "2")), Wait("0 of 2 GPUs free")]
    assert gpu_waits(Needs(ranks=9, gpus=(ALL,))) == [Wait(gpus=tuple("0123")), Wait("0 of 4 GPUs free")]
    chosen = Needs(ranks=1, gpus=("1",))
    assert gpu_waits(chosen, busy="0") == [Wait(), Wait("GPUs are taken")]
    assert gpu_waits(chosen, busy="1")[0] == Wait("another process uses its GPUs", is_watched=True)
    part = Needs(ranks=1, gpus=("MIG-1",))
    assert gpu_waits(two, part, visible="MIG-1")[0] == Wait("GPUs are taken")
    assert gpu_waits(two, visible="MIG-1") == [Wait(gpus=("MIG-1",)), Wait("GPUs are taken")]
    several = replace(two, nodes=("n1",))
    assert gpu_waits(several) == [Wait(), Wait("n1 is taken")]


def test_an_entry_that_waits_for_cores_is_not_overtaken() -> None:
    large, small = entry(1, Needs(ranks=4)), entry(2)
    assert reasons([large, small], [active("a")]) == ["1 of 4 cores taken", "an earlier entry comes first"]
    for state in ("held", "failed"):
        assert reasons([replace(large, state=state), small], [active("a")]) == ["not asked", ""]
    assert reasons([replace(large, after="a"), small], [active("a")]) == ["a has not ended", ""]


def test_a_sweep_has_as_many_runs_at_once_as_was_said() -> None:
    own = [entry(number, swept=swept(), parallel=2) for number in range(1, 4)]
    assert reasons(own) == ["", "", "2 runs of s at once"]
    assert reasons(own, [active("a", sweep="s")])[1:] == ["2 runs of s at once"] * 2
    starting = replace(own[0], state="starting", run="a")
    assert reasons([starting, *own[1:]], [active("a", sweep="s")]) == ["not asked", "", "2 runs of s at once"]


def test_the_queue_numbers_moves_and_removes_entries() -> None:
    place = Place(folder=b"/", environment=(b"A=\xff",))
    queue = Queue(last=6).added([entry(0), entry(0), entry(0)], place)
    assert [one.number for one in queue.entries] == [7, 8, 9]
    assert [one.number for one in queue.moved(9, 1).entries] == [9, 7, 8]
    assert [one.number for one in queue.moved(7, 99).entries] == [8, 9, 7]
    assert msgspec.json.decode(msgspec.json.encode(queue), type=Queue) == queue
    assert queue.without(7, 8).places == {"here": place}
    assert queue.without(7, 8, 9) == Queue(last=9)
