"""Fixtures: a private home for runs, the command in it, and the proof that no test leaves a process behind."""

import functools
import gc
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Protocol

import hypothesis
import pytest

from engine.planning.profiles import entry_of
from engine.planning.trust import trust
from tests.fake_nvml import FakeNvml
from tests.support import LIGHT, NEEDS_GPU, NEEDS_NO_GPU, NEEDS_UCC, Deck, kill_what_stays, processes_with, toml_text

hypothesis.settings.register_profile(
    "unhurried", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("unhurried")  # on a busy machine an example may take any time

os.environ["VIRTUAL_ENV"] = sys.prefix  # ranks of tests run this Python, whatever is on the PATH

FOREIGN = ("OMP_NUM_THREADS", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "COLUMNS", "LINES")
"""Variables of whoever runs the tests, which ranks or the command would see."""

GRACE = 60.0
"""Seconds in which the processes of a run that has ended are gone, on a busy machine too: usually it takes less than one."""


class WriteScript(Protocol):
    """Writes a script into the folder that the test runs in."""

    def __call__(self, name: str, text: str) -> Path: ...


class WriteProfile(Protocol):
    """Writes a profile into the folder that the test runs in. `recipe`: the text of a script, its path, or a table. `args`: of the script."""

    def __call__(
        self, recipe: str | Path | dict[str, Any], ranks: int = 1, name: str = "job", args: Any = (), **sections: Any
    ) -> Path: ...


class Launch(Protocol):
    """Launches what `WriteProfile` writes, and leaves it alone. Returns the id of the run. `says`: what each rank has to write before."""

    def __call__(
        self, recipe: str | Path | dict[str, Any], ranks: int = 1, *, says: bytes = b"", **more: Any
    ) -> str: ...


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the test runs in."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def home(tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A RANKDECK_HOME and a runtime folder of the test's own.

    Afterwards runs that go on are stopped as a user would. A process that is still there then fails the test.
    """
    folder = tmp_path / "home"
    runtime = Path(tempfile.mkdtemp(prefix="rd"))  # a socket's path has 107 bytes at most
    for name in FOREIGN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(LIGHT))
    monkeypatch.setenv("RANKDECK_HOME", str(folder))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("RANKDECK_LINGER", "off")
    yield folder
    monkeypatch.setenv("RANKDECK_HOME", str(folder))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    find = functools.partial(processes_with, "RANKDECK_HOME", str(folder))
    if left := find():
        Deck(folder).stop_everything()
        left = kill_what_stays(find, GRACE)
    shutil.rmtree(runtime, ignore_errors=True)
    assert not left, f"processes were left behind (and are killed now): {left}"


@pytest.fixture
def rankdeck(home: Path) -> Deck:
    """The command line: `rankdeck("launch", profile)` gives a CompletedProcess."""
    return Deck(home)


@pytest.fixture
def write_script(work: Path) -> WriteScript:
    """Writes a Python script that ranks run."""

    def write(name: str, text: str) -> Path:
        path = work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def write_profile(work: Path, write_script: WriteScript) -> WriteProfile:
    """Writes a profile, which tests may launch."""

    def write(
        recipe: str | Path | dict[str, Any], ranks: int = 1, name: str = "job", args: Any = (), **sections: Any
    ) -> Path:
        script = write_script(f"{name}.py", recipe) if isinstance(recipe, str) else recipe
        table = script if isinstance(script, dict) else {"script": str(script), **({"args": args} if args else {})}
        layout = {"ranks_per_node": ranks, **sections.pop("layout", {})}
        # Ranks with torch share the import of it; most ranks of tests do without.
        path = Path(table["script"]) if "script" in table else None
        warm = path is None or (path.is_file() and "torch" in path.read_text(encoding="utf-8", errors="replace"))
        sections["launch"] = {"warm": warm, **sections.get("launch", {})}
        path = work / f"{name}.toml"
        path.write_text(
            toml_text({"schema": 1, "name": name, "layout": layout, "recipe": table, **sections}), encoding="utf-8"
        )
        if "RANKDECK_HOME" in os.environ and (entry := entry_of(path)).profile is not None:
            trust(entry)  # as after an earlier launch
        return path

    return write


@pytest.fixture
def launch(rankdeck: Deck, write_profile: WriteProfile) -> Launch:
    """Launches a profile that the test writes."""

    def launched(recipe: str | Path | dict[str, Any], ranks: int = 1, *, says: bytes = b"", **more: Any) -> str:
        run = rankdeck.launch(write_profile(recipe, ranks, **more))
        for rank in range(ranks if says else 0):
            rankdeck.wait_log(run, rank, says)
        return run

    return launched


@pytest.fixture
def weird_folder(tmp_path: Path) -> Path:
    """A folder whose name has all that a shell, a config file or a terminal could trip over."""
    folder = tmp_path / "a b'c\"d\n$(touch pwned) `e` ; é漢 \\n*"
    folder.mkdir()
    return folder


@pytest.fixture
def needs_root() -> None:
    """Skips what only root can set up."""
    if os.geteuid() != 0:
        pytest.skip("needs root: it makes files or processes of another user")


@pytest.fixture
def no_mpirun(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands find no mpirun: neither on the PATH nor beside their environment."""
    folder = tmp_path / "no_mpirun"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import sys; sys.prefix = '/nonexistent'\n")
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{LIGHT}")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CONDA_PREFIX", raising=False)


@pytest.fixture
def nvml(tmp_path: Path) -> FakeNvml:
    """A library that tells of GPUs as the test likes."""
    return FakeNvml(tmp_path / "nvml")


@pytest.fixture
def real_gpus() -> int:
    """GPUs of this machine that torch can use. Skips where there are none."""
    count = sum(bool(re.fullmatch(r"nvidia\d+", name)) for name in os.listdir("/dev"))
    if not count:
        pytest.skip(NEEDS_GPU)
    import torch

    if not torch.cuda.is_available():
        pytest.skip(f"{NEEDS_GPU} that torch can use")
    return torch.cuda.device_count()


# --- tiers: every test has the marker of its folder; `make quick` runs those that answer at once ------------------------------

TIERS = {
    "unit": "what decides, without torch, runs and screens",
    "rank": "what ranks import, with torch",
    "tui": "the app, in a terminal that is played or real",
    "agent": "the agent of a node, without a supervisor",
    "e2e": "the command line, with real runs",
    "cluster": "several nodes, which are network namespaces of this machine",
    "slurm": "the nodes of a real Slurm, which only srun reaches",
    "faults": "what is killed, filled up or taken away while a run goes on",
    "c10d": "the process groups over MPI",
    "ucc": "the process group over UCC",
    "programs": "programs of others, with the libraries that people use",
    "versions": "other versions of torch and Python in ranks",
    "peers": "torch's own tests, over our process groups",
}
"""What each folder of tests is about."""

QUICK = {"tui": ("test_log_file", "test_model", "test_sparkline", "test_text")}
"""Modules of other tiers than `unit` that import no torch, start no run and play no terminal."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """An option for `make quick`."""
    parser.addoption(
        "--most-cpu", type=float, metavar="SECONDS", help="a test that takes more processor time of its own fails"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declares the markers, and gives processes of tests the usual SIGINT: a shell that starts the tests in the background ignores it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, about in {**TIERS, "quick": "answers at once: for `make quick`"}.items():
        config.addinivalue_line("markers", f"{name}: {about}")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Marks a test with its tier."""
    tier = item.path.relative_to(Path(__file__).parent).parts[0]
    item.add_marker(tier)
    if (tier == "unit" or item.path.stem in QUICK.get(tier, ())) and item.get_closest_marker("slow") is None:
        item.add_marker("quick")


def pytest_collection_finish() -> None:
    """Takes what thousands of collected tests consist of out of every later collection of garbage, a tenth of the time of tests of the app."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Fails a test that takes too much processor time, where that is asked for. Time that passes says little on a busy machine."""
    began = time.process_time()
    yield
    taken, most = time.process_time() - began, item.config.getoption("--most-cpu")
    if most is not None and taken > most:
        pytest.fail(f"took {taken:.2f} s of processor time; {most:g} s are allowed", pytrace=False)


@pytest.fixture(autouse=True)
def no_descriptor_is_left() -> Iterator[None]:
    """Fails a test that leaves many files or sockets open: past 1,024 of them, `select` in some later test fails."""
    most = len(os.listdir("/proc/self/fd")) + 64  # a template of ranks stays, and loops of torch end later
    yield
    if len(os.listdir("/proc/self/fd")) > most:
        gc.collect()
        left = [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
        assert len(left) <= most, f"too many descriptors are open: {left}"


# --- in CI, where every part that a test may need is installed, a test that skips hides something ---------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that skips fails in CI; one of UCC does not, where `.ci/run` could not bring it, nor one of a GPU, which no package
    brings or takes away."""
    report = yield
    known = [NEEDS_GPU, NEEDS_NO_GPU, *([NEEDS_UCC] if "RANKDECK_TESTS_WITHOUT_UCC" in os.environ else [])]
    is_known = any(reason in str(report.longrepr) for reason in known)
    if report.skipped and os.environ.get("CI") and not is_known:
        report.outcome = "failed"
        report.longrepr = f"skipped, and in CI nothing may be missing: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A whole module that skips fails in CI."""
    report = yield
    if report.skipped and os.environ.get("CI"):
        report.outcome = "failed"
        report.longrepr = f"skipped, and in CI nothing may be missing: {report.longrepr}"
    return report
