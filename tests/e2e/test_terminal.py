"""The whole way of a user, in a real terminal: launch, watch, lose a rank, bring it back, leave, come back."""

import json
import os
import shlex
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import WriteProfile, WriteScript
from tests.elastic_runs import replaced
from tests.quickstart import unhurried
from tests.support import COMMAND, Deck, complete_lines, entries, wait_until
from tests.tmux import Terminal

if shutil.which("tmux") is None:
    pytest.skip("needs tmux, to drive a real terminal", allow_module_level=True)

pytestmark = pytest.mark.slow


@pytest.fixture
def short_quickstart(write_profile: WriteProfile, write_script: WriteScript, work: Path) -> None:
    """The quickstart profile with fewer and smaller steps, where `rankdeck` looks first."""
    recipe = unhurried(write_script, "--steps", "250", "--checkpoint-every", "20")
    (work / ".rankdeck").mkdir()
    profile = write_profile(recipe, ranks=4, name="quickstart", launch={"warm": True})
    profile.rename(work / ".rankdeck/quickstart.toml")


@pytest.fixture(params=[(80, 24), (120, 40)], ids=["80x24", "120x40"])
def terminal(request: pytest.FixtureRequest, home: Path, work: Path) -> Iterator[Terminal]:
    columns, lines = request.param
    keep = " ".join(shlex.quote(f"{name}={os.environ[name]}") for name in ("RANKDECK_HOME", "XDG_RUNTIME_DIR"))
    command = f"cd {shlex.quote(str(work))}; env {keep} {shlex.join(COMMAND)} --profile quickstart; exec env {keep} sh"
    terminal = Terminal(columns, lines, command)
    yield terminal
    terminal.close()


def kill_all(pids: list[int]) -> None:
    """Kills ranks that all run. One that loses its peers may end by itself before its turn comes."""
    for pid in pids:
        os.kill(pid, 0)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_run_is_launched_watched_rescued_left_and_found_again(terminal: Terminal, short_quickstart: None, rankdeck):
    terminal.wait_for("quickstart +gloo")
    terminal.press("Enter", sees="Trust quickstart")
    terminal.press("y", sees=r"4/4 ranks")
    row = terminal.wait_for(r"(?m)^│.* 0 .*● running +([1-9]\d*) .*[▁▂▃▄▅▆▇█]{3}.*$")[0]
    wait_until(lambda: row not in terminal.screen(), what="the curves move")

    wait_until(lambda: (status(rankdeck)["step"] or 0) >= 25, what="a checkpoint was written")
    before = [rank["pid"] for rank in status(rankdeck)["ranks"]]
    os.kill(before[2], signal.SIGKILL)
    terminal.wait_for(r" 2 .*✖ failed.*SIGKILL")
    terminal.wait_for("rank 2 was killed by SIGKILL")

    terminal.press("r", sees="rejoin +rank +2; +the +other +3 +keep +running")
    terminal.press("y", sees=r"attempt 0(\.1| · generation 1)")
    terminal.wait_for("4/4 ranks")
    wait_until(lambda: (status(rankdeck)["step"] or 0) >= 45, what="a later checkpoint was written")
    run = status(rankdeck)["run"]
    after = [rank["pid"] for rank in status(rankdeck)["ranks"]]
    same = [old == new for old, new in zip(before, after, strict=True)]
    assert same == [rank not in replaced(rankdeck, run, [2]) for rank in range(4)]
    kill_all(after)
    terminal.wait_for("0/4 ranks")  # the question says what holds when it is asked
    terminal.wait_for(r" 3 .*✖ failed.*SIGKILL")
    terminal.press("r", sees="start +attempt 1 +of +all +4 +ranks")
    terminal.press("y")
    wait_until(lambda: status(rankdeck)["attempt"] == 1 and status(rankdeck)["step"], 40, "attempt 1 trains")
    terminal.wait_for("attempt +1")
    terminal.wait_for(r"● running +([1-9]\d*) ")
    run = status(rankdeck)["run"]
    metrics = rankdeck.folder(run) / "attempt_1" / "rank_0.metrics"
    told = wait_until(lambda: [one for one in complete_lines(metrics).splitlines() if b'"step"' in one], what="a step")
    assert json.loads(told[0])["step"] > 20

    terminal.press("q", sees="Profiles")
    terminal.press("q", sees=r"(?m)^[$#] ?$")
    assert status(rankdeck)["state"] in ("running", "succeeded")
    terminal.press(f"{shlex.join(COMMAND)} attach -", "Enter")
    terminal.wait_for("4/4 ranks|succeeded")
    terminal.press("2", sees=r"4\.\d+┤")
    terminal.wait_for("✔ succeeded", 120)
    assert status(rankdeck)["state"] == "succeeded"
    terminal.press("q", sees=r"(?m)^[$#] ?$")


def test_a_terminal_that_closes_leaves_the_run_alone(terminal: Terminal, short_quickstart: None, rankdeck: Deck):
    terminal.wait_for("quickstart +gloo")
    terminal.press("Enter", sees="Trust quickstart")
    terminal.press("y", sees=r"● running +([1-9]\d*) ")
    before = status(rankdeck)
    terminal.close()
    wait_until(lambda: (status(rankdeck)["step"] or 0) > before["step"] + 5, what="training goes on")
    assert [rank["pid"] for rank in status(rankdeck)["ranks"]] == [rank["pid"] for rank in before["ranks"]]


def status(rankdeck: Deck) -> dict:  # type: ignore[type-arg]  # JSON
    done = rankdeck("status", "-", "--json")
    assert done.returncode == 0, done.stderr
    found: dict = json.loads(done.stdout)  # type: ignore[type-arg]
    return found


BAR = entries("e2e/terminal", "bar")


def test_bars_of_ranks_stay_below_the_output_of_launch(write_profile, home, work):
    profile = write_profile(BAR, ranks=2)
    keep = " ".join(shlex.quote(f"{name}={os.environ[name]}") for name in ("RANKDECK_HOME", "XDG_RUNTIME_DIR"))
    command = f"cd {shlex.quote(str(work))}; env {keep} {shlex.join(COMMAND)} launch {shlex.quote(str(profile))}; cat"
    terminal = Terminal(80, 24, command)
    try:
        bars = r"\[r0 localhost\]  10%\|#    \| 1/10\n\[r1 localhost\]  10%\|#    \| 1/10\n\s*\Z"
        terminal.wait_for(bars)
        (work / "speak").touch()
        terminal.wait_for(
            rf"(?s)\[r0 localhost\] a line\n.*\[r1 localhost\] a line\n{bars}|r1 localhost\] a line\n.*r0 localhost\] a line\n{bars}"
        )
        (work / "finish").touch()
        terminal.wait_for(r"(?s)100%\|#####\| 10/10\n.*100%\|#####\| 10/10\n.*succeeded")
        assert " 10%|" not in terminal.screen()
    finally:
        terminal.close()
