"""Why no agent could be started on a node that ssh reached: what the login shell, Python and the agent say about it.

`detail` and `hint` continue a sentence that begins with the node's name. They may also use `{node}` and `{python}`.
"""

from __future__ import annotations

from engine.core.failures.causes.cause import Cause

CAUSES: tuple[Cause, ...] = (
    # --- its disks, memory, processes
    Cause(
        id="S30",
        pattern=r"No space left on device(?P<path>: '[^'\n]+')?",
        detail="a disk there is full{path}",
        hint="make room where the agent keeps its files: the temporary folder and the run's folder",
        kind="connection",
        speaker="node",
    ),
    Cause(
        id="S31",
        pattern=r"[Qq]uota exceeded(?P<path>: '[^'\n]+')?",
        detail="your disk quota there is used up{path}",
        hint="make room, or see `quota -s` there",
        kind="connection",
        speaker="node",
    ),
    Cause(
        id="S32",
        pattern=r"Read-only file system(?P<path>: '[^'\n]+')?",
        detail="a file system there can't be written{path}",
        hint="set TMPDIR there to a folder that can be, and launch.workdir likewise",
        kind="connection",
        speaker="node",
    ),
    Cause(
        id="S33",
        pattern=r"No usable temporary directory found",
        detail="no temporary folder there can be written",
        hint="set TMPDIR there to a folder that can be",
        kind="connection",
        speaker="node",
    ),
    Cause(
        id="S34",
        pattern=r"Errno 13\] Permission denied(?P<path>: '[^'\n]+')?",
        detail="the agent may not write there{path}",
        hint="make that folder yours, or writable",
        kind="connection",
        speaker="node",
    ),
    Cause(
        id="S35",
        pattern=r"fork: (?:retry: )?Resource temporarily unavailable|[Cc]annot fork|fork failed|BlockingIOError|can't start new thread",
        detail="no more processes of yours can be started there",
        hint="end what is left of earlier runs, or raise `ulimit -u` there",
        kind="connection",
        speaker="node",
    ),
    Cause(
        id="S36",
        pattern=r"MemoryError|[Cc]annot allocate memory|failed to map segment|[Oo]ut of memory",
        detail="it has no memory left for one more process",
        hint="end what fills it, or raise `ulimit -v` there",
        kind="connection",
        speaker="node",
    ),
    Cause(
        id="S37",
        pattern=r"cannot open shared object file: Error 24|[Tt]oo many open files",
        detail="no more files can be opened there",
        hint="raise `ulimit -n` there",
        kind="connection",
        speaker="node",
    ),
    # --- the Python that is to run the agent
    Cause(
        id="S38",
        pattern=r"error while loading shared libraries: (?P<library>[^:\n]+):",
        detail="{python} does not start there: it lacks {library}",
        hint="put what it needs into launch.setup, as in `module load`",
        kind="connection",
        speaker="node",
    ),
    Cause(
        id="S39",
        pattern=r"version .(?P<version>(?:GLIBC|GLIBCXX|CXXABI)_[\w.]+)' not found",
        detail="{python} was built for a newer system than runs there: it lacks {version}",
        hint="set launch.python to one of that node's",
        kind="connection",
        speaker="node",
    ),
    Cause(
        id="S40",
        pattern=r"init_fs_encoding|No module named '?encodings",
        detail="{python} does not find its own library there",
        hint="take PYTHONHOME out of the login files and launch.setup, or correct launch.python",
        kind="connection",
        speaker="node",
    ),
    Cause(
        id="S41",
        pattern=r"^Unknown option: -I$|^SyntaxError: |^ImportError: cannot import name|^AttributeError: module ",
        detail="{python} is too old there: the agent needs 3.8",
        hint="set launch.python to a newer one",
        kind="connection",
        speaker="node",
    ),
    Cause(
        id="S42",
        pattern=r"^(?:ModuleNotFound|Import)Error: No module named '?(?P<name>[\w.]+)",
        detail="{python} lacks its own module {name} there",
        hint="set launch.python to a whole Python",
        kind="connection",
        speaker="node",
    ),
    Cause(
        id="S43",
        pattern=r"[Ee]xec format error|cannot execute binary file|could not be run by the operating system",
        detail="{python} there is no program for that machine",
        hint="set launch.python to one that was built for it",
        kind="connection",
        speaker="node",
    ),
    Cause(
        id="S44",
        pattern=r"exec: (?:line \d+: )?bash: not found",
        detail="it has no bash, which runs launch.setup",
        hint="install bash there, or do without launch.setup",
        kind="connection",
        speaker="node",
    ),
    Cause(
        id="S45",
        pattern=r"^Could not chdir to home directory (?P<home>[^:\n]+): (?P<why>.+)",
        detail="your home there, {home}, can't be entered: {why}",
        hint="see whether it is mounted: ssh {node} df -h",
        statuses=(1, 126, 127),
        kind="connection",
        speaker="node",
    ),
    # tcsh exits with 1 in each of these cases
    Cause(
        id="S46",
        pattern=r": Command not found\.$",
        detail="there is no {python} there",
        hint="set launch.python to the path of one, or put it on PATH in launch.setup",
        statuses=(1,),
        kind="connection",
        speaker="node",
    ),
    Cause(
        id="S47",
        pattern=r": Permission denied\.$",
        detail="{python} may not be run there",
        hint="set launch.python to one that you may run",
        statuses=(1,),
        kind="connection",
        speaker="node",
    ),
)
