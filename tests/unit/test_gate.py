"""Nothing starts and nothing connects for a profile of a folder that the user has neither launched nor trusted."""

import asyncio
import contextlib
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from engine.client.engine import LocalEngine
from engine.commands.cli import cli
from engine.core.errors import NotTrustedError, RankdeckError
from engine.core.plan.profile import all_keys
from engine.gate import NOT_LOOKED_UP
from engine.planning.profiles import entry_of, list_profiles, read_profile
from tests.hostile import hostile_folder, hostile_profiles, nothing_starts, write_hostile
from tests.support import entries, toml_text


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The profiles of a stranger's folder, which is the current one and on PATH by a relative name."""
    work = tmp_path / "work"
    work.mkdir()
    profiles = hostile_folder(work)
    monkeypatch.chdir(work)
    monkeypatch.setenv("RANKDECK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f".:{os.environ['PATH']}")
    monkeypatch.setenv("PBS_NODEFILE", str(work / "hosts"))
    monkeypatch.setenv("SLURM_JOB_NODELIST", "host[1-2]")
    monkeypatch.setenv("CLUSTERSHELL_CFGDIR", str(tmp_path))
    (tmp_path / "groups.conf").write_text("[Main]\ndefault: local\n[local]\nmap: echo host1\n")
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    return profiles


def put_on_path(program: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a program on PATH, after the folder that is the current one."""
    program.parent.mkdir()
    program.write_text(text)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f".:{program.parent}:{os.environ['PATH']}")


@pytest.mark.slow
def test_every_key_of_a_strangers_profile_is_looked_at_without_a_start(folder: Path):
    """Opens, lists, plans, checks and prewarms, with all values on all backends and nodes."""
    engine, planned = LocalEngine(), defaultdict[str, int](int)

    async def check(entry: Any, permit: Any) -> None:
        async with contextlib.aclosing(engine.check(entry.profile, permit)) as stream:
            async for _ in stream:
                pass

    for number, (key, data) in enumerate(hostile_profiles()):
        entry = entry_of(write_hostile(folder, f"job{number}", data))
        if entry.profile is None:
            continue  # a value that makes no sense there
        with nothing_starts() as started:
            permit = engine.permit(entry)
            with contextlib.suppress(RankdeckError):
                plan = engine.preview(entry.profile, permit)
                assert not plan.is_looked_up
                planned[key] += 1
            with contextlib.suppress(RankdeckError):
                engine.available(entry.profile, permit)
            with pytest.raises((NotTrustedError, RankdeckError)):
                asyncio.run(check(entry, permit))
            asyncio.run(engine.prewarm(entry.profile, permit))
        assert started == [], (key, data)
        entry.path.unlink()
    assert set(planned) == {".".join(path) for path in all_keys()}
    assert not (folder.parent / "ran").exists()


WORST: dict[str, dict[str, Any]] = entries("unit/gate", "worst")


def said(*words: str) -> tuple[Result, list[str]]:
    """A command, and what it tried to start."""
    with nothing_starts() as started:
        return CliRunner().invoke(cli, words), started


@pytest.mark.parametrize("name", WORST)
def test_commands_that_name_a_strangers_profile_start_nothing(folder: Path, name: str):
    path = write_hostile(folder, name, {"schema": 1, "recipe": {"script": "train.py"}, **WORST[name]})
    for words in (["plan", name], ["plan", str(path)]):
        result, started = said(*words)
        assert started == []
        assert f"{NOT_LOOKED_UP}; --trust trusts it" in result.stdout, result.output
    for words in (["backends", name], ["profiles"], ["metrics", "--try", "/dev/null", name]):
        result, started = said(*words)
        assert (result.exit_code, started) == (0, [])
    for words in (
        ["check", name], ["check", str(path)], ["launch", name], ["run", "--profile", name, "train.py"], ["bench", "--profile", name],
        ["new", "--profile", name, "train.py"],
    ):  # fmt: skip
        result, started = said(*words)
        assert isinstance(result.exception, NotTrustedError), result.output
        assert started == []
        assert "--trust" in (result.exception.hint or "")
    assert not list((folder.parent.parent / "home").glob("runs/*"))


def test_completion_of_a_strangers_profiles_starts_nothing(folder: Path):
    write_hostile(folder, "theirs", {"schema": 1, "recipe": {"script": "train.py"}, **WORST["setup"]})
    environment = {"_RANKDECK_COMPLETE": "bash_complete", "COMP_WORDS": "rankdeck launch th", "COMP_CWORD": "2"}
    with nothing_starts() as started:
        result = CliRunner().invoke(cli, [], env=environment, prog_name="rankdeck")
    assert (result.output, started) == ("plain,theirs\n", [])


def test_a_command_of_another_launcher_is_imported_without_a_start(folder: Path):
    result, started = said("import", "srun -N 2 --export=ALL,LD_PRELOAD=./evil ./evil train.py")
    assert started == [], result.output


def test_trust_that_is_given_once_lets_a_plan_ask(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    put_on_path(tmp_path / "bin/squeue", "#!/bin/sh\n", monkeypatch)
    write_hostile(folder, "theirs", {"schema": 1, "recipe": {"script": "train.py"}, **WORST["slurm"]})
    assert said("plan", "theirs", "--trust")[1] != []
    assert said("plan", "theirs")[1] != []
    assert said("check", "theirs")[1] != []


@pytest.mark.parametrize("name", ["venv", "python", "setup", "wrap", "path"])
def test_nothing_of_a_strangers_folder_runs_for_the_users_own_profile(
    folder: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
):
    """What is the user's own choice, such as an mpirun on PATH, is asked as ever."""
    own = tmp_path / "home/profiles"
    own.mkdir(parents=True, mode=0o700)
    put_on_path(tmp_path / "bin/mpirun", "#!/bin/sh\necho 'mpirun (Open MPI) 5.0.8'\n", monkeypatch)
    text = toml_text({"schema": 1, "name": "mine", "recipe": {"script": "train.py"}, **WORST[name]})
    (own / "mine.toml").write_text(text)
    assert NOT_LOOKED_UP in CliRunner().invoke(cli, ["plan", "mine"]).stdout
    assert isinstance(CliRunner().invoke(cli, ["check", "mine"]).exception, NotTrustedError)
    asyncio.run(
        LocalEngine().prewarm(read_profile(own / "mine.toml"), LocalEngine().permit(entry_of(own / "mine.toml")))
    )
    assert not (folder.parent / "ran").exists()


def test_a_name_of_a_shipped_profile_is_not_taken_in_silence(folder: Path):
    write_hostile(folder, "quickstart", {"schema": 1, "recipe": {"script": "train.py"}})
    assert next(one for one in list_profiles() if one.name == "quickstart").source == "here"
    result, started = said("launch", "--detach", "quickstart")
    assert isinstance(result.exception, NotTrustedError)
    assert ".rankdeck/quickstart.toml" in str(result.exception)
    assert started == []
