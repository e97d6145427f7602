"""Copies the working directory to other machines by rsync, before ranks start there."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable

from engine.core.run import events as ev
from engine.core.terminal_text import visible
from engine.core.wire import agent_reports as reports
from engine.core.wire import agent_requests as requests
from engine.launchers import rsync
from engine.supervisor.nodes.agents import Agents
from engine.supervisor.nodes.link import FAN_OUT
from engine.supervisor.nodes.questions import Questions
from engine.supervisor.run import SupervisedRun


class CodeCopies:
    """Copies of the working directory in progress."""

    def __init__(self, run: SupervisedRun, agents: Agents, questions: Questions) -> None:
        self._run, self._agents, self._questions = run, agents, questions
        self._gate = asyncio.Semaphore(FAN_OUT)
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, node: str, on_done: Callable[[], None]) -> None:
        """Copies the working directory to a node. `on_done`: called after a successful copy. If it fails, the node is given up."""
        self._tasks[node] = self._run.tasks.create_task(self._copy(node, on_done), name=f"rsync {node}")

    def stop(self, *nodes: str) -> None:
        """Stops the copies to nodes; without any, all."""
        for node in nodes or tuple(self._tasks):
            if (task := self._tasks.pop(node, None)) is not None:
                task.cancel()

    async def _copy(self, node: str, on_done: Callable[[], None]) -> None:
        plan = self._run.plan
        planned = next(one for one in plan.nodes if one.name == node)
        try:
            made = await self._questions.ask(node, requests.MakeFolder(path=plan.workdir), reports.FolderMade)
            trouble = made.reason
            if not trouble:
                async with self._gate:
                    trouble = await run_rsync(rsync.argv(planned, plan.workdir, plan.reach))
            if not trouble:
                on_done()
                return
        except TimeoutError:
            trouble = "it did not answer"
        except (OSError, ValueError) as error:
            trouble = f"{type(error).__name__}: {error}"
        self._agents.links[node].close()
        reason = f"{plan.workdir} could not be copied there: {trouble}"
        self._run.handle(ev.NodeGivenUp(at=time.time(), node=node, reason=reason))


async def run_rsync(argv: list[str]) -> str:
    """Runs rsync, and ends it if this task is cancelled. Returns why it failed, on one line; empty if it succeeded."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except FileNotFoundError:
        return "there is no rsync on this machine"
    except OSError as error:
        return f"rsync can't be started: {error.strerror}"
    try:
        _, said = await process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its ssh too
        await process.wait()
    if process.returncode == 0:
        return ""
    lines = [line for line in said.decode(errors="replace").splitlines() if line.strip()]
    # The last line only reports that there was an error.
    words = next((line for line in lines if not line.startswith("rsync error:")), lines[-1] if lines else "")
    return visible(words)[:300] or f"rsync ended with {process.returncode}"
