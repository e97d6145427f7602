"""Finds, reads and changes the user's `config.toml`. Its command is run, so nobody else may be able to write the file."""

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from engine.core.errors import ProfileError
from engine.core.plan.document.places import Places
from engine.core.settings import Settings, parse_settings
from engine.linux.files import replace_file
from engine.linux.folders import make_folders
from engine.runs.guarded import read_guarded
from engine.runs.lock import alone
from engine.runs.paths import settings_file

LOCK_SECONDS = 5.0  # how long a change waits for one of another process, which takes milliseconds


def read_settings() -> tuple[Settings, Places]:
    """The user's settings, and where each is written. Without a file: the defaults. Raises ProfileError: the file can't be read, another user could
    have written it, or something in it is wrong."""
    path = settings_file()
    text = read_guarded(path, (os.geteuid(), 0), whole_way=False)
    return (Settings(), Places(str(path), {})) if text is None else parse_settings(text, file=str(path))


def keep_settings(values: Mapping[tuple[str, ...], object]) -> Path:
    """Like `change_settings`, for values that do not depend on the current ones."""
    return change_settings(lambda _: values)


def change_settings(change: Callable[[Settings], Mapping[tuple[str, ...], object]]) -> Path:
    """Writes values into the user's settings, whose other lines stay as they are. A new file is private. Changes of other processes wait.
    `change`: returns values by their keys, as in `("look", "charts")`, for the settings as they are. Returns the file. Raises
    ProfileError: something is wrong with the settings, which are not changed then, or they can't be written."""
    import tomlkit

    path = settings_file()
    try:
        make_folders(str(path.parent))
        with alone(path.with_name(f".{path.name}.lock"), LOCK_SECONDS) as is_alone:
            if not is_alone:
                raise ProfileError(str(path), None, "", "another rankdeck is changing it", hint="try again")
            values = change(read_settings()[0])
            document = tomlkit.parse(path.read_text(encoding="utf-8")) if path.exists() else tomlkit.document()
            for (*tables, key), value in values.items():
                table: Any = document
                for name in tables:
                    table = table.setdefault(name, tomlkit.table())
                table[key] = value
            mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o600
            replace_file(path.resolve(), tomlkit.dumps(document).encode(), mode)  # a symbolic link stays one
    except OSError as error:
        raise ProfileError(str(path), None, "", f"can't be written: {error.strerror}") from None
    return path
