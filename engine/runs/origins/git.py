"""The commit of a working directory and its uncommitted changes, read by git without running anything that the repository names.

A repository may come from a stranger, and its configuration can name programs: monitors, hooks, filters, converters, pagers, remote
helpers. So git reads only the repository's configuration, with every program switched off that this configuration can name for these
commands, and refuses lazy downloads. A repository of another user is not read at all (CVE-2022-24765).
"""

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from engine.core.views.origin import MAX_DIFF, MAX_FILES, Code

TIME_LIMIT = 20.0  # Seconds for all of git's answers. A diff that takes longer is left out.

OVERRIDES = (
    "core.fsmonitor=false core.hooksPath=/dev/null core.pager=cat core.sshCommand=false core.attributesFile=/dev/null "
    "core.excludesFile=/dev/null core.untrackedCache=false core.quotePath=false protocol.allow=never "
    "submodule.recurse=false diff.noprefix=false diff.mnemonicPrefix=false color.ui=false"
).split()
"""Settings that win over those of the repository."""

DIFF = ("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=dirty", "--submodule=short")


class Found(NamedTuple):
    """The code of a folder, and its uncommitted changes as a patch of at most `MAX_DIFF` bytes."""

    code: Code
    diff: bytes


class GitError(Exception):
    """Git gave no answer; the message says why."""


def read_code(folder: Path) -> Found | None:
    """The commit and the uncommitted changes of the repository around the working directory of ranks; None without a repository or git."""
    program = shutil.which("git")
    top = _top_of(folder)
    if program is None or top is None:
        return None
    git = _Git(program, top)
    try:
        return git.read()
    except GitError as error:
        return Found(Code(root=str(top), trouble=str(error)), b"")


def _top_of(folder: Path) -> Path | None:
    """The nearest folder with a `.git`, without crossing a file system or entering a folder of another user."""
    with contextlib.suppress(OSError):
        folder = folder.resolve()
        device = folder.stat().st_dev
        for one in (folder, *folder.parents):
            if one.stat().st_dev != device:
                return None
            if (one / ".git").exists():
                return one
    return None


class _Git:
    """Asks git about one repository. `program`: path of git. `top`: the folder with `.git`."""

    def __init__(self, program: str, top: Path) -> None:
        self._program, self._top = program, top
        self._end = time.monotonic() + TIME_LIMIT
        self._options: list[str] = []
        own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        self._environment = {
            **own,
            "LC_ALL": "C.UTF-8",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ALLOW_PROTOCOL": "",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_PAGER": "cat",
        }

    def read(self) -> Found:
        user = os.geteuid()
        if any(path.lstat().st_uid != user for path in (self._top, self._top / ".git")):
            raise GitError("it belongs to another user")
        for setting in (*OVERRIDES, *self._programs()):
            self._options += ["-c", setting]
        commit = self._word("rev-parse", "--verify", "--quiet", "HEAD")
        branch = self._word("symbolic-ref", "--short", "--quiet", "HEAD")
        if not commit:
            return Found(Code(root=str(self._top), branch=branch, trouble="it has no commit"), b"")
        names = self._ask(*DIFF, "--name-only", "-z", "HEAD", "--")[0].split(b"\0")
        changed = [os.fsdecode(name) for name in names if name]
        diff, is_cut = self._ask(*DIFF, "--patch", "HEAD", "--") if changed else (b"", False)
        others: list[str] = []
        with contextlib.suppress(GitError):  # without it the rest is worth as much
            found = self._ask(
                "ls-files", "--others", "--exclude-standard", "--directory", "--no-empty-directory", "-z"
            )[0]
            others = [os.fsdecode(name) for name in found.split(b"\0") if name]
        return Found(
            Code(
                root=str(self._top),
                commit=commit,
                branch=branch,
                changed=_names(changed),
                untracked=_names(others),
                is_cut=is_cut or len(changed) > MAX_FILES or len(others) > MAX_FILES,
            ),
            diff,
        )

    def _programs(self) -> list[str]:
        """Settings that switch off the filters which the repository defines: its attributes could name them for any file."""
        said = self._ask("config", "--includes", "--list", "--name-only", "-z")[0]
        keys = {key for key in os.fsdecode(said).split("\0") if key.lower().startswith("filter.")}
        found = []
        for key in sorted(keys):
            name = key[len("filter.") :].rpartition(".")[0]
            if "=" in name or "\n" in name:
                raise GitError(f"it defines a filter with the name {name!a}")
            found += [f"filter.{name}.{part}=" for part in ("clean", "smudge", "process")]
            found.append(f"filter.{name}.required=false")
        return list(dict.fromkeys(found))

    def _word(self, *words: str) -> str:
        return self._ask(*words, may_fail=True)[0].decode(errors="replace").strip()

    def _ask(self, *words: str, may_fail: bool = False) -> tuple[bytes, bool]:
        """The output of git, at most `MAX_DIFF` bytes of it, and whether there was more. Raises GitError: it fails, or it takes too long."""
        argv = [self._program, "--no-pager", *self._options, "-C", str(self._top), *words]
        process = subprocess.Popen(
            argv,
            cwd="/",
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            said, is_cut = self._read(process)
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        if process.returncode and not is_cut and not may_fail:
            raise GitError(f"git {words[0]} ended with status {process.returncode}")
        return said, is_cut

    def _read(self, process: subprocess.Popen[bytes]) -> tuple[bytes, bool]:
        assert process.stdout is not None
        said = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while len(said) <= MAX_DIFF:
                if not selector.select(max(0.0, self._end - time.monotonic())):
                    raise GitError(f"git did not answer within {TIME_LIMIT:g} s")
                data = os.read(process.stdout.fileno(), 1 << 16)
                if not data:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(max(0.1, self._end - time.monotonic()))
                    return bytes(said), False
                said += data
        return bytes(said[:MAX_DIFF]), True


def _names(names: list[str]) -> tuple[str, ...]:
    """Names that JSON can hold, at most `MAX_FILES`."""
    return tuple(name.encode(errors="replace").decode(errors="replace") for name in names[:MAX_FILES])
