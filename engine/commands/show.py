"""What the command line prints: tables for people, JSON for scripts."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click
import msgspec

from engine.core.catalogue import BackendInfo, ProfileEntry
from engine.core.checks.preflight import CHECKS, Begun, Finding, Grid, State
from engine.core.errors import CheckError, RankdeckError, UsageError
from engine.core.failures.stacks import RankStack, story, waits
from engine.core.metrics.gpu_use import GpuUse
from engine.core.plan.plan import LaunchPlan, rank_argv, shown_environment, store_address
from engine.core.run.state import ENDED_WORDS, status_words
from engine.core.terminal_text import terminal_line, visible
from engine.core.views.view import RunSummary, Snapshot

if TYPE_CHECKING:
    from engine.commands.diagnose import Diagnosis

MAX_LINE = 500
"""Characters of a line that others wrote."""


def _print_json(value: object) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def _table(rows: Iterable[Sequence[str]]) -> None:
    """Columns as wide as their widest cell; the last is left as it is."""
    lines = [[terminal_line(cell, colour=False) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def complain(error: RankdeckError) -> None:
    """An error on standard error: the fact, then the next step."""
    for number, line in enumerate(str(error).split("\n")):
        click.echo(terminal_line(f"rankdeck: {line}" if number == 0 else line, colour=False), err=True)


def close_stdout() -> None:
    """Whoever read our output has gone: what is still buffered must not be written to it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def signal_number(name: str) -> int:
    """The number of a signal: `KILL`, `SIGKILL` or `9`.

    Raises:
        UsageError: there is no such signal.
    """
    try:
        if name.isascii() and name.isdigit():
            return signal.Signals(int(name)).value
        return signal.Signals["SIG" + name.upper().removeprefix("SIG")].value
    except (KeyError, ValueError):
        raise UsageError(
            f"there is no signal {name!r}", hint="for example: KILL, TERM, INT, STOP, CONT, USR1"
        ) from None


def show_profiles(entries: list[ProfileEntry], *, as_json: bool) -> None:
    """`rankdeck profiles`."""
    if as_json:
        _print_json([{"name": e.name, "path": str(e.path), "source": e.source, "error": e.error,
                      "description": e.profile.description if e.profile else None} for e in entries])  # fmt: skip
        return
    rows = [("NAME", "BACKEND", "NODES", "RUNS", "FROM", "")]
    for entry in entries:
        if entry.profile is None:
            rows.append((entry.name, "!", "", "", entry.source, (entry.error or "").split("\n")[0]))
            continue
        profile = entry.profile
        what = profile.recipe.name or profile.recipe.script or profile.recipe.module or ""
        rows.append(
            (entry.name, profile.backend.name, visible(profile.layout.words), what, entry.source, profile.description)
        )
    _table(rows)


def show_backends(infos: list[BackendInfo], *, as_json: bool, ascii_only: bool) -> None:
    """`rankdeck backends`."""
    if as_json:
        _print_json(msgspec.to_builtins(infos))
        return
    width = max(len(info.name) for info in infos)
    for info in infos:
        sign, ascii_sign, _ = MARKS["fail" if info.trouble else "ok"]
        click.echo(f"{ascii_sign if ascii_only else sign} {info.name:<{width}}  {info.summary}")
        for line in filter(None, (info.trouble, info.hint, info.found)):
            click.echo(f"{'':<{width + 4}}{visible(line)}")


def show_plan(plan: LaunchPlan, *, as_json: bool) -> None:
    """`rankdeck plan`."""
    if as_json:
        shown = msgspec.structs.replace(
            plan, env=shown_environment(plan.env), env_defaults=shown_environment(plan.env_defaults)
        )
        _print_json(shown)
        return
    _table(
        [
            ("profile", plan.name + (f": {visible(plan.description)}" if plan.description else "")),
            (
                "backend",
                f"{plan.backend.name}, {plan.world_size} ranks on {len(plan.nodes)} node(s), {plan.backend.device}",
            ),
            *([("", visible(plan.backend_note))] if plan.backend_note else []),
            *([("fallback", ", then ".join(spare.name for spare in plan.fallback))] if plan.fallback else []),
            ("store", f"{plan.nodes[0].name}, {store_address(plan)}, a port that the kernel gives"),
            ("workdir", plan.workdir),
            ("command", visible(shlex.join(rank_argv(plan, "…")))),
            ("stop", ", then ".join(f"{name} and {seconds:g} s" for name, seconds in plan.stop_ladder)),
            ("failure", plan.policy.on_failure),
        ]
    )
    click.echo("")
    _table([("NODE", "RANKS"), *((node.name, " ".join(map(str, node.ranks))) for node in plan.nodes)])
    click.echo("\nenvironment, besides what torchrun sets too (RANK, WORLD_SIZE, MASTER_ADDR, …)")
    for name, value in {**shown_environment(plan.env_defaults), **shown_environment(plan.env)}.items():
        default = "" if name in plan.env else "   unless it is set already"
        click.echo(f"  {name}={visible(value)}{default}")


def warn(plan: LaunchPlan) -> None:
    """What will not do what was meant, apart from all other output."""
    for warning in plan.warnings:
        narrate(f"warning: {warning.line}")


MARKS: dict[State, tuple[str, str, str]] = {
    "ok": ("●", "*", "ok"),
    "warn": ("▲", "!", "warn"),
    "fail": ("✖", "X", "fail"),
    "skip": ("-", "-", ""),
}
"""Sign, the same in ASCII, and word of each state of a check."""


class Checklist:
    """`rankdeck check`: a line for each node as it is done, then all of it as a table, then what is wrong and what helps.

    Args:
        as_json: prints the findings as JSON instead.
        ascii_only: ASCII signs.
    """

    def __init__(self, *, as_json: bool, ascii_only: bool) -> None:
        self._as_json, self._ascii = as_json, ascii_only
        self._grid = Grid(())
        self._done: set[str] = set()

    def take(self, news: Begun | Finding) -> None:
        """Takes in what a preflight says."""
        if isinstance(news, Begun):
            self._grid = Grid(news.nodes)
            return
        self._grid.take(news)
        if len(self._grid.nodes) > 1 and news.node not in self._done and self._grid.is_complete(news.node):
            self._done.add(news.node)
            narrate(f"{news.node}: {self._verdict(self._grid.of(news.node))}")

    def show(self) -> int:
        """Prints the result. Returns the exit status."""
        failures, warnings = self._grid.in_state("fail"), self._grid.in_state("warn")
        if self._as_json:
            _print_json(self._grid.all())
        else:
            _table(self._one_node() if len(self._grid.nodes) == 1 else self._many_nodes())
            for finding in (*failures, *warnings):
                click.echo("")
                line = f"{self._cell(finding)}  {finding.node}, {finding.check}: {finding.text}"
                click.echo(terminal_line(line, colour=False))
                if finding.advice:
                    click.echo(terminal_line(f"  {finding.advice}", colour=False))
            click.echo(f"\n{self._verdict((*failures, *warnings))}")
        return CheckError.exit_status if failures else 0

    def _one_node(self) -> Iterable[Sequence[str]]:
        """With one node there is room for what was found."""
        yield ("CHECK", "STATE", self._grid.nodes[0])
        for finding in self._grid.all():
            yield (finding.check, self._cell(finding), finding.text)

    def _many_nodes(self) -> Iterable[Sequence[str]]:
        yield ("NODE", *(check.upper() for check in CHECKS))
        for node in self._grid.nodes:
            yield (node, *(self._cell(self._grid.at(node, check)) for check in CHECKS))

    def _cell(self, finding: Finding | None) -> str:
        sign, in_ascii, word = MARKS[finding.state if finding else "skip"]
        return f"{in_ascii if self._ascii else sign} {word}".rstrip()

    @staticmethod
    def _verdict(findings: Sequence[Finding]) -> str:
        states = [finding.state for finding in findings]
        counts = [(states.count("fail"), "failure"), (states.count("warn"), "warning")]
        words = [f"{number} {noun}{'' if number == 1 else 's'}" for number, noun in counts if number]
        return ", ".join(words) or "all is well"


def show_runs(runs: list[RunSummary], *, everything: bool, as_json: bool) -> None:
    """`rankdeck ps`."""
    shown = [run for run in runs if everything or run.state not in ENDED_WORDS]
    if as_json:
        _print_json(shown)
        return
    if not shown:
        ended = len(runs) - len(shown)
        click.echo(
            f"nothing runs; {ended} ended (rankdeck ps --all)"
            if ended
            else "nothing was launched yet: rankdeck launch quickstart"
        )
        return
    rows = [("RUN", "STATE", "RANKS", "BACKEND", "STEP", "LOSS", "STARTED", "")]
    for run in shown:
        step = "" if run.step is None else f"{run.step}/{run.steps}" if run.steps else str(run.step)
        loss = "" if run.loss is None else f"{run.loss:.4g}"
        rows.append(
            (run.run, run.state, str(run.world_size), run.backend, step, loss, _ago(run.launched_at), run.reason)
        )
    _table(rows)


def _ago(moment: float) -> str:
    seconds = max(0, int(time.time() - moment))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


def show_status(snapshot: Snapshot, *, as_json: bool) -> None:
    """`rankdeck status`."""
    run = snapshot.run
    if as_json:
        keys = (
            "rank",
            "node",
            "local_rank",
            "pid",
            "state",
            "exit",
            "attempt",
            "generation",
            "step",
            "loss",
            "throughput",
            "gpu",
            "note",
        )
        ranks = [{key: getattr(rank, key) for key in keys} for rank in snapshot.ranks]
        failure = msgspec.to_builtins(run.failure) if run.failure else None
        _print_json({"run": run.run, "name": run.name, "state": run.state, "doing": run.doing, "attempt": run.attempt,
                     "backend": run.backend, "world_size": run.world_size,
                     "step": run.step, "steps": run.steps, "loss": run.loss, "throughput": run.throughput, "unit": run.unit,
                     "failure": failure, "ranks": ranks,
                     "nodes": [msgspec.to_builtins(node) for node in run.nodes]})  # fmt: skip
        return
    doing = f" ({run.doing})" if run.doing else ""
    line = f"{run.run}  {run.state}{doing}  attempt {run.attempt}  {run.alive}/{run.world_size} ranks  {run.backend}  {run.program}"
    click.echo(visible(line))
    has_gpus = any(rank.gpu is not None for rank in snapshot.ranks)
    gpu_names = ("GPU", "MEMORY") if has_gpus else ()
    rows = [("RANK", "NODE", "PID", "STATE", "STEP", "LOSS", "THROUGHPUT", *gpu_names, "")]
    for rank in snapshot.ranks:
        rate = "" if rank.throughput is None else f"{rank.throughput:.4g} {rank.unit}/s"
        loss = "" if rank.loss is None else f"{rank.loss:.4g}"
        pid, step = (str(value) if value is not None else "" for value in (rank.pid, rank.step))
        gpu = _gpu_words(rank.gpu) if has_gpus else ()
        rows.append((str(rank.rank), rank.node, pid, rank.state, step, loss, rate, *gpu, rank.note))
    _table(rows)
    if run.failure:
        show_failure(snapshot)


def _gpu_words(gpu: GpuUse | None) -> tuple[str, str]:
    """How busy and how full it is; empty what is not known."""
    busy = "" if gpu is None or gpu.utilisation is None else f"{gpu.utilisation}%"
    return busy, "" if gpu is None or gpu.memory is None else f"{gpu.memory / 2**30:.3g} GiB"


def show_failure(snapshot: Snapshot, *, err: bool = False) -> None:
    """Why a run is not well, and what can be done."""
    failure = snapshot.run.failure
    if failure is None:
        return
    click.echo("", err=err)
    said = [failure.headline, failure.detail, *failure.traceback.splitlines(), failure.advice]
    said += [f"  {failure.fix}"] if failure.fix else []
    if snapshot.run.restart:
        said.append(f"rankdeck restart {snapshot.run.run}: {snapshot.run.restart}")
    for line in said:
        if line:
            click.echo(terminal_line(line, colour=False), err=err)


def show_stacks(stacks: Sequence[RankStack], *, as_json: bool) -> None:
    """`rankdeck stacks`."""
    if as_json:
        ranks = [{"rank": one.rank, "text": one.text, "reason": one.reason} for one in stacks]
        _print_json({"collectives": waits(stacks), "ranks": ranks})
        return
    for line in story(stacks):
        click.echo(terminal_line(line, colour=False))


def show_diagnosis(diagnosis: Diagnosis, *, as_json: bool) -> None:
    """`rankdeck diagnose`."""
    if as_json:
        _print_json(diagnosis)
        return
    verdict = diagnosis.verdict
    if verdict is not None:
        _say(f"{diagnosis.subject}: {verdict.headline}" + (f"  [{verdict.cause}]" if verdict.cause else ""))
        shown = [verdict.detail, *(f"  | {line}" for line in verdict.evidence)]
        shown += [f"  {line}" for line in verdict.traceback.splitlines()]
        _say(*shown)
        _say("", f"what helps: {verdict.advice}", *([f"  {verdict.fix}"] if verdict.fix else []))
        _say(*["", *verdict.followed] if verdict.followed else ())
    elif diagnosis.attempt is not None:
        _say(f"{diagnosis.subject}: nothing has failed in attempt {diagnosis.attempt}; the run is {diagnosis.state}")
    else:
        _say(f"{diagnosis.subject}: nothing that is known was found; its last lines:")
        _say(*(f"  | {line}" for line in diagnosis.last_lines))
    _say(*["", *(f"noticed: {words}" for words in diagnosis.noticed)] if diagnosis.noticed else ())
    _say(*["", diagnosis.note] if diagnosis.note else ())


def _say(*lines: str) -> None:
    for line in lines:
        click.echo(terminal_line(line[:MAX_LINE], colour=False))


def exit_status(snapshot: Snapshot) -> int:
    """What `launch` and `wait` end with: 0 for success, the root cause's status where a rank failed, else 1."""
    run = snapshot.run
    if run.state == "succeeded":
        return 0
    if run.failure is not None and run.failure.rank is not None:
        for rank in (run.failure.rank, *run.failure.others):  # the one to blame may have been stopped
            status = snapshot.ranks[rank].exit
            if status:
                return status if status > 0 else 128 - status
    return 1


def narrate(text: str) -> None:
    """A line about the run, apart from what its ranks print."""
    click.echo(f"rankdeck: {terminal_line(text, colour=False)}", err=True)


def end_words(snapshot: Snapshot) -> str:
    """How a run ended, in a sentence."""
    run = snapshot.run
    failed = [rank for rank in snapshot.ranks if rank.state == "failed" and rank.exit is not None]
    words = ", ".join(f"rank {rank.rank} {status_words(rank.exit)}" for rank in failed[:4] if rank.exit is not None)
    return f"{run.run} {run.state}" + (f": {words}" if words else f": {run.doing}" if run.doing else "")
