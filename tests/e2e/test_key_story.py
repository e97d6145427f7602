"""The tutorial's way from a hang to the next run, in a real terminal, with the keys that it names."""

import json
import os
import shlex
import shutil

import pytest

from tests.support import COMMAND, ROOT, wait_until
from tests.tmux import Terminal

if shutil.which("tmux") is None:
    pytest.skip("needs tmux, to drive a real terminal", allow_module_level=True)

pytestmark = pytest.mark.slow

EDITOR = """#!/bin/sh
sed -i '11,12d' "${2:-$1}"
"""


def test_a_hang_is_found_mended_run_again_compared_and_drawn(rankdeck, home, work):
    code = (ROOT / "docs/tutorial.md").read_text().partition("```python\n")[2].partition("```")[0]
    (work / "train.py").write_text(code)
    editor = work / "editor"
    editor.write_text(EDITOR)
    editor.chmod(0o700)
    assert rankdeck("new", "-n", "2", "train.py", "--lr", "0.1").returncode == 0
    kept = {name: os.environ[name] for name in ("RANKDECK_HOME", "XDG_RUNTIME_DIR")} | {"VISUAL": str(editor)}
    words = " ".join(shlex.quote(f"{name}={value}") for name, value in kept.items())
    terminal = Terminal(80, 24, f"cd {shlex.quote(str(work))}; env {words} {shlex.join(COMMAND)} --profile train")
    try:
        terminal.wait_for(r"Plan: train")
        terminal.press("Enter")
        terminal.wait_for(r"has not called +", 200)
        terminal.wait_for(r"train\.py:12")
        terminal.press("E")
        wait_until(lambda: "sleep(3600)" not in (work / "train.py").read_text(), what="the script is mended")
        terminal.press("s", sees=r"Stop train")
        terminal.press("y", sees=r"stopped")
        wait_until(
            lambda: json.loads(rankdeck("status", "-", "--json").stdout)["state"] == "stopped", what="it stopped"
        )
        terminal.press("A", sees=r"Arguments of train\.py")
        terminal.press("BSpace", "2", "Enter")
        terminal.wait_for(r"✔ succeeded", 200)
        terminal.press("C", sees=r"(?s)Runs +--lr .*0\.1 .*0\.2 ")
        terminal.press("q", sees=r"✔ succeeded")
        terminal.press("2", sees=r"▲ r0  ● mean of 2")
        terminal.press("S", sees=r"Save the chart as")
        terminal.press("Enter")
        wait_until(lambda: list(work.glob("train-*.svg")), what="the chart is saved")
    finally:
        terminal.close()
