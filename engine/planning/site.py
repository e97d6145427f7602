"""Limits of a site for all its users, in `/etc/rankdeck/config.toml`."""

import os
import stat
from pathlib import Path

import tomli

from engine.core.errors import CheckError
from engine.core.plan.profile import MAX_LINGER
from engine.linux.files import read_file

FILE = Path("/etc/rankdeck/config.toml")

_HINT = "ask the administrators of this machine"


def most_linger() -> float:
    """The most seconds that a template may stay: `linger` in `[limits]`, `"off"` for none. Raises CheckError: the file can't be read, is no such
    TOML, or another user than root can change it."""
    try:
        found = os.stat(FILE)
        if found.st_uid != 0 or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise CheckError(f"another user than root can change {FILE}", hint=f"chown root {FILE}; chmod 644 {FILE}")
        value = tomli.loads(read_file(FILE).decode()).get("limits", {}).get("linger", MAX_LINGER)
    except FileNotFoundError:
        return MAX_LINGER
    except (OSError, ValueError, AttributeError) as error:
        raise CheckError(f"{FILE} can't be read: {error}", hint=_HINT) from None
    if value == "off":
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_LINGER:
        fact = f'{FILE}: limits.linger must be 0 to {MAX_LINGER} seconds or "off", not {value!r}'
        raise CheckError(fact, hint=_HINT)
    return float(value)
