"""What a site's administrators limit for all users."""

import os
from pathlib import Path

import pytest

from engine.core.errors import CheckError
from engine.core.plan.profile import MAX_LINGER
from engine.planning import site
from tests.support import from_table


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(site, "FILE", tmp_path / "config.toml")
    return site.FILE


def test_a_site_without_a_file_limits_nothing(file: Path) -> None:
    assert site.most_linger() == MAX_LINGER


@pytest.mark.usefixtures("needs_root")
@from_table
def test_a_site_limits_how_long_a_template_stays(text: str, seconds: float, file: Path) -> None:
    file.write_text(text)
    assert site.most_linger() == seconds


@pytest.mark.usefixtures("needs_root")
@from_table
def test_a_wrong_file_is_named(text: str, file: Path) -> None:
    file.write_text(text)
    with pytest.raises(CheckError, match=str(file)):
        site.most_linger()


@pytest.mark.usefixtures("needs_root")
def test_a_file_that_others_can_change_is_refused(file: Path) -> None:
    file.touch()
    file.chmod(0o666)
    with pytest.raises(CheckError, match="another user than root"):
        site.most_linger()
    file.chmod(0o644)
    os.chown(file, 1000, 0)
    with pytest.raises(CheckError, match="another user than root"):
        site.most_linger()
