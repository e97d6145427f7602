"""What an installed rankdeck has with it: profiles, recipes, the text they train on, the app's style sheet."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support import PATIENCE, ROOT, run_program

pytestmark = pytest.mark.slow

SOURCES = ("pyproject.toml", "README.md", "LICENSE", "rankdeck_command.py", "engine", "tui", "rankdeck", "profiles")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of what it is made of."""
    import shutil

    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif (ROOT / name).exists():
            shutil.copy(ROOT / name, source / name)
    words = "-m pip wheel --no-deps --no-build-isolation --no-index -w".split()
    argv = [sys.executable, *words, str(built), "."]
    done = subprocess.run(argv, cwd=source, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = built.glob("rankdeck-*.whl")
    return path


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def files_of(*patterns: str) -> set[str]:
    """Names in a wheel of the files of this checkout that match."""
    found = {str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern)}
    assert found
    return {name if name.startswith("rankdeck/") else f"rankdeck/_app/{name}" for name in found}


def test_nothing_but_rankdeck_becomes_importable(names):
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"rankdeck"}


def test_every_module_profile_declaration_text_and_style_sheet_is_in(names):
    files = files_of("rankdeck_command.py", "profiles/*.toml", "tui/**/*.tcss", "rankdeck/**/py.typed")
    assert files <= names
    assert files_of("engine/**/*.py", "tui/**/*.py", "rankdeck/**/*.py") <= names
    assert files_of("rankdeck/**/*.txt") <= names


def test_no_test_and_no_benchmark_is_in(names):
    assert not [
        name for name in names if name.removeprefix("rankdeck/_app/").startswith(("tests/", "benchmarks/", "docs/"))
    ]


def test_an_unpacked_wheel_lists_its_profiles_and_plans_one(wheel, tmp_path):
    """As installed in a prefix of its own, with nothing of the working tree in reach."""
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    code = (
        f"import sys\nsys.path.insert(0, {str(site)!r})\nimport rankdeck._command\nsys.exit(rankdeck._command.main())"
    )
    env = {**os.environ, "RANKDECK_HOME": str(tmp_path / "home")}
    for words in (["profiles", "--json"], ["plan", "quickstart", "--json"]):
        done = run_program([sys.executable, "-c", code, *words], cwd=tmp_path, env=env)
        assert done.returncode == 0, done.stderr
        shown = json.loads(done.stdout)
    assert shown["program"]["target"] == "gpt"
