"""Which Python ranks use where the profile names none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from engine.planning.make import make_plan
from engine.planning.training_python import is_of_folder
from tests.support import parse_profile


def environment(folder: Path, *, has_torch: bool = True) -> str:
    """Makes what looks like an environment. Returns its Python."""
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    packages = folder / "lib" / "python3.12" / "site-packages"
    packages.mkdir(parents=True)
    if has_torch:
        (packages / "torch").mkdir()
        (packages / "torch" / "__init__.py").touch()
    return str(python)


@pytest.fixture(autouse=True)
def nothing_is_active(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV"):
        monkeypatch.delenv(name, raising=False)
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").touch()
    monkeypatch.chdir(work)


def chosen(recipe: str = 'script = "train.py"', launch: str = "") -> str:
    text = f'schema = 1\nname = "a"\n[recipe]\n{recipe}\n[launch]\n{launch}\n'
    return make_plan(parse_profile(text, file="p.toml")).python


@pytest.mark.parametrize("name", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_the_active_environment_is_used_if_it_has_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with_torch, without = environment(tmp_path / "a"), environment(tmp_path / "b", has_torch=False)
    monkeypatch.setenv(name, str(tmp_path / "a"))
    assert chosen() == chosen('name = "linear"') == with_torch
    assert chosen(launch=f'python = "{without}"') == without
    assert chosen(launch='setup = "true"') == "python3"
    monkeypatch.setenv(name, str(tmp_path / "b"))
    assert chosen() == sys.executable
    monkeypatch.setenv(name, str(tmp_path / "nowhere"))
    assert chosen() == sys.executable
    monkeypatch.setenv(name, sys.prefix)
    environment(tmp_path / "work" / ".venv")
    assert chosen() == sys.executable


def test_the_first_environment_of_conda_counts_only_where_rankdeck_has_no_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = environment(tmp_path / "conda")
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path / "conda"))
    monkeypatch.setenv("CONDA_DEFAULT_ENV", "base")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert chosen() == sys.executable
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert chosen() == base


def test_the_environment_of_the_folder_is_used_for_code_of_the_folder(tmp_path: Path) -> None:
    here = environment(tmp_path / "work" / ".venv")
    assert chosen() == chosen('module = "pkg.train"') == here
    assert chosen('name = "linear"') == sys.executable
    other = tmp_path / "other"
    other.mkdir()
    (other / "train.py").touch()
    assert chosen(f'script = "{other}/train.py"') == sys.executable
    beside = environment(other / ".venv")
    assert chosen(f'script = "{other}/train.py"') == beside


def test_a_python_that_was_found_in_a_folder_is_known_to_be_of_it(tmp_path: Path) -> None:
    here = environment(tmp_path / "work" / ".venv")
    profile = parse_profile(f'schema = 1\nname = "a"\n[recipe]\nscript = "{tmp_path}/work/train.py"\n', file="p.toml")
    assert is_of_folder(profile, here, str(tmp_path / "work"))
    assert not is_of_folder(profile, sys.executable, str(tmp_path / "work"))
