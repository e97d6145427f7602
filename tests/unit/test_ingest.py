"""The files of ranks become curves."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from engine.core.plan.profile import Metrics
from engine.runs.paths import RunPaths
from engine.supervisor.output.ingest import Ingest
from engine.supervisor.run import SupervisedRun


def ingest_of(paths: RunPaths, ranks: int = 1) -> Ingest:
    plan = SimpleNamespace(world_size=ranks, metrics=Metrics())
    run = SimpleNamespace(paths=paths, plan=plan, note_change=lambda rank: None)
    return Ingest(cast("SupervisedRun", run))


@pytest.mark.parametrize("is_remote", [False, True])
def test_what_is_logged_and_printed_is_stored_once(tmp_path: Path, *, is_remote: bool) -> None:
    paths = RunPaths(tmp_path)
    ingest = ingest_of(paths)
    steps = range(1, 4)
    out = "".join(f"step {step} loss={1 / step:.2f}\n" for step in steps).encode()
    metrics = "".join(json.dumps({"t": 1000.0 + one, "step": one, "loss": 1 / one}) + "\n" for one in steps).encode()
    paths.rank_file(0, 0, "out").parent.mkdir(parents=True)
    if is_remote:
        assert ingest.take_data(0, 0, 0, out)
        assert ingest.take_data(0, 2, 0, metrics)
    else:
        paths.rank_file(0, 0, "out").write_bytes(out)
        paths.rank_file(0, 0, "metrics").write_bytes(metrics)
        ingest.take_sizes(0, [[0, len(out), 0, len(metrics)]])
    while ingest.read_slice():
        pass
    series = ingest.series.get(0, "loss")
    assert series is not None
    assert [(step, value) for _, step, value in series.recent] == [(step, 1 / step) for step in steps]


@pytest.mark.parametrize("is_remote", [False, True])
def test_files_that_grow_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_remote: bool) -> None:
    """In a home that machines share, each `open` asks its server."""
    opened: list[str] = []
    real = os.open

    def open_noted(path: str | Path, *words: int) -> int:
        opened.append(str(path))
        return real(path, *words)

    monkeypatch.setattr(os, "open", open_noted)
    paths = RunPaths(tmp_path)
    ingest, file, size = ingest_of(paths), paths.rank_file(0, 0, "out"), 0
    file.parent.mkdir(parents=True)
    for step in range(1, 9):
        data = b"step %d\n" % step
        if not is_remote:
            with file.open("ab") as rank:
                rank.write(data)
        assert not is_remote or ingest.take_data(0, 0, size, data)
        size += len(data)
        ingest.take_sizes(0, [[0, size, 0, 0]])
        while ingest.read_slice():
            pass
        ingest._order.flush()
    assert ingest.progress[0].step == 8
    assert opened.count(str(file)) <= 1 + is_remote
    assert opened.count(str(paths.order(0))) == 1


def test_the_last_line_of_a_rank_that_has_ended_well_needs_no_line_feed(tmp_path: Path) -> None:
    ingest = ingest_of(RunPaths(tmp_path), ranks=2)
    for rank in (0, 1):
        assert ingest.take_data(rank, 0, 0, b"\rstep 29/30 loss 0.5\rstep 30/30 loss 0.25")
    ingest.drain([1])
    assert [progress.step for progress in ingest.progress] == [29, 30]
    assert [progress.last_line for progress in ingest.progress] == ["step 30/30 loss 0.25"] * 2


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_line_has_the_step_of_the_bar_that_was_drawn_again_after_it(tmp_path: Path, *, is_remote: bool) -> None:
    """As transformers' Trainer does: the line goes to stdout, the bar to stderr, and fast steps are not drawn."""
    paths = RunPaths(tmp_path)
    ingest = ingest_of(paths)
    paths.rank_file(0, 0, "out").parent.mkdir(parents=True)
    bars = [f"\r {step}/40 [00:0{step // 10}<00:02, 10.00it/s]".encode() for step in (10, 20, 36, 40)]
    lines = [f"{{'loss': 1.{step}, 'epoch': 0.5}}\n".encode() for step in (10, 20, 36, 40)]
    sizes = [0, 0, 0]
    for bar, line in zip(bars, lines, strict=True):
        for stream, data in enumerate((line, bar)):
            if is_remote:
                assert ingest.take_data(0, stream, sizes[stream], data)
            else:
                with paths.rank_file(0, 0, ("out", "err")[stream]).open("ab") as file:
                    file.write(data)
            sizes[stream] += len(data)
        if not is_remote:
            ingest.take_sizes(0, [[0, *sizes]])
        while ingest.read_slice():
            pass
    series = ingest.series.get(0, "loss")
    assert series is not None
    assert [(step, value) for _, step, value in series.recent] == [(10, 1.1), (20, 1.2), (36, 1.36), (40, 1.4)]
