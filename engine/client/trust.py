"""Remembers which profiles of working directories the user has launched or trusted.

A profile can name programs (`launch.setup`, `launch.python`, a script), and a folder may come from anyone. So nothing of a profile found
there runs before the user agrees. A digest of the folder and the profile's content is stored, so a change of either asks again.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from engine.core.plan.profile import Profile
from engine.runs.paths import private_folder, state_folder


def is_trusted(profile: Profile) -> bool:
    """Whether a profile was launched or trusted in this folder with exactly this content. Reads a file."""
    try:
        return _digest(profile) in _file().read_text().split()
    except (OSError, UnicodeDecodeError):
        return False


def trust(profile: Profile) -> None:
    """Remembers a profile. If that fails, the user is asked again next time."""
    if is_trusted(profile):
        return
    try:
        private_folder(state_folder())
        file = os.open(_file(), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, f"{_digest(profile)}\n".encode())
        finally:
            os.close(file)
    except OSError:
        pass


def _file() -> Path:
    return state_folder() / "trusted"


def _digest(profile: Profile) -> str:
    return hashlib.sha256(os.fsencode(os.getcwd()) + b"\0" + msgspec.json.encode(profile)).hexdigest()
