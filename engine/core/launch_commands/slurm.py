"""srun, and the options that `#SBATCH` lines and srun have in common (Slurm 24).

The nodes stay the scheduler's: the profile uses those of the job that rankdeck runs in.
"""

from __future__ import annotations

from engine.core.launch_commands.draft import Draft, Word, whole_number
from engine.core.launch_commands.options import (
    BINDING,
    OUTPUT,
    SCHEDULER,
    Given,
    Option,
    Table,
    left_out,
    option,
    read_options,
)

_SCHEDULING = "scheduling"
"""Meaning of the options that only the scheduler needs."""


def _for_scheduler(names: str, *, takes: int = 1) -> tuple[Option, ...]:
    return tuple(option(name, _SCHEDULING, takes=takes, why=SCHEDULER) for name in names.split())


_COMMON = (
    option("-N --nodes", "nodes"),
    option("-n --ntasks", "total"),
    option("--ntasks-per-node --tasks-per-node", "ranks"),
    option("--ntasks-per-gpu", why="ranks are one for each GPU; or set layout.ranks_per_node"),
    option("-w --nodelist", "hosts"),
    option("-D --chdir", "workdir"),
    option("--export", "export"),
    option("-J --job-name", "name"),
    *_for_scheduler(
        "-p --partition -t --time -A --account -q --qos -C --constraint --mem --mem-per-cpu --mem-per-gpu -x --exclude --gres --gpus -G "
        "--gpus-per-node --gpus-per-task --gpus-per-socket -c --cpus-per-task --cpus-per-gpu --ntasks-per-socket --ntasks-per-core "
        "--reservation --tmp --dependency -d --array -a --begin -b --deadline --signal --licenses -L --comment --cluster-constraint "
        "-M --clusters --threads-per-core --hint --sockets-per-node --cores-per-socket --switches --mail-type --mail-user --wckey "
        "--time-min --priority --container-image --container-mounts --container-workdir --container-name --gres-flags",
    ),
    *_for_scheduler(
        "--requeue --no-requeue -H --hold -I --immediate --overcommit -O -s --oversubscribe --container-mount-home",
        takes=0,
    ),
    *_for_scheduler("--exclusive --nice", takes=0),
    *left_out(OUTPUT, "-o --output -e --error -i --input --open-mode"),
    *left_out(BINDING, "-m --distribution --gpu-bind --mem-bind"),
)

SRUN = Table(
    "srun",
    (
        *_COMMON,
        option("--jobid", "job"),
        option("--mpi", why='set backend.name = "mpi" if the script needs MPI'),
        *left_out(BINDING, "--cpu-bind --cpu_bind --cpu-freq --accel-bind"),
        *left_out("", "--wait -W --ntasks-per-tres --het-group"),
        *left_out(
            "",
            "--kill-on-bad-exit -K -l --label -u --unbuffered -v --verbose -Q --quiet --overlap --exact --pty --no-kill -X",
            takes=0,
        ),
    ),
    abbreviates=True,
)

SBATCH = Table(
    "sbatch",
    (
        *_COMMON,
        *_for_scheduler("--export-file --wrap"),
        *_for_scheduler(
            "--get-user-env --parsable -W --wait -Q --quiet -v --verbose --test-only --spread-job --use-min-nodes",
            takes=0,
        ),
    ),
    abbreviates=True,
)

_OPTIONAL = ("--exclusive", "--kill-on-bad-exit", "--get-user-env", "--nice", "--no-kill")
"""Long options whose value can only be joined with `=`."""


class Job:
    """What `#SBATCH` lines and srun say about nodes and tasks. Options of srun win."""

    def __init__(self) -> None:
        self.name = ""
        self.nodes: int | None = None
        self.tasks: int | None = None
        self.tasks_per_node: int | None = None

    def take(self, draft: Draft, given: list[Given], *, quietly: bool = False) -> None:
        """Takes options. `quietly`: those that only a scheduler reads are not worth a note."""
        for one in given:
            value = one.values[0] if one.values else one.word
            match one.option.key:
                case "nodes":
                    self.nodes = whole_number(Word(value.text.rpartition("-")[2], value.place), "the number of nodes")
                case "total":
                    self.tasks = whole_number(value, "the number of tasks")
                case "ranks":
                    self.tasks_per_node = whole_number(value, "the number of tasks on each node")
                case "hosts":
                    draft.nodes = [value.text]
                case "workdir":
                    draft.workdir = value.text
                case "name":
                    self.name = value.text
                case "job":
                    is_own = value.text.strip('"').strip("${}") in ("SLURM_JOB_ID", "SLURM_JOBID")
                    draft.slurm = "current" if is_own else int(value.text) if value.text.isdecimal() else value.text
                case "export":
                    for part in value.text.split(","):
                        name, equals, text = part.partition("=")
                        if equals:
                            draft.set_env(name, text)
                case key if not quietly or key != _SCHEDULING:
                    draft.leave_out(one.word.text.partition("=")[0], one.option.why)

    def share(self, draft: Draft) -> None:
        """Puts the tasks into the draft as ranks: for programs that srun starts itself."""
        draft.node_count = self.nodes
        draft.ranks = self.tasks_per_node
        if draft.ranks is None and self.tasks is not None:
            draft.total = self.tasks
        elif draft.ranks is None:
            draft.ranks = 1


def read_srun(draft: Draft, words: list[Word], job: Job) -> list[Word]:
    """Reads what follows `srun`.

    Args:
        draft: takes what it says.
        words: after `srun`.
        job: what the batch file says.

    Returns:
        The words of the program that it starts.

    Raises:
        UsageError: an option is unknown.
    """
    given, rest = read_options(joined(words), SRUN)
    draft.slurm = "current"
    job.take(draft, given)
    job.share(draft)
    return rest


def joined(words: list[Word]) -> list[Word]:
    """The words without values that are joined to options which need none."""
    return [
        word._replace(text=word.text.partition("=")[0]) if word.text.startswith(_OPTIONAL) else word for word in words
    ]
