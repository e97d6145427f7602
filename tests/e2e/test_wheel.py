"""What an installed rankdeck has with it: profiles, recipes, the text they train on, the app's style sheet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support import ROOT

pytestmark = pytest.mark.slow

SOURCES = ("pyproject.toml", "README.md", "LICENSE", "rankdeck_command.py", "engine", "tui", "rankdeck", "profiles")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: setuptools would leave `build/` in the working tree, and take old files from there."""
    import shutil

    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif (ROOT / name).exists():
            shutil.copy(ROOT / name, source / name)
    argv = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "-w",
        str(built),
        ".",
    ]
    done = subprocess.run(argv, cwd=source, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = built.glob("rankdeck-*.whl")
    return path


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_every_shipped_profile_is_in_the_data_folder(names):
    found = {name.partition(".data/data/")[2] for name in names if ".data/data/" in name}
    assert found == {f"share/rankdeck/profiles/{path.name}" for path in (ROOT / "profiles").glob("*.toml")}


def test_every_module_is_in(names):
    wanted = {
        str(path.relative_to(ROOT)) for top in ("engine", "tui", "rankdeck") for path in (ROOT / top).rglob("*.py")
    }
    assert {*wanted, "rankdeck_command.py"} <= names


def test_recipes_have_their_declarations_and_their_text(names):
    wanted = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "rankdeck").rglob("*")
        if path.suffix in (".json", ".txt", ".typed")
    }
    assert wanted
    assert wanted <= names


def test_the_app_has_its_style_sheets(names):
    wanted = {str(path.relative_to(ROOT)) for path in (ROOT / "tui").rglob("*.tcss")}
    assert wanted
    assert wanted <= names


def test_no_test_and_no_benchmark_is_in(names):
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", "docs/"))]


def test_an_unpacked_wheel_lists_its_profiles_and_plans_one(wheel, tmp_path):
    """As installed in a prefix of its own, with nothing of the working tree in reach."""
    site, prefix = tmp_path / "site", tmp_path / "prefix"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (data,) = site.glob("*.data/data")
    data.rename(prefix)
    code = (
        "import sys, sysconfig\n"
        f"sysconfig.get_path = lambda name: {str(prefix)!r}\n"
        f"sys.path.insert(0, {str(site)!r})\n"
        "import rankdeck_command\n"
        "sys.exit(rankdeck_command.main())"
    )
    env = {**os.environ, "RANKDECK_HOME": str(tmp_path / "home")}
    for words in (["profiles", "--json"], ["plan", "quickstart", "--json"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        shown = json.loads(done.stdout)
    assert shown["program"]["target"] == "gpt"
