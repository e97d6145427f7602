"""Profiles of commands of other launchers, and of batch files that contain one."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from engine.core.errors import UsageError
from engine.core.launch_commands.draft import Note, Word, profile_data
from engine.core.launch_commands.script import batch_file, read_script
from engine.core.plan.document.checks import profile_name
from engine.core.plan.document.places import Places
from engine.core.plan.document.reading import below, profile_with_overrides
from engine.core.plan.profile import Profile
from engine.planning.recipes import choices
from engine.planning.site import read_site

MAX_SIZE = 1 << 16  # largest batch file, in bytes


class Imported(NamedTuple):
    """A profile, and the parts of the command that it does not contain."""

    profile: Profile
    places: Places
    notes: list[Note]


def import_command(
    words: Sequence[str],
    *,
    name: str | None = None,
    nodes: str | None = None,
    overrides: Sequence[str] = (),
    is_whole: bool = True,
) -> Imported:
    """Reads a command, relative to the current directory. `words`: the command as one text or as words, or the name of a batch file. `name`:
    name of the profile; None: that of the job, or of the script. `nodes`: where it runs; None: as the command says. `overrides`: as
    `--set` takes them; they win. `is_whole`: False notes what the command lacks, for a form in which the user adds it. Raises UsageError:
    the command can't be read; ProfileError: the profile would be wrong."""
    text = words[0] if len(words) == 1 else shlex.join(words)
    if len(text) > MAX_SIZE:
        raise UsageError(f"the command is longer than {MAX_SIZE >> 10} KiB")
    job = batch_file([Word(word, "the command") for word in _words(text)])
    file, options = (text, None) if len(words) == 1 and os.path.isfile(text) else job or ("", None)
    draft, found = read_script(_read(file) if file else text, file, options)
    chosen = name or profile_name(found or draft.target, is_module=not found and draft.kind == "module")
    data = profile_data(draft, chosen, nodes, folder=str(Path.cwd()), is_whole=is_whole)
    places = Places(file or "the command", {})
    profile = profile_with_overrides(below(data, read_site().site.defaults), places, overrides, choices())
    return Imported(profile, places, draft.notes)


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return []


def _read(file: str) -> str:
    """The text of a batch file. Raises UsageError if it can't be read."""
    if file.endswith(".py"):
        raise UsageError(f"{file} is a script, not a command", hint=f"rankdeck new {shlex.quote(file)}")
    try:
        with open(file, "rb") as opened:
            content = opened.read(MAX_SIZE + 1)
    except OSError as error:
        raise UsageError(f"{file}: can't be read: {error.strerror}") from None
    if len(content) > MAX_SIZE or b"\0" in content:
        raise UsageError(f"{file}: is not a batch file", hint="import a shell script or a command")
    return content.decode(errors="replace")
