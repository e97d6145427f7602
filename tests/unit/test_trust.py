"""Which profiles of a working directory may run programs: remembered by folder and content."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from engine.client.trust import is_trusted, trust
from engine.core.plan.profile import Profile
from engine.core.plan.profile_reading import profile_from_data


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Profile:
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("RANKDECK_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "work")
    data = {"schema": 1, "name": "job", "layout": {"nodes": "localhost:2"}, "recipe": {"script": "train.py"}}
    return profile_from_data(data, "job.toml")


def test_a_profile_is_trusted_once_it_was_said(profile: Profile, tmp_path: Path):
    assert not is_trusted(profile)
    trust(profile)
    trust(profile)
    assert is_trusted(profile)
    kept = tmp_path / "home" / "trusted"
    assert len(kept.read_text().splitlines()) == 1
    assert kept.stat().st_mode & 0o777 == 0o600


def test_another_content_or_another_folder_is_asked_for_anew(
    profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    trust(profile)
    changed = msgspec.structs.replace(profile, launch=msgspec.structs.replace(profile.launch, setup="true"))
    assert not is_trusted(changed)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert not is_trusted(profile)


def test_what_is_remembered_and_can_not_be_read_trusts_nothing(profile: Profile, tmp_path: Path):
    (tmp_path / "home" / "trusted").mkdir(parents=True)
    trust(profile)
    assert not is_trusted(profile)
