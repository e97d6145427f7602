"""What may start for a profile: decided by where it lies, its content, its folder, its owner, and what it names there."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.commands.arguments import permit_to_look, permit_to_run, read_given
from engine.core.catalogue import ProfileEntry
from engine.core.errors import NotTrustedError
from engine.gate import CLOSED, LAUNCHED, Permit, inside, which
from engine.planning.profiles import entry_of, list_profiles
from engine.planning.trust import permit_of, trust

TEXT = 'schema = 1\nname = "job"\n[layout]\nhostfile = "hosts"\n[recipe]\nscript = "train.py"\n'
MORE = '[launch]\npython = "./py"\nwrap = ["sh", "wrap.sh"]\n'


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a profile of somebody else and what it names."""
    folder = tmp_path / "work"
    (folder / ".rankdeck").mkdir(parents=True)
    (folder / ".rankdeck/job.toml").write_text(TEXT + MORE)
    for name in ("hosts", "py", "wrap.sh", "train.py"):
        (folder / name).write_text("host1\n")
    monkeypatch.setenv("RANKDECK_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(folder)
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    return folder


def theirs() -> ProfileEntry:
    return entry_of(Path(".rankdeck/job.toml").absolute())


def test_a_profile_of_a_folder_passes_once_it_is_trusted(work: Path, tmp_path: Path):
    assert (theirs().source, permit_of(theirs())) == ("here", CLOSED)
    assert trust(theirs()) == trust(theirs()) == permit_of(theirs()) == LAUNCHED
    kept = tmp_path / "home/trusted"
    assert len(kept.read_text().splitlines()) == 1
    assert kept.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", [".rankdeck/job.toml", "hosts", "py", "wrap.sh"])
def test_what_has_changed_is_asked_for_anew(work: Path, name: str):
    trust(theirs())
    (work / name).write_text((work / name).read_text().replace("host1", "host2").replace('"job"', '"jobs"'))
    assert permit_of(theirs()) == CLOSED


def test_the_older_half_is_forgotten_where_there_is_no_room_for_another(work: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("engine.planning.trust.MOST", 4)
    for number in range(7):
        (work / "hosts").write_text(f"host{number}\n")
        trust(theirs())
    assert permit_of(theirs()) == LAUNCHED
    (work / "hosts").write_text("host1\n")
    assert permit_of(theirs()) == CLOSED


def test_a_changed_script_is_not_asked_for(work: Path):
    trust(theirs())
    (work / "train.py").write_text("changed")
    assert permit_of(theirs()) == LAUNCHED


def test_a_copy_in_another_file_or_another_folder_is_asked_for(work: Path, tmp_path: Path, monkeypatch):
    trust(theirs())
    copy = work / ".rankdeck/copy.toml"
    copy.write_text(TEXT + MORE)
    assert permit_of(entry_of(copy)) == CLOSED
    work.rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path / "moved")
    assert permit_of(theirs()) == CLOSED


def test_another_owner_is_asked_for(work: Path, needs_root: None):
    trust(theirs())
    os.chown(work / ".rankdeck/job.toml", 12345, -1)
    assert permit_of(theirs()) == CLOSED


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_remembered_and_can_not_be_read_trusts_nothing(
    work: Path, tmp_path: Path, make: Callable[[Path], None]
):
    (tmp_path / "home").mkdir()
    make(tmp_path / "home/trusted")
    trust(theirs())
    assert permit_of(theirs()) == CLOSED


def test_an_error_that_the_command_line_mends_is_asked_for_with_its_value(work: Path):
    (work / ".rankdeck/job.toml").write_text(TEXT + MORE + '[backend]\nname = "unknown"\n')
    given = read_given(".rankdeck/job.toml", ("backend.name=gloo",))
    assert (given.entry.profile, permit_to_look(given, trusts=False)) == (given.profile, CLOSED)
    assert permit_to_run(given, trusts=True) == LAUNCHED


def own(tmp_path: Path, text: str = TEXT) -> ProfileEntry:
    path = tmp_path / "home/profiles/job.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    path.write_text(text)
    path.chmod(0o600)
    return entry_of(path)


def test_the_users_own_profile_passes_and_its_folder_stays_closed_until_it_is_launched_there(
    work: Path, tmp_path: Path
):
    assert permit_of(own(tmp_path)) == Permit(may_start=True, closed=str(work))
    trust(own(tmp_path))
    assert permit_of(own(tmp_path)) == LAUNCHED
    shipped = next(entry for entry in list_profiles() if entry.name == "quickstart")
    assert permit_of(shipped) == Permit(may_start=True, closed=str(work))


@pytest.mark.parametrize("name", ["", "job.toml"])
def test_a_profile_that_others_can_write_is_not_the_users_own(work: Path, tmp_path: Path, name: str):
    entry = own(tmp_path)
    (entry.path.parent / name).chmod(0o777)
    assert (entry_of(entry.path).source, permit_of(entry_of(entry.path))) == ("shared", CLOSED)


def test_the_root_and_the_home_folder_are_not_closed(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(work))
    assert permit_of(None) == LAUNCHED
    monkeypatch.chdir("/")
    assert permit_of(None) == LAUNCHED


@pytest.mark.parametrize("word", [
    "./gone", "py", "{work}/py", "-F{work}/cfg", "-F./cfg", "-oProxyCommand=./x %h", ". ./env.sh && true", "source wrap.sh", "cd /; cat $PWD/py",
    "/usr/lib:", "src:.", "../work/py",
])  # fmt: skip
def test_nothing_in_a_closed_folder_runs(work: Path, word: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PWD", str(work))
    permit = Permit(may_start=True, closed=str(work))
    with pytest.raises(NotTrustedError, match="lies there"):
        permit.admit(word.format(work=work))


@pytest.mark.parametrize(
    "word", ["python3", sys.executable, "/usr/bin/env", "module load cuda/12", "-o ConnectTimeout=3", "NCCL_DEBUG=INFO"]
)
def test_the_rest_runs(work: Path, word: str):
    Permit(may_start=True, closed=str(work)).admit(word)
    with pytest.raises(NotTrustedError):
        CLOSED.admit(word)


def test_a_folder_on_path_is_closed_too_if_it_lies_there(work: Path, monkeypatch: pytest.MonkeyPatch):
    (work / "py").chmod(0o755)
    monkeypatch.setenv("PATH", str(work))
    assert LAUNCHED.program("py") == str(work / "py")
    with pytest.raises(NotTrustedError, match="lies there"):
        Permit(may_start=True, closed=str(work)).program("py")


def test_an_environment_that_the_user_has_activated_is_the_users_choice(work: Path, monkeypatch: pytest.MonkeyPatch):
    assert inside(str(work), [".venv/bin/python"]) == []  # there is none
    (work / ".venv/bin").mkdir(parents=True)
    (work / ".venv/bin/python").touch()
    assert inside(str(work), [".venv/bin/python"]) == [str(work / ".venv/bin/python")]
    monkeypatch.setenv("VIRTUAL_ENV", str(work / ".venv"))
    assert inside(str(work), [".venv/bin/python"]) == []


def test_relative_folders_of_path_are_left_out(work: Path, monkeypatch: pytest.MonkeyPatch):
    (work / "mpirun").write_text("#!/bin/sh\n")
    (work / "mpirun").chmod(0o755)
    monkeypatch.setenv("PATH", f".::{os.pathsep}../work")
    assert which("mpirun") is None
    with pytest.raises(FileNotFoundError):
        LAUNCHED.program("mpirun")
    monkeypatch.setenv("PATH", f".:{work}")
    assert LAUNCHED.program("mpirun") == str(work / "mpirun")
