"""Finds, reads and writes profile files. Writing keeps comments and order."""

import contextlib
import os
import shlex
import stat
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from engine.core.catalogue import ProfileEntry
from engine.core.errors import ProfileError, UsageError
from engine.core.plan.document.places import Places
from engine.core.plan.document.reading import parse_with_places
from engine.core.plan.profile import Profile, to_toml_data
from engine.core.words import suggestion
from engine.linux.files import replace_file
from engine.linux.folders import make_folders
from engine.planning.profile_paths import of_project, other_project
from engine.planning.recipes import choices, names
from engine.planning.site import read_site
from engine.runs.paths import profile_folders
from engine.runs.settings import read_settings

MAX_SIZE = 1 << 20  # largest profile, in bytes

_MACHINE = """
schema = 1
name = "this-machine"
layout = {nodes = "localhost", ranks_per_node = "auto"}
recipe.name = "allreduce"
"""


def folders() -> list[tuple[str, Path]]:
    """Folders of profiles, nearest first, each with its name for users: the folder of the working directory, folders of the settings, the
    user's own, the shipped one. A folder of the settings in which other users can put profiles is `shared`. Raises ProfileError: the
    settings can't be read."""
    here, (_, own), shipped = profile_folders()
    # Path.expanduser raises where a user is unknown.
    chosen = [Path(os.path.expanduser(folder)) for folder in read_settings()[0].profiles]
    return [here, *(("yours" if _is_own(folder) else "shared", folder) for folder in (*chosen, own)), shipped]


def _is_own(path: Path) -> bool:
    """Whether only the user can change a file or put files into a folder, or it does not exist yet."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return path.is_absolute()
    except OSError:
        return False
    return path.is_absolute() and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def list_profiles() -> list[ProfileEntry]:
    """Every profile of every folder, nearest first; the first profile of a name wins."""
    found: dict[str, ProfileEntry] = {}
    for source, folder in folders():
        for path in sorted(folder.glob("*.toml")):
            if path.stem not in found and path.is_file():
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    found[path.stem] = entry_of(path, source)
    return list(found.values())


def entry_of(path: Path, source: str = "") -> ProfileEntry:
    """A profile file as an entry of the list. `source`: the name of its folder; empty: it is found out. Raises FileNotFoundError: there is
    none."""
    now = path.stat()
    stamp = now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns, repr(read_site().site.defaults)
    return _entry(path, _source(path, source), stamp)


def _source(path: Path, source: str = "") -> str:
    if not source:
        parent = path.parent.resolve()
        source = next((name for name, folder in folders() if folder.resolve() == parent), "file")
    return "shared" if source == "yours" and not _is_own(path) else source


@lru_cache(maxsize=512)
def _entry(path: Path, source: str, stamp: tuple[int | str, ...]) -> ProfileEntry:
    """An entry of the list. `stamp`: differs once the file or the site's defaults have changed, so that the file is read again only then."""
    profile, problem, line = None, None, None
    try:
        profile = read_profile(path)
    except ProfileError as error:
        problem = f"{error.message}; {error.hint}" if error.hint else error.message
        line = error.line
    return ProfileEntry(name=path.stem, path=path, source=source, profile=profile, error=problem, line=line)


def find_profile(word: str) -> Path:
    """The file of a profile: a path, or a name in one of the folders. Raises UsageError: there is none; the hint has the nearest name."""
    if (os.sep in word and not word.endswith(".py")) or word.endswith(".toml"):
        path = Path(os.path.expanduser(word))
        if not path.is_file():
            raise UsageError(f"there is no file {word}", hint="rankdeck profiles lists what can be launched by name")
        return path
    if word.endswith(".py"):
        hint = f"to run it without a profile: rankdeck run {shlex.quote(word)}"
        raise UsageError(f"{word} is a script, not a profile", hint=hint)
    for _, folder in folders():
        if word and os.path.isfile(path := folder / f"{word}.toml"):
            return path
    if word in names():
        hint = f"rankdeck run {word} runs it; rankdeck new {word} makes a profile of it"
        raise UsageError(f"{word} is a recipe, not a profile", hint=hint)
    listed = [entry.name for entry in list_profiles()]  # reads each of them
    hint = suggestion(word, listed, f"available: {', '.join(listed)}")
    raise UsageError(f"there is no profile {word!r}", hint=hint)


def read_launched(path: Path) -> Profile:
    """Reads the profile of a run, which has the defaults of the site from when it was launched. Raises ProfileError if it can't be read."""
    return parse_with_places(_text(path), file=str(path), choices=choices())[0]


def read_profile(path: Path) -> Profile:
    """Like `read_with_places`, the profile alone."""
    return read_with_places(path)[0]


def read_with_places(path: Path, overrides: Sequence[str] = ()) -> tuple[Profile, Places]:
    """Reads and checks a profile file, with `section.key=value` words that win over it, and the site's defaults below it. Also returns the line of
    each key. Raises ProfileError if it can't be read, or is not a valid profile.

    Paths in a profile of a `.rankdeck` folder elsewhere are relative to the folder that contains it, and become absolute. Those in `overrides` are
    relative to the current folder.
    """
    return _parsed(path, _text(path), overrides)


def read_with_entry(path: Path, overrides: Sequence[str] = ()) -> tuple[Profile, Places, ProfileEntry]:
    """Like `read_with_places`, with the entry that decides on trust. Reads the file once: somebody may change it between two reads.

    The entry has the overrides only if the file has an error without them.
    """
    text = _text(path)
    profile, places = _parsed(path, text, overrides)
    plain = profile
    if overrides:
        with contextlib.suppress(ProfileError):
            plain = _parsed(path, text)[0]
    return profile, places, ProfileEntry(name=path.stem, path=path, source=_source(path), profile=plain, error=None)


def _text(path: Path) -> str:
    try:
        if not path.is_file():
            raise ProfileError(str(path), None, "", "is not a file")
        if path.stat().st_size > MAX_SIZE:
            raise ProfileError(str(path), None, "", "is too large to be a profile")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ProfileError(str(path), None, "", f"can't be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ProfileError(str(path), None, "", f"is not UTF-8 at byte {error.start}") from None


def _parsed(path: Path, text: str, overrides: Sequence[str] = ()) -> tuple[Profile, Places]:
    defaults = read_site().site.defaults
    profile, places = parse_with_places(text, file=str(path), overrides=overrides, choices=choices(), defaults=defaults)
    project = other_project(path)
    return (profile if project is None else of_project(profile, project, places)), places


def profile_of_machine(overrides: Sequence[str] = ()) -> Profile:
    """A profile with this machine as its only node, where each backend counts its own ranks. `overrides`: as in `read_with_places`."""
    defaults = read_site().site.defaults
    known = choices()
    return parse_with_places(_MACHINE, file="this machine", overrides=overrides, choices=known, defaults=defaults)[0]


def to_toml(profile: Profile) -> str:
    """A profile as a new TOML document."""
    import tomlkit

    document = tomlkit.document()
    _merge(document, to_toml_data(profile, read_site().site.defaults))
    return tomlkit.dumps(document)


def save_profile(profile: Profile, path: Path | None = None) -> Path:
    """Writes a profile. An existing file keeps its mode, comments, order and unchanged values; a new one is private. `path`: the file; None:
    the user's own folder, under the profile's name. Returns the file that was written. Raises ProfileError: it can't be written."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    own = next((folder for source, folder in folders() if source == "yours"), profile_folders()[1][1])
    path = path or own / f"{profile.name}.toml"
    try:
        document = tomlkit.parse(path.read_text(encoding="utf-8")) if path.exists() else tomlkit.document()
    except (OSError, UnicodeDecodeError, TOMLKitError) as error:
        raise ProfileError(str(path), None, "", f"exists but can't be read, so it was not changed: {error}") from None
    _merge(document, to_toml_data(profile, read_site().site.defaults))
    try:
        make_folders(str(path.parent))
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o600  # profiles may hold secrets
        replace_file(path.resolve(), tomlkit.dumps(document).encode(), mode)  # a symbolic link stays one
    except OSError as error:
        raise ProfileError(str(path), None, "", f"can't be written: {error.strerror}") from None
    return path


def _merge(table: Any, data: dict[str, Any]) -> None:
    """Makes a tomlkit table say what `data` says, touching only what differs."""
    for key in [key for key in table if key not in data]:
        del table[key]
    for key, value in data.items():
        if isinstance(value, dict):
            if key not in table:
                import tomlkit

                table[key] = tomlkit.table()
            _merge(table[key], value)
        elif key not in table or _plain(table[key]) != value:
            table[key] = value


def _plain(value: Any) -> Any:
    return value.unwrap() if hasattr(value, "unwrap") else value
