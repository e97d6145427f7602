"""Curves of a run that goes on, for other programs."""

import json
import signal
from collections import Counter
from typing import Any

from tests.support import PATIENCE, entries, wait_until

COUNT = entries("e2e/export", "count")


def test_every_value_is_exported_once_while_the_run_goes_on(rankdeck, work, launch):
    run = launch(COUNT, ranks=2)
    rankdeck.wait_status(run, lambda status: {one["step"] for one in status["ranks"]} == {29}, what="all are half way")
    values = work / "values.jsonl"
    with rankdeck.start("export", run, "--to", "jsonl", "--follow", "-o", str(values)) as export:
        wait_until(lambda: values.exists() and values.stat().st_size, what="what there is was written")
        (work / "go").touch()
        _, said = export.communicate(timeout=PATIENCE)
    assert (export.returncode, said) == (0, f"rankdeck: written: {values}\n")
    lines = [json.loads(line) for line in values.read_text().splitlines()]
    told = Counter((line["rank"], line["step"], line["value"]) for line in lines if line["metric"] == "loss")
    assert told == Counter((rank, step, step + 0.5) for rank in range(2) for step in range(60))


WORK = entries("e2e/export", "work")


def test_what_ranks_use_of_their_node_is_exported_and_is_no_result(rankdeck, launch):
    run = launch(WORK)

    def told() -> dict[str, Any]:
        lines = map(json.loads, rankdeck("export", run, "--to", "jsonl").stdout.splitlines())
        return {line["metric"]: line for line in lines}

    wait_until(lambda: len(told()) == 3, what="curves of the process")
    values = told()
    assert {"process.cpu", "process.memory", "process.io"} == set(values)
    assert values["process.cpu"]["high"] > 0
    assert values["process.memory"]["low"] > 1 << 20
    assert rankdeck("stop", run, "--now").returncode == 0
    summary = json.loads((rankdeck.folder(run) / "summary.json").read_bytes())
    assert not summary.get("metrics")


def test_a_followed_export_that_is_interrupted_keeps_what_it_has(rankdeck, work, launch):
    run = launch(COUNT)
    rankdeck.wait_status(run, lambda status: status["step"] == 29, what="it is half way")
    values = work / "values.csv"
    with rankdeck.start("export", run, "--to", "csv", "--follow", "-o", str(values)) as export:
        wait_until(lambda: values.exists() and b",29," in values.read_bytes(), what="what there is was written")
        export.send_signal(signal.SIGINT)
        export.communicate(timeout=PATIENCE)
    assert export.returncode == 130
    assert len([line for line in values.read_text().splitlines() if ",loss," in line]) == 30
    assert rankdeck("stop", run).returncode == 0
