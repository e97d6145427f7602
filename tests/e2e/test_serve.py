"""The app in a browser: who is let in, and that no process outlives its browser. The browser is aiohttp's client with a screen of pyte."""

import asyncio
import os
import re
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pyte
import pytest

from engine.commands.cli import cli
from engine.core.errors import CheckError, UsageError
from tests.support import PATIENCE, Deck, Process, wait_gone, wait_until

aiohttp = pytest.importorskip("aiohttp", reason="needs textual-serve: pip install 'rankdeck[serve]'")

ASKS_FOR_MODE = b"\x1b[?2026$p"  # Textual's question for synchronized output, which pyte would print

ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)/([\w-]{43})/\n")


@contextmanager
def served(rankdeck: Deck, *flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command, and the address that it has printed."""
    with rankdeck.start(*flags, "serve") as command:
        try:
            assert command.stdout is not None
            address = command.stdout.readline()
            assert ADDRESS.fullmatch(address)
            yield command, address.strip()
        finally:
            command.kill()


def apps(rankdeck: Deck) -> list[Process]:
    return [process for process in rankdeck.processes() if " in-browser " in process.command]


class Browser:
    """A screen that a websocket paints."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.screen = pyte.Screen(100, 30)
        self._stream = pyte.ByteStream(self.screen)

    @property
    def text(self) -> str:
        return "\n".join(self.screen.display)

    async def wait_seen(self, text: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while text not in self.text:
                message = await self.connection.receive()
                assert message.type == aiohttp.WSMsgType.BINARY, f"{message} instead of {text!r} in\n{self.text}"
                self._stream.feed(message.data.replace(ASKS_FOR_MODE, b""))

    async def type(self, keys: str) -> None:
        await self.connection.send_json(["stdin", keys])

    async def wait_closed(self) -> None:
        async with asyncio.timeout(PATIENCE):
            async for _ in self.connection:
                pass
        assert self.connection.closed


@asynccontextmanager
async def browser(address: str) -> AsyncIterator[Browser]:
    async with aiohttp.ClientSession() as session, session.ws_connect(f"{address}ws?width=100&height=30") as connection:
        yield Browser(connection)


async def test_the_app_opens_in_two_browsers_and_ends_with_each(rankdeck: Deck):
    with served(rankdeck) as (command, address):
        async with browser(address) as first:
            await first.wait_seen("quickstart")
            async with browser(address) as second:
                await second.wait_seen("quickstart")
                await asyncio.to_thread(wait_until, lambda: len(apps(rankdeck)) == 2)
            await asyncio.to_thread(wait_until, lambda: len(apps(rankdeck)) == 1)
            await first.type("?")
            await first.wait_seen("Go to the previous pane or field.")
            await first.type("\x1b")
            await first.wait_seen("quickstart")
            await first.type("q")
            await first.wait_closed()
        await asyncio.to_thread(wait_until, lambda: not apps(rankdeck))
        command.send_signal(signal.SIGINT)
        assert command.wait(PATIENCE) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_apps_end_with_the_command_however_it_ends(rankdeck: Deck, number: signal.Signals):
    with served(rankdeck) as (command, address):
        async with browser(address) as one:
            await one.wait_seen("quickstart")
            (app,) = apps(rankdeck)
            command.send_signal(number)
            command.wait(PATIENCE)
            wait_gone(app.pid)


async def test_a_browser_may_be_let_watch_only(rankdeck: Deck):
    with served(rankdeck, "--read-only") as (_, address):
        async with browser(address) as one:
            await one.wait_seen("quickstart")
            await one.type("n")
            await one.wait_seen("opened with --read-only")


async def test_an_app_that_does_not_answer_is_ended(rankdeck: Deck):
    with served(rankdeck) as (_, address):
        async with browser(address) as one:
            await one.wait_seen("quickstart")
            (app,) = apps(rankdeck)
            os.kill(app.pid, signal.SIGSTOP)
        await asyncio.to_thread(wait_gone, app.pid)


async def test_whoever_lacks_the_token_or_comes_from_another_site_gets_one_answer(rankdeck: Deck):
    with served(rankdeck) as (_, address):
        found = ADDRESS.fullmatch(f"{address}\n")
        assert found is not None
        port, token = found.groups()
        site = f"http://127.0.0.1:{port}"
        wrong = token[:-1] + ("A" if token[-1] != "A" else "B")
        strangers = [
            ("/", {}),
            ("/ws", {}),
            ("/static/js/textual.js", {}),
            (f"/{wrong}/", {}),
            (f"/{wrong}/static/js/textual.js", {}),
            (f"/{wrong}/ws", {}),
            (f"/?token={token}", {"Cookie": f"token={token}"}),
            (f"//{token}/", {}),
            (f"/x/../{wrong}/", {}),
            ("/%ff%00/", {}),
            (f"/{token}/", {"Host": f"evil.example:{port}"}),
            (f"/{token}/ws", {"Origin": "http://evil.example"}),
            (f"/{token}/ws", {"Origin": f"http://127.0.0.1:{int(port) - 1}"}),
            (f"/{token}/ws", {"Origin": "null"}),
        ]
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "YQ=="}  # fmt: skip
        async with aiohttp.ClientSession() as session:
            answers = set()
            for path, headers in strangers:
                url = aiohttp.client.URL(site + path, encoded=True)
                async with session.get(url, headers={**upgrade, **headers}) as answer:
                    answers.add((answer.status, await answer.text()))
            assert answers == {(403, "Use the address that `rankdeck serve` has printed.\n")}
            for path, kind in (("", "text/html"), ("static/js/textual.js", "application/javascript")):
                async with session.get(address + path) as answer:
                    assert (answer.status, answer.content_type) == (200, kind)
                    assert answer.headers["Referrer-Policy"] == "no-referrer"
                    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            async with session.get(address, headers={"Host": "localhost:9"}) as answer:  # through ssh -L 9:…
                assert f"ws://localhost:9/{token}/ws" in await answer.text()
        assert apps(rankdeck) == []


def test_the_token_is_in_no_command_line_and_in_no_remark(rankdeck: Deck):
    with served(rankdeck) as (command, address):
        token = address.split("/")[3]
        assert all(token not in process.command for process in rankdeck.processes())
        command.send_signal(signal.SIGTERM)
        _, remarks = command.communicate(timeout=PATIENCE)
        assert token not in remarks
        assert f"ssh -L {address.split(':')[2].split('/')[0]}:127.0.0.1:" in remarks


def test_a_port_that_is_taken_is_named(home):
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UsageError, match="can't be used"):
        cli.main(["serve", "--port", str(taken.getsockname()[1])], standalone_mode=False)


def test_the_package_that_is_missing_is_named_with_its_extra(home, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "engine.commands.serve", None)
    with pytest.raises(CheckError, match=r"rankdeck\[serve\]"):
        cli.main(["serve"], standalone_mode=False)
