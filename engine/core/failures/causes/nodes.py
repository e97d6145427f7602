"""Why no agent could be started on a node that ssh reached: what the login shell, Python and the agent say about it.

`detail` and `hint` continue a sentence that begins with the node's name. They may also use `{node}` and `{python}`.
"""

from __future__ import annotations

from functools import partial

from engine.core.failures.causes.cause import Cause

_node = partial(Cause, kind="connection", speaker="node")

CAUSES: tuple[Cause, ...] = (
    # --- its disks, memory, processes
    _node(
        id="S30",
        pattern=r"No space left on device(?P<path>: '[^'\n]+')?",
        detail="a disk there is full{path}",
        hint="free space where the agent keeps its files: the temporary folder and the run's folder",
    ),
    _node(
        id="S31",
        pattern=r"[Qq]uota exceeded(?P<path>: '[^'\n]+')?",
        detail="your disk quota there is used up{path}",
        hint="free space, or check `quota -s` there",
    ),
    _node(
        id="S32",
        pattern=r"Read-only file system(?P<path>: '[^'\n]+')?",
        detail="a file system there is read-only{path}",
        hint="set TMPDIR there, and launch.workdir, to a writable folder",
    ),
    _node(
        id="S33",
        pattern=r"No usable temporary directory found",
        detail="no temporary folder there is writable",
        hint="set TMPDIR there to a writable folder",
    ),
    _node(
        id="S34",
        pattern=r"Errno 13\] Permission denied(?P<path>: '[^'\n]+')?",
        detail="the agent has no permission to write there{path}",
        hint="make that folder writable for you",
    ),
    _node(
        id="S35",
        pattern=r"fork: (?:retry: )?Resource temporarily unavailable|[Cc]annot fork|fork failed|BlockingIOError|can't start new thread",
        detail="you can't start more processes there",
        hint="end processes of earlier runs, or increase `ulimit -u` there",
    ),
    _node(
        id="S36",
        pattern=r"MemoryError|[Cc]annot allocate memory|failed to map segment|[Oo]ut of memory",
        detail="it does not have enough memory to start a process",
        hint="end processes that use it, or increase `ulimit -v` there",
    ),
    _node(
        id="S37",
        pattern=r"cannot open shared object file: Error 24|[Tt]oo many open files",
        detail="the limit of open files there is reached",
        hint="increase `ulimit -n` there",
    ),
    # --- the Python that is to run the agent
    _node(
        id="S38",
        pattern=r"error while loading shared libraries: (?P<library>[^:\n]+):",
        detail="{python} does not start there: it lacks {library}",
        hint="load it in launch.setup, for example with `module load`",
    ),
    _node(
        id="S39",
        pattern=r"version .(?P<version>(?:GLIBC|GLIBCXX|CXXABI)_[\w.]+)' not found",
        detail="{python} was built for a newer system: {version} is missing there",
        hint="set launch.python to a Python of that node",
    ),
    _node(
        id="S40",
        pattern=r"init_fs_encoding|No module named '?encodings",
        detail="{python} can't find its standard library there",
        hint="remove PYTHONHOME from the login files and launch.setup, or correct launch.python",
    ),
    _node(
        id="S41",
        pattern=r"^Unknown option: -I$|^SyntaxError: |^ImportError: cannot import name|^AttributeError: module ",
        detail="{python} is too old there: the agent needs 3.8",
        hint="set launch.python to a newer one",
    ),
    _node(
        id="S42",
        pattern=r"^(?:ModuleNotFound|Import)Error: No module named '?(?P<name>[\w.]+)",
        detail="{python} lacks the standard module {name} there",
        hint="set launch.python to a complete Python",
    ),
    _node(
        id="S43",
        pattern=r"[Ee]xec format error|cannot execute binary file|could not be run by the operating system",
        detail="{python} was built for another type of machine",
        hint="set launch.python to one that was built for that node",
    ),
    _node(
        id="S44",
        pattern=r"exec: (?:line \d+: )?bash: not found",
        detail="it has no bash, which launch.setup needs",
        hint="install bash there, or remove launch.setup",
    ),
    _node(
        id="S45",
        pattern=r"^Could not chdir to home directory (?P<home>[^:\n]+): (?P<why>.+)",
        detail="your home directory there, {home}, can't be entered: {why}",
        hint="check that it is mounted: ssh {node} df -h",
        statuses=(1, 126, 127),
    ),
    # tcsh exits with 1 in each of these cases
    _node(
        id="S46",
        pattern=r": Command not found\.$",
        detail="there is no {python} there",
        hint="set launch.python to the path of one, or add it to PATH in launch.setup",
        statuses=(1,),
    ),
    _node(
        id="S47",
        pattern=r": Permission denied\.$",
        detail="{python} is not executable there",
        hint="set launch.python to one that you can run",
        statuses=(1,),
    ),
)
