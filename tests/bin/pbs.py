"""A fake PBS: its commands, for jobs on nodes that are folders of this machine. A job waits while there is a file `busy`.

A task gets what the manual and the source of OpenPBS say: no input, its output appended to that of the job, next to nothing of the
caller's environment, a session of its own. Everything is in the folder $FAKE_PBS.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(os.environ["FAKE_PBS"])


def give_up(text: str, status: int = 255) -> NoReturn:
    """Ends like a command of PBS that fails."""
    sys.stderr.write(text + "\n")
    sys.exit(status)


def environment(node: str) -> dict[str, str]:
    """What processes of the job have on a node: its own variables, and folders of the node."""
    place = ROOT / node
    for name in ("tmp", "run"):
        (place / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    job = {name: value for name, value in os.environ.items() if name.startswith(("PBS_", "FAKE_PBS"))}
    kept = {name: os.environ[name] for name in ("PATH", "USER", "LANG") if name in os.environ}
    own = {
        "HOME": str(ROOT / "home"),
        "TMPDIR": str(place / "tmp"),
        "XDG_RUNTIME_DIR": str(place / "run"),
        "FAKE_PBS_NODE": str(place),
    }
    return {**kept, **job, **own}


def pbs_tmrsh(words: list[str]) -> int:
    """Runs a task on a node of the job. Returns its exit status."""
    node, command = words[0], words[1:]
    if "PBS_ENVIRONMENT" not in os.environ:
        give_up("pbs_tmrsh: not executing under PBS")
    if node not in Path(os.environ["PBS_NODEFILE"]).read_text().split():
        give_up(f'pbs_tmrsh: host "{node}" is not a node in job <{os.environ["PBS_JOBID"]}>')
    if node.startswith("down"):
        give_up(f'pbs_tmrsh: tm_poll(spawn): host "{node}" err TM_SUCCESS 17002')
    with (ROOT / "output").open("ab") as output:
        return subprocess.call(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment(node), cwd="/",
            start_new_session=True,
        )  # fmt: skip


# --- jobs ----------------------------------------------------------------------------------------------------------------


def read(number: str) -> dict[str, Any]:
    """What is known of a job."""
    found: dict[str, Any] = json.loads((ROOT / "jobs" / number).read_text())
    return found


def write(number: str, **news: Any) -> None:
    """Changes what is known of a job."""
    file = ROOT / "jobs" / number
    known = read(number) if file.exists() else {}
    file.with_suffix(".new").write_text(json.dumps({**known, **news}))
    file.with_suffix(".new").rename(file)


def qsub(words: list[str]) -> int:
    """Submits a job, whose options are kept for tests to see. Returns the exit status."""
    mark = words.index("--")
    options, argv = words[:mark], words[mark + 1 :]
    if "-q" in options and options[options.index("-q") + 1] == "nonesuch":
        give_up("qsub: Unknown queue", 170)
    (ROOT / "jobs").mkdir(exist_ok=True)
    number = f"{len(list((ROOT / 'jobs').iterdir())) + 1}.lab"
    write(
        number, options=options, argv=argv, job_state="Q", comment="Not Running: Insufficient amount of resource: ncpus"
    )
    environment = {name: value for name, value in os.environ.items() if name in ("FAKE_PBS", "PATH", "USER", "LANG")}
    nothing = subprocess.DEVNULL
    subprocess.Popen(
        [sys.executable, "-IS", __file__, "mom", number], env=environment, start_new_session=True,
        stdin=nothing, stdout=nothing, stderr=nothing,
    )  # fmt: skip
    print(number)
    return 0


def mom(words: list[str]) -> int:
    """The life of a job. Returns the exit status."""
    number, known = words[0], read(words[0])
    options, argv = known["options"], known["argv"]
    after = [word.rpartition(":")[2] for word in options if word.startswith("depend=afterany:")]
    while (ROOT / "busy").exists() or any(read(one)["job_state"] != "F" for one in after):
        time.sleep(0.02)
        if read(number)["job_state"] == "F":  # deleted
            return 0
    resources = dict(word.split("=", 1) for word in options[options.index("-l") + 1].split(":"))
    nodes = (ROOT / "nodes").read_text().split()[: int(resources["select"])]
    file = ROOT / f"nodefile.{number}"
    file.write_text("".join(f"{node}\n" * int(resources["mpiprocs"]) for node in nodes))
    own = {
        "PBS_JOBID": number,
        "PBS_ENVIRONMENT": "PBS_BATCH",
        "PBS_NODEFILE": str(file),
        "PBS_O_PATH": os.environ["PATH"],
    }
    with (ROOT / "output").open("ab") as output:
        job = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={**environment(nodes[0]), **own}, cwd="/",
            start_new_session=True,
        )  # fmt: skip
    write(number, job_state="R", pid=job.pid, exec_host="+".join(f"{node}/0*1" for node in nodes))
    status = job.wait()
    write(number, job_state="F", Exit_status=256 - status if status < 0 else status)
    return 0


def qstat(words: list[str]) -> int:
    """Tells of a job. Returns the exit status."""
    assert words[:4] == ["-x", "-f", "-F", "json"]
    number = words[4]
    if not (ROOT / "jobs" / number).exists():
        give_up(f"qstat: Unknown Job Id {number}", 153)
    shown = {name: value for name, value in read(number).items() if name not in ("options", "argv", "pid")}
    print(json.dumps({"timestamp": 1479277336, "pbs_version": "20.0", "pbs_server": "lab", "Jobs": {number: shown}}))
    return 0


def qdel(words: list[str]) -> int:
    """Deletes a job. Returns the exit status."""
    known = read(words[0])
    if known["job_state"] == "R":
        with contextlib.suppress(ProcessLookupError):
            os.killpg(known["pid"], signal.SIGTERM)
    else:
        write(words[0], job_state="F", Exit_status=271)
    return 0


COMMANDS = {"pbs_tmrsh": pbs_tmrsh, "qsub": qsub, "qstat": qstat, "qdel": qdel, "mom": mom}

if __name__ == "__main__":
    sys.exit(COMMANDS[sys.argv[1]](sys.argv[2:]))
