"""The files of a run that has ended: two ranks of the recipe `linear` on this machine."""

from pathlib import Path

import msgspec

from engine.core.metrics.progress import RankProgress
from engine.core.metrics.series import Point, SeriesSet
from engine.core.plan.document.reading import profile_from_data
from engine.core.plan.layout import parse_nodes
from engine.core.plan.plan import BackendSettings, NodeFacts, build_plan
from engine.core.run import events as ev
from engine.runs.paths import RunPaths
from engine.runs.replay import SavedSeries, first_event

STEPS = 200


def ended_run(runs: Path) -> RunPaths:
    """Writes plan, journal and curves. `runs`: the folder of runs, in which its folder `smoke-sq4f` is made."""
    paths = RunPaths(runs / "smoke-sq4f")
    paths.folder.mkdir(parents=True)
    profile = profile_from_data({"schema": 1, "name": "smoke", "recipe": {"name": "linear"}}, "smoke.toml")
    facts = NodeFacts(name="localhost", cores=2, gpus=0, python="/opt/env/bin/python")
    backend = BackendSettings(name="gloo", env={"GLOO_SOCKET_IFNAME": "lo"}, device="cpu")
    plan = build_plan(profile, parse_nodes("localhost", 2), (facts,), backend, workdir="/home/ann/project")
    paths.plan.write_bytes(msgspec.json.encode(plan))

    events: list[ev.AnyEvent] = [
        first_event(paths, plan, 1000.0),
        ev.NodeConnected(at=1001.0, node="localhost", agent_pid=100),
        ev.StoreOpened(at=1002.0, attempt=0, node="localhost", port=4000),
        *(ev.RankSpawned(at=1003.0, attempt=0, rank=rank, pid=200 + rank) for rank in range(2)),
        *(ev.RankEnded(at=1030.0, attempt=0, rank=rank, status=0, step=STEPS) for rank in range(2)),
        ev.NodeCleared(at=1031.0, attempt=0, node="localhost"),
        ev.NodeClosed(at=1032.0, node="localhost"),
    ]
    paths.journal.write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))

    series = SeriesSet()
    for step in range(1, STEPS + 1):
        for rank in range(2):
            for key, value in (("loss", 8.0 / step), ("lr", 0.1), ("throughput", 2700.0)):
                series.append(Point(rank, key, 1003.0 + step / 10, step, value))
    progress = RankProgress(step=STEPS, steps=STEPS, loss=0.04, throughput=2700.0, unit="samples", keys={"loss", "lr"})
    saved = SavedSeries(attempt=0, offsets={}, progress=[progress] * 2, series=series.dump())
    paths.series.write_bytes(msgspec.json.encode(saved))
    return paths
