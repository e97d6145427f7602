"""srun, and the options that `#SBATCH` lines and srun have in common. The scheduler chooses the nodes: the profile uses the nodes of
the job in which rankdeck runs, unless the file asks for a signal before the time limit."""

import re
from typing import Any

from engine.core.launch_commands.draft import Draft, Word, whole_number
from engine.core.launch_commands.options import Given, read_options

_OPTIONAL = ("--exclusive", "--kill-on-bad-exit", "--get-user-env", "--nice", "--no-kill")
"""Long options that take a value only after `=`."""


_SIGNAL = re.compile(r"(?:[RB]{1,2}:)?(?:SIG)?(\w+?)(?:@(\d{1,5}))?")
_KEYS = {
    "-p": "partition", "--partition": "partition", "-t": "time", "--time": "time", "--gres": "gres", "-A": "account", "--account": "account",
}  # fmt: skip
"""Options of sbatch with a key of their own in `[layout.slurm]`."""
WARN = 60  # seconds before the time limit at which Slurm sends the signal of `--signal`, where the option does not say
FIRST = {
    "USR1": "USR1",
    "10": "USR1",
    "USR2": "USR2",
    "12": "USR2",
    "HUP": "HUP",
    "1": "HUP",
    "QUIT": "QUIT",
    "3": "QUIT",
}
"""The signals of `--signal` that `launch.stop_ladder` must name, by name and number."""
USUAL = ("TERM", "15", "INT", "2")  # signals that ranks get anyway


class Job:
    """What `#SBATCH` lines and srun say about nodes and tasks. Options of srun win."""

    def __init__(self) -> None:
        self.name = ""
        self.nodes: int | None = None
        self.tasks: int | None = None
        self.tasks_per_node: int | None = None
        self.warn = 0
        self.scheduling: list[Given] = []

    def take(self, draft: Draft, given: list[Given], *, quietly: bool = False) -> None:
        """Takes options. `quietly`: leaves out those that only a scheduler reads without a note."""
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
                case "signal":
                    self._take_signal(draft, value)
                case "scheduling" if quietly:
                    self.scheduling.append(one)
                case means if not quietly or means != "scheduling":
                    draft.leave_out(one.spelled, one.why)

    def _take_signal(self, draft: Draft, value: Word) -> None:
        """Takes `--signal=[R][B:]SIGNAL@SECONDS`: what ranks get first at a stop, and how long before the time limit."""
        found = _SIGNAL.fullmatch(value.text)
        name = found[1].upper() if found else ""
        if found is None or name not in (*FIRST, *USUAL):
            draft.leave_out(f"--signal={value.text}", "write what your script handles into launch.stop_ladder")
            return
        self.warn = int(found[2] or WARN)
        if name in FIRST:
            draft.ladder = [[f"SIG{FIRST[name]}", 30], ["SIGTERM", 10], ["SIGKILL", 5]]

    def table(self) -> dict[str, Any]:
        """`[layout.slurm]`: rankdeck submits the job, because it must know when the time limit is near."""
        keys = {_KEYS[one.spelled]: one.value.text for one in self.scheduling if one.spelled in _KEYS}
        rest = [one for one in self.scheduling if one.spelled not in _KEYS and "requeue" not in one.spelled]
        options = [word.text for one in rest for word in (one.word._replace(text=one.spelled), *one.values)]
        return {"nodes": self.nodes or 1, **keys, **({"options": options} if options else {}), "warn": self.warn}

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
    return [one._replace(text=one.text.partition("=")[0]) if one.text.startswith(_OPTIONAL) else one for one in words]
