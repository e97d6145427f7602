"""nccl on the GPUs of this machine: where there are none, all of this skips."""

import json
import re

import pytest

from tests.support import DEADLINE, NEEDS_GPU, SLOWEST, Deck, entries

MEET = entries("e2e/nccl", "meet")

NO_SHOW = entries("e2e/nccl", "no_show")

pytestmark = pytest.mark.slow


def test_each_rank_has_a_gpu_of_its_own(rankdeck: Deck, real_gpus: int, write_profile):
    profile = write_profile(MEET, ranks=real_gpus, backend={"name": "nccl"})
    done = rankdeck("launch", profile)
    assert done.returncode == 0, done.stderr
    total = float(sum(range(real_gpus)))
    met = re.findall(r"met nccl (cuda:\d+) (\[.*\])", done.stdout)
    assert sorted(met) == [(f"cuda:{rank}", str([total] * 4)) for rank in range(real_gpus)]


def test_the_shipped_profile_trains_on_every_gpu(rankdeck: Deck, real_gpus: int, work):
    done = rankdeck("launch", "nccl-single", seconds=DEADLINE * SLOWEST)
    assert done.returncode == 0, done.stderr
    status = rankdeck.status(done.stdout.partition("\n")[0])
    assert (status["backend"], status["world_size"]) == ("nccl", real_gpus)


def test_auto_takes_nccl(rankdeck: Deck, real_gpus: int, write_profile):
    done = rankdeck("launch", write_profile(MEET, ranks=real_gpus, backend={"name": "auto"}))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("met nccl") == real_gpus


def test_bench_measures_nccl(rankdeck: Deck, real_gpus: int, work):
    words = ("--backends", "nccl", "--ranks", str(real_gpus), "--sizes", "4,64K", "--seconds", "0.01")
    done = rankdeck("bench", "--json", *words, seconds=DEADLINE * SLOWEST)
    assert done.returncode == 0, done.stderr
    (outcome,) = json.loads(done.stdout)
    assert outcome["backend"] == "nccl"
    assert [row["bytes"] for row in outcome["results"]] == [4, 65536]


def test_a_rank_that_does_not_come_is_named_after_the_timeout(rankdeck, real_gpus: int, write_profile):
    if real_gpus < 2:
        pytest.skip(f"{NEEDS_GPU} for each of two ranks")
    backend = {"name": "nccl", "timeout": 10}
    profile = write_profile(NO_SHOW, ranks=2, backend=backend, launch={"on_failure": "stop"})
    run = rankdeck.launch(profile)
    rankdeck.wait_state(run, "failed")
    assert list(rankdeck.folder(run).rglob("nccl_trace_rank_0"))
    assert "rank 1" in rankdeck("diagnose", run).stdout.splitlines()[0]
