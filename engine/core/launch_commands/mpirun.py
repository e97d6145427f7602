"""mpirun and mpiexec of Open MPI 4 and 5, MPICH and Intel MPI. The ranks are started by mpirun in the profile too."""

from engine.core.errors import UsageError
from engine.core.launch_commands.draft import Draft, Word, whole_number
from engine.core.launch_commands.options import read_options, reasons, take_option


def read_mpirun(draft: Draft, words: list[Word]) -> list[Word]:
    """Reads what follows `mpirun`. Returns the words of the program; raises UsageError for unknown options and for several programs."""
    given, rest = read_options(words, "mpirun")
    draft.backend = "mpi"
    for one in given:
        value = one.value
        match one.option.means:
            case "map-by":
                parts = value.text.split(":")
                if parts[0] == "ppr" and len(parts) > 2 and parts[2] == "node":
                    draft.ranks = whole_number(Word(parts[1], value.place), "the number of ranks on each node")
                else:
                    why = 'set layout.order = "cyclic"' if parts[0] == "node" else reasons()["binding"]
                    draft.leave_out(f"--map-by {value.text}", why)
            case "export":
                name, equals, text = value.text.partition("=")
                if equals:
                    draft.set_env(name, text)
                else:
                    why = "ranks on this machine inherit it; for others, set its value in [env]"
                    draft.leave_out(f"-x {name}", why)
            case _:
                take_option(draft, one)
    if any(word.text == ":" for word in rest) or any(one.option.means == "several" for one in given):
        hint = "import one of them, or choose by RANK in one script"
        raise UsageError("mpirun starts several programs, and a run has one", hint=hint)
    _share(draft)
    return rest


def _share(draft: Draft) -> None:
    """Shares the ranks among the hosts: those with slots are filled in their order, as mpirun fills them."""
    slots = [host.rpartition(":")[2] for host in draft.nodes]
    if draft.hostfile and draft.total is not None:
        draft.leave_out(f"-n {draft.total}", "the hostfile gives the ranks of each node")
        draft.total = None
    have_slots = all(":" in host and slot.isdecimal() for host, slot in zip(draft.nodes, slots, strict=True))
    if draft.nodes and draft.ranks is None and have_slots:
        left = sum(map(int, slots)) if draft.total is None else draft.total
        shared: list[str] = []
        for host, slot in zip(draft.nodes, slots, strict=True):
            count = min(left, int(slot))
            left -= count
            if count:
                shared.append(f"{host.rpartition(':')[0]}:{count}")
        if left:
            hint = "name more hosts, or fewer ranks"
            raise UsageError(f"{draft.total} ranks do not fit into the slots of {', '.join(draft.nodes)}", hint=hint)
        draft.nodes, draft.total = shared, None
    elif draft.nodes and draft.ranks is not None:
        draft.nodes = [host.rpartition(":")[0] or host for host in draft.nodes]
        draft.total = None
