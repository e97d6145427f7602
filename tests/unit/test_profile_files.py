"""Profiles on the disk: the mode of what is saved."""

import os
import stat
from pathlib import Path

import pytest

from engine.client.engine import LocalEngine
from engine.gate import LAUNCHED
from engine.planning.make import make_plan
from engine.planning.profiles import read_profile, read_with_places, save_profile
from tests.support import parse_profile

TEXT = 'schema = 1\nname = "mine"  # mine\n[recipe]\nname = "linear"\n[env]\nHF_TOKEN = "x"\n'


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(TEXT)
    return path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("before", [0o600, 0o640, 0o644, 0o400])
def test_a_saved_profile_keeps_its_mode(saved: Path, before: int) -> None:
    saved.chmod(before)
    save_profile(read_profile(saved), saved)
    assert mode(saved) == before
    assert "# mine" in saved.read_text()


def test_a_new_profile_is_readable_by_its_owner_only(saved: Path, tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        new = save_profile(read_profile(saved), tmp_path / "new.toml")
    finally:
        os.umask(old)
    assert mode(new) == 0o600


def test_a_profile_that_is_a_symbolic_link_stays_one(saved: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.toml"
    link.symlink_to(saved)
    profile = read_profile(link)
    saved.write_text(TEXT.replace("linear", "gpt"))
    save_profile(profile, link)
    assert link.is_symlink()
    assert saved.read_text() == TEXT


def test_a_script_that_was_relative_when_it_was_saved_is_found_from_another_folder(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, other = tmp_path / "here", tmp_path / "other"
    for folder in (here, other):
        folder.mkdir()
    (here / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(here)
    engine = LocalEngine()
    path = engine.save_profile(parse_profile(TEXT.replace('name = "linear"', 'script = "train.py"'), file="mine.toml"))
    monkeypatch.chdir(other)
    found = next(entry for entry in engine.profiles() if entry.name == "mine")
    assert found.path == path
    assert found.profile is not None
    assert make_plan(found.profile, LAUNCHED).program.target == str(here / "train.py")


def test_a_profile_of_a_project_finds_its_files_from_another_folder(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, other = tmp_path / "here", tmp_path / "other"
    for folder in (here / ".rankdeck", other):
        folder.mkdir(parents=True)
    (here / "train.py").write_text("print(1)\n")
    (here / "hosts").write_text("localhost\n")
    text = TEXT.replace('name = "linear"', 'script = "train.py"') + '[layout]\nhostfile = "hosts"\n'
    monkeypatch.chdir(here)
    path = LocalEngine().save_profile(parse_profile(text, file="mine.toml"), here / ".rankdeck" / "mine.toml")
    assert 'script = "train.py"' in path.read_text()
    assert read_profile(path).recipe.script == "train.py"
    monkeypatch.chdir(other)
    plan = make_plan(read_profile(Path("../here/.rankdeck/mine.toml")), LAUNCHED)
    assert (plan.program.target, plan.workdir) == (str(here / "train.py"), str(here))
    before = path.read_text()
    LocalEngine().save_profile(read_profile(path), path)
    assert path.read_text() == before
    (other / "train.py").write_text("print(2)\n")
    words = ["recipe.script=train.py", "env.A=b", "layout.ranks_per_node=2"]
    profile, _ = read_with_places(Path("../here/.rankdeck/mine.toml"), words)
    assert (profile.recipe.script, profile.launch.workdir) == (str(other / "train.py"), str(here))
