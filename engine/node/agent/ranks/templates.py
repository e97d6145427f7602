"""The template: a process of `template.py` that imports torch once and forks this node's ranks and store."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import stat
import struct
import time
from collections.abc import Callable

from engine.linux.processes import MARK, kill_quietly, start_process
from engine.node.agent.files import open_log
from engine.node.agent.ranks.jobs import Job, environment_of
from engine.node.agent.state import NodeState
from engine.node.agent.wire import Any, Message

PACKAGE = (".dist-info", ".egg-info", ".egg-link", ".pth")
"""Endings of names in a folder of packages: they change when a package is installed or removed."""

MAX_MESSAGE = 1 << 20
"""Bytes of a message."""

MOST_DEATHS, DEATHS_TIME = 3, 60.0
"""Deaths of templates within so many seconds after which ranks are started cold."""


class Template:
    """One process of `template.py`. It does one job at a time.

    Args:
        argv: its command; the number of its socket and the names of modules are added.
        environment: its own and, but for what a request changes, that of each process that it forks.
        preload: modules that it imports besides torch.
        left_out: of these, modules that earlier templates could not keep, and why.
        log: a file that takes what its imports print.
    """

    def __init__(
        self, argv: list[str], environment: dict[str, str], preload: list[str], left_out: list[list[str]], log: str
    ) -> None:
        self.argv, self.environment, self.preload, self.left_out = argv, environment, preload, left_out
        self.jobs: list[Job] = []
        self.current: Job | None = None
        self.ready = False
        self.importing = ""
        """The module that it imports now."""
        self.imports: list[Any] = []
        """Names and seconds of the modules that it has imported."""
        self.sources: dict[str, Any] = {}
        """Files and folders that its imports depend on, and their state at that time."""
        self.began = time.time_ns()
        self.has_jobs = self.is_used_warm = False
        """Whether it has had a job, and whether it was ready before."""
        self.wire, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        refused = {name for name, _ in left_out}
        modules = [name for name in preload if name not in refused]
        with theirs, open_log(log) as file:
            self.pid = start_process(
                [*argv, str(theirs.fileno()), *modules],
                env=environment,
                stdout=file,
                stderr=file,
                pass_fds=[theirs.fileno()],
            )
        self.wire.setblocking(False)

    def serves(self, python: str, environment: dict[str, str], preload: list[str]) -> bool:
        """Whether a fork of it is what this Python would be in this environment, but for the path of our own library."""
        ours, theirs = dict(self.environment), dict(environment)
        for name in ("PYTHONPATH", MARK):
            ours.pop(name, None)
            theirs.pop(name, None)
        return self.argv[0] == python and ours == theirs and self.preload == preload

    def note_sources(self, paths: list[str]) -> None:
        """Notes the state of files. One that was changed while this template imported is taken for changed: it may have the old content."""
        for path in paths:
            seen = source_state(path)
            is_older = not seen or seen[-1][0] < self.began
            self.sources[path] = seen if is_older else None

    def add(self, job: Job, environment: dict[str, str]) -> None:
        """Queues a job, whose process gets this environment."""
        job.request["env"] = {name: value for name, value in environment.items() if self.environment.get(name) != value}
        self.is_used_warm = self.ready if not self.has_jobs else self.is_used_warm
        self.has_jobs = True
        self.jobs.append(job)
        self.go_on()

    def go_on(self) -> None:
        """Hands the next job over, if the template waits for one."""
        while self.ready and self.current is None and self.jobs:
            job = self.jobs.pop(0)
            try:
                with contextlib.ExitStack() as stack:
                    files = [stack.enter_context(file) for file in job.files()]
                    numbers = struct.pack(f"{len(files)}i", *(file.fileno() for file in files))
                    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)
                    self.wire.sendmsg([json.dumps(job.request).encode()], [rights])
                self.current = job
            except OSError:  # too long for one message, or the template has just died
                job.refused()


def source_state(path: str) -> list[tuple[int, str]]:
    """Values that change with a file, or with the packages in a folder: times in nanoseconds, the newest last. Empty if it can't be read."""
    try:
        status = os.stat(path)
        if not stat.S_ISDIR(status.st_mode):
            return [(status.st_mtime_ns, f"{status.st_size} {status.st_ino}")]
        with os.scandir(path) as entries:
            return sorted((one.stat().st_mtime_ns, one.name) for one in entries if one.name.endswith(PACKAGE))
    except OSError:
        return []


class Templates:
    """This node's template, and those that could not fork.

    Args:
        send: queues a message for the supervisor.
        on_ended: called with pid and status of each process that the template has reaped.
    """

    def __init__(
        self,
        state: NodeState,
        selector: selectors.BaseSelector,
        send: Callable[..., None],
        on_ended: Callable[[int, int], None],
    ) -> None:
        self._state, self._selector, self.send, self._on_ended = state, selector, send, on_ended
        self._template: Template | None = None
        self._unfit: list[Template] = []
        """Templates that could not fork: their ranks are started cold."""
        self._deaths: list[float] = []
        """When templates died, of late."""

    @property
    def is_busy(self) -> bool:
        """Whether a job waits or is being done."""
        return self._template is not None and bool(self._template.jobs or self._template.current)

    def warm(self, message: Message) -> None:
        """`warm`: gets a template ready for a launch that may come, and the processes that it will need."""
        template = self._template_for(message, environment_of(message, self._state.mark))
        if template is not None:
            with contextlib.suppress(OSError):
                template.wire.send(json.dumps({"spares": message["spares"]}).encode())

    def start(self, job: Job, message: Message, environment: dict[str, str], own: dict[str, str]) -> None:
        """Lets a template fork a job where the message allows it; else the job is started cold.

        Args:
            job: what is to be started.
            message: that asks for it.
            environment: of every process that the message asks for.
            own: what this one has besides.
        """
        program = message["argv"][2:3]
        forkable = message.get("warm") and program and (program[0] == "-m" or program[0].endswith(".py"))
        template = self._template_for(message, environment) if forkable else None
        if template is None:
            job.refused()
            return
        is_first = not template.has_jobs
        template.add(job, {**environment, **own})
        if is_first and template.ready:
            self._tell_imports(template)

    def _tell_imports(self, template: Template) -> None:
        self.send(type="imports", modules=template.imports, left_out=template.left_out, earlier=template.is_used_warm)

    def _template_for(self, message: Message, environment: dict[str, str]) -> Template | None:
        """The template for a message's process; it is started if need be. None where there can be none."""
        python, preload = message["argv"][0], message.get("preload", [])
        current = self._template
        if current is not None and current.serves(python, environment, preload):
            # An attempt that has begun has the old files, and what joins it gets them too.
            has_begun = self.is_busy or self._state.store is not None or self._state.running()
            if has_begun or all(source_state(path) == seen for path, seen in current.sources.items()):
                return current
        if self.is_busy or any(template.serves(python, environment, preload) for template in self._unfit):
            return None  # what it has still to do would be lost with it
        self.end()
        source = os.path.join(os.path.dirname(message["library"]), "template.py")
        return self._start_template([python, "-u", source], environment, preload, [])

    def _start_template(
        self, argv: list[str], environment: dict[str, str], preload: list[str], left_out: list[list[str]]
    ) -> Template | None:
        try:
            self._template = Template(argv, environment, preload, left_out, "template.log")
        except OSError:
            return None
        self._state.helpers.add(self._template.pid)
        self._selector.register(self._template.wire, selectors.EVENT_READ, self._receive)
        return self._template

    def _receive(self) -> None:
        template = self._template
        if template is None:
            return
        try:
            data = template.wire.recv(MAX_MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose(template)
            return
        message = json.loads(data)
        if "importing" in message:
            template.importing = message["importing"]
        elif "left_out" in message:
            template.left_out += message["left_out"]
            template.importing = ""
        elif "sources" in message:
            template.note_sources(message["sources"])
        elif "ready" in message:
            template.ready, template.importing, template.imports = True, "", message["imports"]
            if template.has_jobs:
                self._tell_imports(template)
        elif "unfit" in message:
            self.send(type="cold", reason=message["unfit"])
            self._lose(template, is_unfit=True)
            return
        elif "ended" in message:
            self._on_ended(message["ended"], message["status"])
        elif template.current is not None:
            job, template.current = template.current, None
            if "forked" in message:
                job.started(message["forked"], message["start"])
            else:
                job.refused()
        template.go_on()

    def _lose(self, template: Template, *, is_unfit: bool = False) -> None:
        """The template died or can't fork. Its ranks go on as children of this process; its open jobs are done without it."""
        unfinished = ([template.current] if template.current else []) + template.jobs
        self.end()
        if template.current:
            self._state.end_unknown()  # it may have forked a process that it could not report
        now = time.monotonic()
        self._deaths = [moment for moment in self._deaths if now - moment < DEATHS_TIME] + [now]
        if is_unfit or len(self._deaths) > MOST_DEATHS:
            self._unfit.append(template)
        elif template.importing:
            template.left_out.append([template.importing, "ends the process that imports it"])
            if again := self._start_again(template):
                again.jobs, again.has_jobs = template.jobs, template.has_jobs
                return
        for job in unfinished:
            job.refused()
        if template not in self._unfit:  # the next one imports torch before a rank needs it
            self._start_again(template)

    def _start_again(self, template: Template) -> Template | None:
        return self._start_template(template.argv, template.environment, template.preload, template.left_out)

    def drop_waiting(self) -> None:
        """Forgets the jobs that were not handed to the template yet."""
        if self._template is not None:
            dropped, self._template.jobs = self._template.jobs, []
            for job in dropped:
                job.dropped()

    def end_if_forking(self) -> None:
        """Ends a template that is about to fork, since an attempt is cleared: the process would end with it."""
        if self._template is not None and self._template.current is not None:
            job = self._template.current
            self.end()
            job.dropped()

    def end(self) -> None:
        """Ends the template, if there is one."""
        template, self._template = self._template, None
        if template is not None:
            self._selector.unregister(template.wire)
            template.wire.close()
            kill_quietly(template.pid, signal.SIGKILL)
            self._state.helpers.discard(template.pid)
