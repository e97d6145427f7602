"""The recipes `parameter-server` and `two-backends`: what holds although timing decides, and an end in bounded time."""

import re
import signal
from pathlib import Path

import pytest
import torch

from rankdeck.recipes import two_backends
from tests.recipe_ranks import Backend, Launcher, Ran, resumed, run_recipe, same_under_torchrun, start_recipe
from tests.support import PATIENCE

pytestmark = pytest.mark.slow

SERVER = ("--steps", "80", "--hidden", "16", "--lr", "0.2")
TWO = ("--preset", "small", "--steps", "60", "--hidden", "16")

# --- parameter-server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_recipe(tmp_path_factory.mktemp("server"), "parameter-server", *SERVER)


def test_one_trainer_learns_and_is_the_same_under_torchrun(server: Ran, tmp_path: Path):
    assert server.statuses == [0, 0], server.outputs
    assert server.final("accuracy") > 0.7
    assert server.losses(1)[80] < 1.2 < 2.0 < server.losses(1)[1]
    assert set(server.losses(1, "staleness").values()) == {0}
    other = same_under_torchrun(server, tmp_path, "parameter-server", *SERVER)
    assert other.outputs[0] == server.outputs[0]
    assert "Warning" not in "".join(other.outputs + server.outputs)


def test_every_gradient_of_three_trainers_is_applied_once(tmp_path: Path):
    done = run_recipe(tmp_path, "parameter-server", *SERVER, world=4)
    assert done.statuses == [0] * 4, done.outputs
    assert "rank 0: applied 240 updates of 3 trainers\n" in done.outputs[0]
    assert done.final("accuracy") > 0.7
    staleness = [done.losses(rank, "staleness") for rank in (1, 2, 3)]
    assert [list(steps) for steps in staleness] == [list(range(1, 81))] * 3
    assert all(0 <= value < 240 for steps in staleness for value in steps.values())


def break_off(folder: Path, *words: str, world: int) -> None:
    """Trainers are killed in step 50, and then the server, which would wait for them."""
    gang = start_recipe(folder, "parameter-server", *words, world=world, killed_at=50)
    assert [rank.wait(PATIENCE) for rank in gang.ranks[1:]] == [-signal.SIGKILL] * (world - 1), gang.log(0)
    gang.end()


def test_a_server_that_resumes_with_one_trainer_equals_an_unbroken_one(server: Ran, tmp_path: Path):
    words = (*SERVER, "--checkpoint-every", "30")
    break_off(tmp_path, *words, world=2)
    again = run_recipe(tmp_path, "parameter-server", *words)
    assert again.statuses == [0, 0], again.outputs
    assert again.losses(1) == {step: server.losses(1)[step] for step in range(31, 81)}
    assert again.final("accuracy") == server.final("accuracy")


def test_trainers_resume_where_the_server_says_and_no_step_counts_twice(tmp_path: Path):
    words = (*SERVER, "--checkpoint-every", "10")
    break_off(tmp_path, *words, world=4)
    again = run_recipe(tmp_path, "parameter-server", *words, world=4)
    assert again.statuses == [0] * 4, again.outputs
    assert "rank 0: applied 240 updates of 3 trainers\n" in again.outputs[0]
    for rank in (1, 2, 3):
        (after,) = re.findall(rf"^rank {rank}: resumes after step (\d+) of 80$", again.outputs[rank], re.MULTILINE)
        assert list(again.losses(rank)) == list(range(int(after) + 1, 81))
    assert again.final("accuracy") > 0.7


def test_a_lost_trainer_ends_the_job_with_a_line_from_the_server(tmp_path: Path):
    gang = start_recipe(tmp_path, "parameter-server", "--steps", "1000000", "--patience", "20")
    gang.wait_for(lambda: len(gang.metrics(1)) > 3)
    gang.ranks[1].kill()
    assert gang.wait() == [1, -signal.SIGKILL], gang.log(0)
    assert gang.log(0).splitlines()[-1] == "rank 0: trainer 1 has been silent for 20 s; the training ends"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_lost_server_ends_the_trainers_with_one_line(tmp_path: Path, number: signal.Signals):
    gang = start_recipe(tmp_path, "parameter-server", "--steps", "1000000", world=3)
    gang.wait_for(lambda: all(len(gang.metrics(rank)) > 3 for rank in (1, 2)))
    gang.ranks[0].send_signal(number)
    assert gang.wait() == [-number, 1, 1], gang.log(1)
    for rank in (1, 2):
        # Threads of RPC may warn before this line and after it.
        assert len(re.findall(f"^rank {rank}: the training ends: .", gang.log(rank), re.MULTILINE)) == 1
        assert "Traceback" not in gang.log(rank)


@pytest.mark.parametrize("launcher", ["rankdeck", "torchrun"])
@pytest.mark.parametrize("lost", [0, 1])
def test_a_rank_that_is_lost_before_all_have_joined_ends_the_others_too(tmp_path: Path, lost: int, launcher: Launcher):
    """Under torch's own limits they would wait for 24 days."""
    words = ("--steps", "1000000", "--patience", "5")
    gang = start_recipe(tmp_path, "parameter-server", *words, launcher=launcher)
    gang.ranks[lost].kill()
    statuses = gang.wait()
    assert (statuses[lost], statuses[1 - lost]) == (-signal.SIGKILL, 1)
    assert "the training ends" in gang.log(1 - lost)
    assert "Traceback" not in gang.log(1 - lost)


def test_a_signal_ends_a_server_and_a_trainer_at_once(tmp_path: Path):
    gang = start_recipe(tmp_path, "parameter-server", "--steps", "1000000")
    gang.wait_for(lambda: len(gang.metrics(1)) > 3)
    gang.ranks[0].send_signal(signal.SIGSTOP)  # else the trainer may miss the server before it has its own signal
    gang.ranks[1].send_signal(signal.SIGINT)
    gang.ranks[0].send_signal(signal.SIGTERM)
    gang.ranks[0].send_signal(signal.SIGCONT)
    assert gang.wait() == [-signal.SIGTERM, -signal.SIGINT]
    assert "Traceback" not in gang.log(0) + gang.log(1)


def test_a_server_alone_is_refused_with_one_line(tmp_path: Path):
    alone = run_recipe(tmp_path, "parameter-server", launcher="python")
    assert alone.statuses == [2]
    assert alone.outputs == ["parameter-server: 2 ranks or more are needed: a server and a trainer\n"]


# --- two-backends


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_recipe(tmp_path_factory.mktemp("two"), "two-backends", *TWO)


@pytest.mark.parametrize("backend", ["gloo", "ucc"])
def test_two_groups_are_measured_and_train(two: Ran, tmp_path: Path, backend: Backend):
    done = two if backend == "gloo" else run_recipe(tmp_path, "two-backends", *TWO, "--second", "ucc", backend="ucc")
    assert not any(done.statuses), done.outputs
    assert done.final("accuracy") > 0.7
    sizes = re.findall(rf"^rank 0: +([\d,]+) bytes  {backend} .* µs  {backend} .* µs", done.outputs[0], re.MULTILINE)
    assert sizes == ["4", "32", "256", "2,048", "16,384"]
    assert "rank 0: gradients of 4,840 bytes over " in done.outputs[0]
    assert "both groups are over" in done.outputs[0]


def test_a_second_backend_that_is_not_there_is_refused_with_one_line(tmp_path: Path):
    done = run_recipe(tmp_path, "two-backends", *TWO, "--second", "ucc", env={"RANKDECK_LIBUCC": "/nowhere/libucc.so"})
    assert done.statuses == [2, 2]
    assert all(output.startswith("two-backends: --second ucc can't be used: ") for output in done.outputs)
    assert all(output.count("\n") == 1 for output in done.outputs)


def test_whatever_is_chosen_two_ranks_have_the_same_losses(two: Ran, tmp_path: Path):
    assert two.losses(0) == two.losses(1)
    same_under_torchrun(two, tmp_path, "two-backends", *TWO)


def test_a_killed_training_over_two_groups_resumes_as_if_unbroken(two: Ran, tmp_path: Path):
    words = (*TWO, "--checkpoint-every", "20")
    resumed(two, tmp_path, "two-backends", *words, killed_at=45, after=40)


def test_a_message_goes_over_the_group_that_was_faster_for_the_nearest_size(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.distributed.get_backend", lambda group: "gloo")
    small, large = two_backends.Group(None), two_backends.Group(None)
    faster = dict.fromkeys((4, 32), small) | dict.fromkeys((256, 2048), large)
    chosen = [two_backends.choose(faster, torch.zeros(count)) for count in (1, 8, 20, 30, 100, 100000)]
    assert chosen == [small, small, small, large, large, large]
