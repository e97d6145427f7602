"""Exports of a run: curves for other programs, a chart, and a report in which nothing that ranks wrote can act."""

import csv
import io
import json
import sys
import types
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from engine.commands import curves
from engine.commands.curves import Value
from engine.commands.export import export_run
from engine.commands.report import report_html
from engine.core.errors import CheckError, UsageError
from engine.core.metrics.chart_svg import chart_svg
from engine.core.metrics.series import Point, SeriesSet
from engine.core.views.view import EventLine, FailureView
from engine.runs.paths import RunPaths
from engine.runs.record import read_plan
from engine.runs.replay import stored_snapshot
from tests.ended_run import ended_run
from tests.support import from_table

HOSTILE = "<script>alert('1')</script>\x1b]52;c;eA==\x07\x9b2J&\"</pre>"


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    monkeypatch.chdir(tmp_path)
    return ended_run(tmp_path)


def test_csv_and_json_lines_have_every_kept_point(paths: RunPaths, capfdbinary: pytest.CaptureFixture[bytes]):
    export_run(paths, "csv", "values.csv", "loss")
    rows = list(csv.DictReader(io.StringIO(Path("values.csv").read_text())))
    export_run(paths, "jsonl", "-", "loss")
    lines = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert len(rows) == len(lines) == sum(len(dump.buckets) for dump in stored_snapshot(paths).series)
    assert {row["metric"] for row in rows} == {"loss", "lr", "throughput"}
    assert (lines[0]["run"], float(rows[0]["value"])) == ("smoke-sq4f", lines[0]["value"])


def test_a_text_in_a_csv_file_is_no_formula_and_a_number_stays_one(paths: RunPaths):
    writer = curves.CURVES["csv"](paths, 0.0, "values.csv")
    writer.add(Value(0, "=cmd|'/c calc'!A1", 1.0, 3, -0.5, -0.5, -0.5, 1))
    writer.close(succeeded=True)
    (row,) = csv.DictReader(io.StringIO(Path("values.csv").read_text()))
    assert (row["metric"], row["value"]) == ("'=cmd|'/c calc'!A1", "-0.5")


def test_nothing_is_overwritten(paths: RunPaths):
    export_run(paths, "svg", None, "loss")
    assert Path("smoke-sq4f.svg").stat().st_mode & 0o777 == 0o600
    with pytest.raises(UsageError, match="exists"):
        export_run(paths, "svg", None, "loss")
    with pytest.raises(UsageError, match="no values of 'los'"):
        export_run(paths, "svg", "other.svg", "los")


def test_a_chart_is_valid_and_survives_hostile_names_and_odd_values():
    series = SeriesSet()
    for step, value in enumerate([1.0, None, 1e308, -1e308, 2.0]):
        for rank in range(2):
            series.append(Point(rank, HOSTILE, 10.0 + step, step, value))
    text = chart_svg(series.dump(), HOSTILE, 10.0)
    assert text is not None
    ElementTree.fromstring(text)
    assert "<script" not in text
    assert "nan" not in text
    assert chart_svg(series.dump(), "loss", 10.0) is None


def test_what_ranks_wrote_can_not_act_in_a_report(paths: RunPaths):
    snapshot = stored_snapshot(paths)
    failure = FailureView(
        rank=0, headline=HOSTILE, detail=HOSTILE, traceback=f"a\n{HOSTILE}", hint=HOSTILE, fix=HOSTILE
    )
    run = msgspec.structs.replace(snapshot.run, failure=failure, doing=HOSTILE, program=HOSTILE)
    ranks = tuple(msgspec.structs.replace(rank, note=HOSTILE, node=HOSTILE) for rank in snapshot.ranks)
    snapshot = msgspec.structs.replace(snapshot, run=run, ranks=ranks, events=(EventLine(seq=1, at=1.0, text=HOSTILE),))
    plan, replace = read_plan(paths), msgspec.structs.replace
    launch = replace(plan.launch, workdir=HOSTILE)
    plan = replace(plan, env={"API_TOKEN": "swordfish", HOSTILE: HOSTILE}, launch=launch)
    text = report_html(snapshot, plan, None, HOSTILE, 1.0, show_secrets=False)
    assert "<script" not in text
    assert "swordfish" not in text
    assert not any((ord(one) < 32 and one != "\n") or 0x7F <= ord(one) < 0xA0 for one in text)
    assert "default-src 'none'" in text
    assert "<svg" in text


class Recorder:
    """Stands in for another library: records every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.info = types.SimpleNamespace(run_id="1")

    def __getattr__(self, name: str) -> Any:
        def call(*words: Any, **_: Any) -> Any:
            self.calls.append((name, words))
            return self

        return call


@from_table
def test_values_go_to_other_libraries_in_the_order_of_steps(
    kind: str, module: str, call: str, paths: RunPaths, monkeypatch: pytest.MonkeyPatch
):
    recorder = Recorder()
    fake = types.ModuleType(module)
    for name in ("Writer", "init", "MlflowClient"):
        setattr(fake, name, lambda *words, **more: recorder)
    monkeypatch.setitem(sys.modules, module.partition(".")[0], types.ModuleType(module.partition(".")[0]))
    monkeypatch.setitem(sys.modules, module, fake)
    export_run(paths, kind, None, "loss")
    values = [words for name, words in recorder.calls if name == call]
    if kind == "tensorboard":
        assert values[0][0].endswith("/rank_0")
        assert [words[2] for words in values] == sorted(words[2] for words in values)
    assert values


def test_a_library_that_is_missing_is_named_with_its_extra(paths: RunPaths, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(CheckError) as error:
        export_run(paths, "wandb", None, "loss")
    assert "rankdeck[wandb]" in str(error.value)
