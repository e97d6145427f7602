"""The choice of one of Slurm's partitions in the form, by what is free there."""

from pathlib import Path

import pytest

from engine.core.plan.batch.slurm import Partition, partition_words, soonest_first
from engine.core.plan.profile import PbsJob, SlurmJob
from tests.support import entries, parse_profile
from tests.tui.fake_engine import RECIPES, FakeEngine, entry, profile
from tests.tui.seen import after, showing, until
from tui.app import RankdeckApp
from tui.data.form import errors_of, profile_of, values_of
from tui.data.form_lines import JOB_NODES, PARTITION, fields

BUSY = Partition(name="big", default=True, up=True, time="1-00:00:00", nodes=8, gpus=64, cpus=512, free_cpus=3)
FREE = Partition(
    name="short", default=False, up=True, time="10:00", nodes=4, free=2, gpus=8, free_gpus=4, cpus=64, free_cpus=32
)
DOWN = Partition(name="old", default=False, up=False, time="infinite", nodes=4, free=4, cpus=64, free_cpus=64)

JOB = entries("tui/partitions", "job")


def test_what_starts_soon_comes_first_and_is_told_in_words() -> None:
    assert soonest_first([BUSY, DOWN, FREE]) == [FREE, BUSY, DOWN]
    assert partition_words(FREE) == "up, limit 10:00; free: 2 of 4 nodes, 4 of 8 GPUs, 32 of 64 CPUs"
    assert partition_words(BUSY).endswith("; the default")
    assert "GPU" not in partition_words(DOWN)


def test_a_profile_with_a_job_shows_its_nodes_and_partition_and_keeps_the_rest() -> None:
    job = parse_profile(JOB, file="job.toml")
    values = values_of(job, RECIPES)
    assert (values[JOB_NODES], values[PARTITION]) == ("3", "big")
    assert profile_of(values, job, RECIPES) == job
    changed = profile_of({**values, JOB_NODES: "4", PARTITION: ""}, job, RECIPES).layout.slurm
    assert changed == SlurmJob(nodes=4, time="4:00:00")


PBS_JOB = JOB.replace("layout.slurm", "layout.pbs").replace("partition", "queue").replace("time", "walltime")


def test_a_profile_with_a_job_of_pbs_shows_what_it_requests_and_keeps_the_rest() -> None:
    job = parse_profile(PBS_JOB.replace("[recipe]", 'account = "proj"\nngpus = 2\n[recipe]'), file="job.toml")
    values = values_of(job, RECIPES)
    lines = [line.id for line in fields(values, RECIPES, ()) if line.id.startswith("layout.")]
    assert lines == [
        *(f"layout.pbs.{key}" for key in ("nodes", "queue", "walltime", "ncpus", "ngpus")),
        "layout.ranks_per_node",
        "layout.order",
    ]
    assert [values[line] for line in lines[:5]] == ["3", "big", "4:00:00", "", "2"]
    assert profile_of(values, job, RECIPES) == job
    changed = {**values, "layout.pbs.queue": "", "layout.pbs.ncpus": "8", "layout.pbs.ngpus": ""}
    assert profile_of(changed, job, RECIPES).layout.pbs == PbsJob(
        nodes=3, walltime="4:00:00", account="proj", ncpus=8, ngpus=0
    )
    wrong = {**values, "layout.pbs.nodes": "many", "layout.pbs.walltime": "soon"}
    assert {error.key for error in errors_of(wrong, job, RECIPES)} == {"layout.pbs.nodes", "layout.pbs.walltime"}


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_a_partition_is_chosen_by_what_is_free(tmp_path: Path, size: tuple[int, int]) -> None:
    engine = FakeEngine(tmp_path, [entry(profile("mytrain"), tmp_path)])
    engine.free = [BUSY, FREE]
    app = RankdeckApp(engine)
    async with showing(app, "mytrain", size=size) as pilot:
        await after(pilot, "e", "Edit: mytrain")
        await after(pilot, "f8", "part of the name of a partition", "free: 2 of 4 nodes, 4 of 8 GPUs")
        await after(pilot, (*"short", "enter"), "nodes of the job", "short")
        await until(pilot, lambda: app.screen.form.is_changed, "the form has changed")  # type: ignore[attr-defined]
