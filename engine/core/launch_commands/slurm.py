"""srun, and the options that `#SBATCH` lines and srun have in common. A batch file becomes a job that rankdeck submits, with the same
resources; a command of srun alone runs in the job in which rankdeck runs."""

import copy
import re
from typing import Any

from engine.core.errors import UsageError
from engine.core.launch_commands.draft import Draft, Word, known_text, whole_number
from engine.core.launch_commands.options import Given, read_options

_OPTIONAL = ("--exclusive", "--kill-on-bad-exit", "--get-user-env", "--nice", "--no-kill")
"""Long options that take a value only after `=`."""

_SIGNAL = re.compile(r"(?:[RB]{1,2}:)?(?:SIG)?(\w+?)(?:@(\d{1,5}))?")
_KEYS = ("--partition", "--time", "--gres", "--account")  # options of sbatch that are keys of `[layout.slurm]`
_LONG = {
    "-p": "--partition", "-t": "--time", "-A": "--account", "-G": "--gpus", "-c": "--cpus-per-task", "-q": "--qos", "-C": "--constraint",
    "-w": "--nodelist", "-x": "--exclude", "-d": "--dependency", "-L": "--licenses", "-b": "--begin",
}  # fmt: skip
_GPUS = re.compile(r"\bgpu(?::[^:,\d][^:,]*)?(?::(\d+))?(?=[,(]|$)")
WARN = 60  # seconds before the time limit at which Slurm sends the signal of `--signal`, where the option does not say
FIRST = {name: name for name in ("USR1", "USR2", "HUP", "QUIT")} | {"10": "USR1", "12": "USR2", "1": "HUP", "3": "QUIT"}
"""The signals of `--signal` that `launch.stop_ladder` must name, by name and number."""
USUAL = ("TERM", "15", "INT", "2")  # signals that ranks get anyway


class Job:
    """What `#SBATCH` lines, or those and srun, say about nodes and tasks."""

    def __init__(self) -> None:
        self.name = ""
        self.nodes: int | None = None
        self.tasks: int | None = None
        self.tasks_per_node: int | None = None
        self.warn = 0
        self.scheduling: dict[str, Given] = {}  # by the name of the option: the last one counts
        self.is_requeued = False
        self.container: dict[str, Given] = {}  # options of pyxis, without `--container-`

    def numbers(self) -> dict[str, str]:
        """The variables with numbers that Slurm sets in the job."""
        tasks = self.tasks or (self.nodes or 1) * (self.tasks_per_node or 0) or None
        cpus = self.scheduling.get("--cpus-per-task")
        found = {
            **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), self.nodes),
            "SLURM_NTASKS": tasks,
            "SLURM_NTASKS_PER_NODE": self.tasks_per_node,
        }
        known = {name: str(number) for name, number in found.items() if number is not None}
        # Those of the file: the job that rankdeck submits has a task for each rank, which gets its share of them.
        return known if cpus is None else {**known, "SLURM_CPUS_PER_TASK": cpus.value.text}

    def take(self, draft: Draft, given: list[Given], *, quietly: bool = False) -> None:
        """Takes options. `quietly`: they are those of the job, which rankdeck submits."""
        for one in given:
            value = one.value
            match one.option.means:
                case "nodes":
                    least, _, most = value.text.rpartition("-")
                    self.nodes = whole_number(Word(most, value.place), "the number of nodes")
                    if least and least != most:
                        why = f"the number of nodes of a run does not change: it needs {most}"
                        draft.leave_out(f"--nodes={value.text}", why)
                case "total":
                    self.tasks = whole_number(value, "the number of tasks")
                case "ranks":
                    self.tasks_per_node = whole_number(value, "the number of tasks on each node")
                case "hosts" if draft.slurm is None or (draft.slurm == "current" and not quietly):
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
                        elif name not in ("ALL", "NIL"):
                            why = "ranks have the environment of the job, and [env] of the profile"
                            draft.leave_out(f"--export={name}", why)
                case "signal":
                    self._take_signal(draft, value)
                case "array":
                    hint = "take the line out, and import one task: give its value to the arguments that depend on it"
                    raise UsageError(f"{one.word.place}: {one.spelled} starts many jobs, and a run is one", hint=hint)
                case "requeue" if quietly:
                    self.is_requeued = not one.spelled.startswith("--no-")
                case "scheduling" | "hosts" if quietly:
                    self.scheduling[_LONG.get(one.spelled, one.spelled)] = one
                case "container" if not quietly:
                    self.container[one.spelled.removeprefix("--container-")] = one
                case _:
                    draft.leave_out(_written(one), one.why)
        if quietly and self.nodes is None and self.tasks and self.tasks_per_node:
            self.nodes = -(-self.tasks // self.tasks_per_node)

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

    def table(self, draft: Draft) -> dict[str, Any]:
        """`[layout.slurm]`: the job that rankdeck submits. `draft`: says how many ranks a node gets, which are the tasks of that job."""
        tasks = self.tasks_per_node or (self.tasks or 0) // (self.nodes or 1) or 1
        ranks = draft.ranks or (draft.total or 0) // (draft.node_count or self.nodes or 1) or self.gpus_per_node()
        if ranks is None:
            hint = "write the number into the command, or --set layout.ranks_per_node=8"
            raise UsageError("the file does not say how many ranks a node gets", hint=hint)
        if draft.total is None:  # else `profile_data` shares them out
            draft.ranks = ranks
        keys: dict[str, Any] = {}
        options: list[str] = []
        for name, one in self.scheduling.items():
            value = one.value.text if one.values else ""
            if name == "--cpus-per-task" and value.isdecimal():
                options.append(f"{name}={max(1, int(value) * tasks // ranks)}")  # the cores of a node stay as many
            elif name == "--gpus-per-task" and value.rpartition(":")[2].isdecimal():
                model, colon, count = value.rpartition(":")
                options.append(f"--gpus-per-node={model}{colon}{int(count) * tasks}")
            elif name in _KEYS:
                keys[name.removeprefix("--")] = value
            elif one.values and name.startswith("--"):
                options.append(f"{name}={value}")
            else:
                options += [one.word.text, *(word.text for word in one.values)]
        if self.nodes is None and self.tasks and not self.tasks_per_node:
            why = "the file does not say on how many nodes: set layout.slurm.nodes and ranks_per_node"
            draft.leave_out(f"--ntasks={self.tasks}", why)
        requeue = {"on_preempt": "requeue", "on_node_fail": "requeue"} if self.is_requeued else {}
        warn = {"warn": self.warn} if self.warn else {}
        return {**keys, **({"options": options} if options else {}), **requeue, **warn}

    def gpus_per_node(self) -> int | None:
        """The number of GPUs of each node; None: the options do not say it."""
        for name in ("--gpus-per-node", "--gres", "--gpus-per-task", "--gpus"):
            value = self.scheduling[name].value.text if name in self.scheduling else ""
            if found := _GPUS.search(value if name == "--gres" else f"gpu:{value}" if value else ""):
                count = int(found[1] or 1)
                if name == "--gpus-per-task":
                    return count * (self.tasks_per_node or 1)
                return count // (self.nodes or 1) if name == "--gpus" else count
        return None

    def start_container(self, draft: Draft) -> None:
        """Ranks start in the image of pyxis by enroot, which pyxis uses, if it is a file. Without it no other option of the container counts."""
        values = {name: known_text(one.value, one.spelled) for name, one in self.container.items() if one.values}
        image = values.get("image", "")
        taken = ("image", "mounts", "workdir") if image.endswith((".sqsh", ".squashfs")) else ()
        if taken:
            mounts = [
                one if ":" in one else f"{one}:{one}" for one in filter(None, values.get("mounts", "").split(","))
            ]
            draft.wrap = ["enroot", "start", "--rw", *(word for one in mounts for word in ("--mount", one)), image]
            draft.workdir = values.get("workdir", draft.workdir)
        for name, one in self.container.items():
            if name not in taken:
                draft.leave_out(_written(one), one.why)

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
    draft.slurm = draft.slurm or "current"
    step = copy.copy(job)  # the job keeps its resources
    means = [one.option.means for one in given]
    if "total" in means and "ranks" not in means:
        step.tasks_per_node = None
    step.take(draft, given)
    step.start_container(draft)
    step.share(draft)
    job.name, job.warn = job.name or step.name, step.warn
    return rest


def _written(given: Given) -> str:
    """An option and its value, as they were written."""
    return " ".join((given.word.text, *(word.text for word in given.values if given.word.text == given.spelled)))


def joined(words: list[Word]) -> list[Word]:
    """The words without values that are joined to options which need none."""
    return [one._replace(text=one.text.partition("=")[0]) if one.text.startswith(_OPTIONAL) else one for one in words]
