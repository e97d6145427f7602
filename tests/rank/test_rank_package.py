"""`import rankdeck`: metrics that never disturb a training, and a process group with the run's settings."""

import ast
import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import rankdeck
from rankdeck import _autoload, _metrics
from tests.support import entries, rows, run_program

PACKAGE = Path(rankdeck.__file__).parent


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]


@pytest.fixture
def point(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], Path]]:
    """Makes this process report into a file, as if it had just been forked for that."""

    def to(path: Path) -> Path:
        monkeypatch.setenv("RANKDECK_METRICS", str(path))
        _metrics._start_afresh()
        return path

    yield to
    _metrics._start_afresh()


@pytest.fixture
def metrics(tmp_path: Path, point: Callable[[Path], Path]) -> Path:
    return point(tmp_path / "rank 0's\nmetrics.jsonl")


def python(code: str, *argv: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs code in a process that knows nothing but `rankdeck`."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("RANKDECK_", "MASTER_"))}
    return run_program(
        [sys.executable, "-c", code, *argv], env={**inherited, "PYTHONPATH": str(PACKAGE.parent), **(env or {})}
    )


@pytest.mark.parametrize(
    ("arguments", "named", "waits"),
    [
        *rows("rank/rank_package", "a_process_of_a_rank_waits_for_nobody_where_nobody_hosts_a_store"),
        ((), {"store": object()}, None),
    ],
)
def test_a_process_of_a_rank_waits_for_nobody_where_nobody_hosts_a_store(arguments, named, waits, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setattr("os.getsid", lambda pid: os.getpid() + 1)  # a rank's child is in its rank's session
    assert _autoload._waits_for_nobody(arguments, named) is waits
    monkeypatch.setattr("os.getsid", lambda pid: os.getpid())
    assert _autoload._waits_for_nobody(arguments, named) is None


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_module_is_valid_on_the_oldest_python_of_a_node(path: Path):
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 10))


def test_a_call_appends_one_line_with_its_values_and_the_time(metrics: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("time.time", lambda: 12.5)
    rankdeck.log(step=1, loss=0.25, samples=8, tokens=512, note='say "hé"', good=True)
    rankdeck.log(step=2)
    assert lines(metrics) == [
        {"t": 12.5, "step": 1, "loss": 0.25, "samples": 8, "tokens": 512, "note": 'say "hé"', "good": True},
        {"t": 12.5, "step": 2},
    ]


def test_a_value_called_t_does_not_move_a_line_in_time(metrics: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("time.time", lambda: 12.5)
    rankdeck.log(step=1, t=0)
    assert lines(metrics) == [{"t": 12.5, "step": 1}]


def test_a_loss_that_diverges_is_written_as_python_reads_it(metrics: Path):
    rankdeck.log(loss=math.nan, up=math.inf, down=-math.inf, tensor=torch.tensor(math.nan))
    (line,) = lines(metrics)
    assert math.isnan(line["loss"])
    assert math.isnan(line["tensor"])
    assert (line["up"], line["down"]) == (math.inf, -math.inf)


def test_tensors_and_numpy_scalars_become_numbers(metrics: Path):
    rankdeck.log(
        step=np.int64(3),
        loss=torch.tensor(0.5, requires_grad=True),
        one=torch.ones(1, 1),
        half=np.float32(0.5),
        double=np.float64(0.25),
        good=np.bool_(True),
    )
    (line,) = lines(metrics)
    del line["t"]
    assert line == {"step": 3, "loss": 0.5, "one": 1.0, "half": 0.5, "double": 0.25, "good": True}


class Broken:
    def item(self) -> float:
        raise RuntimeError("CUDA error")

    def __str__(self) -> str:
        raise RuntimeError("no text either")


class Vexing:
    def __getattr__(self, name: str) -> Any:
        raise ValueError(name)

    def __str__(self) -> str:
        return "v" * 1000


def test_any_other_value_becomes_a_short_text(metrics: Path):
    rankdeck.log(step=1, many=torch.zeros(2), pair=(1, 2), broken=Broken(), vexing=Vexing(), odd="\ud800")
    (line,) = lines(metrics)
    del line["t"]
    assert line == {
        "step": 1,
        "many": "tensor([0., 0.])",
        "pair": "(1, 2)",
        "broken": "<Broken>",
        "vexing": "v" * 200,
        "odd": "\ud800",
    }


def test_a_value_that_can_not_be_written_costs_its_line_only(metrics: Path):
    rankdeck.log(step=1, huge=10**5000)
    rankdeck.log(step=2)
    assert [line["step"] for line in lines(metrics)] == [2]


def test_lines_of_several_threads_do_not_mix(metrics: Path):
    def report(thread: int) -> None:
        for step in range(200):
            rankdeck.log(step=step, thread=thread, filling="x" * 500)

    threads = [threading.Thread(target=report, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted((line["thread"], line["step"]) for line in lines(metrics)) == [
        (thread, step) for thread in range(4) for step in range(200)
    ]


def test_outside_rankdeck_nothing_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("RANKDECK_METRICS", raising=False)
    monkeypatch.chdir(tmp_path)
    _metrics._start_afresh()
    rankdeck.log(step=1, loss=Broken())
    assert list(tmp_path.iterdir()) == []


FORKS = entries("rank/rank_package", "forks")


def test_a_forked_process_looks_for_its_own_file(tmp_path: Path):
    first, second = tmp_path / "first", tmp_path / "second"
    done = python(FORKS, str(first), str(second))
    assert done.returncode == 0, done.stderr
    assert [line["step"] for line in lines(first)] == [1, 2, 4]
    assert [line["step"] for line in lines(second)] == [3]


def test_the_file_is_not_passed_on_to_a_program_that_the_script_starts(metrics: Path):
    rankdeck.log(step=1)
    assert _metrics._file is not None
    assert _metrics._file.fd is not None
    assert not os.get_inheritable(_metrics._file.fd)


def test_reports_go_on_when_a_missing_folder_appears(tmp_path: Path, point: Callable[[Path], Path]):
    path = point(tmp_path / "later" / "metrics")
    rankdeck.log(step=1)
    path.parent.mkdir()
    rankdeck.log(step=2)
    assert [line["step"] for line in lines(path)] == [2]


@pytest.mark.parametrize("broken", ["/dev/full", "folder", "missing/metrics", "null\0byte"])
def test_a_file_that_can_not_be_written_never_disturbs_the_script(
    tmp_path: Path, point: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch, broken: str
):
    if "\0" in broken:
        monkeypatch.setattr("os.environ", {"RANKDECK_METRICS": broken})
        _metrics._start_afresh()
    else:
        (tmp_path / "folder").mkdir()
        point(tmp_path / broken)
    for step in range(2 * _metrics.MAX_FAILURES):
        rankdeck.log(step=step)


def test_a_process_gives_up_after_many_failures_in_a_row_and_says_so_once(
    point: Callable[[Path], Path], capsys: pytest.CaptureFixture[str]
):
    point(Path("/dev/full"))
    for step in range(_metrics.MAX_FAILURES - 1):
        rankdeck.log(step=step)
    assert capsys.readouterr().err == ""
    for step in range(_metrics.MAX_FAILURES):
        rankdeck.log(step=step)
    assert (
        capsys.readouterr().err
        == "rankdeck.log: /dev/full: No space left on device; this rank reports no more metrics\n"
    )


def test_a_closed_stderr_does_not_matter_to_a_process_that_gives_up(
    point: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
):
    point(Path("/dev/full"))
    monkeypatch.setattr("sys.stderr", None)
    for step in range(2 * _metrics.MAX_FAILURES):
        rankdeck.log(step=step)


FULL_DISK = entries("rank/rank_package", "full_disk")


def test_a_line_that_was_cut_by_a_full_disk_does_not_spoil_the_next(tmp_path: Path):
    path = tmp_path / "metrics"
    done = python(FULL_DISK, str(path), env={"RANKDECK_METRICS": str(path)})
    assert (done.returncode, done.stderr) == (0, "")
    first, cut, last = path.read_text().splitlines()
    assert json.loads(first)["step"] == 1
    assert len(cut) == 20
    assert json.loads(last)["step"] == 4


ALONE = entries("rank/rank_package", "alone")


@pytest.mark.slow
def test_plain_python_makes_a_group_of_one_rank():
    done = python(ALONE, env={"RANKDECK_BACKEND": "gloo", "CUDA_VISIBLE_DEVICES": ""})
    assert done.stdout.splitlines() == ["0 1 [1.0, 1.0] cpu"] * 2 + ["0 127.0.0.1 True"], done.stderr


Joined = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> Joined:
    """What torch was asked for; nothing is started."""
    calls: Joined = []
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **kwargs: calls.append((backend, kwargs)))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("RANKDECK_BACKEND", "RANKDECK_TIMEOUT", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    return calls


def test_the_profile_decides_backend_and_timeout_unless_the_script_does(
    joined: Joined, monkeypatch: pytest.MonkeyPatch
):
    rankdeck.init_process_group()
    monkeypatch.setenv("RANKDECK_BACKEND", "ucc")
    monkeypatch.setenv("RANKDECK_TIMEOUT", "90")
    rankdeck.init_process_group()
    rankdeck.init_process_group("gloo", timeout=2.5, group_name="ours")
    assert joined == [
        ("gloo", {}),
        ("ucc", {"timeout": timedelta(seconds=90)}),
        ("gloo", {"timeout": timedelta(seconds=2.5), "group_name": "ours"}),
    ]


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf", "nan"])
def test_a_timeout_that_is_none_is_refused_by_name(joined: Joined, monkeypatch: pytest.MonkeyPatch, text: str):
    monkeypatch.setenv("RANKDECK_TIMEOUT", text)
    with pytest.raises(ValueError, match=f"RANKDECK_TIMEOUT is '{text}': a number of seconds above 0 is needed"):
        rankdeck.init_process_group()
    assert joined == []


@pytest.mark.parametrize("backend", ["mpi", "gloo"])
def test_no_group_of_one_is_made_where_someone_else_knows_the_ranks(
    joined: Joined, monkeypatch: pytest.MonkeyPatch, backend: str
):
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    kwargs: dict[str, Any] = (
        {} if backend == "mpi" else {"init_method": "file:///shared/meeting", "rank": 1, "world_size": 2}
    )
    rankdeck.init_process_group(backend, **kwargs)
    assert joined == [(backend, kwargs)]
    assert "RANK" not in os.environ


def test_each_rank_of_nccl_computes_on_the_gpu_of_its_local_rank(joined: Joined, monkeypatch: pytest.MonkeyPatch):
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setenv("LOCAL_RANK", "3")
    rankdeck.init_process_group("nccl")
    assert current == [torch.device("cuda", 3)]

    assert rankdeck.device() == torch.device("cpu")
    monkeypatch.setenv("RANKDECK_BACKEND", "nccl")
    assert rankdeck.device() == torch.device("cuda", 3)


def test_a_rank_without_a_gpu_is_told_what_to_change(joined: Joined, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(RuntimeError, match="local rank 2 needs GPU 2, but this process sees 2: start fewer ranks"):
        rankdeck.init_process_group("nccl")
    assert joined == []


def test_an_exception_is_also_in_the_rank_s_own_file_if_the_script_has_redirected_stderr(tmp_path: Path):
    (tmp_path / "rank_0.err").touch()
    code = (
        "import os; from rankdeck._autoload import _report_raised; _report_raised()\n"
        f"os.dup2(os.open({str(tmp_path / 'train.log')!r}, os.O_WRONLY | os.O_CREAT), 2)\n"
        "raise ValueError('bad shard')\n"
    )
    python(code, env={"RANKDECK_METRICS": str(tmp_path / "rank_0.metrics")})
    for name in ("rank_0.err", "train.log"):
        assert (tmp_path / name).read_text().endswith("ValueError: bad shard\n")
    assert "ValueError: bad shard" in json.loads((tmp_path / "rank_0.metrics").read_text())["rankdeck.raised"]
