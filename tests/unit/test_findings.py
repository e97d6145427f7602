"""Checks of nodes: what nodes answer, and what a user is told of it."""

from typing import Any, TypeVar

import msgspec
import pytest
from msgspec.structs import replace

from engine.core.checks import findings
from engine.core.checks.cluster_findings import Answers, comparisons, head_findings, route_findings, silence_findings
from engine.core.checks.job_findings import job_findings, torch_findings
from engine.core.checks.node_findings import clock_finding, machine_findings, reach_finding
from engine.core.numbers import size_words
from engine.core.plan.document.reading import profile_from_data
from engine.core.plan.environment import EnvWarning, is_meant
from engine.core.plan.layout import Slots
from engine.core.plan.plan import BackendSettings, LaunchPlan, NodeFacts, build_plan
from engine.core.words import count
from tests.support import from_table

T = TypeVar("T")

BACKENDS = {
    "gloo": BackendSettings(name="gloo", env={}, device="cpu"),
    "ucc": BackendSettings(name="ucc", device="cpu", env={}),
    "nccl": BackendSettings(name="nccl", env={}, device="cuda"),
    "both": BackendSettings(name="cpu:gloo,cuda:nccl", env={}, device="cuda"),
    "mpi": BackendSettings(name="mpi", env={}, device="cpu", rejoins_over="gloo"),
}
GIB = 1 << 30


def planned(
    nodes: int = 2, ranks: int = 2, backend: str = "gloo", *, recipe: str = "script", env: dict[str, str] | None = None
) -> LaunchPlan:
    """A launch on gpu1, gpu2, … of a script, a module or a recipe."""
    target = {"script": "/shared/train.py", "module": "pkg.train", "name": "gpt"}[recipe]
    profile = profile_from_data(
        {"schema": 1, "name": "job", "layout": {"nodes": [f"gpu{n}:{ranks}" for n in range(1, nodes + 1)]},
         "recipe": {recipe: target}, "env": env or {}},
        "job.toml",
    )  # fmt: skip
    slots = tuple(Slots(node=f"gpu{n}", ranks=ranks) for n in range(1, nodes + 1))
    facts = tuple(NodeFacts(name=slot.node, cores=1, gpus=0, python="/venv/bin/python") for slot in slots)
    return build_plan(profile, slots, facts, BACKENDS[backend], workdir="/shared")


MACHINE = findings.Machine(
    python="3.11.7", executable="/venv/bin/python", architecture="x86_64", cores=8, gpus=2, open_files=65536,
    locked_memory=None, memory=None, has_infiniband=False, mpirun="/usr/bin/mpirun",
    interfaces=(("lo", "127.0.0.1"), ("eth0", "10.0.0.1"), ("lo", "::1"), ("ib0", "")), leftovers=(),
)  # fmt: skip
SPACE = findings.Space(what="temporary folder", path="/tmp", bytes=20 * GIB, files=None, trouble="")
JOB = findings.JobFacts(
    workdir="", workdir_writable=True, script=findings.Script(size=2048, sha256="12ab34cd" * 8, trouble=""), module=True,
    torch="2.13.0+cpu", torch_cuda="", has_torch=True, mpi4py="4.1.2", start="", spaces=(SPACE,), shared_memory=8 * GIB,
)  # fmt: skip
FACTS = findings.TorchFacts(version="2.13.0+cpu", cuda="", gpus=2, distributed=True, backends=("gloo",))
TORCH = findings.Torch(facts=FACTS, trouble="", timed_out=False, devices=())


def changed(base: T, fields: dict[str, Any]) -> T:
    """A copy that differs in these fields, as messages write them. A table changes fields of a part, and those of a space, which is like SPACE."""
    data = msgspec.to_builtins(base)
    for name, value in fields.items():
        if name == "spaces":
            data[name] = [msgspec.to_builtins(SPACE) | one for one in value]
        else:
            data[name] = data[name] | value if isinstance(value, dict) else value
    return msgspec.convert(data, type(base))


def the(findings: list[findings.Finding], check: findings.Check) -> findings.Finding:
    """The last word on a check."""
    return [finding for finding in findings if finding.check == check][-1]


# --- one node --------------------------------------------------------------------------------------------------------


@from_table
def test_a_clock_is_judged_by_what_is_certain(ahead: float, uncertain: float, state: findings.State, text: str):
    found = clock_finding("gpu1", ahead, uncertain)
    assert (found.state, found.text, bool(found.hint)) == (state, text, state != "ok")


@from_table
def test_what_a_node_has(
    check: findings.Check, state: findings.State, text: str, fields: dict[str, Any], options: dict[str, Any]
):
    launch = planned(**options)
    found = the(machine_findings(launch, launch.nodes[0], changed(MACHINE, fields)), check)
    assert (found.node, found.state) == ("gpu1", state)
    assert text in found.text
    assert bool(found.hint) == (state in ("warn", "fail"))


def test_variables_that_do_nothing_are_told_once_for_all_nodes():
    def warned(*names: str) -> list[findings.Finding]:
        warnings = tuple(
            EnvWarning(place="job.toml:9", table="env", name=name, problem="does nothing", hint=f"leave {name} out")
            for name in names
        )
        launch = replace(planned(), warnings=warnings)
        return [the(machine_findings(launch, node, MACHINE), "env") for node in launch.nodes]

    assert warned("A") == [
        findings.warn("gpu1", "env", "job.toml:9: env.A does nothing", "leave A out"),
        findings.skip("gpu2", "env", "see gpu1"),
    ]
    both = warned("A", "B")[0]
    assert both.text == "job.toml:9: env.A does nothing; job.toml:9: env.B does nothing"
    assert both.hint == "A: leave A out; B: leave B out"


def test_an_interface_that_no_variable_names_is_found_by_the_way_to_the_head():
    launch = planned()
    assert "interface" not in {one.check for one in machine_findings(launch, launch.nodes[0], MACHINE)}


@from_table
def test_names_of_interfaces_are_read_as_nccl_reads_them(value: str, meant: list[str]):
    names = ("lo", "eth0", "eth1", "ib0", "docker0")
    assert {name for name in names if is_meant(name, value, prefixes=True)} == set(meant)


@from_table
def test_what_a_rank_would_find(
    check: findings.Check, state: findings.State, text: str, fields: dict[str, Any], recipe: str
):
    found = the(job_findings(planned(recipe=recipe), "gpu1", MACHINE, changed(JOB, fields), full=False), check)
    assert found.state == state
    assert text in found.text
    assert bool(found.hint) == (state in ("warn", "fail"))


def test_a_full_check_leaves_torch_and_backend_to_the_import():
    found = job_findings(planned(), "gpu1", MACHINE, JOB, full=True)
    assert {one.check for one in found} == {"workdir", "script", "disk"}


@from_table
def test_what_an_import_of_torch_says(
    check: findings.Check, state: findings.State, text: str, fields: dict[str, Any], options: dict[str, Any]
):
    launch = planned(**options)
    found = the(torch_findings(launch, launch.nodes[0], MACHINE, JOB, changed(TORCH, fields)), check)
    assert found.state == state
    assert text in found.text
    assert bool(found.hint) == (state in ("warn", "fail"))


@from_table
def test_a_quick_look_sees_that_torch_was_built_for_cpus(cuda: str | None, state: findings.State, text: str):
    found = the(
        job_findings(planned(backend="nccl"), "gpu1", MACHINE, replace(JOB, torch_cuda=cuda), full=False), "backend"
    )
    assert (found.state, text in found.text) == (state, True)


@pytest.mark.parametrize("full", [False, True])
@from_table
def test_mpi_needs_an_mpirun_and_mpi4py(machine, job, built_in, state, text, full):
    launch = planned(backend="mpi")
    has, finds = replace(MACHINE, **machine), replace(JOB, **job)
    torch = replace(TORCH, facts=replace(FACTS, backends=built_in))
    found = (
        torch_findings(launch, launch.nodes[0], has, finds, torch)
        if full
        else job_findings(launch, "gpu1", has, finds, full=False)
    )
    assert (the(found, "backend").state, text in the(found, "backend").text) == (state, True)


def test_a_torch_that_was_built_with_mpi_needs_no_mpi4py():
    launch = planned(backend="mpi")
    torch = replace(TORCH, facts=replace(FACTS, backends=("gloo", "mpi")))
    found = torch_findings(launch, launch.nodes[0], MACHINE, replace(JOB, mpi4py=""), torch)
    assert the(found, "backend").state == "ok"


# --- between nodes ---------------------------------------------------------------------------------------------------

DOOR = findings.ProbeListener(port=4242, addresses=("10.0.0.1", "192.168.0.1"))
BY_BOTH = findings.Routes(reached=(("10.0.0.1", "eth0"), ("192.168.0.1", "eth1")), missed=())
BY_SECOND = findings.Routes(reached=(("192.168.0.1", "eth1"),), missed=(("10.0.0.1", "No answer"),))
BY_NONE = findings.Routes(reached=(), missed=(("10.0.0.1", "No answer"), ("192.168.0.1", "Connection refused")))


def said(findings: list[findings.Finding]) -> list[tuple[findings.Check, findings.State, str]]:
    return [(one.check, one.state, one.text) for one in findings]


def test_how_a_node_reaches_the_head():
    launch = planned()
    assert said(route_findings(launch, "gpu2", DOOR, BY_SECOND)) == [
        ("head", "ok", "gpu1 is reached at 192.168.0.1"),
        ("interface", "ok", "eth1 connects to gpu1"),
    ]
    assert said(route_findings(launch, "gpu2", DOOR, BY_NONE)) == [
        ("head", "fail", "gpu1 can't be reached from there: 10.0.0.1: no answer; 192.168.0.1: connection refused"),
        ("interface", "skip", "no other node connects to gpu1"),
    ]
    assert (
        "only local addresses" in route_findings(launch, "gpu2", DOOR, findings.Routes(reached=(), missed=()))[0].text
    )
    assert {state for _, state, _ in said(route_findings(launch, "gpu2", None, None))} == {"skip"}


def test_an_interface_that_a_variable_names_is_not_told_of_twice():
    launch = planned(env={"GLOO_SOCKET_IFNAME": "eth0"})
    for door, ways in ((DOOR, BY_BOTH), (DOOR, BY_NONE), (None, None)):
        assert [one.check for one in route_findings(launch, "gpu2", door, ways)] == ["head"]
    assert [one.check for one in head_findings(launch, MACHINE, DOOR, {"gpu2": BY_BOTH})] == ["head"]


def test_the_head_needs_one_address_that_all_others_reach():
    launch = planned(nodes=3)
    machine = replace(MACHINE, interfaces=(("eth0", "10.0.0.1"), ("eth1", "192.168.0.1")))

    def head(**ways: findings.Routes) -> list[tuple[findings.Check, findings.State, str]]:
        return said(head_findings(launch, machine, DOOR, ways))

    assert head(gpu2=BY_BOTH, gpu3=BY_SECOND) == [
        ("head", "ok", "all others reach it at 192.168.0.1"),
        ("interface", "ok", "eth1, 192.168.0.1"),
    ]
    assert head(gpu2=BY_BOTH)[0] == ("head", "ok", "1 of 2 others reach it at 10.0.0.1")
    only_first = findings.Routes(reached=(("10.0.0.1", "eth0"),), missed=())
    assert head(gpu2=only_first, gpu3=BY_SECOND)[0][:2] == ("head", "fail")
    assert head(gpu2=BY_NONE, gpu3=BY_NONE)[0][:2] == ("head", "fail")
    assert [state for _, state, _ in head()] == ["skip", "skip"]
    assert said(head_findings(planned(nodes=1), MACHINE, None, {})) == [("head", "skip", "one node needs no network")]


def answers(**fields: list[Any]) -> dict[str, Answers]:
    """gpu1, gpu2, … that differ in these fields."""
    count = len(next(iter(fields.values())))
    nodes = {}
    for index in range(count):
        mine = {name: values[index] for name, values in fields.items()}
        machine = changed(MACHINE, {key: mine[key] for key in ("python", "architecture") if key in mine})
        job = changed(JOB, {key: mine[key] for key in ("torch", "script") if key in mine})
        nodes[f"gpu{index + 1}"] = Answers(machine=machine, job=job)
    return nodes


@from_table
def test_nodes_are_compared_with_most_of_the_others(fields: dict[str, list[Any]], expected: list[tuple[str, ...]]):
    assert [(one.node, one.check, one.state, one.text) for one in comparisons(answers(**fields))] == [
        tuple(one) for one in expected
    ]


def test_what_an_import_says_of_its_version_counts_more_than_what_an_installer_wrote():
    nodes = answers(torch=["2.13.0+cpu", "2.13.0+cpu"])
    nodes["gpu2"].torch = replace(TORCH, facts=replace(FACTS, version="2.6.0"))
    assert {one.node for one in comparisons(nodes)} == {"gpu2"}


def test_a_node_that_failed_by_itself_is_not_compared():
    nodes = answers(
        torch=["2.13.0", "2.6.0"], python=["3.11.7", "3.9.2"], script=[{"sha256": "aa" * 32}, {"sha256": "bb" * 32}]
    )
    nodes["gpu2"].torch = replace(TORCH, facts=None, trouble="no")
    nodes["gpu2"].job = replace(JOB, start="boom", script=findings.Script(size=0, sha256="", trouble="gone"))
    assert comparisons(nodes) == []
    assert comparisons({"gpu1": Answers(), "gpu2": Answers()}) == []


def test_a_silent_node_is_told_of_once_and_every_check_has_an_answer():
    found = silence_findings("gpu1", {"ssh", "clock"}, None, "no answer within 10 s", "try it by hand")
    assert [one.check for one in found if one.state == "fail"] == ["python"]
    assert {one.check for one in found} == set(findings.CHECKS) - {"ssh", "clock"}
    assert [one.check for one in silence_findings("gpu1", (), "ssh", "x", "y")] == list(findings.CHECKS)


# --- the grid --------------------------------------------------------------------------------------------------------


def test_a_later_finding_takes_the_place_of_an_earlier_one():
    grid = findings.Grid(["gpu1", "gpu2"])
    for check in findings.CHECKS:
        assert not grid.is_complete("gpu2")
        grid.take(findings.ok("gpu2", check, "fine"))
    grid.take(findings.warn("gpu2", "torch", "another build", "install"))
    grid.take(findings.fail("gpu2", "torch", "another release", "install"))
    grid.take(findings.fail("gpu1", "ssh", "refused", "start it"))
    assert grid.is_complete("gpu2")
    assert not grid.is_complete("gpu1")
    assert [(one.node, one.check) for one in grid.in_state("warn", "fail")] == [("gpu1", "ssh"), ("gpu2", "torch")]
    assert len(grid.all()) == len(findings.CHECKS) + 1
    assert grid.at("gpu1", "torch") is None


def test_every_check_is_explained():
    assert tuple(findings.check_words()) == findings.CHECKS


def test_how_a_node_was_reached():
    launch = planned()
    assert reach_finding(launch.nodes[0], 0.31).text == "answered after 0.3 s"
    assert reach_finding(replace(launch.nodes[0], transport="local"), 0.31).text == "this machine"


@pytest.mark.parametrize(
    ("size", "words"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (200 << 20, "200 MiB"), (3 << 40, "3 TiB"), (1 << 60, "1048576 TiB")],
)  # fmt: skip
def test_sizes_are_words(size: int, words: str):
    assert size_words(size) == words


def test_numbers_of_things_are_words():
    assert [count(number, "process", "processes") for number in (0, 1, 2)] == [
        "0 processes",
        "1 process",
        "2 processes",
    ]


def test_the_first_node_offers_what_ranks_import_slowly():
    plan = replace(planned(), preload=("numpy",), slow_imports=(("transformers.trainer", 4.71),))
    first, second = (the(job_findings(plan, node.name, MACHINE, JOB, full=False), "script") for node in plan.nodes)
    assert first.state == second.state == "ok"
    assert first.text.endswith("in its last run each rank imported transformers.trainer in 4.7 s")
    assert first.hint.startswith('launch.preload = ["numpy", "transformers.trainer"] imports them once')
    assert not second.hint
