"""The command lines of Open MPI and MPICH, and how one tells which is there."""

import os
import subprocess
from pathlib import Path

import pytest

from engine.backends import mpi, settings_of
from engine.core.errors import CheckError
from engine.core.plan.mpirun import Mpi, Part, can_place, host_name, launcher_script, mpirun_argv, mpirun_environment
from engine.core.plan.profile import Rejoin
from engine.gate import LAUNCHED
from tests.support import from_table

PROGRAM = ["/py", "-I", "proxy.py", "/a folder; rm -rf x", "0"]


def found(implementation: str, version: str = "4.1.4") -> Mpi:
    return Mpi(implementation=implementation, version=version, path="/opt/bin/mpirun", slots=4)  # type: ignore[arg-type]


def part(index: int, ranks: int) -> Part:
    return Part(host=host_name(index), ranks=ranks, program=("/py", f"proxy {index}"))


def test_each_implementation_is_asked_in_its_own_words() -> None:
    one = [Part(host=host_name(0), ranks=8, program=tuple(PROGRAM))]
    assert mpirun_argv(found("openmpi"), one) == [
        *"/opt/bin/mpirun --oversubscribe --bind-to none -np 8 --host localhost:4 --wdir /".split(),
        *PROGRAM,
    ]
    assert "--map-by" in mpirun_argv(found("openmpi", "5.0.8"), one)
    assert mpirun_argv(found("mpich"), one) == [
        *("/opt/bin/mpirun", "-hosts", "localhost", "-launcher", "fork", "-n", "8", "-wdir", "/"),
        *PROGRAM,
    ]


def test_nodes_are_reached_by_our_launcher_whatever_they_are_called() -> None:
    spread = [part(0, 2), part(1, 1)]
    line = " ".join(mpirun_argv(found("openmpi"), spread))
    assert "--mca plm rsh --mca plm_rsh_agent sh launcher --mca plm_rsh_no_tree_spawn 1 --mca" in line
    assert line.endswith(
        "-np 2 --host localhost:2 --wdir / /py proxy 0 : -np 1 --host rankdeck-1:1 --wdir / /py proxy 1"
    )
    assert "--prtemca plm_ssh_agent sh launcher" in " ".join(mpirun_argv(found("openmpi", "5.0.8"), spread))
    line = " ".join(mpirun_argv(found("mpich"), spread, "10.0.4.11"))
    assert "-localhost 10.0.4.11 -launcher rsh -launcher-exec /bin/sh -genvnone" in line
    assert "-hosts localhost:2,rankdeck-1:1" in line
    assert mpirun_environment(found("mpich"), 0, spread=True) == {"HYDRA_LAUNCHER_EXTRA_ARGS": "launcher"}


@from_table
def test_mpich_gets_its_hosts_in_the_order_of_the_ranks(parts: list[tuple[int, int]], hosts: str) -> None:
    argv = mpirun_argv(found("mpich"), [part(index, ranks) for index, ranks in parts], "10.0.4.11")
    assert argv[argv.index("-hosts") + 1] == hosts


def test_ranks_that_mpich_would_place_elsewhere_are_known() -> None:
    assert can_place(found("mpich"), list("aabb"))
    assert can_place(found("mpich"), list("ababab"))
    assert not can_place(found("mpich"), list("ababa"))
    assert can_place(found("openmpi"), list("ababa"))


def test_the_launcher_hands_its_words_on_as_they_are(tmp_path: Path) -> None:
    script = tmp_path / "launcher"
    script.write_text(launcher_script(["printf", "<%s>", "a folder; rm -rf $HOME", "it's"]))
    said = subprocess.run(["sh", script, "rankdeck-1", "a  b", "$(c)"], capture_output=True, text=True, check=True)
    assert said.stdout == "<a folder; rm -rf $HOME><it's><rankdeck-1><a  b><$(c)>"


def test_root_says_so_twice_and_nobody_else_does() -> None:
    assert set(mpirun_environment(found("openmpi"), 0, spread=False)) >= {
        "OMPI_ALLOW_RUN_AS_ROOT",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
    }
    assert mpirun_environment(found("openmpi"), 1000, spread=True) == {}


@from_table
def test_an_mpirun_tells_which_it_is(
    said: str, implementation: str, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mpirun(tmp_path, f"cat <<'END'\n{said}END\n", monkeypatch)
    seen = mpi.find_mpi(LAUNCHED)
    assert (seen.implementation, seen.version) == (implementation, version)
    assert seen.slots == len(os.sched_getaffinity(0))


def test_an_mpirun_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mpirun(tmp_path, "echo run what?\n", monkeypatch)
    with pytest.raises(CheckError, match="not a supported MPI: 'run what\\?'"):
        mpi.find_mpi(LAUNCHED)


@pytest.mark.parametrize("place", ["set-up", "conda"])
def test_an_mpirun_beside_the_environment_is_found(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ("openmpi/bin" if place == "set-up" else "bin")
    folder.mkdir(parents=True)
    write_mpirun(folder, "echo 'mpirun (Open MPI) 5.0.8'\n", monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.prefix", str(tmp_path if place == "set-up" else tmp_path / "other"))
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path))
    assert mpi.find_mpi(LAUNCHED).version == "5.0.8"


def test_without_one_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    with pytest.raises(CheckError, match="there is no mpirun") as error:
        mpi.settings(one_machine=True, permit=LAUNCHED)
    assert "openmpi-bin" in (error.value.hint or "")


def test_a_dead_rank_comes_back_over_gloo_unless_that_is_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mpirun(tmp_path, "echo 'mpirun (Open MPI) 5.0.8'\n", monkeypatch)

    def words(rejoin: Rejoin) -> str:
        return settings_of("mpi", rejoin, one_machine=True, permit=LAUNCHED).rejoin_words

    assert words("auto") == words("gloo") == "a dead rank comes back over gloo"
    assert words("off") == 'all ranks start again: backend.rejoin is "off"'


def write_mpirun(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a script of that name in front of the PATH."""
    path = folder / "mpirun"
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
