"""`rankdeck.checkpoint`: whatever kills the process that writes, the newest whole checkpoint is found."""

import errno
import os
import re
from pathlib import Path

import pytest
import torch

from rankdeck import checkpoint
from rankdeck.recipes._checkpoint import resume
from tests.recipe_ranks import Gang
from tests.support import PATIENCE, entries
from tests.warm_ranks import template


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_folder_is_that_of_the_user_else_of_the_run_else_in_the_working_directory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RANKDECK_CHECKPOINTS", raising=False)
    assert checkpoint.folder("gpt") == Path("checkpoints/gpt")
    monkeypatch.setenv("RANKDECK_CHECKPOINTS", "/run/7")
    assert checkpoint.folder("gpt") == Path("/run/7")
    assert checkpoint.folder("gpt", "mine") == Path("mine")


def test_the_newest_is_read_and_the_last_ones_are_kept(tmp_path: Path):
    folder = tmp_path / "new folder"
    assert checkpoint.load(folder) is None
    for step in (2, 30, 100):
        assert checkpoint.save(folder, step, {"weights": torch.full((3,), float(step))})
    assert names(folder) == ["step-100.pt", "step-30.pt"]
    (folder / "step-3.pt.new").write_bytes(b"half")  # of a process that was killed
    (folder / "weights.pt").write_bytes(b"something else")
    assert checkpoint.save(folder, 104, {"weights": torch.zeros(3)}, keep=1)
    assert names(folder) == ["step-104.pt", "weights.pt"]
    assert checkpoint.save(folder, 103, {}, keep=1)  # later ones are left alone
    assert names(folder) == ["step-103.pt", "step-104.pt", "weights.pt"]
    saved = checkpoint.load(folder)
    assert saved is not None
    assert (saved.step, saved.path) == (104, folder / "step-104.pt")
    assert torch.equal(saved.state["weights"], torch.zeros(3))


def test_one_file_can_be_read_too(tmp_path: Path):
    checkpoint.write(tmp_path / "weights.pt", {"width": 3})
    assert checkpoint.load(tmp_path / "weights.pt") == (0, tmp_path / "weights.pt", {"width": 3})
    assert checkpoint.load(tmp_path / "none.pt") is None


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 half of a checkpoint", b"no checkpoint at all"])
def test_a_damaged_one_is_told_and_the_one_before_it_is_read(
    tmp_path: Path, data: bytes, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "step-9.pt").write_bytes(data)
    with pytest.raises(checkpoint.DamagedError, match=r"step-9\.pt can't be read as a checkpoint \("):
        checkpoint.load(tmp_path)
    assert checkpoint.save(tmp_path, 8, {"x": 1})
    saved = checkpoint.load(tmp_path)
    assert saved is not None
    assert saved.step == 8
    told = capsys.readouterr().err
    assert re.fullmatch(r".*/step-9\.pt can't be read as a checkpoint \(.*\); goes on from step-8\.pt\n", told)


def test_a_file_that_would_run_code_is_not_read(tmp_path: Path):
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "pwned"),)

    torch.save({"x": Evil()}, tmp_path / "step-1.pt")
    with pytest.raises(checkpoint.DamagedError):
        checkpoint.load(tmp_path)
    assert names(tmp_path) == ["step-1.pt"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_or_quota_that_fills_up_costs_one_checkpoint(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def full(_: int) -> None:
        raise OSError(number, os.strerror(number))

    assert checkpoint.save(tmp_path, 1, {})
    monkeypatch.setattr("os.fsync", full)
    assert not checkpoint.save(tmp_path, 2, {})
    assert "no checkpoint of step 2" in capsys.readouterr().err
    assert names(tmp_path) == ["step-1.pt"]


HUNDRED_KILLS = entries("rank/checkpoint", "hundred_kills")


@pytest.mark.slow
def test_a_hundred_kills_in_the_middle_of_writing_lose_none(tmp_path: Path):
    script, log = tmp_path / "script.py", tmp_path / "log"
    script.write_text(HUNDRED_KILLS)
    done = template().start([str(script), str(tmp_path / "checkpoints")], os.environ, tmp_path, log)
    assert done.wait(PATIENCE) == 0, log.read_text()
    assert int(re.fullmatch(r"killed 100 times, at step (\d+)\n", log.read_text())[1]) > 1  # type: ignore[index]


ALL_RANKS = entries("rank/checkpoint", "all_ranks")


@pytest.mark.slow
def test_every_rank_gets_what_rank_0_finds(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(ALL_RANKS)
    gang = Gang(tmp_path / "run", [str(script), str(tmp_path / "files")], 2)
    assert gang.wait() == [0, 0], gang.log(0)
    for rank in (0, 1):
        assert gang.log(rank).endswith("5 0 1.5\nNone\ndamaged True\n")


def test_a_recipe_ends_with_one_line_if_it_can_not_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(
        checkpoint, "load_on_all_ranks", lambda folder, device: checkpoint.load(folder, map_location=device)
    )
    device = torch.device("cpu")

    def refusal(**shape: int) -> str:
        with pytest.raises(SystemExit) as end:
            resume(tmp_path, device, **shape)
        assert end.value.code == 1
        (line,) = capsys.readouterr().err.splitlines()
        return line

    checkpoint.save(tmp_path, 3, {"hidden": 8})
    assert resume(tmp_path, device, hidden=8) == {"step": 3, "hidden": 8}
    assert resume(tmp_path / "none", device) is None
    assert "step-3.pt is of another training: hidden is 8 there, and 16 here; name an" in refusal(hidden=16)
    assert "width is missing there" in refusal(width=16)
    (tmp_path / "step-3.pt").write_bytes(b"")
    assert re.search(r"can't be read as a checkpoint \(.*\): delete it, or name another --check", refusal())
