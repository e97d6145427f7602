"""Paths in profiles: relative to the current folder, or to the project whose `.rankdeck` folder has the profile."""

import os
from pathlib import Path

from msgspec.structs import replace

from engine.core.plan.document.places import Places
from engine.core.plan.profile import Profile
from engine.runs.paths import HERE, utf8_path

_PATHS = (("layout", "hostfile"), ("recipe", "script"), ("launch", "python"), ("launch", "workdir"))
"""What `with_absolute_paths` changes."""


def as_saved(profile: Profile, path: Path | None) -> Profile:
    """A profile as its file has it: a script of this folder gets its absolute path, so that every folder finds it. `profile`: what the user
    wants to save. `path`: the file; None: in the user's own folder. A file below this folder keeps a relative path: they move together.
    In a `.rankdeck` folder elsewhere, paths below the folder that contains it become relative to that again."""
    script = profile.recipe.script
    is_relative = script is not None and not os.path.isabs(os.path.expanduser(script)) and os.path.isfile(script)
    if is_relative and not (path is not None and path.absolute().is_relative_to(Path.cwd())):
        profile = with_absolute_paths(profile)
    project = None if path is None else other_project(path)
    return profile if project is None else _with_paths_below(profile, project)


def other_project(path: Path) -> Path | None:
    """The folder to which paths in a profile are relative, if that is not the current one: it contains the profile's `.rankdeck`."""
    folder = path.absolute().parent
    project = folder.parent.resolve()
    return project if folder.name == HERE and project != Path.cwd() else None


def _with_paths_below(profile: Profile, folder: Path) -> Profile:
    """The profile with relative paths of what lies in a folder."""

    def below(path: str | None) -> str | None:
        if path is None or not Path(path).is_relative_to(folder):
            return path
        return str(Path(path).relative_to(folder))

    layout, recipe, launch = profile.layout, profile.recipe, profile.launch
    python = below(launch.python)
    if launch.python and python and os.sep not in python and os.sep in launch.python:
        python = os.path.join(os.curdir, python)  # without a slash it would be a command
    return replace(
        profile,
        layout=replace(layout, hostfile=below(layout.hostfile)),
        recipe=replace(recipe, script=below(recipe.script)),
        launch=replace(launch, python=python, workdir=below(launch.workdir) or os.curdir),
    )


def with_absolute_paths(profile: Profile, folder: Path = Path()) -> Profile:
    """The profile with absolute paths of hostfile, script, Python and working directory, which are relative to a folder: by default the current directory."""
    hostfile, python, script = profile.layout.hostfile, profile.launch.python, profile.recipe.script
    if hostfile is not None:
        profile = replace(profile, layout=replace(profile.layout, hostfile=_absolute(hostfile, folder)))
    if script is not None:
        profile = replace(profile, recipe=replace(profile.recipe, script=_absolute(script, folder)))
    if python and os.sep in python:
        profile = replace(profile, launch=replace(profile.launch, python=_absolute(python, folder)))
    return replace(profile, launch=replace(profile.launch, workdir=_absolute(profile.launch.workdir, folder)))


def _absolute(path: str, folder: Path = Path()) -> str:
    return utf8_path(str((folder / os.path.expanduser(path)).absolute()))


def of_project(profile: Profile, project: Path, places: Places) -> Profile:
    """The profile of another project, with absolute paths. Paths from the command line are relative to the current folder."""
    typed, found = with_absolute_paths(profile), with_absolute_paths(profile, project)
    for section, key in _PATHS:
        if (section, key) in places.overridden:
            value = getattr(getattr(typed, section), key)
            changed = replace(getattr(found, section), **{key: value})
            found = replace(found, **{section: changed})
    return found
