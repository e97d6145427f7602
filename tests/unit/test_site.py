"""What a site's administrators limit for all users."""

import os
from pathlib import Path

import pytest

from engine.core.errors import CheckError
from engine.core.plan.profile import MAX_LINGER
from engine.planning import site


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(site, "FILE", tmp_path / "config.toml")
    return site.FILE


def test_a_site_without_a_file_limits_nothing(file: Path) -> None:
    assert site.most_linger() == MAX_LINGER


@pytest.mark.usefixtures("needs_root")
@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("", MAX_LINGER),
        ('[limits]\nlinger = "off"', 0),
        ("[limits]\nlinger = 30", 30),
        ("[other]\nlinger = 3", MAX_LINGER),
    ],
)
def test_a_site_limits_how_long_a_template_stays(file: Path, text: str, seconds: float) -> None:
    file.write_text(text)
    assert site.most_linger() == seconds


@pytest.mark.usefixtures("needs_root")
@pytest.mark.parametrize(
    "text", ["[limits", "limits = 3", "[limits]\nlinger = true", "[limits]\nlinger = -1", "[limits]\nlinger = 'soon'"]
)
def test_a_wrong_file_is_named(file: Path, text: str) -> None:
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
