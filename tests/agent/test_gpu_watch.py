"""How ranks use their GPUs, as an agent tells it."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from engine.node.programs import gpus
from tests.agent.driver import FOR_EVER, Bridge, Message, Node
from tests.fake_nvml import GIB, FakeNvml, gpu
from tests.support import kill_hard, processes_with, wait_gone, wait_until

NOTHING: Mapping[str, str] = {}
UNKNOWN = [None, None, None]
FULL = [97, 61 * GIB, 80 * GIB]


def watch(
    node: Node, bridge: Bridge, nvml: FakeNvml, env: Mapping[str, str] = NOTHING, *, ranks: int = 2, attempt: int = 0
) -> None:
    """Asks an agent to tell of so many ranks, in whose environment this is."""
    argv = [sys.executable, "-I", "-S", gpus.__file__, *map(str, range(ranks))]
    bridge.send(
        type="watch_gpus",
        attempt=attempt,
        argv=argv,
        ranks=list(range(ranks)),
        env={**nvml.environment, **env},
        env_defaults={},
        library=str(node.folder / "library"),
    )


def expect_uses(bridge: Bridge, *uses: list[Any]) -> Message:
    """Waits until an agent tells this of ranks 0, 1, …"""
    return bridge.expect("gpus", ranks=[[rank, *use] for rank, use in enumerate(uses)])


@pytest.fixture
def start(node: Node, nvml: FakeNvml) -> Callable[..., Bridge]:
    """Two ranks, and somebody who tells of their GPUs."""

    def start(**env: str) -> Bridge:
        bridge, _ = node.connect()
        node.spawn(bridge, FOR_EVER, FOR_EVER)
        watch(node, bridge, nvml, env)
        return bridge

    return start


def watchers(node: Node) -> list[int]:
    found = processes_with("RANKDECK_MARK", node.mark)
    return [process.pid for process in found if "gpus.py" in process.command]


def test_the_use_of_each_rank_s_gpu_is_told_as_it_changes(nvml, start):
    nvml.show(gpu(0), gpu(1, utilisation=0, used=GIB))
    bridge = start()
    expect_uses(bridge, FULL, [0, GIB, 80 * GIB])
    nvml.show(gpu(0, utilisation=12), gpu(1))
    assert expect_uses(bridge, [12, 61 * GIB, 80 * GIB], FULL)["attempt"] == 0


@pytest.mark.parametrize("visible", ["1,0", "GPU-0001,GPU-0000", " 1 , GPU-0000"])
def test_ranks_have_the_gpus_that_cuda_shows_them(nvml, start, visible):
    nvml.show(gpu(0), gpu(1, utilisation=5))
    expect_uses(start(CUDA_VISIBLE_DEVICES=visible), [5, *FULL[1:]], FULL)


@pytest.mark.parametrize("visible", ["0", "0,-1,1", "0,9", "0,GPU-9", "0,x,1", "0,\udcff"])
def test_a_rank_without_a_gpu_has_none_whatever_is_said(nvml, start, visible):
    nvml.show(gpu(0), gpu(1))
    expect_uses(start(CUDA_VISIBLE_DEVICES=visible), FULL, UNKNOWN)


def test_gpus_of_several_models_are_counted_as_cuda_counts_them_or_not_at_all(nvml, node, start):
    nvml.show(gpu(0, model="T400"), gpu(1))
    bridge = start()
    expect_uses(bridge, UNKNOWN, UNKNOWN)
    bridge.send(type="clear", attempt=0)
    bridge.expect("cleared")
    node.spawn(bridge, FOR_EVER, attempt=1)
    watch(node, bridge, nvml, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, attempt=1)
    expect_uses(bridge, FULL, FULL)


def test_what_a_gpu_does_not_support_is_unknown(nvml, start):
    nvml.show(gpu(0, utilisation=-1), gpu(1, used=-1))
    expect_uses(start(), [None, *FULL[1:]], [97, None, None])


def test_a_gpu_that_is_lost_is_unknown_and_the_others_are_not(nvml, start):
    nvml.show(gpu(0), gpu(1))
    bridge = start()
    expect_uses(bridge, FULL, FULL)
    nvml.show(gpu(0), gpu(1, model="lost"))
    expect_uses(bridge, FULL, UNKNOWN)
    nvml.show(gpu(0), gpu(1))
    expect_uses(bridge, FULL, FULL)


def test_a_driver_that_hangs_is_unknown_and_holds_nothing_up(nvml, node, start):
    nvml.show(gpu(0), gpu(1))
    bridge = start()
    expect_uses(bridge, FULL, FULL)
    nvml.show(gpu(0, model="sick"), gpu(1))
    expect_uses(bridge, UNKNOWN, UNKNOWN)
    bridge.send(type="signal", attempt=0, rank=0, signal=9)
    bridge.expect("ended", rank=0)
    bridge.send(type="clear", attempt=0)
    assert bridge.expect("cleared")["abandoned"] == []
    assert watchers(node) == []


def test_where_there_is_no_nvml_that_is_all(nvml, node):
    bridge, _ = node.connect()
    node.spawn(bridge, FOR_EVER)
    watch(node, bridge, nvml, {"LD_LIBRARY_PATH": "/nowhere"}, ranks=1)
    expect_uses(bridge, UNKNOWN)
    wait_until(lambda: not watchers(node), what="nobody looks for a driver any more")
    bridge.settle()


def test_where_there_is_no_driver_that_is_all(nvml, node, start):
    expect_uses(start(), UNKNOWN, UNKNOWN)
    wait_until(lambda: not watchers(node), what="nobody looks for a driver any more")


def test_one_watches_however_often_it_is_asked_for(nvml, node, start):
    nvml.show(gpu(0), gpu(1))
    bridge = start()
    watch(node, bridge, nvml)
    expect_uses(bridge, FULL, FULL)
    assert len(watchers(node)) == 1


def test_nobody_watches_an_attempt_that_is_over_or_not_there_yet(nvml, node, start):
    nvml.show(gpu(0), gpu(1))
    bridge = start()
    expect_uses(bridge, FULL, FULL)
    bridge.send(type="clear", attempt=0)
    bridge.expect("cleared")
    watch(node, bridge, nvml)
    watch(node, bridge, nvml, attempt=1)
    bridge.settle()
    assert watchers(node) == []


def test_a_watcher_that_dies_leaves_nothing_known_and_another_can_take_its_place(nvml, node, start):
    nvml.show(gpu(0), gpu(1))
    bridge = start()
    expect_uses(bridge, FULL, FULL)
    kill_hard(watchers(node)[0])
    expect_uses(bridge, UNKNOWN, UNKNOWN)
    watch(node, bridge, nvml)
    expect_uses(bridge, FULL, FULL)


def test_a_watcher_ends_with_its_agent(nvml, node):
    nvml.show(gpu(0))
    bridge, hello = node.connect()
    node.spawn(bridge, FOR_EVER)
    watch(node, bridge, nvml, ranks=1)
    expect_uses(bridge, FULL)
    (watcher,) = watchers(node)
    kill_hard(hello["pid"])
    wait_gone(watcher)
    bridge, _ = node.connect()
    watch(node, bridge, nvml, ranks=1)
    expect_uses(bridge, FULL)
