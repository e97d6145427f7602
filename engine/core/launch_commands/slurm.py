"""srun, and the options that `#SBATCH` lines and srun have in common. The nodes stay the scheduler's: the profile uses those of the job
that rankdeck runs in."""

from engine.core.launch_commands.draft import Draft, Word, whole_number
from engine.core.launch_commands.options import Given, read_options

_OPTIONAL = ("--exclusive", "--kill-on-bad-exit", "--get-user-env", "--nice", "--no-kill")
"""Long options that take a value only after `=`."""


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
            value = one.value
            match one.option.means:
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
                case means if not quietly or means != "scheduling":
                    draft.leave_out(one.spelled, one.why)

    def share(self, draft: Draft) -> None:
        """Puts the tasks into the draft as ranks: for programs that srun starts itself."""
        draft.node_count = self.nodes
        draft.ranks = self.tasks_per_node
        if draft.ranks is None and self.tasks is not None:
            draft.total = self.tasks
        elif draft.ranks is None:
            draft.ranks = 1


def read_srun(draft: Draft, words: list[Word], job: Job) -> list[Word]:
    """Reads what follows `srun`. Returns the words of the program that it starts; raises UsageError for an unknown option."""
    given, rest = read_options(joined(words), "srun")
    draft.slurm = "current"
    job.take(draft, given)
    job.share(draft)
    return rest


def joined(words: list[Word]) -> list[Word]:
    """The words without values that are joined to options which need none."""
    return [
        word._replace(text=word.text.partition("=")[0]) if word.text.startswith(_OPTIONAL) else word for word in words
    ]
