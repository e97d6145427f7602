"""What a site's administrators set for all users: defaults, limits, and who may write their file."""

import os
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from engine.core.errors import CheckError, ProfileError
from engine.core.plan.plan import LaunchPlan
from engine.core.plan.profile import Profile
from engine.gate import LAUNCHED
from engine.node.login import JOBS
from engine.planning import site
from engine.planning.make import make_plan
from engine.planning.profiles import entry_of, read_launched, read_with_places, save_profile
from engine.planning.programs import Wanted, make_profile
from engine.planning.trust import permit_of, trust
from tests.support import from_table
from tests.unit.conftest import WriteCommand


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needs_root: None) -> Path:
    """The site's file, in a folder in place of /etc. The current folder has a script."""
    monkeypatch.setattr(site, "ETC", str(tmp_path / "etc"))
    monkeypatch.setenv("RANKDECK_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SLURM_CONF", raising=False)
    (tmp_path / "etc" / "rankdeck").mkdir(parents=True)
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path / "etc" / "rankdeck" / "config.toml"


def _profile(text: str, *overrides: str) -> Profile:
    Path("mine.toml").write_text(f'schema = 1\nname = "mine"\nrecipe.script = "train.py"\n{text}')
    return read_with_places(Path("mine.toml"), overrides)[0]


def _plan(text: str, *overrides: str) -> LaunchPlan:
    return make_plan(_profile(text, *overrides), LAUNCHED)


def _at(found: Any, key: str) -> Any:
    """The value of a key, as the tables have it."""
    for name in key.split("."):
        found = found[name] if isinstance(found, dict) else getattr(found, name)
    return list(found) if isinstance(found, tuple) else found


@from_table
def test_a_default_is_below_what_the_user_says(default: str, profile: str, key: str, value: object, file: Path) -> None:
    file.write_text(f"[defaults]\n{default}")
    assert _at(_profile(profile), key) == value


@from_table
def test_a_limit_is_above_what_the_user_says(limit: str, profile: str, key: str, value: object, said: str, file: Path):
    file.write_text(f"[limits]\n{limit}")
    plan = _plan(f"layout.ranks_per_node = 1\n{profile}")
    assert _at(plan, key) == value
    assert [warning.fact for warning in plan.warnings] == ([f"{file}:2: {said}"] if said else [])


def test_a_job_that_is_larger_than_the_site_allows_is_refused(file: Path) -> None:
    file.write_text("[limits.layout.slurm]\nnodes = 2")
    with pytest.raises(CheckError, match=r"layout\.slurm\.nodes is 3, and this site allows at most 2"):
        _plan("layout.slurm = {nodes = 3, ranks_per_node = 1}")
    file.write_text("[limits.layout]\nranks_per_node = 1")
    with pytest.raises(CheckError, match="localhost gets 2 ranks, and this site allows at most 1"):
        _plan('layout.nodes = "localhost:2"')


def test_a_variable_does_not_exceed_the_limit_of_templates(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKDECK_LINGER", "3600")
    assert _plan("layout.ranks_per_node = 1").linger == 3600
    file.write_text("limits.launch.linger = 60")
    assert _plan("layout.ranks_per_node = 1").linger == 60


def test_what_is_written_reads_as_it_was(file: Path) -> None:
    file.write_text(
        '[defaults]\nbackend.name = "mpi"\nlaunch.on_failure = "stop"\nenv.A = "1"\nlayout.slurm.account = "lab"'
    )
    profile = _profile('backend.name = "gloo"\nenv.B = "2"\nlayout.slurm = {}', "launch.on_failure=hold")
    again = save_profile(profile, Path("again.toml"))
    assert not {"account", "A ="} & set(re.findall(r"account|A =", again.read_text()))
    assert read_with_places(again)[0] == profile
    file.write_text('defaults.launch.on_failure = "restart"')
    assert read_launched(again).launch.on_failure == "hold"  # a run does not change with its site


def test_a_program_without_a_profile_has_the_defaults_of_the_site(file: Path) -> None:
    file.write_text(
        '[defaults]\nlaunch.setup = "module load cuda"\nlayout.slurm.account = "lab"\nbackend.timeout = 99.0'
    )
    profile, _ = make_profile(Wanted(program="train.py", slurm=True, nodes="2", ranks=4))
    job = profile.layout.job
    assert (job and job.nodes, job and job.account, profile.layout.ranks_per_node) == (2, "lab", 4)
    assert (profile.launch.setup, profile.backend.timeout, profile.backend.name) == ("module load cuda", 99, "auto")
    assert make_profile(Wanted(program="train.py"))[0].layout.job is None


def test_a_profile_of_a_stranger_starts_nothing_because_of_the_site(file: Path) -> None:
    file.write_text('defaults.launch.setup = "module load cuda"')
    Path(".rankdeck").mkdir()
    Path(".rankdeck/theirs.toml").write_text('schema = 1\nname = "theirs"\nrecipe.script = "train.py"')

    assert not permit_of(entry_of(Path(".rankdeck/theirs.toml"))).may_start
    trust(entry_of(Path(".rankdeck/theirs.toml")))
    assert permit_of(entry_of(Path(".rankdeck/theirs.toml"))).may_start
    file.write_text('defaults.launch.setup = "./other.sh"')  # it would run another program now
    assert not permit_of(entry_of(Path(".rankdeck/theirs.toml"))).may_start


@from_table
def test_a_wrong_file_is_named(text: str, said: str, file: Path) -> None:
    file.write_text(text)
    with pytest.raises(ProfileError, match=said) as found:
        site.read_site()
    assert str(file) in str(found.value)


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize(
    "changed", ["etc/rankdeck", "etc/rankdeck/config.toml", "etc/rankdeck/link", "etc", "real", "real/rankdeck"]
)
def test_only_root_can_change_it(changed: str, is_open: bool, file: Path, tmp_path: Path) -> None:
    """The file is reached through two links; nobody else may replace one of them or a folder on the way."""
    real = tmp_path / "real" / "rankdeck"
    real.mkdir(parents=True)
    (real / "config.toml").write_text('message = "hello"')
    (file.parent / "link").symlink_to("../../real")
    file.symlink_to("link/rankdeck/config.toml")
    assert site.read_site().site.message == "hello"
    path = tmp_path / changed
    if is_open:
        path.chmod(path.stat().st_mode | 0o020)
    else:
        os.chown(path, 1000, 0, follow_symlinks=False)
    with pytest.raises(ProfileError, match=r"belongs to another user|can be written by other users"):
        site.read_site()


def test_other_folders_come_after_that_of_the_system(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("of-user", "of-module"):
        (tmp_path / name / "rankdeck").mkdir(parents=True)
    os.chown(tmp_path / "of-user", 1000, 0)  # it may stand there, as desktops set it, and has no file
    monkeypatch.setenv("XDG_CONFIG_DIRS", f"etc:{tmp_path}/of-user:{tmp_path}/of-module")
    (tmp_path / "of-module" / "rankdeck" / "config.toml").write_text('message = "of the module"')
    assert _plan("layout.ranks_per_node = 1").message == "of the module"
    file.write_text('message = "of the system"')
    assert site.read_site().site.message == "of the system"
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(ProfileError, match="is not a file"):
        site.read_site()


# --- login nodes -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def conf(write_command: WriteCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """slurm.conf of a cluster that has an sbatch on this machine, whose name is login1.site."""
    write_command("sbatch", "exit 1")
    monkeypatch.setattr(socket, "gethostname", lambda: "login1.site")
    for name in JOBS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    return tmp_path / "slurm.conf"


@from_table
def test_a_login_node_is_no_node_that_starts_jobs(text: str, is_login: bool, conf: Path) -> None:
    """`LISTENS` in the text stands for a port on which a process listens."""
    conf.with_name("nodes.conf").write_text("NodeName=n[1-4] NodeHostname=login1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        conf.write_text(text.replace("LISTENS", str(server.getsockname()[1])))
        hints = [warning.hint for warning in _plan("layout.ranks_per_node = 1").warnings]
    assert hints == (["submit a job: rankdeck run --slurm, or [layout.slurm] in the profile"] if is_login else [])


def test_a_site_decides_about_ranks_on_login_nodes(file: Path, conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf.write_text("NodeName=n[1-4]")
    file.write_text('login_nodes = "allow"')
    assert not _plan("layout.ranks_per_node = 1").warnings
    file.write_text('login_nodes = "refuse"')
    with pytest.raises(CheckError, match=r"login1\.site is a login node of Slurm, .* this site does not allow"):
        _plan("layout.ranks_per_node = 1")
    assert _plan("layout.slurm.ranks_per_node = 1").submission is not None
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert not _plan("layout.ranks_per_node = 1").warnings
