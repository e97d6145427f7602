"""The package that ranks on this machine import: one for all runs of a version."""

import os
import time
from pathlib import Path

import pytest

from engine.supervisor.nodes import library


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RANKDECK_HOME", str(tmp_path))
    return tmp_path


def test_the_package_is_unpacked_once_with_the_programs_of_agents(home: Path) -> None:
    folder = Path(library.unpacked())
    assert folder.parent == home / "library"
    assert {"template.py", "probe.py", "python"} <= {path.name for path in folder.iterdir()}
    assert (folder / "python/rankdeck/__init__.py").is_file()
    (folder / "kept").touch()
    assert library.unpacked() == str(folder)
    assert (folder / "kept").exists()
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_package_of_another_version_goes_when_nobody_has_used_it_for_long(home: Path) -> None:
    for name, days in (("old", 61), ("recent", 59)):
        (home / "library" / name).mkdir(parents=True)
        moment = time.time() - days * 86400
        os.utime(home / "library" / name, (moment, moment))
    library.unpacked()
    assert {path.name for path in (home / "library").iterdir()} == {"recent", library.library_name()}


def test_a_package_that_has_changed_has_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "package/module.py"
    source.parent.mkdir()
    monkeypatch.setattr(library, "LIBRARY", source.parent)
    source.write_text("x = 1")
    os.utime(source, (0, 0))  # as a package of a reproducible build
    name, changed = library.library_name.__wrapped__(), source.stat().st_ctime_ns
    while source.stat().st_ctime_ns == changed:  # the clock of the file system has ticks
        source.write_text("x = 2")
        os.utime(source, (0, 0))
    assert library.library_name.__wrapped__() != name
