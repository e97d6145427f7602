"""Speaks with a real agent over the stdin and stdout of its boot command, as a supervisor does."""

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.core.wire import agent_reports as reports
from engine.node.agent.wire import PROTOCOL, SYNC, FrameBuffer, encode_frame
from engine.supervisor.nodes.bridge import agent_program, boot_command
from tests.support import DEADLINE, PATIENCE, SLOWEST, complete_lines, is_alive, wait_until

PATIENT: list[list[Any]] = [["SIGINT", 5], ["SIGTERM", 5], ["SIGKILL", 5]]

FOR_EVER = "import signal; print('up'); signal.pause()"
STUBBORN = "import signal; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; print('up'); [signal.pause() for _ in iter(int, 1)]"

Message = dict[str, Any]


class Bridge:
    """One booted bridge; what the agent says is kept until it is asked for."""

    def __init__(self, hello: Message, *, cwd: Path, env: dict[str, str] | None = None) -> None:
        argv = boot_command(sys.executable)
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            bufsize=0,
        )
        self.messages: list[Message] = []
        self.ended = False
        self._frames = FrameBuffer()
        self._synced = False
        self.write(agent_program() + encode_frame(hello))

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        while data:
            data = data[self.process.stdin.write(data) or 0 :]

    def send(self, **message: Any) -> None:
        """Asks the agent for something."""
        self.write(encode_frame(message))

    def read(self, seconds: float) -> None:
        """Takes in what has come, waiting for something at most this long."""
        assert self.process.stdout is not None
        if self.ended or not select.select([self.process.stdout], [], [], seconds)[0]:
            return
        data = os.read(self.process.stdout.fileno(), 1 << 20)
        if not data:
            self.ended = True
        if data and not self._synced:
            assert data.startswith(SYNC), data
            self._synced, data = True, data[len(SYNC) :]
        messages = self._frames.feed(data)
        assert all(reports.read_report(message) is not None for message in messages), messages
        self.messages += messages

    def expect(self, kind: str, seconds: float = DEADLINE, **fields: Any) -> Message:
        """Waits for a message, so many seconds on a quiet machine. Returns it, and takes it away."""
        end = time.monotonic() + seconds * SLOWEST
        while True:
            for message in self.messages:
                if message["type"] == kind and all(message.get(key) == value for key, value in fields.items()):
                    self.messages.remove(message)
                    return message
            if self.ended or time.monotonic() > end:
                raise AssertionError(f"no {kind} {fields} came; there are {self.messages}, ended: {self.ended}")
            self.read(0.05)

    def wait_ended(self, seconds: float = DEADLINE) -> None:
        """Waits until the bridge has closed the wire."""

        def has_ended() -> bool:
            self.read(0.02)
            return self.ended

        wait_until(has_ended, seconds, "the bridge has ended")

    def settle(self) -> None:
        """Takes in all that the agent said until now: it has answered a request that it knows nothing of."""
        self.send(type="are_you_there")
        self.expect("trouble", request="are_you_there")

    def hang_up(self) -> None:
        """Closes the wire, and waits for the bridge to end."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=PATIENCE)
        self.process.stdout.close()


class Node:
    """A node as a supervisor sees it: one agent at most, and bridges to it."""

    def __init__(self, folder: Path, mark: str = "run-1") -> None:
        self.folder = folder
        self.mark = f"{mark}-{os.getpid()}"  # tests in other processes must not be taken for the same run
        self.bridges: list[Bridge] = []
        self.agents: set[int] = set()
        self.wardens: set[int] = set()

    def hello(self, **terms: Any) -> Message:
        """The first frame."""
        all_terms = {"lease": 600.0, "on_disconnect": "keep", "stop_ladder": PATIENT, "stop_patience": 0.0, **terms}
        return {
            "type": "hello",
            "protocol": PROTOCOL,
            "mark": self.mark,
            "title": "tests node",
            "folder": str(self.folder / "node"),
            "terms": all_terms,
            "library": "lib",
        }

    def boot(self, hello: Message | None = None, env: dict[str, str] | None = None) -> Bridge:
        """Boots a bridge without waiting for anything."""
        bridge = Bridge(hello or self.hello(), cwd=self.folder, env=env)
        self.bridges.append(bridge)
        return bridge

    def connect(self, **terms: Any) -> tuple[Bridge, Message]:
        """A bridge and the agent's hello."""
        bridge = self.boot(self.hello(**terms))
        hello = bridge.expect("hello")
        self.agents.add(hello["pid"])
        self.wardens.add(hello["warden"])
        return bridge, hello

    def files(self, rank: int, attempt: int = 0) -> dict[str, str]:
        """The files of a rank."""
        folder = self.folder / f"attempt_{attempt}"
        return {kind: str(folder / f"rank_{rank}.{kind}") for kind in ("out", "err", "metrics")}

    def out(self, rank: int, attempt: int = 0) -> bytes:
        """What a rank has printed so far."""
        path = Path(self.files(rank, attempt)["out"])
        return path.read_bytes() if path.exists() else b""

    def spawn(
        self,
        bridge: Bridge,
        *programs: str,
        attempt: int = 0,
        generation: int = 0,
        argv: Sequence[str] | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
    ) -> list[int]:
        """Starts one rank for each program text, as `python -c`. Returns their pids."""
        ranks = [
            {"rank": rank, "generation": generation, "env": {"PROGRAM": text}, **self.files(rank, attempt)}
            for rank, text in enumerate(programs)
        ]
        start = [sys.executable, "-u", "-c", "import os; exec(os.environ['PROGRAM'])"]
        bridge.send(
            type="spawn",
            attempt=attempt,
            argv=start if argv is None else list(argv),
            cwd=cwd or str(self.folder),
            ranks=ranks,
            env=env or {},
            env_defaults={},
            library=str(self.folder / "library"),
        )
        if argv is not None or cwd is not None:
            return []
        about = {"attempt": attempt, "generation": generation}
        return [bridge.expect("spawned", rank=rank, **about)["pid"] for rank in range(len(programs))]

    def open_store(
        self, bridge: Bridge, attempt: int = 0, argv: Sequence[str] = ("/bin/sh", "-c", "exec sleep 600")
    ) -> None:
        """Asks for a store; by default one whose process never accepts."""
        bridge.send(
            type="open_store",
            attempt=attempt,
            argv=list(argv),
            host="127.0.0.1",
            log=str(self.folder / f"attempt_{attempt}" / "store.log"),
            env={},
            env_defaults={},
            library=str(self.folder / "library"),
        )

    def leave(self) -> None:
        """Ends bridges and agent at the end of a test, whatever state they are in."""
        for bridge in self.bridges:
            bridge.process.kill()
            bridge.hang_up()
        if any(is_alive(pid) for pid in self.agents | self.wardens):
            last = Bridge(self.hello(), cwd=self.folder)
            with contextlib.suppress(AssertionError, OSError):
                last.expect("hello")
                last.send(type="close")
            last.wait_ended()
            last.hang_up()


def child_program(body: str, *, then: str) -> str:
    """A rank that forks a child with this body, waits until it has said so, and goes on with `then`."""
    return (
        "import os, signal, sys\n"
        "r, w = os.pipe()\n"
        "if os.fork() == 0:\n"
        f"    {body}\n"
        "    print('child', os.getpid())\n"
        "    os.write(w, b'x')\n"
        "    while True: signal.pause()\n"
        "os.read(r, 1)\n"
        f"{then}"
    )


def child_of(node: Node, rank: int = 0) -> int:
    """The pid that a `child_program` printed."""
    lines = wait_until(lambda: [one for one in complete_lines(node.out(rank)).splitlines() if one.startswith(b"child")])
    return int(lines[0].split()[1])


def command_of(pid: int) -> bytes:
    """The command line of a process; empty where there is none."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def open_files(pid: int) -> list[str]:
    """What a process has open."""
    names = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            names.append(os.readlink(path))
    return names


def listens(port: int) -> bool:
    """Whether somebody listens on a port of this machine."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def sockets() -> list[str]:
    return sorted(os.listdir(Path(os.environ["XDG_RUNTIME_DIR"]) / "rankdeck"))
