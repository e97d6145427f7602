"""Folders of a user in /tmp, where others may be first: those of agents on nodes, and those of commands and supervisors."""

import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.core.errors import RankdeckError
from engine.node.agent import folders
from engine.runs import paths

OTHER_USER = 65534


@pytest.fixture(params=["agent", "command"])
def find(request: pytest.FixtureRequest, shared: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    """Makes or takes the user's folder, without a runtime folder of the login."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(shared))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(folders, "LONGEST", 500)
    return (lambda: Path(folders.runtime_folder())) if request.param == "agent" else paths.runtime_folder


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A temporary folder of all users."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.fixture
def own(shared: Path) -> Path:
    """Where the user's folder will be."""
    return shared / f"rankdeck-{os.geteuid()}"


REFUSALS = (RankdeckError, RuntimeError)


def test_a_new_folder_is_for_its_user_only(find: Callable[[], Path], own: Path) -> None:
    assert find() == own
    assert stat.S_IMODE(own.stat().st_mode) == 0o700


def test_with_any_umask_new_folders_above_it_are_private_too(shared: Path) -> None:
    before = os.umask(0)
    try:
        paths.private_folder(shared / "a" / "b")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (shared / "a", shared / "a" / "b")] == [0o700, 0o700]


@pytest.mark.usefixtures("needs_root")
def test_a_runtime_folder_of_another_user_is_not_used(
    find: Callable[[], Path], own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "1000"
    other.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(other))
    assert find() == other / "rankdeck"
    os.chown(other, OTHER_USER, OTHER_USER)
    assert find() == own


def test_a_folder_that_is_open_to_others_is_closed(find: Callable[[], Path], own: Path) -> None:
    own.mkdir()
    own.chmod(0o777)
    (own / "mine").touch()
    assert find() == own
    assert stat.S_IMODE(own.stat().st_mode) == 0o700


def test_a_link_in_its_place_is_refused(find: Callable[[], Path], own: Path, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    own.symlink_to(tmp_path / "target")
    with pytest.raises(REFUSALS, match=str(own)):
        find()


@pytest.mark.usefixtures("needs_root")
def test_a_folder_of_another_user_is_refused(find: Callable[[], Path], own: Path) -> None:
    own.mkdir(mode=0o700)
    os.chown(own, OTHER_USER, OTHER_USER)
    with pytest.raises(REFUSALS, match=str(own)):
        find()


@pytest.mark.usefixtures("needs_root")
@pytest.mark.parametrize("what", ["folder", "file", "link"])
def test_what_another_user_has_put_into_an_open_folder_is_refused(find: Callable[[], Path], own: Path, what: str):
    own.mkdir()
    own.chmod(0o777)
    planted = own / "run-7f3a"
    if what == "folder":
        (planted / "library").mkdir(parents=True)
    elif what == "file":
        planted.write_text("import os")
    else:
        planted.symlink_to("/tmp")
    os.chown(planted, OTHER_USER, OTHER_USER, follow_symlinks=False)
    with pytest.raises(REFUSALS, match=f"{planted} belongs to another user"):
        find()


def test_a_folder_that_any_user_can_replace_is_refused(find: Callable[[], Path], shared: Path) -> None:
    shared.chmod(0o777)
    with pytest.raises(REFUSALS, match=str(shared)):
        find()


@pytest.mark.parametrize(("length", "is_used"), [(20, True), (90, False)])
def test_a_temporary_folder_whose_path_is_too_long_for_a_socket_is_left(
    monkeypatch: pytest.MonkeyPatch, length: int, is_used: bool
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="rd"))
    long = folder / ("x" * length)
    long.mkdir()
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(long))
    name = f"rankdeck-{os.geteuid()}"
    try:
        assert folders.runtime_folder() == (str(long / name) if is_used else f"/tmp/{name}")
    finally:
        shutil.rmtree(folder)
