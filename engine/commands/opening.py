"""`rankdeck diagnose --open`: the app shows the logs of another job as a run that has ended. The output of each rank is copied into a folder
that goes with the app; nothing enters the history."""

import contextlib
import re
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

from msgspec.structs import replace

from engine.client.engine import ReadOnlyEngine
from engine.client.protocols import RunClient
from engine.commands.cli import open_app
from engine.commands.diagnose import read_files
from engine.core.errors import UsageError
from engine.core.failures.launcher_log import clean_lines, read_logs
from engine.core.failures.text.prefixes import split
from engine.core.failures.verdict import Verdict, Witness, find_verdict
from engine.core.metrics.bench import Result
from engine.core.metrics.lines.formats import LineFormats
from engine.core.metrics.lines.reader import MetricReader
from engine.core.metrics.progress import RankProgress
from engine.core.metrics.readings import take_lines
from engine.core.metrics.series import SeriesSet
from engine.core.views.view import EventLine, FailureView, RankView, RunView, Snapshot, Update

MOST_RANKS = 4096  # ranks that are shown: a log may name any number
MOST_EVENTS = 200  # last lines without a rank, which are shown as the story of the job
Logs = Sequence[tuple[str, int | None, str]]  # the name of each file, the rank that its name tells, and its text


class OpenedLog:
    """See `RunClient`. `run`: a name for the job; `folder`: an empty folder for the output of its ranks; `at`: when the newest log was written."""

    def __init__(self, run: str, logs: Logs, folder: Path, at: float) -> None:
        self.run, self.folder = run, folder
        ranks, others = _by_rank(logs)
        told = read_logs(logs)
        (folder / "attempt_0").mkdir(parents=True)
        formats, series = LineFormats(), SeriesSet()
        progress = [RankProgress() for _ in range(max(ranks, default=0) + 1)]
        for rank, lines in ranks.items():
            text = "".join(f"{line}\n" for line in lines)
            self.log_path(0, rank, "out").write_text(text, errors="replace")
            found = MetricReader(formats=formats).feed(text.encode("utf-8", "replace"))
            for number, point in enumerate(take_lines(rank, progress[rank], at, found)):
                series.append(replace(point, at=at + number / 1000))  # for sparklines, which are drawn over time
        verdict, failed = find_verdict(told), {one.rank: one for one in told if one.failed}
        lead = max(progress, key=lambda one: (one.step is not None, one.step or 0, one.loss is not None))
        self.shown = Snapshot(
            run=RunView(
                run=run, name=run, state="failed" if verdict else "stopped", doing="", activity="ended", attempt=0, generation=0,
                world_size=len(progress), backend="", program=run, launched_at=at, ended_at=at, attempt_since=at, alive=0, step=lead.step,
                steps=lead.steps, loss=lead.loss, throughput=None, unit="", checkpoint=None, checkpoint_at=None, epoch=lead.epoch,
                epochs=lead.epochs, failure=_failure(verdict, failed) if verdict else None, restart="", restart_kind="none", nodes=(),
            ),
            ranks=tuple(_rank(rank, one, failed.get(rank), ranks.get(rank, ())) for rank, one in enumerate(progress)),
            series=tuple(series.dump()),
            events=tuple(EventLine(seq=seq, at=at, text=line) for seq, line in enumerate(others[-MOST_EVENTS:])),
        )  # fmt: skip

    async def subscribe(self) -> AsyncIterator[Snapshot | Update]:
        yield self.shown

    async def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise UsageError("this is the log of another job", hint="its launcher can start or end it")

    stop = restart = kill = stacks = _refuse

    def log_path(self, attempt: int, rank: int, stream: Literal["out", "err"]) -> Path:
        return self.folder / f"attempt_{attempt}" / f"rank_{rank}.{stream}"

    def log_order(self, attempt: int) -> None:
        return None

    def results(self, attempt: int) -> list[Result]:
        return []

    def news(self) -> str:
        return ""

    async def close(self) -> None:
        """Nothing is connected."""


class LogEngine(ReadOnlyEngine):
    """This machine, with the log of another job beside its runs."""

    def __init__(self, log: OpenedLog) -> None:
        super().__init__()
        self._log = log

    async def attach(self, run: str) -> RunClient:  # type: ignore[override]
        return self._log if run == self._log.run else await super().attach(run)


def open_logs(names: Sequence[str], look: dict[str, bool]) -> int:
    """Opens the app with logs, and returns its exit status. `names`: as for `diagnose_files`. `look`: options of the app."""
    logs = read_files(names)
    at = time.time()
    with contextlib.suppress(OSError, ValueError):  # of standard input
        at = max(Path(log.name).stat().st_mtime for log in logs)
    run = re.sub(r"[^\w.-]", "-", Path(names[0]).name, flags=re.ASCII)[:40].strip("-.") or "log"
    with tempfile.TemporaryDirectory(prefix="rankdeck-log-") as folder:
        log = OpenedLog(run, [(log.name, log.rank, log.text) for log in logs], Path(folder), at)
        return open_app(look | {"read_only": True}, open_run=run, engine=LogEngine(log))


def _by_rank(logs: Logs) -> tuple[dict[int, list[str]], list[str]]:
    """The lines of each rank, without tags and control sequences, and those without a rank; of a single process, all are rank 0's."""
    ranks: dict[int, list[str]] = {}
    others: list[str] = []
    for _, of_file, text in logs:
        for rank, _, line, _ in split(clean_lines(text)):
            number = of_file if rank is None else rank
            (others if number is None or number >= MOST_RANKS else ranks.setdefault(number, [])).append(line)
    return (ranks, others) if ranks else ({0: others}, [])


def _failure(verdict: Verdict, failed: Iterable[int | None]) -> FailureView:
    return FailureView(
        rank=verdict.rank, headline=verdict.headline, detail=verdict.hedged, traceback=verdict.traceback, hint=verdict.hint, fix=verdict.fix,
        cause=verdict.cause, followed=verdict.followed, others=tuple(one for one in failed if one is not None and one != verdict.rank),
    )  # fmt: skip


def _rank(rank: int, progress: RankProgress, end: Witness | None, lines: Sequence[str]) -> RankView:
    last = next((line for line in reversed(lines[-50:]) if line.strip()), "")
    return RankView(
        rank=rank, node="", local_rank=rank, pid=None, state="failed" if end else "stopped", exit=end.status if end else None, attempt=0,
        generation=0, step=progress.step, loss=progress.loss, throughput=progress.throughput, unit=progress.unit, last_line=last,
        note="" if end else "its log does not say how it ended", out_size=sum(len(line.encode("utf-8", "replace")) + 1 for line in lines),
    )  # fmt: skip
