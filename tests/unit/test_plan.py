"""What would run is what runs: argv, environment, ranks. The environment is torchrun's contract."""

import ast
import importlib.util
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.plan.document.reading import profile_from_data
from engine.core.plan.layout import Slots, parse_nodes
from engine.core.plan.plan import BackendSettings, LaunchPlan, NodeFacts, build_plan
from engine.core.plan.rank import AttemptPaths, differs_between_ranks, rank_argv, rank_environment, unset_variables
from tests.support import entries, from_table

GLOO = BackendSettings(name="gloo", env={"GLOO_SOCKET_IFNAME": "lo"}, device="cpu")
NCCL = BackendSettings(name="nccl", env={}, device="cuda")
HERE = NodeFacts(name="localhost", cores=6, gpus=2, python="/usr/bin/python3")
PATHS = AttemptPaths(
    library="/run/lib",
    error="/run/a0/3.error",
    metrics="/run/a0/3.metrics",
    stacks="/run/a0/3.stacks",
    handover="/run/a0/3.state",
    traces="/run/a0/nccl_trace_rank_",
    checkpoints="/run/ckpt",
)

TORCHRUN = {
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
    *("TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE"),
}
OURS = {f"RANKDECK_{name}" for name in "RUN GENERATION STACKS HANDOVER BACKEND TIMEOUT METRICS CHECKPOINTS".split()}


def make(
    data: dict[str, Any] | None = None, *, slots: tuple[Slots, ...] | None = None, backend: BackendSettings = GLOO
) -> LaunchPlan:
    profile = profile_from_data(
        {"schema": 1, "name": "x", "recipe": {"script": "/home/me/train.py"}} | (data or {}), "test"
    )
    slots = slots or parse_nodes(profile.layout.nodes, profile.layout.ranks_per_node)
    facts = tuple(HERE for _ in slots)
    return build_plan(profile, slots, facts, backend, workdir="/work")


def environment(decided: LaunchPlan, rank: int) -> dict[str, str]:
    return rank_environment(
        decided, decided.places[rank], run="x-1", attempt=2, address="127.0.0.1", port=40123, paths=PATHS
    )


# --- the command line ------------------------------------------------------------------------------------------------


@from_table
def test_argv_is_what_is_run_word_by_word(recipe: dict[str, Any], argv: list[str]) -> None:
    assert list(rank_argv(make({"recipe": recipe}), "/run/lib")) == argv


def test_the_python_of_the_profile_wins_over_that_of_the_node() -> None:
    assert rank_argv(make({"launch": {"python": "/opt/env/bin/python"}}), "/l")[0] == "/opt/env/bin/python"


@from_table
def test_arguments_may_name_the_rank(argument: str, of_rank_5: str) -> None:
    plan = make({"recipe": {"script": "t.py", "args": [argument]}}, slots=parse_nodes("a,b", 4))
    assert rank_argv(plan, "/l", plan.places[5])[3:] == (of_rank_5,)
    assert rank_argv(plan, "/l")[3:] == (argument,)


@from_table
def test_only_arguments_that_name_a_rank_differ_between_ranks(argument: str, differs: bool) -> None:
    assert differs_between_ranks(make({"recipe": {"script": "t.py", "args": [argument]}})) is differs


def test_a_program_has_a_short_title() -> None:
    assert make().program.title == "train.py"
    assert make({"recipe": {"module": "pkg.train"}}).program.title == "pkg.train"
    assert make({"recipe": {"name": "gpt"}}).program.title == "gpt"


# --- the environment -------------------------------------------------------------------------------------------------


def test_a_rank_gets_exactly_the_names_of_torchrun_and_ours() -> None:
    assert set(environment(make(), 0)) == TORCHRUN | OURS


def test_a_plain_environment_has_nothing_of_torchrun_and_what_the_node_has_of_it_is_unset() -> None:
    plan = make({"launch": {"environment": "plain"}, "env": {"RANK": "mine"}})
    env = environment(plan, 0)
    assert set(env) == OURS | {"RANK"}
    assert env["RANK"] == "mine"
    assert set(unset_variables(plan)) == TORCHRUN - {"RANK"}
    assert unset_variables(make()) == ()


def test_the_names_are_those_that_the_installed_torchrun_sets() -> None:
    """Read from torch's source, so that a new torch with another contract is noticed."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    elastic = Path(spec.origin).parent / "distributed" / "elastic"
    names: set[str] = set()
    for file in ("agent/server/local_elastic_agent.py", "multiprocessing/api.py"):
        for node in ast.walk(ast.parse((elastic / file).read_text())):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "worker_env":
                assert isinstance(node.value, ast.Dict)
                names |= {ast.literal_eval(key) for key in node.value.keys if key is not None}
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).startswith("envs[local_rank]["):
                names.add(ast.unparse(node.targets[0]).split("'")[1])
    assert len(names) > 10
    decided = make({"layout": {"ranks_per_node": 2}})
    assert names <= TORCHRUN | set(decided.env_defaults)


def test_values_are_those_of_the_rank() -> None:
    decided = make(slots=(Slots(node="a", ranks=2), Slots(node="b", ranks=3)))
    assert environment(decided, 3) == entries("unit/plan", "values_are_those_of_the_rank")


def test_with_nccl_torchs_flight_recorder_writes_beside_the_logs_unless_the_profile_says_where() -> None:
    def traces(plan: LaunchPlan) -> list[str | None]:
        env = rank_environment(plan, plan.places[0], run="r", attempt=0, address="a", port=1, paths=PATHS)
        return [env.get("TORCH_FR_DUMP_TEMP_FILE"), env.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE")]

    assert traces(make()) == [None, None]
    assert traces(make(backend=NCCL)) == ["/run/a0/nccl_trace_rank_"] * 2
    own = make({"env": {"TORCH_FR_DUMP_TEMP_FILE": "/mine/"}}, backend=NCCL)
    assert traces(own) == ["/mine/", "/run/a0/nccl_trace_rank_"]


def test_a_profile_adds_variables_but_can_not_move_a_rank() -> None:
    decided = make(
        {"env": {"RANK": "9", "MASTER_PORT": "1", "DATA": "/d"}, "backend": {"env": {"DATA": "/b", "B": "2"}}}
    )
    env = environment(decided, 0)
    assert (env["RANK"], env["MASTER_PORT"]) == ("0", "40123")
    assert (env["DATA"], env["B"]) == ("/d", "2")


def test_a_rank_gets_search_paths_from_its_node_which_adds_folders_to_the_profiles() -> None:
    env = environment(make({"env": {"PYTHONPATH": "/a", "LD_LIBRARY_PATH": "/b", "PATH": "/c"}}), 0)
    assert "PYTHONPATH" not in env
    assert "LD_LIBRARY_PATH" not in env
    assert env["PATH"] == "/c"


@pytest.mark.parametrize(("ranks", "there"), [(1, False), (2, True), (6, True)])
def test_omp_num_threads_is_a_default_where_ranks_share_a_node(ranks: int, there: bool) -> None:
    decided = make({"layout": {"ranks_per_node": ranks}})
    assert ("OMP_NUM_THREADS" in decided.env_defaults) is there
    assert "OMP_NUM_THREADS" not in environment(decided, 0)


def test_what_the_backend_wants_is_a_default_and_what_the_profile_wants_is_not() -> None:
    decided = make({"env": {"OMP_NUM_THREADS": "4"}})
    assert decided.env_defaults["GLOO_SOCKET_IFNAME"] == "lo"
    assert decided.env_defaults["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "1"
    assert environment(decided, 0)["OMP_NUM_THREADS"] == "4"


@given(st.integers(1, 5), st.integers(1, 5), st.sampled_from(["block", "cyclic"]))
@settings(deadline=None)
def test_ranks_of_the_environment_are_consistent_in_every_layout(left: int, right: int, order: str) -> None:
    decided = make({"layout": {"order": order}}, slots=(Slots(node="a", ranks=left), Slots(node="b", ranks=right)))
    envs = [environment(decided, rank) for rank in range(decided.world_size)]
    assert [env["RANK"] for env in envs] == [str(rank) for rank in range(left + right)]
    assert len({(env["GROUP_RANK"], env["LOCAL_RANK"]) for env in envs}) == left + right
    assert all(int(env["LOCAL_RANK"]) < int(env["LOCAL_WORLD_SIZE"]) for env in envs)
    for node in decided.nodes:
        assert node.ranks == tuple(place.rank for place in decided.places if place.node == node.name)


# --- automatic sizes -------------------------------------------------------------------------------------------------


def test_auto_counts_cores_on_a_cpu_backend_and_gpus_on_a_cuda_backend() -> None:
    assert make().world_size == 6
    assert make(backend=NCCL).world_size == 2


def test_auto_starts_one_rank_where_nothing_is_counted() -> None:
    profile = profile_from_data({"schema": 1, "name": "x", "recipe": {"name": "gpt"}}, "test")
    bare = NodeFacts(name="localhost", cores=0, gpus=0, python="python3")
    assert build_plan(profile, parse_nodes("localhost", "auto"), (bare,), NCCL, workdir="/").world_size == 1


# --- secrets ---------------------------------------------------------------------------------------------------------


def test_words_before_a_rank_are_its_own_and_need_no_template() -> None:
    plan = make({"rank": {"wrap": ["nsys", "-o", "{run}/rank{rank}"]}})
    assert not plan.launch.warm
    assert rank_argv(plan, "/l", plan.places[1], "/runs/a")[:4] == ("nsys", "-o", "/runs/a/rank1", plan.python)
    assert rank_argv(plan, "/l")[:3] == ("nsys", "-o", "{run}/rank{rank}")


def test_a_container_is_around_the_words_of_a_rank_and_has_a_python_of_its_own() -> None:
    plan = make({"launch": {"wrap": ["apptainer", "exec", "a.sif"]}, "rank": {"wrap": ["nsys", "-o", "{rank}"]}})
    assert not plan.launch.warm
    argv = rank_argv(plan, "/l", plan.places[1], "/runs/a")
    assert argv[:7] == ("apptainer", "exec", "a.sif", "nsys", "-o", "1", "python3")
    assert plan.rank_python == ("apptainer", "exec", "a.sif", "python3")


def test_agents_run_outside_a_container() -> None:
    inside = {"wrap": ["apptainer", "exec", "a.sif"], "python": "/opt/conda/bin/python"}
    plan = make({"launch": inside})
    assert (plan.python, plan.node_python) == ("/opt/conda/bin/python", make({}).python)
    assert make({"launch": {**inside, "setup": "module load cuda"}}).node_python == "python3"
    assert make({"launch": {"python": "/opt/python"}}).node_python == "/opt/python"
