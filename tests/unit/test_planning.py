"""Which backend a plan is made on: the first that can run, and why not the others. Nodes are played."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.commands.show import show_backends
from engine.core.errors import CheckError
from engine.core.plan.document.reading import profile_from_data
from engine.core.plan.plan import LaunchPlan, NodeFacts, PlannedNode, ProgramOutput, with_backend
from engine.gate import LAUNCHED, Permit
from engine.launchers import local
from engine.planning import check as node_check
from engine.planning import make as planning
from engine.planning import profile_paths
from engine.planning.profiles import profile_of_machine
from tests.support import from_table

FOUND = ProgramOutput(text="modules are loaded\nucc: /usr/lib/libucc.so.1 1.9.0\n", status=0)
MISSING = ProgramOutput(text="ucc: there is no libucc.so.1\ninstall libucc1\n", status=1)


class Nodes:
    """What the nodes have. `asked`: those that were."""

    def __init__(self) -> None:
        self.gpus: dict[str, int] = {}
        self.torch_cuda: str | None = "12.8"
        self.trouble: CheckError | None = None
        self.said: dict[str, ProgramOutput] = {}
        self.asked: list[str] = []

    def facts(self, node: str) -> NodeFacts:
        return NodeFacts(name=node, cores=4, gpus=self.gpus.get(node, 0), python=sys.executable)

    def facts_of(
        self, plan: LaunchPlan, nodes: Sequence[PlannedNode], permit: Permit, **asked: Any
    ) -> tuple[NodeFacts, ...]:
        self.asked += [node.name for node in nodes]
        if self.trouble is not None:
            if asked["needed"]:
                raise self.trouble
            return ()
        cuda = self.torch_cuda if asked["with_torch"] else None
        return tuple(
            NodeFacts(name=node.name, cores=4, gpus=self.gpus.get(node.name, 0), python=plan.python, torch="2.13.0",
                      torch_cuda=cuda, output=self.said.get(node.name, FOUND) if asked["program"] else None)
            for node in nodes
        )  # fmt: skip


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    """A cluster without a GPU."""
    played = Nodes()
    monkeypatch.setattr(local, "facts", played.facts)
    monkeypatch.setattr(node_check, "facts_of", played.facts_of)
    return played


def planned(name: str, *fallback: str, checked: bool = True, **layout: Any) -> LaunchPlan:
    """The plan of a recipe on two nodes, or on those of the layout."""
    data = {
        "schema": 1,
        "name": "job",
        "backend": {"name": name, "fallback": list(fallback)},
        "layout": layout or {"nodes": ["gpu01:2", "gpu02:2"]},
        "recipe": {"name": "linear"},
    }
    return planning.make_plan(profile_from_data(data, "job.toml"), LAUNCHED, checked=checked)


def test_auto_takes_nccl_where_every_rank_has_a_gpu(nodes: Nodes):
    nodes.gpus = {"gpu01": 2, "gpu02": 8}
    plan = planned("auto")
    assert (plan.backend.name, plan.backend.device, plan.fallback) == ("nccl", "cuda", ())
    assert plan.backend_note == "auto: every node has a GPU for each rank"
    assert plan.backend_is_auto


@from_table
def test_auto_takes_gloo_elsewhere_and_says_why(gpus: dict[str, int], cuda: str, why: str, nodes: Nodes):
    nodes.gpus, nodes.torch_cuda = gpus, cuda
    plan = planned("auto")
    assert (plan.backend.name, plan.backend_note) == ("gloo", f"auto: nccl can't run: {why}")


def test_a_torch_that_can_not_be_looked_at_is_not_judged(nodes: Nodes):
    nodes.gpus, nodes.torch_cuda = {"gpu01": 2, "gpu02": 2}, None
    assert planned("auto").backend.name == "nccl"


def test_auto_counts_ranks_as_its_backend_does(nodes: Nodes):
    nodes.gpus = {"gpu01": 3}
    assert planned("auto", nodes="gpu01").world_size == 3
    nodes.gpus = {}
    assert planned("auto", nodes="gpu01").world_size == 4


def test_without_a_profile_each_backend_counts_the_ranks_of_this_machine(nodes: Nodes, capsys):
    nodes.gpus = {"localhost": 1}
    shown = {info.name: info for info in planning.available_backends(profile_of_machine(), LAUNCHED)}
    assert (shown["nccl"].trouble, shown["nccl"].found) == ("", "1 GPU: one rank for each")
    assert (shown["gloo"].trouble, shown["gloo"].found, shown["auto"].found) == ("", "", "here: nccl")
    show_backends(list(shown.values()), as_json=False, ascii_only=False)
    assert re.search(r"● nccl .*\n +1 GPU: one rank for each\n", capsys.readouterr().out)
    fewer = {
        one.name: one for one in planning.available_backends(profile_of_machine(["layout.ranks_per_node=2"]), LAUNCHED)
    }
    assert fewer["nccl"].trouble == "localhost has 1 GPU for 2 ranks: NCCL needs one for each"
    nodes.gpus = {"localhost": 4}
    more = {
        info.name: info
        for info in planning.available_backends(profile_of_machine(["layout.ranks_per_node=2"]), LAUNCHED)
    }
    assert more["nccl"].found == "4 GPUs: 2 ranks, each with its own"


def test_that_this_machine_has_no_gpu_needs_no_asking(nodes: Nodes):
    assert planned("auto", nodes="localhost").backend.name == "gloo"
    assert nodes.asked == []
    nodes.gpus = {"localhost": 4}
    assert planned("auto", nodes="localhost").backend.name == "nccl"
    assert nodes.asked == ["localhost"]


def test_without_fallback_a_backend_that_can_not_run_is_an_error_with_the_next_step(nodes: Nodes):
    with pytest.raises(CheckError) as caught:
        planned("nccl")
    assert caught.value.exit_status == 3
    assert caught.value.message == "gpu01 has no NVIDIA GPU"
    assert 'backend.fallback = ["gloo"]' in (caught.value.hint or "")


def test_fallback_is_tried_in_order(nodes: Nodes):
    plan = planned("nccl", "gloo")
    assert (plan.backend.name, plan.fallback) == ("gloo", ())
    assert plan.backend_note == "nccl can't run: gpu01 has no NVIDIA GPU"
    assert not plan.backend_is_auto


def test_what_may_take_over_later_is_part_of_the_plan(nodes: Nodes):
    nodes.gpus = {"gpu01": 2, "gpu02": 2}
    plan = planned("nccl", "cpu:gloo,cuda:nccl", "gloo")
    assert (plan.backend.name, plan.backend_note) == ("nccl", "")
    assert [spare.name for spare in plan.fallback] == ["cpu:gloo,cuda:nccl", "gloo"]
    other = with_backend(plan, "gloo")
    assert (other.backend.name, other.backend.device, other.places) == ("gloo", "cpu", plan.places)
    assert "TORCH_NCCL_DUMP_ON_TIMEOUT" in plan.env_defaults
    assert "TORCH_NCCL_DUMP_ON_TIMEOUT" not in other.env_defaults
    assert with_backend(plan, "nccl") is plan


def test_a_fallback_that_can_not_run_is_told(nodes: Nodes):
    plan = planned("gloo", "nccl")
    assert (plan.backend.name, plan.fallback) == ("gloo", ())
    assert plan.backend_note == "nccl can't run: gpu01 has no NVIDIA GPU"


@pytest.mark.parametrize("name", ["cpu:nccl", "cuda:mpi", "cpu:nccl,cuda:gloo"])
def test_a_backend_is_not_asked_for_a_device_that_is_not_its_own(nodes: Nodes, name: str):
    with pytest.raises(CheckError, match="can't be the backend for"):
        planned(name, nodes="localhost")


def test_where_none_can_run_all_reasons_are_told(nodes: Nodes):
    with pytest.raises(
        CheckError, match=r"no backend .* can run: nccl: gpu01 has no .*; cpu:gloo,cuda:nccl: gpu01 has"
    ):
        planned("nccl", "cpu:gloo,cuda:nccl")


def test_a_node_that_can_not_be_asked_is_no_reason_to_fall_back(nodes: Nodes):
    nodes.trouble = CheckError("gpu02: no route")
    with pytest.raises(CheckError, match="no route"):
        planned("nccl", "gloo")
    assert planned("nccl", "gloo", checked=False).backend.name == "nccl"
    assert planned("ucc", "gloo").backend.name == "ucc"
    with pytest.raises(CheckError, match="no route"):
        planned("ucc", "gloo", nodes=["gpu01", "gpu02"])


def test_a_node_without_libucc_is_an_error_with_the_next_step(nodes: Nodes):
    nodes.said = {"gpu02": MISSING}
    with pytest.raises(CheckError) as caught:
        planned("ucc")
    assert (caught.value.message, caught.value.hint) == ("gpu02: there is no libucc.so.1", "install libucc1")
    assert nodes.asked == ["gpu01", "gpu02"]
    plan = planned("ucc", "gloo")
    assert (plan.backend.name, plan.backend_note) == ("gloo", "ucc can't run: gpu02: there is no libucc.so.1")


@pytest.mark.parametrize(
    "said",
    [
        FOUND,
        ProgramOutput(text="", status=0),
        ProgramOutput(text="", status=1),
        ProgramOutput(text="modules:\nmodule avail failed\n", status=1),
        ProgramOutput(text="", status=-11),
        ProgramOutput(text="", status=None),
    ],
)
def test_only_who_says_what_is_missing_is_refused(nodes: Nodes, said: ProgramOutput):
    nodes.said = {"gpu02": said}
    assert planned("ucc", "gloo").backend.name == "ucc"


def test_a_missing_libucc_of_this_machine_is_told_as_it_is(nodes: Nodes):
    nodes.said = {"localhost": MISSING}
    with pytest.raises(CheckError, match=r"^there is no libucc\.so\.1"):
        planned("ucc", nodes="localhost")


def test_one_for_each_device_gives_ranks_both_environments(nodes: Nodes):
    nodes.gpus = {"localhost": 2}
    plan = planned("cpu:gloo,cuda:nccl", nodes="localhost")
    assert (plan.backend.name, plan.backend.device, plan.world_size) == ("cpu:gloo,cuda:nccl", "cuda", 2)
    assert plan.env_defaults["GLOO_SOCKET_IFNAME"] == plan.env_defaults["NCCL_SOCKET_IFNAME"] == "lo"


def test_mpi_can_not_be_one_of_several(nodes: Nodes):
    nodes.gpus = {"localhost": 2}
    with pytest.raises(CheckError, match="mpi can't be combined with other"):
        planned("cpu:mpi,cuda:nccl", nodes="localhost")


def test_a_script_of_this_folder_is_saved_with_its_path_unless_the_file_stays_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    profile = profile_from_data(
        {"schema": 1, "name": "x", "layout": {"nodes": "localhost:2"}, "recipe": {"script": "train.py"}}, "x.toml"
    )
    assert profile_paths.as_saved(profile, None).recipe.script == str(tmp_path / "train.py")
    assert profile_paths.as_saved(profile, Path("/elsewhere/x.toml")).recipe.script == str(tmp_path / "train.py")
    assert profile_paths.as_saved(profile, Path(".rankdeck/x.toml")) is profile
    (tmp_path / "train.py").unlink()
    assert profile_paths.as_saved(profile, None) is profile, "no file is meant, so nothing is made of it"
