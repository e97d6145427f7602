"""When a user is told of a run, and what their terminal and their command get."""

import asyncio
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from engine.client.notices import notify
from engine.client.notices.notify import Telling, desktop_of, post, run_command, send, terminal_sequences
from engine.core.run.state import RunWord
from engine.core.settings import Desktop, Notify, Occasion
from engine.core.views.occasions import Condition, occasion_of, telling
from tests.support import from_table, wait_until

TOLD = Telling("failure", "gpt-k3f9", "gpt", "waits: a rank failed: rank 2 was killed by SIGKILL")


@from_table
def test_a_user_is_told_of_ends_failures_and_hangs_once(before: list[Any], now: list[Any], occasion: Occasion | None):
    assert occasion_of(Condition(*before), Condition(*now)) == occasion


@from_table
def test_what_is_told_says_what_happened_and_why(occasion: Occasion, state: RunWord, text: str):
    assert telling(occasion, Condition(state, occasion == "stall", "why")) == text


@from_table
def test_a_terminal_gets_the_sequence_that_it_is_known_to_take(environment: dict[str, str], kind: Desktop):
    assert desktop_of(environment) == kind


def test_bell_and_notification_are_sent_as_wanted():
    environment = {"TERM": "xterm-kitty"}
    assert terminal_sequences(Notify(bell=True), TOLD, environment) == "\a"
    assert terminal_sequences(Notify(desktop="auto"), TOLD, {}) == ""
    auto = terminal_sequences(Notify(desktop="auto"), TOLD, environment)
    assert auto == f"\x1b]99;i=rankdeck:d=0;rankdeck gpt-k3f9\x1b\\\x1b]99;i=rankdeck:p=body;{TOLD.text}\x1b\\"
    assert terminal_sequences(Notify(desktop="osc9"), TOLD, {}) == f"\x1b]9;rankdeck gpt-k3f9: {TOLD.text}\x1b\\"
    assert terminal_sequences(Notify(desktop="osc777"), TOLD, {"TMUX": "/tmp/tmux,1,0"}) == (
        f"\x1bPtmux;\x1b\x1b]777;notify;rankdeck gpt-k3f9;{TOLD.text}\x1b\x1b\\\x1b\\"
    )


@pytest.mark.parametrize("kind", ["osc9", "osc777", "osc99"])
@pytest.mark.parametrize(
    "hostile",
    ["\x1b]52;c;QQ==\a", "\x1b\\\x1b[2J", "a\nb\rc", "\x9b2J\x9d9;x\x9c", "\u202eab", ";;", "\a", "x" * 10_000],
)
def test_a_terminal_gets_no_control_character_of_a_run(kind: Desktop, hostile: str):
    usual = terminal_sequences(Notify(desktop=kind), TOLD._replace(text="ok"), {})
    sent = terminal_sequences(Notify(desktop=kind), TOLD._replace(text=f"{hostile}ok", run=f"r{hostile}"), {})
    for odd in ("\x1b", "\a", "\x9b", "\x9c", "\n", "\r", "\u202e", ";"):
        assert sent.count(odd) == usual.count(odd)
    assert len(sent) < 500


async def test_the_command_gets_the_words_in_its_environment_and_no_shell_reads_them(tmp_path: Path):
    code = "import os, sys; open(sys.argv[1], 'w').write('|'.join([sys.argv[2]] + [os.environ['RANKDECK_' + one] for one in ('EVENT', 'RUN', 'PROFILE', 'TEXT')]))"
    told = TOLD._replace(text="failed: $(touch x)\x1b[2J; `y`")
    assert await run_command([sys.executable, "-c", code, str(tmp_path / "got"), "$HOME; *"], told) == ""
    assert (tmp_path / "got").read_text() == "$HOME; *|failure|gpt-k3f9|gpt|failed: $(touch x), `y`"


async def test_a_command_that_does_not_work_is_explained():
    assert "can't be run" in await run_command(["/no/such/program"], TOLD)
    assert "can't be run" in await run_command(["a\0b"], TOLD)
    assert await run_command(["false"], TOLD) == "notify.command ended with status 1"
    assert await run_command([], TOLD) == ""


async def test_a_command_that_does_not_end_is_ended_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(notify, "COMMAND_SECONDS", 2.0)
    script = f"sleep 1000 & echo $! > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; wait"
    assert "was ended" in await run_command(["sh", "-c", script], TOLD)
    if (tmp_path / "pid").exists():  # on a busy machine it may not have come so far
        pid = int((tmp_path / "pid").read_text())
        wait_until(lambda: not _lives(pid), what="its child has ended")


async def test_a_command_ends_with_the_app(tmp_path: Path):
    task = asyncio.create_task(run_command(["sh", "-c", f"echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; sleep 1000"], TOLD))  # fmt: skip
    while not (tmp_path / "pid").exists():  # noqa: ASYNC110 - a file has no event
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not _lives(int((tmp_path / "pid").read_text()))


class Hooks(ThreadingHTTPServer):
    """A server for webhooks. `status`: of its answers. `asked`: path, kind and document of each request; what arguments there were meanwhile."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Hook)
        self.status = 200
        self.asked: list[tuple[str, str | None, object]] = []
        self.arguments = b""

    def address(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"


class Hook(BaseHTTPRequestHandler):
    server: Hooks

    def do_POST(self) -> None:
        document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, self.headers["Content-Type"], document))
        self.server.arguments = b"".join(_bytes(path) for path in Path("/proc").glob("[0-9]*/cmdline"))
        self.send_response(self.server.status)
        self.send_header("Location", self.server.address("/elsewhere"))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hooks() -> Iterator[Hooks]:
    with Hooks() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        yield server
        server.shutdown()


SECRET = "/hooks/k3f9-secret"


async def test_a_webhook_gets_one_document_and_its_address_is_in_no_argument(hooks: Hooks):
    told = TOLD._replace(text="failed: <!channel> @all\x1b[2J")
    assert await post(hooks.address(SECRET), told) == ""
    assert await post("", told) == ""
    assert hooks.asked == [
        (
            SECRET,
            "application/json",
            {
                "event": "failure",
                "run": "gpt-k3f9",
                "profile": "gpt",
                "reason": "failed: \u2039!channel\u203a \uff20all",
                "text": "gpt-k3f9: failed: \u2039!channel\u203a \uff20all",
            },
        )
    ]
    assert b"webhook.py" in hooks.arguments
    assert b"k3f9-secret" not in hooks.arguments


@pytest.mark.parametrize("status", [301, 307, 404, 500])
async def test_what_a_webhook_refuses_is_said_without_its_address_and_no_redirection_is_followed(
    hooks: Hooks, status: int
):
    hooks.status = status
    assert await post(hooks.address(SECRET), TOLD) == f"notify.webhook: the server answered with status {status}"
    assert [path for path, _, _ in hooks.asked] == [SECRET]


async def test_a_webhook_that_can_not_be_reached_is_said_without_its_address():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        said = await post(f"http://127.0.0.1:{taken.getsockname()[1]}{SECRET}", TOLD)
    assert said.startswith("notify.webhook: the server can't be reached: ")
    assert "secret" not in said


async def test_a_webhook_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(notify, "COMMAND_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        said = await post(f"http://127.0.0.1:{silent.getsockname()[1]}{SECRET}", TOLD)
    assert said == "notify.webhook was ended: it took over 1 s"


async def test_command_and_webhook_are_both_told_and_both_say_what_is_wrong(hooks: Hooks):
    hooks.status = 404
    wanted = Notify(command=("false",), webhook=hooks.address(SECRET))
    assert await send(wanted, TOLD) == [
        "notify.command ended with status 1",
        "notify.webhook: the server answered with status 404",
    ]


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_nothing_is_on_unless_it_is_wanted():
    assert not Notify().is_on
    assert not Notify(on=(), bell=True).is_on
    assert Notify(command=("true",)).is_on
    assert os.environ.get("RANKDECK_EVENT") is None
