"""The recipes: shards without overlap, real runs."""

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from rankdeck import checkpoint
from rankdeck.recipes import read_parameters
from rankdeck.recipes._text import Shard, blocks_at, read_text
from rankdeck.recipes._transformer import GPT, Shape
from rankdeck.recipes.gpt import Parameters, check, learning_rate
from tests.recipe_ranks import KILLED_AT, RECIPES, Gang, Launcher
from tests.support import LIGHT, PATIENCE, ROOT, entries, from_table, run_program
from tests.warm_ranks import template

SMALL = ("--batch", "2", "--block", "16", "--layers", "1", "--heads", "2", "--width", "16", "--warmup", "2")


# --- the text and its shards


def test_the_last_tenth_of_the_text_is_held_out():
    text = read_text()
    whole = text.decode([*text.train.tolist(), *text.held_out.tolist()])
    assert whole.strip().startswith("AS YOU LIKE IT")
    assert len(text.held_out) == pytest.approx(len(whole) / 10, abs=1)


def test_a_target_is_the_character_after_its_input():
    inputs, targets = blocks_at(torch.arange(100), torch.tensor([3, 50]), 4)
    assert inputs.tolist() == [[3, 4, 5, 6], [50, 51, 52, 53]]
    assert targets.tolist() == [[4, 5, 6, 7], [51, 52, 53, 54]]


def shard(rank: int, world: int, *, batch: int = 2) -> Shard:
    return Shard(length=16 * 25, block=16, batch=batch, seed=7, rank=rank, world=world)


def test_in_an_epoch_the_ranks_see_every_block_once():
    shards = [shard(rank, 3) for rank in range(3)]
    starts = sorted(start for seen in range(0, 24, 6) for one in shards for start in one.starts(seen).tolist())
    assert starts == list(range(starts[0], starts[0] + 24 * 16, 16))
    assert starts[0] >= 0
    assert starts[-1] + 16 + 1 <= 16 * 25


def test_rank_r_takes_every_world_size_th_sample_from_the_r_th():
    for seen in (0, 6, 18):
        together = shard(0, 1, batch=6).starts(seen).tolist()
        assert [shard(rank, 3).starts(seen).tolist() for rank in range(3)] == [together[rank::3] for rank in range(3)]


def test_every_epoch_has_an_order_and_an_offset_of_its_own():
    one = shard(0, 1, batch=24)
    epochs = [one.starts(24 * epoch).tolist() for epoch in range(4)]
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert len({min(epoch) for epoch in epochs}) > 1


def test_the_next_sample_depends_on_nothing_but_how_many_were_seen():
    unbroken = shard(1, 3)
    sequence = [unbroken.starts(seen).tolist() for seen in range(0, 96, 6)]
    assert [shard(1, 3).starts(seen).tolist() for seen in range(0, 96, 6)] == sequence


# --- the model and its schedule


def test_a_prediction_does_not_see_the_characters_after_it():
    torch.manual_seed(0)
    model = GPT(Shape(characters=10, block=8, layers=2, heads=2, width=16))
    tokens = torch.randint(10, (1, 8))
    changed = tokens.clone()
    changed[0, 5:] = (changed[0, 5:] + 1) % 10
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_the_learning_rate_rises_to_its_peak_and_falls_to_a_tenth():
    args = read_parameters(Parameters, ["--steps", "100", "--warmup", "10", "--lr", "0.5"])
    rates = [learning_rate(args, step) for step in range(1, 101)]
    assert max(rates) == rates[9] == 0.5
    assert rates == [*sorted(rates[:10]), *sorted(rates[10:], reverse=True)]
    assert rates[-1] == pytest.approx(0.05)


@from_table
def test_what_can_not_be_trained_is_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="2"):
        check(read_parameters(Parameters, words), read_text())
    assert capsys.readouterr().err == f"{message}\n"


# --- real runs


Start = Callable[..., Gang]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a gang: `start("run/attempt", "gpt", "--steps", "3", world=2)`; attempts of one run share their checkpoints."""
    gangs: list[Gang] = []

    def begin(
        folder: str, recipe: str, *words: str, world: int, before: tuple[str, ...] = (), launcher: Launcher = "rankdeck"
    ) -> Gang:
        gang = Gang(tmp_path / folder, [*before, str(RECIPES / f"{recipe}.py"), *words], world, launcher)
        gangs.append(gang)
        return gang

    yield begin
    for gang in gangs:
        gang.end()


@pytest.mark.slow
def test_gpt_reports_each_step_and_has_the_same_losses_under_torchrun(start: Start):
    words = ("--steps", "25", "--eval-every", "10", "--checkpoint-every", "10", *SMALL)
    first = start("first/0", "gpt", *words, world=2)
    second = start("second/0", "gpt", *words, world=2, launcher="torchrun")
    assert first.wait() == [0, 0], first.log(0)
    assert second.wait() == [0, 0], second.log(0)

    for rank in (0, 1):
        steps = [line for line in first.metrics(rank) if "loss" in line]
        assert [line["step"] for line in steps] == list(range(1, 26))
        assert all((line["steps"], line["samples"], line["tokens"]) == (25, 2, 32) for line in steps)
        assert steps[-1]["loss"] < steps[0]["loss"]
        assert [line["step"] for line in first.metrics(rank) if "val_loss" in line] == [10, 20, 25]
        assert first.losses(rank) == second.losses(rank)
        assert f"rank {rank} of 2 on cpu" in first.log(rank)
        assert second.log(rank).endswith(f"rank {rank}: done after step 25\n")
        assert first.log(rank).endswith(f"rank {rank}: done after step 25\n")
    assert first.losses(0) != first.losses(1)
    assert [line["checkpoint"] for line in first.metrics(0) if "checkpoint" in line] == [10, 20, 25]
    assert not any("checkpoint" in line for line in first.metrics(1))
    sampled = first.log(0).partition("checkpoint of step 25 in ")[2].partition("\n")[2].partition("final loss")[0]
    assert 150 < len(sampled) <= 201
    assert len(first.log(0)) > len(first.log(1))


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "world"), [("gpt", 3), ("linear", 2)])
def test_a_killed_gang_resumes_and_equals_an_unbroken_one_to_the_last_bit(
    start: Start, tmp_path: Path, recipe: str, world: int
):
    # Three ranks of gpt: a sum of two does not depend on its order, and would hide one that resuming has changed.
    words = ("--checkpoint-every", "6", *SMALL) if recipe == "gpt" else ("--checkpoint", "6")
    words = ("--steps", "10", *words)
    killer = tmp_path / "killer.py"
    killer.write_text(KILLED_AT)
    unbroken = start("unbroken/0", recipe, *words, world=world)
    killed = start("broken/0", recipe, *words, world=world, before=(str(killer), "8"))
    assert killed.wait() == [-signal.SIGKILL] * world, killed.log(0)
    resumed = start("broken/1", recipe, *words, world=world)
    assert unbroken.wait() == [0] * world, unbroken.log(0)
    assert resumed.wait() == [0] * world, resumed.log(0)

    for rank in range(world):
        assert resumed.losses(rank) == {step: unbroken.losses(rank)[step] for step in (7, 8, 9, 10)}
        assert f"rank {rank} of {world}" in resumed.log(rank)
        assert "resumes after" in resumed.log(rank)
    ours, theirs = (checkpoint.load(tmp_path / run / "checkpoints") for run in ("broken", "unbroken"))
    assert ours is not None
    assert theirs is not None
    assert ours.step == theirs.step == 10
    assert all(torch.equal(ours.state["model"][name], tensor) for name, tensor in theirs.state["model"].items())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_one_rank_ends_all_after_the_same_step_with_a_checkpoint(
    start: Start, tmp_path: Path, number: signal.Signals
):
    words = ("--steps", "1000000", "--delay", "0.005", "--checkpoint", "1000000")
    gang = start("run/0", "linear", *words, world=2)
    gang.wait_for(lambda: len(gang.metrics(1)) >= 5)
    gang.ranks[1].send_signal(number)
    assert gang.wait() == [-number, -number], gang.log(0)
    (last,) = {max(gang.losses(rank)) for rank in (0, 1)}
    assert (tmp_path / "run" / "checkpoints" / f"step-{last}.pt").exists()
    assert all(f"rank {rank}: stopped by a signal after step {last}\n" in gang.log(rank) for rank in (0, 1))


@pytest.mark.slow
def test_a_rank_that_waits_for_a_frozen_peer_ends_at_the_second_signal(start: Start):
    def is_pending(number: signal.Signals) -> bool:
        status = Path(f"/proc/{waiting.pid}/status").read_text(encoding="ascii")
        return bool(int(status.partition("ShdPnd:")[2].split()[0], 16) & 1 << number - 1)

    gang = start("run/0", "linear", "--steps", "1000000", world=2)
    gang.wait_for(lambda: len(gang.metrics(1)) >= 5)
    waiting, frozen = gang.ranks
    frozen.send_signal(signal.SIGSTOP)
    waiting.send_signal(signal.SIGINT)
    gang.wait_for(lambda: not is_pending(signal.SIGINT))
    waiting.send_signal(signal.SIGTERM)
    # The kernel may let the second handler run before the first.
    assert waiting.wait(PATIENCE) in (128 + signal.SIGINT, 128 + signal.SIGTERM)


SIGNALS_OF_A_CHILD = entries("rank/recipes", "signals_of_a_child")


@pytest.mark.slow
def test_neither_signals_of_a_worker_nor_its_end_stop_a_rank(tmp_path: Path):
    script, log = tmp_path / "script.py", tmp_path / "log"
    script.write_text(SIGNALS_OF_A_CHILD)
    assert template().start([str(script)], os.environ, tmp_path, log).wait(PATIENCE) == 0, log.read_text()
    assert log.read_text() == f"noted {int(signal.SIGTERM)}\n"


@pytest.mark.slow
def test_a_checkpoint_of_another_shape_is_refused_without_a_traceback(start: Start, tmp_path: Path):
    assert start("run/0", "gpt", "--steps", "1", *SMALL, world=1).wait() == [0]
    other = start("run/1", "gpt", "--steps", "1", *SMALL, "--width", "32", world=1)
    assert other.wait() == [1]
    path = re.escape(str(next(tmp_path.glob("run/checkpoints/*"))))
    said = rf"{path} is of another training: shape is \{{.*'width': 16\}} there, and \{{.*'width': 32\}} here; name another .*\n"
    assert re.fullmatch(said, other.log(0))


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [[], ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]])
def test_a_recipe_runs_without_rankdeck(launcher: list[str], tmp_path: Path):
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    env = {name: value for name, value in os.environ.items() if not name.startswith("RANKDECK_") and name not in names}
    # Alone it has the whole torch. torchrun and its ranks would each import it.
    path = f"{LIGHT}{os.pathsep}{ROOT}" if launcher else str(ROOT)
    env.update(PYTHONPATH=path, CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    done = run_program(
        [sys.executable, *launcher, str(RECIPES / "linear.py"), "--checkpoint", "50"], cwd=tmp_path, env=env
    )
    assert done.returncode == 0, done.stderr
    world = 2 if launcher else 1
    # torchrun lets ranks write into one pipe, so two lines may end up on one.
    assert len(re.findall(r"rank \d: done after step 200", done.stdout)) == world
    losses = [float(loss) for loss in re.findall(r"rank 0: step .* loss ([\d.]+)", done.stdout)]
    assert losses[-1] < 0.05 < losses[0]
    assert (tmp_path / "checkpoints" / "linear" / "step-200.pt").exists()
