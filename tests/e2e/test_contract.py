"""What a rank finds when it starts: torchrun's environment, its own script folder, its arguments, and no secret elsewhere."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import PATIENCE, check_err, check_out, entries, from_table, processes_with, wait_until

DUMP = entries("e2e/contract", "dump")

TORCHRUN_NAMES = ("TORCH", "LOCAL_", "GROUP_", "ROLE_", "WORLD_SIZE", "MASTER_", "OMP_", "NCCL_", "GLOO_")

ALL_REDUCE = entries("e2e/contract", "all_reduce")

AWKWARD = ["", " ", "two words", "'", '"', "back\\slash", "line\nfeed", "\ttab", "é漢🦉", "$(touch pwned)", "`id`", "*", "-", "--",
           "--steps=3", ";", "a=b", "%s", "{x}", "~", "\x1b[31m", "x" * 5000]  # fmt: skip


def dumps(folder: Path) -> dict[str, dict[str, object]]:
    """What `DUMP` wrote, by rank."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


@pytest.fixture
def dump_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where `DUMP` writes to."""
    folder = tmp_path / "dumps"
    folder.mkdir()
    monkeypatch.setenv("DUMP_TO", str(folder))
    return folder


# --- torchrun


@pytest.mark.slow
def test_the_environment_of_a_rank_is_torchruns(rankdeck, write_script, write_profile, dump_folder):
    script = write_script("dump.py", DUMP)
    assert rankdeck("launch", write_profile(script, ranks=2)).returncode == 0
    ours = {rank: dump["env"] for rank, dump in dumps(dump_folder).items()}
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    subprocess.run(argv, timeout=PATIENCE, check=True, capture_output=True)
    theirs = {rank: dump["env"] for rank, dump in dumps(dump_folder).items()}
    assert sorted(ours) == sorted(theirs) == ["0", "1"]
    for rank in ("0", "1"):
        mine, other = ours[rank], theirs[rank]
        assert isinstance(mine, dict)
        assert isinstance(other, dict)
        names = {"RANK", *(name for name in other if name.startswith(TORCHRUN_NAMES) and name not in os.environ)}
        # torchrun tells this to its own agent through its own environment; that ranks inherit it is an accident of 2.13.
        assert names - mine.keys() <= {"TORCHELASTIC_SIGNALS_TO_HANDLE"}
        names &= mine.keys()
        extra = {name for name in mine if name.startswith(TORCHRUN_NAMES) and name not in os.environ} - names
        assert extra <= {"GLOO_SOCKET_IFNAME"}
        different = {name for name in names if mine[name] != other[name]}
        assert different <= {
            "MASTER_ADDR",
            "MASTER_PORT",
            "TORCHELASTIC_ERROR_FILE",
            "TORCHELASTIC_MAX_RESTARTS",
            "TORCHELASTIC_RUN_ID",
        }


@pytest.mark.slow
def test_a_torchrun_script_runs_unchanged(rankdeck, write_profile):
    done = rankdeck("launch", write_profile(ALL_REDUCE, ranks=2))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()[1:]) == [f"[r{rank} localhost] sum 3.0 of 2" for rank in range(2)]


@pytest.mark.slow
def test_the_linear_recipe_trains_and_its_numbers_show(rankdeck, write_profile):
    profile = write_profile({"name": "linear", "args": ["--steps", "30", "--delay", "0"]}, ranks=2)
    done = rankdeck("launch", profile)
    assert done.returncode == 0, done.stderr
    status = rankdeck.status()
    assert (status["state"], status["step"], status["steps"]) == ("succeeded", 30, 30)
    assert [rank["step"] for rank in status["ranks"]] == [30, 30]
    assert status["loss"] < 5


@pytest.mark.slow
def test_a_rank_that_dies_in_a_collective_is_the_root_cause_and_its_peers_are_not(rankdeck, write_profile):
    script = (
        "import os, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "dist.barrier()\n"
        "if dist.get_rank() == 1: os._exit(42)\n"
        "while True: dist.all_reduce(torch.ones(10))\n"
    )
    done = rankdeck("launch", write_profile(script, ranks=3, launch={"on_failure": "stop"}))
    assert done.returncode == 42, done.stderr


# --- the script and its folder


def test_a_rank_starts_like_python_script(rankdeck, write_script, write_profile, work, dump_folder):
    script = write_script("sub folder/dump.py", DUMP)
    rankdeck("launch", write_profile({"script": "sub folder/dump.py", "args": ["--steps", "3"]}))
    dump = dumps(dump_folder)["0"]
    assert dump["argv"] == [str(script), "--steps", "3"]
    assert dump["cwd"] == str(work)
    assert dump["path"] == str(script.parent)


def test_script_and_workdir_count_from_where_rankdeck_is_started(
    rankdeck, write_script, write_profile, work, dump_folder, tmp_path
):
    script = write_script("dump.py", DUMP)
    (work / "data").mkdir()
    profile = write_profile({"script": "dump.py"}, launch={"workdir": "data"})
    elsewhere = tmp_path / "profiles"
    elsewhere.mkdir()
    profile = profile.rename(elsewhere / "job.toml")
    assert rankdeck("launch", profile, cwd=work).returncode == 0
    dump = dumps(dump_folder)["0"]
    assert (dump["cwd"], dump["argv"]) == (str(work / "data"), [str(script)])


def test_a_script_beside_its_own_engine_and_tui_imports_its_own(rankdeck, write_script, write_profile):
    write_script("engine.py", "def train_one_epoch(): return 'the engine of the repository'")
    write_script("tui.py", "name = 'the tui of the repository'")
    script = (
        "from engine import train_one_epoch\nimport tui, sys, rankdeck\n"
        "print(train_one_epoch()); print(tui.name); print(sorted(n for n in sys.modules if n.startswith('engine')))"
    )
    done = rankdeck("launch", write_profile(script))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:] == [
        "[r0 localhost] the engine of the repository",
        "[r0 localhost] the tui of the repository",
        "[r0 localhost] ['engine']",
    ]


@pytest.mark.parametrize("installed", [False, True], ids=["file", "console script"])
def test_a_repository_on_pythonpath_takes_the_place_of_nothing_of_ours(
    rankdeck, write_script, write_profile, work, installed
):
    """`PYTHONPATH=.` with an `engine.py`, a `tui.py` and a `socket.py` in it is common, and ranks must keep it."""
    broken = "raise SystemExit('this is the repository, not rankdeck')"
    write_script("engine.py", "def train_one_epoch(): return 'theirs'")
    write_script("tui.py", broken)
    write_script("click.py", "")
    (work / "click.py").unlink()
    if installed:
        rankdeck.argv = [str(Path(sys.executable).with_name("rankdeck"))]
        if not Path(rankdeck.argv[0]).exists():
            pytest.skip("rankdeck is not installed here")
    check_out(
        rankdeck(
            "launch",
            write_profile("from engine import train_one_epoch\nprint(train_one_epoch())"),
            env={"PYTHONPATH": str(work)},
        ),
        0,
        "[r0 localhost] theirs\n",
    )


@pytest.mark.parametrize("where", ["environment", "profile"])
def test_a_pythonpath_of_the_user_stays_behind_the_rank_package(rankdeck, write_profile, where):
    own = {"PYTHONPATH": "/a:/b"}
    profile = write_profile(
        "import os; print(os.environ['PYTHONPATH'])", **({"env": own} if where == "profile" else {})
    )
    done = rankdeck("launch", profile, env=own if where == "environment" else {})
    library, *rest = done.stdout.splitlines()[1].removeprefix("[r0 localhost] ").split(":")
    assert rest == ["/a", "/b"]
    assert str(rankdeck.home) in library


def test_a_module_runs_like_python_m(rankdeck, write_script, write_profile, dump_folder, work):
    write_script("pkg/__init__.py", "")
    script = write_script("pkg/train.py", DUMP + "print(__name__, __package__)")
    done = rankdeck("launch", write_profile({"module": "pkg.train", "args": ["x"]}))
    check_out(done, 0, "[r0 localhost] __main__ pkg\n")
    dump = dumps(dump_folder)["0"]
    assert dump["argv"] == [str(script), "x"]
    assert dump["path"] == str(work)


def test_a_module_that_does_not_exist_fails_with_its_name(rankdeck, write_profile):
    check_err(rankdeck("launch", write_profile({"module": "no.such.module"}, launch={"on_failure": "stop"})), 1, "no")


@pytest.mark.parametrize("warm", [True, False])
def test_a_script_with_a_required_local_rank_runs(rankdeck, write_script, write_profile, dump_folder, warm):
    parse = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--local_rank', type=int, required=True)\n"
    script = write_script("dump.py", DUMP + parse + "p.parse_args()\n")
    told = rankdeck("launch", write_profile(script, launch={"on_failure": "stop"}))
    check_err(told, 2, 'recipe.args = ["--local_rank={local_rank}"]')
    program = {"script": str(script), "args": ["--local_rank={local_rank}"]}
    assert rankdeck("launch", write_profile(program, ranks=2, launch={"warm": warm})).returncode == 0
    assert {rank: dump["argv"][1:] for rank, dump in dumps(dump_folder).items()} == {  # type: ignore[index]
        "0": ["--local_rank=0"],
        "1": ["--local_rank=1"],
    }


def test_arguments_and_environment_arrive_as_they_were_written(
    rankdeck, write_script, write_profile, dump_folder, work
):
    wanted = {f"VALUE_{number}": value for number, value in enumerate(AWKWARD)}
    recipe = {"script": str(write_script("dump.py", DUMP)), "args": AWKWARD}
    assert rankdeck("launch", write_profile(recipe, env=wanted, backend={"env": {"ONLY": "b $(id)"}})).returncode == 0
    dump = dumps(dump_folder)["0"]
    assert dump["argv"] == [recipe["script"], *AWKWARD]
    env = dump["env"]
    assert isinstance(env, dict)
    assert {name: env.get(name) for name in wanted} == wanted
    assert env["ONLY"] == "b $(id)"
    assert not (work / "pwned").exists()


def test_set_words_reach_the_rank(rankdeck, write_profile, dump_folder):
    profile = write_profile(DUMP)
    words = ["--set", "layout.ranks_per_node=2", "--set", "env.COLOUR=light blue", "--set", 'recipe.args=["a b"]']
    assert rankdeck("launch", profile, *words).returncode == 0
    found = dumps(dump_folder)
    assert sorted(found) == ["0", "1"]
    env = found["1"]["env"]
    assert isinstance(env, dict)
    assert env["COLOUR"] == "light blue"
    assert found["1"]["argv"][1:] == ["a b"]  # type: ignore[index]


@from_table
def test_threads_are_limited_as_torchrun_does(
    ranks, outside, profile_env, wanted, rankdeck, write_profile, dump_folder
):
    profile = write_profile(DUMP, ranks=ranks, env=profile_env)
    assert rankdeck("launch", profile, env=outside).returncode == 0
    env = dumps(dump_folder)["0"]["env"]
    assert isinstance(env, dict)
    assert env.get("OMP_NUM_THREADS") == wanted


def test_variables_of_another_launcher_around_us_do_not_reach_ranks(rankdeck, write_profile, dump_folder):
    """Whoever starts rankdeck from inside a torchrun or Slurm job has RANK and friends set already."""
    around = {"RANK": "77", "WORLD_SIZE": "99", "LOCAL_RANK": "5", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "other"}
    assert rankdeck("launch", write_profile(DUMP, ranks=2), env=around).returncode == 0
    found = dumps(dump_folder)
    assert sorted(found) == ["0", "1"]
    env = found["1"]["env"]
    assert isinstance(env, dict)
    assert (env["RANK"], env["WORLD_SIZE"], env["LOCAL_RANK"]) == ("1", "2", "1")
    assert env["TORCHELASTIC_RUN_ID"] != "other"
    assert env["MASTER_PORT"] != "1"


# --- secrets


def test_a_secret_reaches_the_rank_and_nothing_that_others_can_see(rankdeck, write_profile, work):
    secret = "s3cr3t-0f-the-house"
    script = (
        "import os, time\nprint(len(os.environ['API_TOKEN']), flush=True)\n"
        "while not os.path.exists('go'): time.sleep(0.01)"
    )
    profile = write_profile(script, ranks=2, env={"API_TOKEN": secret, "PLAIN": "shown"})
    for words in (("plan", profile), ("plan", profile, "--json")):
        said = rankdeck(*words)
        assert secret not in said.stdout + said.stderr
        assert "API_TOKEN" in said.stdout
        assert "shown" in said.stdout
    run = rankdeck.launch(profile)
    assert rankdeck.wait_log(run, 0, b"\n") == f"{len(secret)}\n".encode()
    for process in rankdeck.processes():
        with contextlib.suppress(OSError):  # it has ended
            assert secret.encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    status = rankdeck.wait_status(run, lambda status: all(rank["pid"] for rank in status["ranks"]))
    ranks = {rank["pid"] for rank in status["ranks"]}

    def owners() -> set[int]:  # the store shows what it is a moment after its start
        found = processes_with("API_TOKEN", secret)
        return {process.pid for process in found if "rankdeck: store" not in process.command}

    wait_until(lambda: owners() <= ranks)
    assert secret not in rankdeck("status", run, "--json").stdout
    (work / "go").touch()
    rankdeck("wait", run)
    wait_until(lambda: not rankdeck.processes(), what="nobody writes there any more")
    folder = rankdeck.folder(run)
    kept = [path for path in folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert {path.name for path in kept} <= {"profile.toml", "plan.json"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in kept)
    assert folder.stat().st_mode & 0o077 == 0


def test_the_files_of_a_run_are_for_their_owner_only(rankdeck, launch):
    old = os.umask(0)
    try:
        run = launch("print('hello')")
        rankdeck("wait", run)
    finally:
        os.umask(old)
    wait_until(lambda: rankdeck.processes() == [])
    folder = rankdeck.folder(run)
    library = folder / "nodes" / "localhost" / "library"  # our own package, which is public
    files = [path for path in folder.rglob("*") if path.is_file() and library not in path.parents]
    assert [path for path in files if path.stat().st_mode & 0o077] == []
    assert [path.stat().st_mode & 0o077 for path in (folder, folder.parent)] == [0, 0]


# --- plan


def test_what_plan_shows_is_what_runs(rankdeck, write_profile, dump_folder):
    profile = write_profile(DUMP, ranks=2, env={"X": "y"}, args=["a b"])
    plan = json.loads(rankdeck("plan", profile, "--json").stdout)
    rankdeck("launch", profile)
    found = dumps(dump_folder)
    assert sorted(found) == [str(place["rank"]) for place in plan["places"]]
    assert found["0"]["argv"] == [plan["program"]["target"], *plan["program"]["args"]]
    assert found["0"]["cwd"] == plan["launch"]["workdir"]
    env = found["0"]["env"]
    assert isinstance(env, dict)
    assert {name: env[name] for name in plan["env"]} == plan["env"]


def test_plan_starts_nothing_and_writes_nothing(rankdeck, write_profile):
    assert rankdeck("plan", write_profile("print('hello')")).returncode == 0
    assert [path.name for path in rankdeck.home.iterdir()] == ["trusted"], "the fixture trusts the profile"
    assert rankdeck.processes() == []
