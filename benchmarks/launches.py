"""Many launches in a row from the shell: what do they leave behind?

Each is a whole `rankdeck launch` of two ranks in a private home; a template stays in between, as it does for users. At the end the template
is ended and all runs are removed. The exit status is 1 if a process, a socket, a folder, a file in the temporary folder or shared memory
is left that was not left by one launch: torch makes a folder of its own there. Other programs that use shared memory meanwhile disturb
this. The memory of what stays between launches is printed after the first launches and after the last.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMAND = [sys.executable, str(ROOT / "rankdeck_command.py")]

PROFILE = """schema = 1
name = "many"
[layout]
ranks_per_node = 2
[recipe]
script = "one.py"
"""
SETTLE_TIME = 120.0  # seconds in which everything has ended at last


def own_processes(home: Path) -> list[int]:
    """Living processes of this home."""
    wanted, found = os.fsencode(f"RANKDECK_HOME={home}"), []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if wanted in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                found.append(int(name))
    return [pid for pid in found if pid != os.getpid()]


def memory(pids: list[int]) -> float:
    """Megabytes that processes use of their own, shared pages divided among them. Pages of files are left out: whoever maps the same
    libraries meanwhile would change the figure."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
    return total / 1024


def entries(*folders: Path) -> list[str]:
    """Everything in these folders."""
    return sorted(str(path) for folder in folders if folder.exists() for path in folder.rglob("*"))


def rankdeck(*words: str, folder: Path) -> None:
    """Runs a command. Raises SystemExit with what it printed if it fails."""
    done = subprocess.run([*COMMAND, *words], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"rankdeck {' '.join(words)} ended with status {done.returncode}:\n{done.stdout}{done.stderr}")


def what_is_left(home: Path, work: Path, *folders: Path) -> set[str]:
    """Ends the template, removes all runs, and looks for what is there in spite of that."""
    rankdeck("clean", "--template", folder=work)
    rankdeck("clean", "--yes", folder=work)
    end = time.monotonic() + SETTLE_TIME
    while own_processes(home) and time.monotonic() < end:
        time.sleep(0.2)
    return {*(f"process {pid}" for pid in own_processes(home)), *entries(home, *folders, Path("/dev/shm"))}


def main() -> int:
    """Launches, cleans and compares. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rd") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        home, runtime, temporary, work = (folder / part for part in ("home", "run", "tmp", "work"))
        for path in (runtime, temporary, work):
            path.mkdir(mode=0o700)
        os.environ.update(RANKDECK_HOME=str(home), XDG_RUNTIME_DIR=str(runtime), TMPDIR=str(temporary))
        (work / "one.py").write_text("print('up')\n")
        (work / "many.toml").write_text(PROFILE)
        stack.callback(rankdeck, "clean", "--template", folder=work)
        rankdeck("launch", "many.toml", folder=work)
        before = what_is_left(home, work, runtime, temporary)
        seconds: list[float] = []
        early = 0.0
        for number in range(options.launches):
            began = time.monotonic()
            rankdeck("launch", "many.toml", folder=work)
            seconds.append(time.monotonic() - began)
            if number == min(4, options.launches - 1):
                early = memory(own_processes(home))
        print(f"{options.launches} launches, median {statistics.median(seconds):.2f} s, most {max(seconds):.2f} s")
        print(f"memory of what stays: {early:.0f} MB at first, {memory(own_processes(home)):.0f} MB after the last")
        left = what_is_left(home, work, runtime, temporary) - before
    for one in sorted(left):
        print(f"left: {one}")
    print("nothing is left" if not left else f"{len(left)} things are left")
    return int(bool(left))


if __name__ == "__main__":
    sys.exit(main())
