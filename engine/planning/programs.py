"""Profiles of programs that are named on the command line, without a profile file."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from engine.core.arguments.argument import Argument
from engine.core.arguments.script import read_arguments
from engine.core.errors import UsageError
from engine.core.plan.document.checks import profile_name
from engine.core.plan.document.places import Places
from engine.core.plan.document.reading import below, profile_with_overrides
from engine.core.plan.profile import Profile, to_toml_data
from engine.core.terminal_text import SURROGATE
from engine.core.words import suggestion
from engine.planning.profiles import list_profiles
from engine.planning.recipes import choices, names
from engine.planning.site import read_site
from engine.runs.paths import utf8_path

PLACE = "the command line"  # where a key of such a profile is written, for errors
LARGEST = 1_000_000  # bytes of a script that is read


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Values for a run from the command line. None: the profile's own value, or the default."""

    program: str  # a script, the name of a recipe, or a module
    args: tuple[str, ...] = ()
    is_module: bool = False
    name: str | None = None
    backend: str | None = None
    nodes: str | None = None
    slurm: bool = False  # in a job that rankdeck submits; `nodes` is the number of its nodes
    ranks: int | None = None
    on_failure: str | None = None
    python: str | None = None
    overrides: Sequence[str] = ()  # keys and values as in `--set`; they have priority over the other fields


def make_profile(wanted: Wanted, base: Profile | None = None) -> tuple[Profile, Places]:
    """Makes the profile that a command line describes. `base`: gives everything that the command line leaves open. Returns the profile, and
    where its keys are written. Raises UsageError: there is no such script or recipe; ProfileError: a value is wrong."""
    data: dict[str, Any] = {"schema": 1} if base is None else to_toml_data(base)
    data["name"] = wanted.name or profile_name(wanted.program, is_module=wanted.is_module)
    kind = _kind(wanted)
    # A script of any name can run: through a link if its path is not UTF-8.
    found = utf8_path(os.path.abspath(wanted.program)) if SURROGATE.search(wanted.program) else wanted.program
    data["recipe"] = {kind: found if kind == "script" else wanted.program, "args": list(wanted.args)}
    if wanted.backend is not None:
        data["backend"] = {"name": wanted.backend}
    layout = data.setdefault("layout", {})
    if wanted.slurm:
        job = layout["slurm"] if isinstance(layout.get("slurm"), dict) else {}
        kept = {key: value for key, value in layout.items() if key == "ranks_per_node"}
        data["layout"] = layout = {**kept, "slurm": job}
        if wanted.nodes is not None and not wanted.nodes.isdecimal():
            hint = "with --slurm it is the number of nodes of the job"
            raise UsageError(f"--nodes {wanted.nodes} is no number", hint=hint)
        if wanted.nodes is not None:
            job["nodes"] = int(wanted.nodes)
    elif wanted.nodes is not None:
        for key in ("hostfile", "slurm", "pbs"):
            layout.pop(key, None)
        layout["nodes"] = wanted.nodes
    if wanted.ranks is not None:
        layout["ranks_per_node"] = wanted.ranks
    for key, value in (("python", wanted.python), ("on_failure", wanted.on_failure)):
        if value is not None:
            data.setdefault("launch", {})[key] = value
    if base is None:
        data = below(data, read_site().site.defaults)
        data["backend"] = {"name": "auto", **data.get("backend", {})}
    places = Places(PLACE, {})
    return profile_with_overrides(data, places, wanted.overrides, choices()), places


def _kind(wanted: Wanted) -> str:
    """The key of `[recipe]` that names the program. A file is a script, whatever recipes there are."""
    if wanted.is_module:
        if "/" in wanted.program or wanted.program.endswith(".py"):
            module = wanted.program.removeprefix("./").removesuffix(".py").strip("/").replace("/", ".")
            hint = f"leave out -m, or name the module: -m {module}"
            raise UsageError(f"{wanted.program!r} is a file, not a module", hint=hint)
        return "module"
    if Path(wanted.program).is_file():
        return "script"
    if wanted.program in names():
        return "name"
    word = wanted.program
    if any(entry.name == word for entry in list_profiles()):
        raise UsageError(f"{word} is a profile, not a script", hint=f"rankdeck launch {word}")
    if re.fullmatch(r"(?:.*/)?python[\d.]*", word):
        raise UsageError(f"{word!r} is no script", hint=f"leave out {word}; --python names the Python of the ranks")
    from engine.core.launch_commands.command import LAUNCHERS  # only for an error

    if Path(word).name in LAUNCHERS:
        hint = f"rankdeck import '{Path(word).name} …' makes a profile of its command"
        raise UsageError(f"{word!r} is another launcher", hint=hint)
    if word and Path(word).is_dir():
        raise UsageError(f"{word!r} is a folder", hint="name a script in it, or with -m a module")
    scripts = [str(Path(word).with_name(path.name)) for path in Path(word).parent.glob("*.py")] if word else []
    listed = "the path is relative to the current folder; rankdeck recipes lists recipes; -m runs a module"
    hint = suggestion(word, [*scripts, *names()], listed)
    raise UsageError(f"there is no script {word!r}, and no recipe of that name", hint=hint)


def arguments_of(path: Path) -> tuple[Argument, ...]:
    """The arguments that the script at `path` declares; empty if it can't be read."""
    try:
        if not path.is_file() or path.stat().st_size > LARGEST:
            return ()
        return read_arguments(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ()
