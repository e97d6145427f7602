"""The template: a process of `template.py` that imports torch once and forks this node's ranks and store."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import selectors
import signal
import socket
import struct
import time
from collections.abc import Callable

from engine.linux.processes import MARK, signal_process, start_process, start_time
from engine.linux.sockets import peer_of
from engine.node.agent.files import last_output, open_log
from engine.node.agent.ranks.jobs import Job, environment_of
from engine.node.agent.state import NodeState
from engine.node.agent.wire import Any, Message
from engine.node.sources import Sources

MAX_MESSAGE = 1 << 20  # bytes of a message
LOG = "template.log"  # the output of templates, in the agent's folder
MOST_DEATHS, DEATHS_TIME = 3, 60.0  # if more templates die within DEATHS_TIME seconds, ranks are started cold


LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})


class Template:
    """One process of `template.py`. It does one job at a time.

    Args:
        argv: its command; the number of its socket and the names of modules are added.
        environment: variables of the template. A process that it forks has the same, except for changes in its request.
        message: the request that needs it: with the modules that it imports besides torch, and with the socket of a template of the user
            that may fork it.
        left_out: modules that earlier templates could not keep, and the reasons.
        log: a file that takes what its imports print.
    """

    def __init__(
        self, argv: list[str], environment: dict[str, str], message: Message, left_out: list[list[str]], log: str
    ) -> None:
        self.argv, self.environment, self.message, self.left_out = argv, environment, message, left_out
        self.preload: list[str] = message.get("preload", [])
        self.jobs: list[Job] = []
        self.current: Job | None = None
        self.ready = False
        self.importing = ""
        """The module that it imports now."""
        self.imports: list[Any] = []
        """Names and seconds of the modules that it has imported."""
        self.sources = Sources(time.time_ns())
        self.has_jobs = self.is_used_warm = False
        """Whether it has had a job, and whether it was ready before."""
        self.pid = self.start = 0
        """0: the template of the user has not forked it yet."""
        self.owner = (0, 0)
        """Pid and start time of the template of the user, if it is asked."""
        with open_log(log) as file:
            shared = None if left_out else self._ask(message.get("user_template", ""), file.fileno())
            self.wire = shared or self._execute(file)
        self.wire.setblocking(False)

    def _ask(self, path: str, log: int) -> socket.socket | None:
        """Asks the template of the user to fork this one. Returns the connection; None: there is none, or it is another user's."""
        if not path:
            return None
        umask = os.umask(0o077)
        os.umask(umask)
        request = {
            "env": self.environment,
            "library": self.message["library"],
            "linger": self.message["linger"],
            "at": time.time(),
            "limits": [[number, *resource.getrlimit(number)] for number in LIMITS],
            "umask": umask,
            "cores": sorted(os.sched_getaffinity(0)),
        }
        wire = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            wire.setblocking(False)
            wire.connect(path)
            pid, user = peer_of(wire)
            if user != os.geteuid():
                raise PermissionError(path)
            self.owner = pid, start_time(pid)
            folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("2i", log, folder))
                wire.sendmsg([json.dumps(request).encode()], [rights])
            finally:
                os.close(folder)
        except OSError:  # it has just ended, or the environment is too long for a message
            wire.close()
            return None
        return wire

    def _execute(self, log: Any) -> socket.socket:
        wire, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        refused = {name for name, _ in self.left_out}
        modules = [name for name in self.preload if name not in refused]
        with theirs:
            self.pid = start_process(
                [*self.argv, str(theirs.fileno()), *modules],
                env=self.environment,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
            )
        self.start = start_time(self.pid)
        return wire

    def serves(self, message: Message, environment: dict[str, str]) -> bool:
        """Whether a fork of this template has the environment that a message asks for. The path of our own library may differ."""
        ours, theirs = dict(self.environment), dict(environment)
        for name in ("PYTHONPATH", MARK):
            ours.pop(name, None)
            theirs.pop(name, None)
        return self.argv[0] == message["argv"][0] and ours == theirs and self.preload == message.get("preload", [])

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


class Templates:
    """This node's template, and those that could not fork. `send`: queues a message for the supervisor. `on_ended`: called with pid and
    status of each process that the template has reaped."""

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
        """Recent times at which templates died."""
        self._is_told = False
        """Whether the supervisor knows that ranks are started cold."""

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

        Args: job: what is to be started.
            message: the request. environment: variables of every process of the request. own: further variables of this process.
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
        current = self._template
        if current is not None and current.serves(message, environment):
            # An attempt that has begun has the old files, and ranks that join it get them too.
            has_begun = self.is_busy or self._state.store is not None or self._state.running()
            if has_begun or not current.sources.have_changed():
                return current
        if self.is_busy or any(template.serves(message, environment) for template in self._unfit):
            return None  # what it has still to do would be lost with it
        self.end()
        source = os.path.join(os.path.dirname(message["library"]), "template.py")
        return self._start_template([message["argv"][0], "-u", source], environment, message, [])

    def _start_template(
        self, argv: list[str], environment: dict[str, str], message: Message, left_out: list[list[str]]
    ) -> Template | None:
        try:
            self._template = Template(argv, environment, message, left_out, LOG)
        except OSError:
            return None
        self._note_process(self._template)
        self._state.user_template = self._template.owner
        self._selector.register(self._template.wire, selectors.EVENT_READ, self._receive)
        return self._template

    def _note_process(self, template: Template) -> None:
        if template.pid:
            self._state.templates[template.pid] = template.start
            self._state.dirty = True

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
        if "template" in message:
            template.pid, template.start = message["template"], message["start"]
            self._state.user_template = message["owner"]
            self._note_process(template)
        elif "unlike" in message:
            self._lose(template, is_unlike=True)
            return
        elif "importing" in message:
            template.importing = message["importing"]
        elif "left_out" in message:
            template.left_out += message["left_out"]
            template.importing = ""
        elif "sources" in message:
            template.sources.note(message["sources"])
        elif "ready" in message:
            template.ready, template.importing, template.imports = True, "", message["imports"]
            template.is_used_warm = template.is_used_warm or message["earlier"]
            if template.has_jobs:
                self._tell_imports(template)
        elif "unfit" in message:
            self._is_told = True
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

    def _lose(self, template: Template, *, is_unfit: bool = False, is_unlike: bool = False) -> None:
        """The template died or can't fork. Its ranks go on as children of another process; its open jobs are done without it. `is_unlike`:
        the template of the user does not fork it, because it has another environment."""
        unfinished = ([template.current] if template.current else []) + template.jobs
        self.end()
        self._state.templates.pop(template.pid, None)
        if template.current:
            self._state.end_unknown()  # it may have forked a process that it could not report
        if is_unlike or (not template.pid and not is_unfit):  # the template of the user has ended
            template.message = {**template.message, "user_template": ""}
        elif is_unfit or self._dies_again_and_again():
            self._unfit.append(template)
        elif template.importing:
            template.left_out.append([template.importing, "ends the process that imports it"])
        else:
            self._refuse(unfinished)
            self._start_again(template)  # it imports torch before a rank needs it
            return
        again = None if template in self._unfit else self._start_again(template)
        if again is not None:
            again.jobs, again.has_jobs = template.jobs, template.has_jobs
            return
        self._refuse(unfinished)

    def _refuse(self, jobs: list[Job]) -> None:
        """Lets the processes that a template should have forked start without it. Says so once."""
        if jobs and not self._is_told:
            self._is_told = True
            self.send(type="cold", reason="it ended", output=last_output(LOG), log=os.path.abspath(LOG))
        for job in jobs:
            job.refused()

    def _dies_again_and_again(self) -> bool:
        """Counts the death of a template. Returns whether too many died recently."""
        now = time.monotonic()
        self._deaths = [moment for moment in self._deaths if now - moment < DEATHS_TIME] + [now]
        return len(self._deaths) > MOST_DEATHS

    def _start_again(self, template: Template) -> Template | None:
        return self._start_template(template.argv, template.environment, template.message, template.left_out)

    def drop_waiting(self) -> None:
        """Forgets the jobs that were not handed to the template yet."""
        if self._template is not None:
            dropped, self._template.jobs = self._template.jobs, []
            for job in dropped:
                job.dropped()

    def end_if_forking(self) -> None:
        """Ends a template that is about to fork, since an attempt is cleared: the process would end with it."""
        if self._template is not None and self._template.current is not None:
            job, pid = self._template.current, self._template.pid
            self.end()
            self._kill(pid)
            job.dropped()

    def end(self) -> None:
        """Ends the template, if there is one and it has no ranks; else it goes on until they have ended."""
        template, self._template = self._template, None
        if template is not None:
            self._selector.unregister(template.wire)
            template.wire.close()
            if not self._state.running():
                self._kill(template.pid)

    def end_all(self) -> None:
        """Ends the templates of this run, and earlier ones that went on because they had ranks."""
        self.end()
        for pid in list(self._state.templates):
            self._kill(pid)

    def _kill(self, pid: int) -> None:
        if pid:
            signal_process(pid, self._state.templates.pop(pid, 0), signal.SIGKILL)
