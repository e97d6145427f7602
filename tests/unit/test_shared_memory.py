"""What killed ranks have left in shared memory."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.runs.ends.shared_memory import sweep_shared_memory
from rankdeck.c10d._mpi import segments


def sweep_by_rank(root: str) -> None:
    segments.sweep(os.path.join(root, f"rankdeck-{os.geteuid()}"))


@pytest.mark.parametrize("sweep", [sweep_shared_memory, sweep_by_rank])
def test_only_folders_that_nobody_has_locked_are_removed(tmp_path: Path, sweep: Callable[[str], None]) -> None:
    base = tmp_path / f"rankdeck-{os.geteuid()}"
    for name in ("dead", "alive"):
        (base / name).mkdir(parents=True)
        (base / name / "sm_segment.host.0.1.0").touch()
    (base / "link").symlink_to(tmp_path)
    lock = os.open(base / "alive", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)
    sweep(str(tmp_path))
    assert sorted(path.name for path in base.iterdir()) == ["alive", "link"]
    os.close(lock)


def test_a_folder_of_another_user_is_left_alone(tmp_path: Path, needs_root: None) -> None:
    folder = tmp_path / f"rankdeck-{os.geteuid()}" / "dead"
    folder.mkdir(parents=True)
    os.chown(folder.parent, 65534, 65534)
    sweep_shared_memory(str(tmp_path))
    assert folder.exists()


def test_ranks_use_no_folder_that_others_can_enter(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    with pytest.raises(PermissionError):
        segments._make(str(tmp_path / "open"))
