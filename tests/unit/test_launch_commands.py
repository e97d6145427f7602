"""Commands of other launchers become profiles: what they say, what is left out, and where what can't be read stands."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.errors import UsageError
from engine.core.launch_commands import options
from engine.core.launch_commands.command import looks_like_launch
from engine.core.launch_commands.draft import Word, profile_data
from engine.core.launch_commands.script import batch_file, read_script
from engine.core.launch_commands.shell import statements, words_of
from engine.core.plan.layout import Place
from engine.core.plan.rank import literal, names_rank, with_place
from engine.core.tables import read_table
from engine.node.agent.ranks.spawn import with_variables
from engine.planning.imports import import_command
from tests.support import entries, from_table, rows

BITS = """
torchrun mpirun srun accelerate launch deepspeed python -m torch.distributed.run -n 4 -np --nnodes 2 --host a:2,b:2 train.py --
'a b' " ' $X ${X} $(x y) ` | && ; > log 2>&1 & \\ # export A=b cd x source --nproc_per_node --ntasks-per-node=2 #SBATCH -N
"""


def read(text: str, nodes: str | None = None, file: str = "") -> dict[str, Any]:
    draft, _ = read_script(text, file)
    data = profile_data(draft, "x", nodes, folder="/here")
    return {key: value for key, value in data.items() if key not in ("schema", "name")}


def notes(text: str, file: str = "") -> dict[str, str]:
    draft, _ = read_script(text, file)
    return {note.what: note.why for note in draft.notes}


def profile(
    ranks: int | None = None,
    *args: str,
    script: str = "train.py",
    backend: str = "auto",
    layout: dict[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    where = {**(layout or {}), **({} if ranks is None else {"ranks_per_node": ranks})}
    data = {"backend": {"name": backend}, "layout": where, "recipe": {"script": script, "args": list(args)}, **more}
    return {key: value for key, value in data.items() if value != {}}


# --- the tables -------------------------------------------------------------------------------------------------------


def test_the_tables_name_launchers_and_reasons_that_exist_and_each_option_once() -> None:
    rows = read_table(options.__package__, "options", options.Option)
    launchers = {launcher for row in rows for launcher in row.launchers.split()}
    assert launchers == set(get_args(options.Launcher))
    assert all(row.takes in ("0", "1", "2") and row.names for row in rows)
    assert all(row.sets or row.takes == "2" for row in rows if row.means == "variable")
    assert {row.why for row in rows if row.why and " " not in row.why} <= set(options.reasons())
    for launcher in get_args(options.Launcher):
        names = [name for row in options.options_of(launcher) for name in row.names.split()]
        assert len(names) == len(set(names)), launcher
        assert all(name.startswith("-") and "_" not in name for name in names)


# --- commands of trainers ---------------------------------------------------------------------------------------------


@from_table
def test_commands_of_trainers(command: str, wanted: dict[str, Any]) -> None:
    assert read(command) == wanted
    assert looks_like_launch(command)


def test_a_process_substitution_stays_whole() -> None:
    text = "source <(spack load --sh py-torch)\ntorchrun train.py 2> log\n"
    assert read(text, file="run.sh")["launch"]["setup"].endswith("source <(spack load --sh py-torch)")
    assert notes(text, file="run.sh") == {"2> log": "rankdeck keeps the output of every rank: rankdeck logs"}
    assert "<(zcat a b)" in notes("torchrun train.py <(zcat a b)")


# --- torchrun --------------------------------------------------------------------------------------------------------


@from_table
def test_torchrun_becomes_a_profile(command: str, wanted: dict[str, Any]) -> None:
    assert read(command) == wanted


def test_a_module_stays_one() -> None:
    assert read("torchrun -m pkg.train x")["recipe"] == {"module": "pkg.train", "args": ["x"]}
    assert read("python -m pkg.train -m x")["recipe"] == {"module": "pkg.train", "args": ["-m", "x"]}


def test_several_nodes_must_be_named() -> None:
    command = "torchrun --nnodes 2 --node-rank 0 --nproc-per-node 8 --master-addr a train.py"
    with pytest.raises(UsageError, match="runs on 2 nodes and does not name them") as raised:
        read(command)
    assert "--nodes" in str(raised.value.hint)
    assert read(command, nodes="gpu[01-02]") == profile(8, layout={"nodes": "gpu[01-02]"})


# --- accelerate, deepspeed -------------------------------------------------------------------------------------------


@from_table
def test_accelerate_and_deepspeed_become_a_profile(command: str, wanted: dict[str, Any]) -> None:
    assert read(command) == wanted


def test_ranks_of_accelerate_are_shared_among_its_machines() -> None:
    command = "accelerate launch --num_processes {} --num_machines 2 --machine_rank 0 --main_process_ip a train.py"
    assert read(command.format(8), nodes="a,b")["layout"] == {"nodes": "a,b", "ranks_per_node": 4}
    with pytest.raises(UsageError, match="7 ranks on 2 nodes"):
        read(command.format(7), nodes="a,b")


def test_a_family_of_options_of_accelerate_is_left_out_by_name() -> None:
    command = "accelerate launch --num_processes 1 --megatron_lm_tp_degree 2 --parallelism_config_tp_size=2 train.py 3"
    assert list(notes(command)) == ["--megatron_lm_tp_degree", "--parallelism_config_tp_size"]
    assert read(command)["recipe"]["args"] == ["3"]


# --- mpirun, srun ----------------------------------------------------------------------------------------------------


@from_table
def test_mpirun_and_srun_become_a_profile(command: str, wanted: dict[str, Any]) -> None:
    assert read(command) == wanted


# --- batch files -----------------------------------------------------------------------------------------------------


def test_a_batch_file_may_keep_its_launcher_in_a_variable() -> None:
    text = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1
export LAUNCHER="accelerate launch --num_processes 16 --num_machines 2 --machine_rank \\$SLURM_PROCID"
export CMD="train.py --lr 1"
srun --wait=60 --kill-on-bad-exit=1 --jobid $SLURM_JOB_ID bash -c "$LAUNCHER $CMD" 2>&1 | tee log
"""
    found = read(text, file="run.sbatch")
    assert (found["layout"], found["recipe"]["args"]) == ({"slurm": {"nodes": 2}, "ranks_per_node": 8}, ["--lr", "1"])


BATCH = entries("unit/launch_commands", "batch")


def test_a_batch_file_becomes_a_profile() -> None:
    draft, name = read_script(BATCH, "job.sh")
    assert name == "big-run"
    assert read(BATCH, file="job.sh") == profile(
        4, "--lr", "0.1", "--data", "{env.DATA}",
        layout={"slurm": {"nodes": 2, "time": "01:00:00", "options": ["--gpus-per-node=4"]}},
        launch={"setup": "module load cuda/12.4\nsource ~/env/bin/activate\nexport PYTHONPATH=$PWD:$PYTHONPATH"},
        env={"NCCL_DEBUG": "INFO"},
    )  # fmt: skip
    left = {note.what for note in draft.notes}
    assert {"job.sh:16: nvidia-smi", "$DATA", "> log.$SLURM_JOB_ID", "--rdzv_endpoint"} <= left


FILES = sorted((Path(__file__).parents[1] / "data/batch").glob("*.sh"))


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_batch_files_in_the_manner_of_sites_are_read_or_refused_by_line(file: Path) -> None:
    try:
        found: Any = [read(file.read_text(), file=file.name), notes(file.read_text(), file.name)]
    except UsageError as error:
        found = f"{error.message} | {error.hint}"
    assert found == json.loads(file.with_suffix(".json").read_text())


def test_options_of_sbatch_win_over_its_file() -> None:
    text = "#SBATCH -N 2\n#SBATCH --ntasks-per-node=2\nsrun python train.py\n"
    options = [Word("--ntasks-per-node=8", "the command")]
    assert profile_data(read_script(text, "job.sh", options)[0], "x")["layout"]["ranks_per_node"] == 8
    words = [Word(text, "") for text in ("sbatch", "-N", "2", "--hold", "job.sh", "more")]
    assert batch_file(words[:5]) == ("job.sh", words[1:4])
    with pytest.raises(UsageError, match="more is an argument of"):
        batch_file(words)
    assert batch_file(words[1:]) is None


@pytest.mark.parametrize(("options", "table", "ladder"), rows("unit/launch_commands", "signals"))
def test_a_signal_before_the_time_limit_becomes_the_warning_of_a_job(
    options: str, table: dict[str, Any] | str, ladder: list[Any] | None
) -> None:
    found = read(f"#SBATCH {options}\nsrun python train.py\n", file="job.sh")
    assert found["layout"]["slurm"] == table
    assert found.get("launch", {}).get("stop_ladder") == ladder


def test_the_command_that_starts_ranks_is_chosen_among_others() -> None:
    text = "python prepare.py\nsrun python train.py\necho done\n"
    assert read(text, file="job.sh")["recipe"]["script"] == "train.py"
    assert "job.sh:1: python prepare.py" in notes(text, "job.sh")
    with pytest.raises(UsageError, match=r"several commands start programs: job\.sh:1, job\.sh:2"):
        read("srun python a.py\nsrun python b.py", file="job.sh")


# --- what can't be read ----------------------------------------------------------------------------------------------


@from_table
def test_what_can_not_be_read_is_said_with_its_place_and_the_next_step(command: str, said: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        read(command)
    assert said in raised.value.message
    assert hint in str(raised.value.hint)


def test_what_is_left_out_is_named_with_a_reason() -> None:
    found = notes("torchrun --rdzv-id 7 --tee 3 --virtual-local-rank --nnodes 1:4 --standalone train.py $A | tee log &")
    assert set(found) == {"| tee log", "--rdzv-id", "--tee", "--virtual-local-rank", "--nnodes 1:4", "$A"}
    assert all(found.values())


@from_table
@pytest.mark.parametrize("is_file", [False, True])
def test_a_command_in_an_environment_is_read_and_its_python_is_asked_for(runner: str, is_file: bool) -> None:
    command = f"A=1 {runner} torchrun --nproc-per-node 2 train.py --lr 1"
    text = f"#!/bin/bash\n#SBATCH -N 1\nconda activate x\npython prepare.py\n{command}\n" if is_file else command
    draft, _ = read_script(text, "job.sh" if is_file else "")
    assert (draft.target, draft.args, draft.ranks, draft.env) == ("train.py", ["--lr", "1"], 2, {"A": "1"})
    assert [why for what, why in draft.notes if what == runner] == [
        "name the Python of that environment, if it is not the active one: launch.python"
    ]
    assert draft.setup == (["conda activate x"] if is_file else [])
    assert looks_like_launch(command.removeprefix("A=1 "))


def test_shell_text_is_taken_apart_without_a_shell() -> None:
    text = "a 'b;c' \"d && e\" f#g # h\nexport X=$(i | j) Y=`k; l`;m 2>&1 >>log <in&&n \\\n o | p\n"
    found = list(statements(text, "f"))
    assert [(one.place, [word.text for word in words_of(one, {})]) for one in found] == [
        ("f:1", ["a", "b;c", "d && e", "f#g"]),
        ("f:2", ["export", "X=$(i | j)", "Y=`k; l`"]),
        ("f:2", ["m"]),
        ("f:2", ["n", "o"]),
    ]
    assert found[2].left_out == ("2>&1", ">>log", "<in")


@given(st.lists(st.sampled_from([*BITS.split(), "\n", "\\\n"]), max_size=12))
def test_any_text_is_read_or_refused_with_a_next_step(words: list[str]) -> None:
    refused: list[UsageError] = []
    for file in ("", "job.sh"):
        try:
            read(" ".join(words), file=file)
        except UsageError as error:
            refused.append(error)
    assert all(error.hint for error in refused)


# --- words of ranks --------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(["{", "}", "rank", "local_rank", "world_size", "env.A", "x", "$"])).map("".join))
def test_an_argument_that_is_meant_literally_reaches_every_rank(argument: str) -> None:
    place = Place(rank=1, node="a", local_rank=0, group_rank=0, local_world_size=1)
    assert with_variables(with_place(literal(argument), place, 2), {}) == argument
    assert names_rank(literal(argument)) or literal(argument) == argument


@from_table
def test_a_pasted_launch_is_told_from_other_text(text: str, is_launch: bool):
    assert looks_like_launch(text) == is_launch


def test_what_a_command_lacks_is_noted_for_a_form():
    found = import_command(["torchrun --nnodes 2 --nproc-per-node 4 t.py"], is_whole=False)
    assert [note.what for note in found.notes] == ["2 nodes"]
    assert found.profile.layout.ranks_per_node == 4
    assert [note.what for note in import_command(["srun -N 2 -n 3 python t.py"], is_whole=False).notes] == [
        "3 ranks on 2 nodes"
    ]
