"""The process that hosts an attempt's c10d store, and the pipe through which news for ranks are sent to it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Callable

from engine.linux.processes import kill_group, lives, start_process, start_time
from engine.node.agent.files import last_output, open_log
from engine.node.agent.folders import read_title
from engine.node.agent.ranks.jobs import Job, Room, environment_of
from engine.node.agent.state import NodeState
from engine.node.agent.wire import Any, Message


class Store:
    """Starts and ends the store's process.

    Args:
        send: queues a message for the supervisor.
        start: lets a template fork a job, or has it started cold.
        room: where the store of a later attempt waits for room on the disk.
    """

    def __init__(self, state: NodeState, send: Callable[..., None], start: Callable[..., None], room: Room) -> None:
        self._state, self.send, self._start, self._room = state, send, start, room
        self._asked = -1
        """The attempt whose store is there or on its way."""
        self._is_adopted = False
        """Whether an earlier agent has started the store's process, so that its end is not reported here."""
        self._news: tuple[str, int] | None = None

    def adopt(self) -> None:
        """Takes over the store that an earlier agent has started."""
        if self._state.store is not None:
            self._asked = self._state.store["attempt"]
            self._is_adopted = True

    def open_store(self, message: Message) -> None:
        """`open_store`: takes a port from the kernel and keeps it. The store's process gets the listening socket itself, so no
        other launch can have the port, and ranks may connect before that process has finished its imports."""
        attempt, host, store = message["attempt"], message["host"], self._state.store
        if attempt <= max(self._state.cleared, self._asked):
            if store and store["attempt"] == attempt:
                self._tell_address(store)
            return
        if attempt > 0 and self._room.must_wait(message, os.path.dirname(message["log"])):
            return
        self.end()
        self._asked = attempt
        environment = environment_of(message, self._state.mark)
        try:
            listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
            listener.bind((host, 0))
            listener.listen(4096)
            os.makedirs(os.path.dirname(message["log"]), mode=0o700, exist_ok=True)
            news = message.get("news", "")
            with contextlib.suppress(FileExistsError):
                os.mkfifo(news or os.devnull, 0o600)
        except OSError as error:
            self._failed(attempt, error)
            return
        port = listener.getsockname()[1]
        about = {"attempt": attempt, "host": host, "port": port, "news": news, "log": message["log"]}

        def started(pid: int, start: int) -> None:
            listener.close()
            self._state.store = {**about, "pid": pid, "start": start}
            self._state.dirty, self._is_adopted = True, False
            self._tell_address(about)

        def start_cold() -> None:
            argv = [*message["argv"], str(listener.fileno()), host, str(port), news, read_title()]
            try:
                with listener, open_log(message["log"]) as log:
                    options: Message = {"stdout": log, "stderr": log, "pass_fds": [listener.fileno()]}
                    pid = start_process(argv, env=environment, cwd="/", **options)
            except OSError as error:
                self._failed(attempt, error)
            else:
                started(pid, start_time(pid))

        def dropped() -> None:
            listener.close()
            if self._asked == attempt:
                self._asked = -1

        def open_files() -> list[Any]:
            # A copy of the socket: if the template dies with this job, the store is started with the socket itself.
            return [open_log(message["log"]), open_log(message["log"]), listener.dup()]

        argv = [*message["argv"], "3", host, str(port), news, read_title()]
        request = {"argv": argv, "cwd": "/", "stacks": "", "library": message["library"]}
        self._start(Job(request, open_files, started, start_cold, dropped), message, environment, {})

    def _tell_address(self, store: Message) -> None:
        self.send(type="store", attempt=store["attempt"], host=store["host"], port=store["port"])

    def _failed(self, attempt: int, error: OSError) -> None:
        self._asked = -1
        self.send(type="store_lost", attempt=attempt, reason=str(error))

    def tell(self, message: Message) -> None:
        """`tell`: passes news for the ranks on to the store's process, which puts them where each rank looks."""
        store = self._state.store
        if store is None and message["attempt"] > self._state.cleared:
            self.send(type="store_lost", attempt=message["attempt"], reason="its process is gone")
        if store is None or store["attempt"] != message["attempt"] or not store.get("news"):
            return
        # Opened for both ends and kept open: what is written before the store's process reads waits for it.
        if self._news is None or self._news[0] != store["news"]:
            if self._news is not None:
                os.close(self._news[1])
            self._news = store["news"], os.open(store["news"], os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        os.write(self._news[1], json.dumps([message["number"], message["news"]]).encode() + b"\n")

    def ended(self, pid: int, status: int) -> None:
        """Tells that the store's process has ended, if it is that process."""
        store = self._state.store
        if store is not None and store["pid"] == pid:
            self._lose(store, "its process ended", status)

    def watch(self) -> None:
        """Notices the end of a store that an earlier agent has started: another process reaps it, and does not report it."""
        store = self._state.store
        if self._is_adopted and store is not None and not lives(store["pid"], store["start"]):
            self._lose(store, "its process has ended")

    def _lose(self, store: Message, reason: str, status: int | None = None) -> None:
        output, attempt = last_output(store["log"]), store["attempt"]
        self.send(type="store_lost", attempt=attempt, reason=reason, status=status, output=output)
        self._state.store, self._state.dirty = None, True

    def end(self) -> None:
        """Kills the store's process, if there is one."""
        if self._state.store:
            kill_group(self._state.store["pid"], signal.SIGKILL)
            self._state.store = None
            self._state.dirty = True
        self._asked = -1
