"""Which Python ranks use where the profile names none."""

import sys
import venv
from pathlib import Path
from typing import Literal

import pytest

from engine.gate import LAUNCHED
from engine.planning.make import make_plan
from tests.support import parse_profile


def packages(folder: Path) -> Path:
    (found,) = folder.glob("lib/python3*/site-packages")
    return found


def with_torch(folder: Path) -> Path:
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").touch()
    return folder


def environment(folder: Path, torch: Literal["elsewhere", "inside", ""] = "elsewhere") -> str:
    """Makes an environment. Returns its Python. `torch`: where it lies."""
    venv.create(folder, symlinks=True)
    if torch == "elsewhere":
        (packages(folder) / "site.pth").write_text(f"{with_torch(folder / 'elsewhere')}\n")
    elif torch == "inside":
        with_torch(packages(folder))
    return str(folder / "bin" / "python")


@pytest.fixture(autouse=True)
def nothing_is_active(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").touch()
    monkeypatch.chdir(work)
    monkeypatch.setenv("RANKDECK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))


def chosen(recipe: str = 'script = "train.py"', launch: str = "") -> str:
    text = f'schema = 1\nname = "a"\n[recipe]\n{recipe}\n[launch]\n{launch}\n'
    return make_plan(parse_profile(text, file="p.toml"), LAUNCHED).python


@pytest.mark.parametrize("name", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_the_active_environment_is_used_if_it_can_import_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    having, without = environment(tmp_path / "a"), environment(tmp_path / "b", "")
    monkeypatch.setenv(name, str(tmp_path / "a"))
    assert chosen() == chosen('name = "linear"') == having
    assert chosen(launch=f'python = "{without}"') == without
    with monkeypatch.context() as there:
        there.setenv("PATH", f"{Path(having).parent}:/bin")
        assert chosen(launch='setup = "true"') == "python3"
    monkeypatch.setenv(name, str(tmp_path / "b"))
    assert chosen() == sys.executable
    monkeypatch.setenv("PYTHONPATH", str(with_torch(tmp_path / "module")))
    assert chosen() == without, "a site's module brings it"
    monkeypatch.setenv(name, str(tmp_path / "nowhere"))
    assert chosen() == sys.executable
    monkeypatch.setenv(name, sys.prefix)
    assert chosen() == sys.executable


def test_the_python_on_the_path_is_what_the_user_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = environment(tmp_path / "conda")
    monkeypatch.setenv("PATH", str(Path(base).parent))
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path / "conda"))
    monkeypatch.setenv("CONDA_DEFAULT_ENV", "base")
    assert chosen() == base
    beside = environment(tmp_path / "work" / ".venv", "inside")
    assert chosen() == beside
    monkeypatch.setenv("PATH", "bin")
    monkeypatch.chdir(tmp_path / "conda")
    assert chosen('name = "linear"') == sys.executable, "a relative folder is no choice of the user"


def test_a_python_is_asked_again_when_what_it_imports_from_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    python = environment(tmp_path / "a", "")
    (packages(tmp_path / "a") / "sitecustomize.py").write_text(f"open({str(tmp_path / 'asked')!r}, 'a').write('x')")
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "a"))
    (tmp_path / "work" / "torch.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert chosen() == chosen() == sys.executable
    assert (tmp_path / "asked").read_text() == "x"
    with_torch(packages(tmp_path / "a"))
    assert chosen() == chosen() == python
    assert (tmp_path / "asked").read_text() == "xx"
    assert not (tmp_path / "ran").exists()


def test_a_python_that_does_not_run_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "bin" / "python"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(broken.parent))
    assert chosen() == sys.executable


def test_a_shim_stands_for_the_python_that_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python, shim = environment(tmp_path / "3.12"), tmp_path / "shims" / "python"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\n[ "$(cat "$PYENV_DIR/.python-version")" = 3.12 ] && exec {python} "$@"\n')
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", f"{shim.parent}:/bin:/usr/bin")
    assert chosen() == sys.executable
    (tmp_path / "work" / ".python-version").write_text("3.12")
    assert chosen() == python


def test_the_environment_of_the_folder_is_used_for_code_of_the_folder(tmp_path: Path) -> None:
    here = environment(tmp_path / "work" / ".venv", "inside")
    assert chosen() == chosen('module = "pkg.train"') == here
    assert chosen('name = "linear"') == sys.executable
    other = tmp_path / "other"
    other.mkdir()
    (other / "train.py").touch()
    assert chosen(f'script = "{other}/train.py"') == sys.executable
    beside = environment(other / ".venv", "inside")
    assert chosen(f'script = "{other}/train.py"') == beside
