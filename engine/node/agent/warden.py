"""The warden: keeps an agent running until one ends on purpose, and records how ranks ended meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time

from engine.linux.files import replace_file
from engine.linux.processes import (
    StoppedWatch,
    become_subreaper,
    is_stopped,
    kill_group,
    outlive_signals,
    process_status,
    reap,
    start_time,
    sweep,
)
from engine.node.agent.folders import AGENT_LOG, GIVEN_UP, TITLE_SIGNAL, note_title, remove_abandoned, show_role
from engine.node.agent.loop import Agent  # before the fork, so that a killed agent is replaced without an import
from engine.node.agent.wire import EXIT_FAILED

MOST_DEATHS, DEATHS_TIME = 5, 10.0  # the warden gives up after more than 5 deaths of an agent within 10 seconds

JOB_PAUSE = 0.5
"""Seconds before another agent in a job of Slurm: at the end of a job Slurm kills its processes one after the other, and a process that
is new at this moment would escape."""

CHILD_STOPPED = 5  # CLD_STOPPED, which Python 3.8 does not name


def detach(folder: str, keep: set[int]) -> None:
    """Leaves the session, the terminal and the descriptors of the booted process.

    The folder becomes the working directory, so that it may be renamed.
    """
    os.setsid()
    os.chdir(folder)
    nothing = os.open(os.devnull, os.O_RDWR)
    out = os.open(AGENT_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((nothing, 0), (out, 1), (out, 2)):
        os.dup2(source, target)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in keep:
            with contextlib.suppress(OSError):  # the descriptor that listed them
                os.close(int(name))


def run(listener: socket.socket, mark: str, title: str) -> None:
    """Starts the agent, and again if it is killed. After the agent's end, ends everything that is left of the run."""
    signal.signal(TITLE_SIGNAL, lambda *_: show_role("warden"))
    note_title(title)
    show_role("warden")
    become_subreaper()
    warden = os.getpid()
    deaths: list[float] = []
    agent = start_agent(listener, warden, mark, again=False)
    remove_abandoned(os.path.dirname(os.getcwd()))
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
        except ChildProcessError:
            break
        pid = found.si_pid if found else 0
        if found and found.si_code == CHILD_STOPPED:
            forget_stop(pid)
            if pid == agent:
                end_stopped(agent)
            continue
        if pid != agent:
            note_exit(pid)
            continue
        if (status := reap(pid)) == 0:
            break
        deaths = [moment for moment in deaths if time.monotonic() - moment < DEATHS_TIME] + [time.monotonic()]
        if len(deaths) > MOST_DEATHS:
            with contextlib.suppress(OSError):
                os.symlink(str(status), GIVEN_UP)  # has room on a full disk
            break
        if "SLURM_JOB_ID" in os.environ:
            time.sleep(JOB_PAUSE)
        agent = start_agent(listener, warden, mark, again=True)
    sweep(warden, {warden}, [mark], 5.0)
    with contextlib.suppress(OSError), open("socket") as file:
        os.unlink(file.read())


def note_owners(pids: list[int]) -> None:
    """Records who keeps the socket and the lock of this run, for a bridge that gets no answer."""
    with contextlib.suppress(OSError):  # a full disk
        replace_file("owners", json.dumps([[pid, start_time(pid)] for pid in pids]).encode())


def forget_stop(pid: int) -> None:
    """Takes the kernel's report that a signal has stopped a child, which may have been killed since."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG)


def end_stopped(agent: int) -> None:
    """Ends an agent that a signal has stopped, unless it continues: the run can't proceed without an agent."""
    watch = StoppedWatch()
    while is_stopped(agent) and not watch.look({agent}):
        time.sleep(1)


def note_exit(pid: int) -> None:
    """Records how a rank ended while there was no agent: kills its group, then reaps it."""
    found = process_status(pid)
    if os.getsid(pid) == pid:
        kill_group(pid, signal.SIGKILL)
    status = reap(pid)
    with contextlib.suppress(OSError), open("exits", "a") as file:  # on a full disk, only this status is lost
        file.write(f"{pid} {found[0] if found else 0} {status} {time.time()}\n")


def start_agent(listener: socket.socket, warden: int, mark: str, *, again: bool) -> int:
    """Forks an agent. Returns its pid. `warden`: pid of this process. `again`: whether it replaces an agent that was killed."""
    pid = os.fork()
    if pid:
        return pid
    status = EXIT_FAILED
    try:
        become_subreaper()
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
        outlive_signals()  # also in place of what was ignored
        show_role("agent")
        note_owners([warden, os.getpid()])  # before its first answer, even if the warden gets no processor
        status = Agent(listener, warden, mark).run(again=again)
    except BaseException:  # noqa: BLE001 - the outermost frame of a process
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)
