"""`rankdeck serve`: the app in a browser, through the package textual-serve.

Every local user can connect to a loopback port. So each path begins with a token that only the terminal of the command shows, and anything
else is refused, static files and the websocket included. It is no cookie, because browsers send cookies to every port of a host.
"""

import asyncio
import contextlib
import hmac
import logging
import secrets
import shlex
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import aiohttp_jinja2
import click
from aiohttp import web
from jinja2 import FileSystemLoader
from textual_serve.app_service import AppService
from textual_serve.server import Server, to_int

from engine.commands.loopback import is_loopback_host
from engine.commands.output import narrate
from engine.core.errors import UsageError
from engine.installed import COMMAND

HOST = "127.0.0.1"  # `localhost` may also mean ::1, where another user can listen on the same port
PATIENCE = 5.0  # seconds in which an app must end after its browser has gone
MOST_CELLS = 1000  # columns and lines that a browser may ask for

_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self' ws:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}
"""The page loads nothing from elsewhere (that of textual-serve asks Google for a font), and passes its address to nobody."""


class _BrowserApp(AppService):
    """The app of one browser: a process that ends with the browser's connection."""

    words: Sequence[str] = ()  # its command line, without the size

    _task: asyncio.Task[None] | None

    async def _open_app_process(self, width: int = 80, height: int = 24) -> asyncio.subprocess.Process:
        """Starts the app without a shell, and without variables that a launch from it would pass on."""
        pipe = asyncio.subprocess.PIPE
        words = [*self.words, str(width), str(height)]
        process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, stderr=pipe)
        self._process, self._stdin = process, process.stdin
        return process

    async def run(self) -> None:
        """Passes on the app's output, until the app ends."""
        await super().run()
        await self.remote_close()

    async def stop(self) -> None:
        """Ends the app, which leaves at the end of its input; its output is read to the end."""
        if self._task is None:
            return
        task, self._task = self._task, None
        self.stdin.close()
        try:
            await asyncio.wait_for(asyncio.shield(task), PATIENCE)
        except TimeoutError:
            self._process.kill()
            await task
        await self._process.wait()


class Page(Server):
    """The page with the app, for requests that know its token. `words`: command line of the app; columns and lines of the browser are added. `token`:
    first part of every path."""

    def __init__(self, words: Sequence[str], token: str) -> None:
        super().__init__(shlex.join(words), HOST, title="rankdeck")
        self._words = words
        self._token = token
        self._sockets: set[web.WebSocketResponse] = set()

    def application(self) -> web.Application:
        """The web application that answers requests."""
        page = web.Application()
        aiohttp_jinja2.setup(page, loader=FileSystemLoader(self.templates_path))
        pages = [web.get("/", self.handle_index), web.get("/ws", self.handle_websocket)]
        page.add_routes([*pages, web.static("/static", self.statics_path)])
        app = web.Application(middlewares=[_guard(self._token)])
        app.add_subapp(f"/{self._token}", page)
        app.on_shutdown.append(self.on_shutdown)
        return app

    async def handle_index(self, request: web.Request) -> web.Response:
        """The page. Its addresses are those by which the browser has come, perhaps through another port of `ssh -L`."""
        context = {
            "application": {"name": self.title},
            "app_websocket_url": f"ws://{request.host}/{self._token}/ws",
            "config": {"static": {"url": "static/"}},
            "font_size": to_int(request.query.get("fontsize", "16"), 16),
        }
        return aiohttp_jinja2.render_template("app_index.html", request, context)

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """Runs the app for one browser."""
        browser = web.WebSocketResponse(heartbeat=15)
        await browser.prepare(request)

        def careful(send: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
            async def sent(data: Any) -> None:
                with contextlib.suppress(ConnectionError):  # the browser has gone
                    await send(data)

            return sent

        app = _BrowserApp(
            self.command,
            write_bytes=careful(browser.send_bytes),
            write_str=careful(browser.send_str),
            close=browser.close,
            download_manager=self.download_manager,
        )
        app.words = self._words
        self._sockets.add(browser)
        width, height = (min(max(to_int(request.query.get(key, ""), 80), 1), MOST_CELLS) for key in ("width", "height"))
        try:
            await app.start(width, height)
            await self._process_messages(browser, app)
        finally:
            self._sockets.discard(browser)
            await app.stop()
        return browser

    async def on_shutdown(self, app: web.Application) -> None:
        """Ends the apps of all browsers."""
        for browser in tuple(self._sockets):
            await browser.close()


def _guard(token: str) -> Any:
    """Makes a middleware that refuses, with one answer for all, what lacks the token or comes from a page of another site."""

    async def admit(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        given = request.path.split("/")[1].encode("utf-8", "replace")
        knows = hmac.compare_digest(given, token.encode())
        origin = request.headers.get("Origin", f"http://{request.host}")
        if not (knows and is_loopback_host(request.host) and origin == f"http://{request.host}"):
            return web.Response(status=403, text="Use the address that `rankdeck serve` has printed.\n")
        response = await handler(request)
        if not response.prepared:
            response.headers.update(_HEADERS)
        return response

    return web.middleware(admit)


def serve(flags: Sequence[str], port: int) -> None:
    """Serves the app on the loopback network until Ctrl-C. `flags`: options of the app. `port`: where; 0 takes any that is free. Raises UsageError:
    the port is taken."""
    token = secrets.token_urlsafe(32)
    try:
        listener = socket.create_server((HOST, port))
    except OSError as error:
        hint = "leave --port out to take a free one"
        raise UsageError(f"port {port} of {HOST} can't be used: {error.strerror}", hint=hint) from None
    port = listener.getsockname()[1]
    words = [sys.executable, "-P", str(COMMAND), *flags, "in-browser"]
    asyncio.run(_serve(Page(words, token), listener, f"http://{HOST}:{port}/{token}/", port))


async def _serve(page: Page, listener: socket.socket, address: str, port: int) -> None:
    logging.getLogger("textual-serve").setLevel(logging.CRITICAL)  # a browser that leaves early is no error
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    runner = web.AppRunner(page.application(), access_log=None, shutdown_timeout=PATIENCE)  # a log would show the token
    await runner.setup()
    try:
        await web.SockSite(runner, listener).start()
        click.echo(address)
        narrate(
            f"from another machine, forward the port first: ssh -L {port}:{HOST}:{port} {shlex.quote(socket.gethostname())}"
        )
        narrate("whoever has this address can do what you can; it ends with Ctrl-C, and runs keep running")
        await ended.wait()
    finally:
        await runner.cleanup()
