"""Nodes from files, groups and batch systems: a hostfile on disk, a real ClusterShell, and a `squeue` on PATH."""

import os
import shlex
from pathlib import Path

import pytest

from engine.core.errors import CheckError, NoAnswerError, ProfileError, RankdeckError
from engine.core.plan.layout import Slots
from engine.core.plan.profile import Layout
from engine.gate import LAUNCHED
from engine.planning import nodes as node_sources
from engine.planning.nodes import nodes_of
from tests.support import from_table, is_alive, wait_until
from tests.unit.conftest import WriteCommand


@pytest.fixture(autouse=True)
def no_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither a job nor groups of whoever runs the tests."""
    for name in ("SLURM_JOB_NODELIST", "SLURM_JOB_ID", "SLURM_HET_SIZE", "PBS_NODEFILE", "CLUSTERSHELL_CFGDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A groups.conf whose groups are lines of a file, as ClusterShell's own example has it."""
    folder = tmp_path / "clustershell"
    folder.mkdir()
    (folder / "groups.conf").write_text(
        "[Main]\ndefault: local\n[local]\nmap: sed -n 's/^$GROUP:\\(.*\\)/\\1/p' groups\n"
        "[slow]\nmap: sleep 1000\n[broken]\nmap: exit 3\n"
    )
    (folder / "groups").write_text("gpu: gpu[01-03]\nall: @gpu,login\nodd: a;reboot\nmany: n[1-4097]\n")
    monkeypatch.setenv("CLUSTERSHELL_CFGDIR", str(folder))
    return folder


def found(layout: Layout) -> list[tuple[str, int | None]]:
    return [(slot.node, slot.ranks) for slot in nodes_of(layout, LAUNCHED).slots]


def refused(layout: Layout) -> RankdeckError:
    with pytest.raises((CheckError, ProfileError)) as caught:
        nodes_of(layout, LAUNCHED)
    assert caught.value.hint
    return caught.value


# --- its own words ---------------------------------------------------------------------------------------------------


def test_without_a_source_it_is_this_machine() -> None:
    assert nodes_of(Layout(), LAUNCHED).slots == (Slots(node="localhost", ranks=None),)


def test_nodes_are_taken_as_they_are_given() -> None:
    assert found(Layout(nodes=("gpu[01-02]:8", "login"), ranks_per_node=4)) == [
        ("gpu01", 8), ("gpu02", 8), ("login", 4),
    ]  # fmt: skip


# --- groups ----------------------------------------------------------------------------------------------------------


def test_a_group_is_asked_of_clustershell(groups: Path) -> None:
    assert found(Layout(nodes=("login:1", "@gpu"), ranks_per_node=8)) == [
        ("login", 1), ("gpu01", 8), ("gpu02", 8), ("gpu03", 8),
    ]  # fmt: skip
    assert [name for name, _ in found(Layout(nodes="@local:all"))] == ["gpu01", "gpu02", "gpu03", "login"]


def test_a_group_that_was_edited_is_read_again(groups: Path) -> None:
    assert len(found(Layout(nodes="@gpu"))) == 3
    (groups / "groups").write_text("gpu: gpu[01-16]\n")
    assert len(found(Layout(nodes="@gpu"))) == 16


@from_table
def test_a_group_that_gives_no_layout_is_told_with_the_next_step(
    nodes: str | tuple[str, ...], words: str, groups: Path
) -> None:
    assert words in refused(Layout(nodes=nodes)).message


def test_without_groups_of_ones_own_the_examples_of_clustershell_are_not_taken_for_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if Path("/etc/clustershell/groups.conf").exists():
        pytest.skip("this machine has node groups")
    assert "ClusterShell has no groups.conf here" in refused(Layout(nodes="@gpu")).message


def test_a_groups_name_never_gets_as_far_as_a_shell(groups: Path) -> None:
    assert "is not a valid group name" in refused(Layout(nodes=f"@gpu$(touch {groups}/pwned)")).message
    assert not (groups / "pwned").exists()


def test_a_source_of_groups_that_hangs_is_given_up(groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_sources, "DEADLINE", 1.0)
    assert refused(Layout(nodes="@slow:gpu")).message == "ClusterShell does not answer within 1 s"


# --- hostfiles -------------------------------------------------------------------------------------------------------


def test_a_hostfile_counts_from_where_rankdeck_is_started(work: Path) -> None:
    (work / "hosts.txt").write_text("gpu01 slots=4\ngpu02\n")
    assert found(Layout(hostfile="hosts.txt")) == [("gpu01", 4), ("gpu02", None)]
    assert found(Layout(hostfile="hosts.txt", ranks_per_node=2)) == [("gpu01", 4), ("gpu02", 2)]


def test_a_hostfile_of_the_home_folder_is_found(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work / "my hosts").write_bytes(b"\xef\xbb\xbfgpu01\r\n")
    monkeypatch.setenv("HOME", str(work))
    assert found(Layout(hostfile="~/my hosts")) == [("gpu01", None)]


def test_a_wrong_line_is_told_with_file_and_line(work: Path) -> None:
    (work / "hosts.txt").write_text("gpu01\n\ngpu02 gpus=4\n")
    assert refused(Layout(hostfile="hosts.txt")).message == "hosts.txt:3: 'gpus=4' is an unknown hostfile field"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "hosts.txt: names no host"),
        (b"localhost\ngpu01\n", "hosts.txt names 'localhost' together with other nodes"),
        (b"me@gpu01\ngpu01\n", "hosts.txt names 'gpu01' twice"),
        (b"".join(b"n%d\n" % n for n in range(4097)), "hosts.txt names 4097 nodes"),
        (b"gpu01\xff\n", "hosts.txt is not UTF-8 at byte 5"),
        (b"#" * (1 << 20) + b"\n", "hosts.txt is too large to be a hostfile"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_hostfile_that_is_none_is_told_with_the_next_step(work: Path, content: bytes, words: str) -> None:
    (work / "hosts.txt").write_bytes(content)
    assert words in refused(Layout(hostfile="hosts.txt")).message


@pytest.mark.timeout(20)
def test_what_is_no_file_does_not_hang(work: Path) -> None:
    os.mkfifo(work / "pipe")
    (work / "folder").mkdir()
    (work / "loop").symlink_to("loop")
    for name in ("pipe", "folder", "loop", "missing", "/dev/zero", "n" * 5000, "~no-such-user/hosts"):
        assert "hostfile" in refused(Layout(hostfile=name)).message


# --- Slurm -----------------------------------------------------------------------------------------------------------


def test_the_nodes_of_this_slurm_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "gpu[01-02,07],login")
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "64")
    nodes = ("gpu01", "gpu02", "gpu07", "login")
    assert found(Layout(slurm="current", ranks_per_node=4)) == [(node, 4) for node in nodes]
    assert found(Layout(slurm="current")) == [(node, None) for node in nodes]
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    assert nodes_of(Layout(slurm="current"), LAUNCHED).slurm_job == "17"
    monkeypatch.setenv("SLURM_HET_SIZE", "2")
    assert "heterogeneous" in refused(Layout(slurm="current")).message


def test_the_nodes_of_another_slurm_job_are_asked_of_squeue(write_command: WriteCommand, tmp_path: Path) -> None:
    write_command("squeue", f'printf "%s\\n" "$@" > {shlex.quote(str(tmp_path))}/asked; echo "1239 gpu[01-02]"')
    for job in (1234, "1234", "1234_5"):
        assert found(Layout(slurm=job, ranks_per_node=4)) == [("gpu01", 4), ("gpu02", 4)]
        assert (tmp_path / "asked").read_text().split("\n")[:-1] == ["-h", "-j", str(job), "-o", "%A %N"]
        assert nodes_of(Layout(slurm=job), LAUNCHED).slurm_job == "1239"


@from_table
def test_a_slurm_job_without_nodes_is_told_with_the_next_step(script: str, words: str, write_command: WriteCommand):
    write_command("squeue", script)
    error = refused(Layout(slurm=1234))
    assert words in error.message
    assert error.message.isprintable()


def test_without_slurm_it_is_told_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "SLURM_JOB_NODELIST is not set" in refused(Layout(slurm="current")).message
    monkeypatch.setenv("PATH", str(tmp_path))
    assert refused(Layout(slurm=1234)).message == "squeue can't be run: No such file or directory"


def test_a_squeue_that_hangs_is_given_up_with_all_that_it_started(
    write_command: WriteCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_sources, "DEADLINE", 3.0)
    write_command("squeue", f"sleep 1000 & echo $! > {shlex.quote(str(tmp_path))}/pid; wait")
    error = refused(Layout(slurm=1234))
    assert (type(error), error.message) == (NoAnswerError, "squeue does not answer within 3 s")
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not is_alive(pid), what="what squeue had started is gone")


# --- PBS -------------------------------------------------------------------------------------------------------------


def test_each_line_of_a_pbs_job_is_a_rank(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work / "nodes").write_text("gpu01\ngpu01\ngpu02\ngpu02\n")
    monkeypatch.setenv("PBS_NODEFILE", str(work / "nodes"))
    assert found(Layout(pbs="current")) == [("gpu01", 2), ("gpu02", 2)]
    assert found(Layout(pbs="current", ranks_per_node=8)) == [("gpu01", 8), ("gpu02", 8)]


def test_a_pbs_job_that_has_every_host_once_says_no_number(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work / "nodes").write_text("gpu01\ngpu02\n")
    monkeypatch.setenv("PBS_NODEFILE", str(work / "nodes"))
    assert found(Layout(pbs="current")) == [("gpu01", None), ("gpu02", None)]


def test_without_pbs_it_is_told_what_is_missing(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "PBS_NODEFILE is not set" in refused(Layout(pbs="current")).message
    monkeypatch.setenv("PBS_NODEFILE", str(work / "gone"))
    assert "does not exist" in refused(Layout(pbs="current")).message
