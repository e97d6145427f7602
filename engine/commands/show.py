"""Output of the commands about profiles, plans and runs: tables for people, JSON for scripts."""

from __future__ import annotations

import shlex
import signal
import time
from typing import TYPE_CHECKING

import click
import msgspec

from engine.client.editor import frame_to_edit
from engine.commands.checklist import MARKS
from engine.commands.output import print_json, print_line, print_table
from engine.core.catalogue import BackendInfo
from engine.core.errors import UsageError
from engine.core.metrics.resources import RESOURCES
from engine.core.numbers import age, size_words
from engine.core.plan.batch import submit_argv
from engine.core.plan.batch.job import SCRIPT
from engine.core.plan.plan import LaunchPlan, Program, slow_import_words, store_address
from engine.core.plan.profile import BIND_WORDS
from engine.core.plan.rank import rank_argv
from engine.core.plan.secrets import shown_words, without_secrets
from engine.core.run.state import ENDED_WORDS, status_words
from engine.core.terminal_text import visible
from engine.core.views.view import RankView, RunSummary, RunView, Snapshot
from engine.core.words import rank_words
from engine.gate import NOT_LOOKED_UP

if TYPE_CHECKING:
    from engine.commands.diagnose import Diagnosis

OLD = 10.0  # seconds after which numbers that a supervisor writes every 5 seconds are told to be old
MAX_LINE = 500  # longest line of foreign text that is printed, in characters

RUN_KEYS = ("run", "name", "state", "doing", "attempt", "backend", "world_size", "step", "steps", "loss_ranks", "throughput", "unit",
            "epoch", "epochs", "epoch_step", "epoch_steps", "aside", "failure", "saved", "stall", "nodes", "job", "swept",
            "is_early", "as_of")  # fmt: skip
STATUS_KEYS = ("rank", "node", "local_rank", "pid", "state", "exit", "attempt", "generation", "step", "loss",
               "throughput", "gpu", "process", "note", "health", "health_since", "phase", "late")  # fmt: skip
"""What `status --json` takes as it is from a run, and from each of its ranks."""


def signal_number(name: str) -> int:
    """The number of a signal. `name`: `KILL`, `SIGKILL` or `9`. Raises UsageError: there is no such signal."""
    try:
        if name.isascii() and name.isdigit():
            return signal.Signals(int(name)).value
        return signal.Signals["SIG" + name.upper().removeprefix("SIG")].value
    except (KeyError, ValueError):
        raise UsageError(f"unknown signal {name!r}", hint="for example: KILL, TERM, INT, STOP, CONT, USR1") from None


def show_backends(infos: list[BackendInfo], *, as_json: bool, ascii_only: bool) -> None:
    """`rankdeck backends`."""
    if as_json:
        print_json(msgspec.to_builtins(infos))
        return
    width = max(len(info.name) for info in infos)
    for info in infos:
        sign, ascii_sign, _ = MARKS["fail" if info.trouble else "ok"]
        click.echo(f"{ascii_sign if ascii_only else sign} {info.name:<{width}}  {info.summary}")
        for line in filter(None, (info.trouble, info.hint, info.found)):
            click.echo(f"{'':<{width + 4}}{visible(line)}")


def show_plan(plan: LaunchPlan, *, as_json: bool, show_secrets: bool) -> None:
    """`rankdeck plan`."""
    if not show_secrets:
        plan = without_secrets(plan)
    if as_json:
        print_json(plan)
        return
    submission: list[tuple[str, str]] = []
    if plan.submission:
        first, *others = (visible(line) for line in plan.submission.script.splitlines())
        submission = [("submit", visible(shlex.join(submit_argv(plan.submission)))), (SCRIPT, first)]
        submission += [("", line) for line in others]
    print_table(
        [
            ("profile", plan.name + (f": {visible(plan.description)}" if plan.description else "")),
            (
                "backend",
                f"{plan.backend.name}, {plan.world_size} ranks on {len(plan.nodes)} node(s), {plan.backend.device}",
            ),
            *([("", visible(plan.backend_note))] if plan.backend_note else []),
            *([] if plan.is_looked_up else [("", f"{NOT_LOOKED_UP}; --trust trusts it")]),
            *([("fallback", ", then ".join(spare.name for spare in plan.fallback))] if plan.fallback else []),
            ("store", f"{plan.nodes[0].name}, {store_address(plan)}, a free port chosen by the kernel"),
            *([("setup", visible(plan.reach.setup))] if plan.reach.setup else []),
            *submission,
            ("workdir", plan.workdir),
            ("command", visible(shlex.join(rank_argv(plan, "…")))),
            ("stop", plan.launch.ladder_words),
            ("failure", plan.launch.failure_words),
            *([("rejoin", plan.backend.rejoin_words)] if plan.backend.rejoin_words else []),
            *([("preload", ", ".join(plan.preload))] if plan.launch.warm and plan.preload else []),
            *([("imports", slow_import_words(plan))] if plan.slow_imports else []),
            *([("bind", f"{plan.layout.bind}: {BIND_WORDS[plan.layout.bind]}")] if plan.layout.bind != "none" else []),
        ]
    )
    click.echo("")
    rows = [("NODE", "RANKS")]
    for node in plan.nodes:
        cpus = [f" ({one})" for one in node.cpus] or [""] * len(node.ranks)
        bound = (f"{rank}{its}" for rank, its in zip(node.ranks, cpus, strict=True))
        rows.append((node.name, " ".join(bound)))
    print_table(rows)
    click.echo("\nenvironment, in addition to what torchrun sets (RANK, WORLD_SIZE, MASTER_ADDR, …)")
    for name, value in {**plan.env_defaults, **plan.env}.items():
        default = "" if name in plan.env else "   unless already set"
        click.echo(f"  {name}={visible(value)}{default}")


def show_runs(runs: list[RunSummary], *, everything: bool, as_json: bool) -> None:
    """`rankdeck ps`."""
    shown = [run for run in runs if everything or run.state not in ENDED_WORDS]
    if as_json:
        print_json(shown)
        return
    if not shown:
        ended = f"no active runs; {len(runs)} ended (rankdeck ps --all)"
        click.echo(ended if runs else "no runs yet; start one with: rankdeck launch quickstart")
        return
    rows = [("RUN", "STATE", "RANKS", "BACKEND", "STEP", "LOSS", "STARTED", "")]
    for run in shown:
        step = "" if run.step is None else f"{run.step}/{run.steps}" if run.steps else str(run.step)
        loss, started = _loss(run), f"{age(max(0.0, time.time() - run.launched_at))} ago"
        where = run.job.words(time.time()) if run.job is not None and run.state not in ENDED_WORDS else ""
        told = "; ".join(filter(None, (run.reason, where)))
        rows.append((run.run, run.state, str(run.world_size), run.backend, step, loss, started, told))
    print_table(rows)


def _loss(view: RunSummary | RunView | RankView) -> str:
    return view.loss_odd if view.loss is None else f"{view.loss:.4g}"


def show_status(snapshot: Snapshot, program: Program, *, as_json: bool) -> None:
    """Prints `rankdeck status`. `program`: from the run's plan."""
    run, words = snapshot.run, shown_words([program.target, *program.args])
    used = run.goodput.until(time.time()) if run.goodput is not None else None
    if as_json:
        ranks = [
            {key: getattr(rank, key) for key in STATUS_KEYS} | ({"loss": rank.loss_odd} if rank.loss_odd else {})
            for rank in snapshot.ranks
        ]
        shown = {key: getattr(run, key) for key in RUN_KEYS}
        own = {"program": words, "loss": run.loss_odd or run.loss, "derived": run.is_derived, "goodput": used}
        print_json(shown | own | {"metrics": _metrics(snapshot), "ranks": ranks})
        return
    doing = f" ({run.doing})" if run.doing else ""
    line = f"{run.run}  {run.state}{doing}  attempt {run.attempt}  {run.alive}/{run.world_size} ranks  {run.backend}"
    click.echo(visible(line))
    print_line(shlex.join(words))
    if run.swept is not None:
        print_line(f"{run.swept.sweep}, run {run.swept.number} of {run.swept.runs}: {run.swept.words}")
    if run.job is not None and run.state not in ENDED_WORDS:
        click.echo(visible(run.job.words(time.time())))
    if run.as_of is not None and (seconds := time.time() - run.as_of) > OLD:
        click.echo(f"as of {age(seconds)} ago, when its supervisor last wrote its numbers")
    if used is not None and used.words:
        click.echo(f"time: {used.words}")
    if snapshot.late_words:
        click.echo(snapshot.late_words)
    if run.loss_ranks:
        click.echo(f"loss of {rank_words(run.loss_ranks)}: {_loss(run)}")
    has_gpus = any(rank.gpu is not None for rank in snapshot.ranks)
    gpu_names = ("GPU", "MEMORY") if has_gpus else ()
    rows = [("RANK", "NODE", "PID", "STATE", "STEP", "LOSS", "THROUGHPUT", *gpu_names, "")]
    for rank in snapshot.ranks:
        rate = "" if rank.throughput is None else f"{'~' if rank.is_derived else ''}{rank.throughput:.4g} {rank.unit}/s"
        pid, step = (str(value) if value is not None else "" for value in (rank.pid, rank.step))
        use, gpu = rank.gpu, ("", "")
        if use is not None:
            busy = "" if use.utilisation is None else f"{use.utilisation}%"
            gpu = busy, "" if use.memory is None else size_words(use.memory)
        gpus = gpu if has_gpus else ()
        note = rank.note or rank.phase
        if rank.health == "stalled" and rank.health_since is not None:
            note = f"no step for {time.time() - rank.health_since:.0f} s" + (f"; {rank.note}" if rank.note else "")
        rows.append((str(rank.rank), rank.node, pid, rank.state, step, _loss(rank), rate, *gpus, note))
    print_table(rows)
    if metrics := _metrics(snapshot):
        click.echo("")
        print_table([(visible(key), f"{value:.4g}") for key, value in metrics.items()])
    if run.stall:
        click.echo("")
        for line in (*run.stall.waits, *run.stall.doing):
            click.echo(visible(line))
    if run.failure:
        show_failure(snapshot)


def _metrics(snapshot: Snapshot) -> dict[str, float]:
    """The mean over ranks of the newest value of every other metric, where it is finite."""
    newest: dict[str, list[float]] = {}
    for dump in snapshot.series:
        value = dump.recent[-1][2] if dump.recent else None
        if dump.key not in ("loss", "throughput", *RESOURCES) and value is not None:
            newest.setdefault(dump.key, []).append(value)
    return {key: sum(values) / len(values) for key, values in sorted(newest.items())}


def show_failure(snapshot: Snapshot) -> None:
    """Prints why a run failed, and what to do."""
    failure = snapshot.run.failure
    if failure is None:
        return
    click.echo("")
    lines = [failure.headline, failure.detail, *failure.traceback.splitlines(), failure.hint]
    lines += [f"  {failure.fix}"] if failure.fix else []
    if snapshot.run.restart:
        lines.append(f"rankdeck restart {snapshot.run.run}: {snapshot.run.restart}")
    for line in (*lines, _news(snapshot.run.run)):
        if line:
            print_line(line)


def show_cause(snapshot: Snapshot) -> None:
    """What `launch` and `run` say of a failure: the cause, the place in the user's code, and the next step.

    The traceback is among the output of the rank, which was printed before.
    """
    run, failure = snapshot.run, snapshot.run.failure
    assert failure is not None
    frame = frame_to_edit(failure.traceback)
    place = f"{frame.file}:{frame.line}" if frame is not None else ""
    restart = f"rankdeck restart {run.run}: {run.restart}" if run.restart else ""
    for line in (failure.headline, failure.detail, place, failure.hint, failure.fix, _news(run.run), restart):
        if line:
            print_line(f"  {line}", err=True)


def _news(run: str) -> str:
    from engine.client.history import news_of  # reads other runs, which only failures need
    from engine.runs.listing import find_run

    return news_of(find_run(run))


def show_diagnosis(diagnosis: Diagnosis, *, as_json: bool) -> None:
    """`rankdeck diagnose`."""
    if as_json:
        print_json(diagnosis)
        return
    verdict = diagnosis.verdict
    if verdict is not None:
        _say(f"{diagnosis.subject}: {verdict.headline}" + (f"  [{verdict.cause}]" if verdict.cause else ""))
        shown = [verdict.hedged, *(f"  | {line}" for line in verdict.evidence)]
        shown += [f"  {line}" for line in verdict.traceback.splitlines()]
        _say(*shown)
        _say("", f"what to do: {verdict.hint}", *([f"  {verdict.fix}"] if verdict.fix else []))
        _say(*["", *verdict.followed] if verdict.followed else ())
    elif diagnosis.attempt is not None:
        _say(f"{diagnosis.subject}: no rank failed in attempt {diagnosis.attempt}; the run is {diagnosis.state}")
    else:
        _say(f"{diagnosis.subject}: no known failure found; the last lines:")
        _say(*(f"  | {line}" for line in diagnosis.last_lines))
    _say(*["", *(f"also found: {words}" for words in diagnosis.noticed)] if diagnosis.noticed else ())
    _say(*["", diagnosis.note] if diagnosis.note else ())


def _say(*lines: str) -> None:
    for line in lines:
        print_line(line[:MAX_LINE])


def exit_status(snapshot: Snapshot) -> int:
    """The exit status of `launch` and `wait`: 0 for success and for runs that `metrics.stop_when` stopped, else that of the rank that failed
    first, else 1."""
    run = snapshot.run
    if run.state == "succeeded" or run.is_early:
        return 0
    if run.failure is not None and run.failure.rank is not None:
        for rank in (run.failure.rank, *run.failure.others):  # the rank at fault may have been stopped
            status = snapshot.ranks[rank].exit
            if status:
                return status if status > 0 else 128 - status
    return 1


def end_words(snapshot: Snapshot) -> str:
    """How a run ended, in a sentence."""
    run = snapshot.run
    failed = [rank for rank in snapshot.ranks if rank.state == "failed" and rank.exit is not None]
    words = ", ".join(f"rank {rank.rank} {status_words(rank.exit)}" for rank in failed[:4] if rank.exit is not None)
    return f"{run.run} {run.state}" + (f": {words}" if words else f": {run.doing}" if run.doing else "")
