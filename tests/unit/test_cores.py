"""Which CPUs ranks get, on machines that are drawn as folders of sysfs."""

import os
from pathlib import Path

import pytest

from engine.node.limits import bound_to, shares
from engine.node.probe.allowed import cpu_words
from tests.support import rows


def machine(root: Path, *, sockets: int, numa: int, cores: int, threads: int = 2, gpus: tuple[int, ...] = ()) -> None:
    """Draws a machine.

    Args:
        root: folder for it.
        sockets: how many.
        numa: NUMA nodes of each socket.
        cores: of each NUMA node.
        threads: of each core; their numbers are as far apart as there are cores, as Linux counts them.
        gpus: the NUMA node of each.
    """
    total = sockets * numa * cores
    for cpu in range(total * threads):
        core = cpu % total
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{core // (numa * cores)}\n")
        (folder / "thread_siblings_list").write_text(",".join(str(core + total * one) for one in range(threads)) + "\n")
    for node in range(sockets * numa):
        folder = root / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        spans = (f"{total * one + node * cores}-{total * one + (node + 1) * cores - 1}" for one in range(threads))
        (folder / "cpulist").write_text(",".join(spans) + "\n")
    (root / "dev").mkdir()
    for number, node in enumerate(gpus):
        bus = f"0000:{number + 1:02X}:00.0"
        information = root / "proc/driver/nvidia/gpus" / bus / "information"
        information.parent.mkdir(parents=True)
        information.write_text(f"Model: \t\t H\nDevice Minor: \t {number}\n")
        (root / f"dev/nvidia{number}").touch()
        place = root / "sys/bus/pci/devices" / bus.lower() / "numa_node"
        place.parent.mkdir(parents=True)
        place.write_text(f"{node}\n")


def found(
    root: Path, bind: str, count: int, environment: dict[str, str] | None = None, allowed: range = range(32)
) -> list[str]:
    return [cpu_words(cpus) for cpus in shares(bind, count, environment, allowed=allowed, root=str(root))]


@pytest.mark.parametrize(
    ("bind", "count", "expected"),
    [
        *rows("unit/cores", "ranks_share_a_machine_by_its_parts"),
        ("core", 16, [f"{core},{core + 16}" for core in range(16)]),
        ("numa", 8, [one for one in ("0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31") for _ in range(2)]),
    ],
)
def test_ranks_share_a_machine_by_its_parts(tmp_path: Path, bind: str, count: int, expected: list[str]) -> None:
    machine(tmp_path, sockets=2, numa=2, cores=4)
    assert found(tmp_path, bind, count) == expected


def test_only_cpus_that_the_agent_may_use_are_given_away(tmp_path: Path) -> None:
    machine(tmp_path, sockets=2, numa=2, cores=4)
    assert found(tmp_path, "core", 2, allowed=range(17, 19)) == ["17", "18"]
    assert found(tmp_path, "numa", 2, allowed=range(3, 6)) == ["3", "4-5"]


def test_more_ranks_than_cores_are_refused(tmp_path: Path) -> None:
    machine(tmp_path, sockets=2, numa=2, cores=4)
    with pytest.raises(ValueError, match="17 ranks for 16 cores"):
        found(tmp_path, "core", 17)
    with pytest.raises(ValueError, match=r"2 ranks for 1 core$"):
        found(tmp_path, "core", 2, allowed=range(1))


def test_a_rank_is_near_its_gpu(tmp_path: Path) -> None:
    machine(tmp_path, sockets=2, numa=2, cores=4, gpus=(3, 0, 3, 1))
    assert found(tmp_path, "numa", 4, {}) == ["12-15,28-31", "0-3,16-19", "12-15,28-31", "4-7,20-23"]
    assert found(tmp_path, "numa", 2, {"CUDA_VISIBLE_DEVICES": "1,3"}) == ["0-3,16-19", "4-7,20-23"]
    assert found(tmp_path, "socket", 1, {"CUDA_VISIBLE_DEVICES": "2"}) == ["8-15,24-31"]
    assert found(tmp_path, "core", 1, {}) == ["0-31"]


def test_gpus_that_a_job_may_not_use_are_not_counted(tmp_path: Path) -> None:
    machine(tmp_path, sockets=2, numa=2, cores=4, gpus=(3, 0))
    (tmp_path / "dev/nvidia0").unlink()
    assert found(tmp_path, "numa", 1, {"CUDA_VISIBLE_DEVICES": "0"}) == ["0-3,16-19"]


@pytest.mark.parametrize("visible", ["GPU-1234", "7", "", "0,MIG-1"])
def test_gpus_that_only_the_driver_knows_change_nothing(tmp_path: Path, visible: str) -> None:
    machine(tmp_path, sockets=2, numa=2, cores=4, gpus=(3, 0))
    assert found(tmp_path, "numa", 2, {"CUDA_VISIBLE_DEVICES": visible}) == ["0-7,16-23", "8-15,24-31"]


def test_a_machine_that_says_nothing_of_itself_has_one_socket_and_a_core_for_each_cpu(tmp_path: Path) -> None:
    assert found(tmp_path, "core", 2, allowed=range(4)) == ["0-1", "2-3"]
    assert found(tmp_path, "numa", 2, allowed=range(4)) == ["0-3", "0-3"]


def test_a_process_is_bound_only_meanwhile() -> None:
    before = os.sched_getaffinity(0)
    with bound_to([min(before)]):
        assert os.sched_getaffinity(0) == {min(before)}
    assert os.sched_getaffinity(0) == before
    with bound_to([]):
        assert os.sched_getaffinity(0) == before
