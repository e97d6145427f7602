"""Starts ranks."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import time
from collections.abc import Callable

from engine.linux.processes import start_process, start_time
from engine.node.agent.files import close_all, file_size, open_log
from engine.node.agent.ranks.jobs import Job, Room, environment_of
from engine.node.agent.ranks.mpirun import Mpirun
from engine.node.agent.state import NodeState, Rank
from engine.node.agent.wire import Any, Message
from engine.node.limits import bound_to, shares

MPI_GIVES = ("OMPI_", "OPAL_", "ORTE_", "PMIX_", "PMI_", "PRTE_", "HYDI_", "MPI_", "MPICH_", "MPIR_")
"""Prefixes of variables that mpirun sets for ranks. Its daemons also change PATH and library paths, but only for themselves."""

YIELD = "OMPI_MCA_mpi_yield_when_idle"
"""Lets waiting ranks of Open MPI yield their core, even if its own count shows one core for each."""


def with_variables(word: str, env: Message) -> str:
    """Replaces `{env.NAME}` in an argument by the value of that variable, and `{{env.NAME}}` by the text `{env.NAME}`. Raises KeyError: a
    variable is not set."""
    return re.sub(r"{({env[.]\w+})}|{env[.](\w+)}", lambda found: found[1] or env[found[2]], word)


class Spawn:
    """A rank that is being started."""

    def __init__(
        self,
        state: NodeState,
        send: Callable[..., None],
        start: Callable[..., None],
        message: Message,
        wanted: Message,
        environment: dict[str, str],
    ) -> None:
        self._state, self.send, self._start_job = state, send, start
        self._message, self._wanted, self._environment = message, wanted, environment
        self.attempt, self.number, self.generation = message["attempt"], wanted["rank"], wanted.get("generation", 0)
        self._files = [wanted["out"], wanted["err"], wanted["metrics"]]
        self._env: dict[str, str] = dict(wanted["env"])
        self._unset: list[str] = wanted.get("unset", [])
        self._argv: list[str] = wanted.get("argv") or message["argv"]
        self._begins: list[int] = wanted.get("begins") or [0, 0, 0]
        self._descriptors: list[int] = []
        """Descriptors from mpirun, for the rank."""
        self._cores: list[int] = []
        """To which it is bound; empty: to none."""

    def prepare(self) -> bool:
        """Creates the folder of its files, and chooses its cores. Returns whether it can be started; if not, its end is reported."""
        try:
            os.makedirs(os.path.dirname(self._files[0]), mode=0o700, exist_ok=True)
            os.stat(self._message["cwd"])
            for stream, size in enumerate(self._begins):
                if file_size(self._files[stream]) < size:
                    with open_log(self._files[stream]) as log:
                        log.truncate(size)
            env = {**self._environment, **self._env}
            self._argv[:] = [with_variables(word, env) for word in self._argv]
            if binding := self._message.get("binding"):
                gpus = env if binding["gpus"] else None
                self._cores = shares(binding["bind"], binding["count"], gpus)[self._wanted["local_rank"]]
        except OSError as error:
            self._failed(error)
        except KeyError as error:
            self.end(126, f"can't start: {error} is not set")
        except ValueError as error:
            self.end(126, f"can't be bound: {error}")
        else:
            return True
        return False

    def start(self) -> None:
        request = {
            "argv": self._argv,
            "cwd": self._message["cwd"],
            "stacks": self._wanted.get("stacks", ""),
            "library": self._message["library"],
            "unset": self._unset,
            "cores": self._cores,
        }
        job = Job(request, self._open_files, self._started, self._start_cold, self.drop)
        self._start_job(job, self._message, self._environment, self._env)

    def take_place(self, given: dict[str, str], descriptors: list[int]) -> None:
        """Starts it in the place that a process of mpirun holds."""
        environment, env = self._environment, self._env
        env.update({name: value for name, value in given.items() if name.startswith(MPI_GIVES)})
        defaults = self._message["mpirun"]["defaults"].items()
        env.update({name: value for name, value in defaults if name not in environment})
        if len(self._message["ranks"]) > len(os.sched_getaffinity(0)):
            env[YIELD] = environment.get(YIELD, "1")
        env.update(self._wanted["env"])
        self._descriptors.extend(descriptors)
        if descriptors:
            env["PMI_FD"] = "3"  # its number in a process that a template forks
        self.start()

    def end(self, status: int, reason: str) -> None:
        """Reports that it ended before it had a process."""
        self._state.starting.pop(self.number, None)
        close_all(self._descriptors)
        attempt, number, generation = self.attempt, self.number, self.generation
        self.send(type="ended", attempt=attempt, rank=number, status=status, reason=reason, generation=generation)

    def _open_files(self) -> list[Any]:
        logs = [open_log(path) for path in self._files[:2]]
        return [*logs, *(os.fdopen(os.dup(one), "rb", 0) for one in self._descriptors)]

    def _started(self, pid: int, start: int, *, adopted: bool = True) -> None:
        state, number, generation = self._state, self.number, self.generation
        state.starting.pop(number, None)
        close_all(self._descriptors)
        old = state.ranks.get(number)
        rank = state.ranks[number] = Rank(number, self._files)
        rank.sent = self._begins
        if old is not None:
            old.close()
            rank.sent = old.sent
        rank.pid, rank.start, rank.adopted, rank.generation = pid, start, adopted, generation
        state.dirty = True
        self.send(type="spawned", attempt=self.attempt, rank=number, pid=pid, generation=generation)
        if state.stopped == self.attempt:
            rank.told_to_stop = True
            rank.signal(signal.SIGKILL)

    def _start_cold(self) -> None:
        try:
            with open_log(self._files[0]) as out, open_log(self._files[1]) as err:
                if self._descriptors:
                    self._env["PMI_FD"] = str(self._descriptors[0])
                options = {"cwd": self._message["cwd"], "stdout": out, "stderr": err, "pass_fds": self._descriptors}
                env = {**self._environment, **self._env}
                env = {name: value for name, value in env.items() if name not in self._unset}
                with bound_to(self._cores):
                    pid = start_process(self._argv, env=env, **options)
        except OSError as error:
            self._failed(error)
        else:
            self._started(pid, start_time(pid), adopted=False)

    def _failed(self, error: OSError) -> None:
        status = 127 if error.errno == errno.ENOENT else 126
        where = f" {error.filename!r}" if error.filename else ""
        self.end(status, f"can't start: {error.strerror}{where}")

    def drop(self) -> None:
        """Reports that it is not started any more."""
        self.end(-signal.SIGKILL, "stopped before it had started")


class Spawner:
    """Starts the ranks of an attempt, and later ranks that rejoin it. `mpirun`: has places for ranks that use MPI. `on_new_attempt`: called
    before the first rank of an attempt. `room`: where ranks that start again wait for room on the disk."""

    def __init__(
        self,
        state: NodeState,
        send: Callable[..., None],
        start: Callable[..., None],
        mpirun: Mpirun,
        on_new_attempt: Callable[[], None],
        room: Room,
    ) -> None:
        self._state, self.send, self._start, self._mpirun = state, send, start, mpirun
        self._on_new_attempt, self._room = on_new_attempt, room

    def spawn(self, message: Message) -> None:
        """`spawn`: starts ranks that do not exist in this generation. A repeated request starts none twice."""
        state, attempt = self._state, message["attempt"]
        if attempt <= state.cleared:
            return
        if attempt == state.stopped:
            state.stopped = -1  # this agent had stopped it without a request, and the supervisor is back
        if attempt > state.attempt:
            for rank in state.ranks.values():
                rank.close()
            state.attempt, state.ranks, state.starting = attempt, {}, {}
            first = message["ranks"][0]
            state.places = {
                "folder": message["cwd"],
                "checkpoints": first["env"].get("RANKDECK_CHECKPOINTS", ""),
                "argv": first.get("argv") or message["argv"],
                "library": message["library"],
                "begun": time.time(),
            }
            self._on_new_attempt()
            with contextlib.suppress(FileNotFoundError):
                os.unlink("exits")
        is_again = attempt or any(wanted.get("generation", 0) for wanted in message["ranks"])
        if is_again and self._room.must_wait(message, os.path.dirname(message["ranks"][0]["out"])):
            return
        state.spawning = state.dirty = True
        state.save()
        environment = environment_of(message, state.mark)
        for wanted in message["ranks"]:
            number, generation = wanted["rank"], wanted.get("generation", 0)
            old = state.ranks.get(number)
            if (old is None or old.generation < generation) and state.starting.get(number, -1) < generation:
                state.starting[number] = generation
                one = Spawn(state, self.send, self._start, message, wanted, environment)
                if one.prepare():
                    if message.get("mpirun"):
                        self._mpirun.wait_for_place(one.number, one.take_place, one.end)
                    else:
                        one.start()
        if message.get("mpirun"):
            self._mpirun.start_for_ranks(message["mpirun"], environment)

    def drop(self, message: Message) -> None:
        """Reports that the ranks of a request are not started any more. Other requests are passed over."""
        for wanted in message.get("ranks", []):
            Spawn(self._state, self.send, self._start, message, wanted, {}).drop()
