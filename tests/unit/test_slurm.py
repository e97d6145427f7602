"""Steps of a Slurm job: their command line, and what srun says if there is none. Recorded from Slurm 22.05."""

from __future__ import annotations

import re

import pytest

from engine.core.errors import ProfileError
from engine.core.failures.causes import slurm as causes
from engine.core.failures.ssh import explain
from engine.core.plan.plan import PlannedNode, Reach
from engine.core.plan.profile_reading import parse_with_places
from engine.launchers import LAUNCHERS, rsync, slurm
from engine.launchers.setup import with_setup

REACH = Reach(slurm_job="1234")
NODE = PlannedNode(name="gpu01", transport="slurm", ranks=(0,))

SAID = [
    (
        255,
        "srun: error: Unable to confirm allocation for job 1234: Invalid job id specified\n"
        "srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 1234\n",
        "Slurm's job 1234 has ended; get another allocation",
    ),
    (255, "srun: error: Slurm job 1234 has expired\n", "Slurm's job 1234 has ended"),
    (255, "srun: error: Unable to confirm allocation for job 1234: Job is pending execution\n", "still waits in"),
    (
        255,
        "srun: error: Unable to create step for job 1234: Requested node configuration is not available\n",
        "it is not a node of Slurm's job 1234",
    ),
    (
        2,
        "slurmstepd-gpu01: error: execve(): python9: No such file or directory\n"
        "srun: error: gpu01: task 0: Exited with exit code 2\n",
        "there is no python9 there; set launch.python",
    ),
    (
        13,
        "srun: error: gpu01: task 0: Exited with exit code 13\n"
        "slurmstepd-gpu01: error: execve(): /etc/passwd: Permission denied\n",
        "python9 is not executable there",
    ),
    (
        143,
        "srun: Job step aborted: Waiting up to 7 seconds for job step to finish.\n"
        "slurmstepd-gpu01: error: *** STEP 1.9 ON gpu01 CANCELLED AT 2026-11-24T19:39:37 DUE TO TIME LIMIT ***\n"
        "srun: error: gpu01: task 0: Terminated\n",
        "Slurm cancelled the step there DUE TO TIME LIMIT",
    ),
    (255, "srun: unrecognized option '--overlap'\nTry \"srun --help\" for more\n", "srun does not know --overlap"),
    (
        1,
        "srun: error: s_p_parse_file: cannot stat file /etc/slurm.conf: No such file or directory, retrying\n"
        "srun: fatal: Unable to process configuration file\n",
        "Slurm's commands don't work on this machine",
    ),
    (127, "env: 'srun': No such file or directory\n", "there is no srun on this machine"),
    (
        255,
        "srun: error: Unable to confirm allocation for job 7: Unable to contact slurm controller (connect failure)\n",
        "Slurm's controller does not answer",
    ),
    (255, "srun: error: odd\n", "srun failed: srun: error: odd; try it by hand: srun --jobid=1234 --overlap -w gpu01"),
    (137, "srun: error: gpu01: task 0: Killed\n", "python9 was killed there by SIGKILL"),
    (255, "srun: error: Unable to create step for job 1234: Access/permission denied\n", "belongs to another user"),
    (
        255,
        "srun: error: Task launch for StepId=1234.0 failed on node gpu01: Communication connection failure\n",
        "Slurm starts no step there: Communication connection failure",
    ),
]
"""Exit status and output of srun, and what is told of them."""


def test_a_command_is_a_step_that_waits_for_no_other_and_has_all_of_the_job() -> None:
    argv = LAUNCHERS["slurm"].argv("gpu01", ["python3", "-c", "a b"], REACH)
    assert argv[0] == "env"
    srun = argv[argv.index("srun") :]
    assert srun == [
        *("srun", "--overlap", "--nodes=1", "--ntasks=1", "--mem=0", "--cpu-bind=none", "--mpi=none", "--unbuffered"),
        *("--export=ALL", "--chdir=/", "--job-name=rankdeck", "--jobid=1234", "--nodelist=gpu01"),
        *("--", "python3", "-c", "a b"),
    ]
    assert "-uSLURM_CPUS_PER_TASK" in argv
    assert "SLURM_EXIT_ERROR=255" in argv


def test_shell_lines_run_before_the_command() -> None:
    argv = slurm.argv("gpu01", ["python3"], Reach(slurm_job="1", setup="module load cuda"))
    assert argv[argv.index("--") + 1 :] == with_setup("module load cuda", ["python3"])


def test_rsync_reaches_a_node_by_a_step_too() -> None:
    argv = rsync.argv(NODE, "/work", REACH)
    remote_shell = argv[argv.index("--rsh") + 1]
    assert remote_shell.endswith("'--jobid=1234' '--nodelist'")
    assert argv[-2:] == ["/work/", "gpu01:/work/"]


@pytest.mark.parametrize(("status", "said", "words"), SAID)
def test_why_there_is_no_step_is_told_from_what_srun_says(status: int, said: str, words: str) -> None:
    trouble = explain("gpu01", status=status, said=said, python="python9", setup=False, job="1234")
    assert words in trouble.text
    assert trouble.final == ("has ended" in trouble.text)


def test_every_cause_is_shown() -> None:
    for cause in causes.CAUSES:
        assert any(re.search(cause.pattern, said, re.MULTILINE) for _, said, _ in SAID), cause.id


def test_steps_need_a_job() -> None:
    with pytest.raises(ProfileError, match=r"is slurm, and the profile names no job"):
        parse_with_places(
            'schema = 1\nname = "a"\n[layout]\ntransport = "slurm"\n[recipe]\nscript = "a.py"\n', file="a.toml"
        )
