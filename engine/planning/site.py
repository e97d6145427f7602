"""Reads what administrators set for all users of this machine, and applies its limits."""

import os
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from engine.core.plan.document.places import Places
from engine.core.plan.document.site import Site, parse_site
from engine.runs.guarded import read_guarded

ETC = "/etc"  # the folder that comes first, whatever the environment says
ROOT = (0,)  # the only user who may be able to change the file

_parsed = lru_cache(maxsize=4)(parse_site)


class SiteFile(NamedTuple):
    """A site's document, and where its keys are written."""

    site: Site
    places: Places


def read_site() -> SiteFile:
    """The first document of a site: of `/etc`, or of a folder in `XDG_CONFIG_DIRS`; without one, an empty document. Raises ProfileError: another user
    than root can change it, it can't be read, or something in it is wrong."""
    folders = [ETC, *(os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")]
    for path in (Path(folder, "rankdeck", "config.toml") for folder in folders if os.path.isabs(folder)):
        if (text := read_guarded(path, ROOT, whole_way=True)) is not None:
            return SiteFile(*_parsed(text, file=str(path)))
    return SiteFile(Site(), Places("", {}))
