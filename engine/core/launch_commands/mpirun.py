"""mpirun and mpiexec of Open MPI 4 and 5, MPICH and Intel MPI. The ranks are started by mpirun in the profile too."""

from __future__ import annotations

from engine.core.errors import UsageError
from engine.core.launch_commands.draft import Draft, Word, whole_number
from engine.core.launch_commands.options import (
    BINDING,
    OUTPUT,
    TIMING,
    Given,
    Table,
    flag,
    left_out,
    option,
    read_options,
)

MPIRUN = Table(
    "mpirun",
    (
        option("-n -np --n --np -c", "total"),
        option("-npernode --npernode -N -ppn --ppn", "ranks"),
        option("-host --host -H -hosts --hosts", "hosts"),
        option("-hostfile --hostfile -machinefile --machinefile -f --default-hostfile", "hostfile"),
        option("-map-by --map-by", "map-by"),
        option("-x", "export"),
        option("-genv -env", "variable", takes=2),
        option("-mca --mca -gmca --gmca", "mca", takes=2),
        option("--prtemca --pmixmca", takes=2, why="set it in backend.env"),
        option("-wdir --wdir -wd --wd", "workdir"),
        *left_out("rankdeck gives every variable of [env] to the ranks", "-genvlist -envlist"),
        flag("-genvall", why=""),
        flag("-envall", why=""),
        flag("--allow-run-as-root"),
        *left_out(
            "rankdeck says how many ranks a node has",
            "--oversubscribe -oversubscribe --nooversubscribe --use-hwthread-cpus",
            takes=0,
        ),
        *left_out(BINDING, "-bind-to --bind-to -rank-by --rank-by --rankfile -rf -cpu-set --cpu-set --cpus-per-proc"),
        *left_out(BINDING, "--report-bindings -report-bindings --bind-to-core --bind-to-none", takes=0),
        *left_out(
            OUTPUT, "-output-filename --output-filename --output -outfile-pattern -errfile-pattern --stream-buffering"
        ),
        *left_out(
            OUTPUT,
            "--tag-output -tag-output --timestamp-output -timestamp-output --merge-stderr-to-stdout -l -prepend-rank",
            takes=0,
        ),
        *left_out(TIMING, "--timeout -timeout"),
        *left_out("", "--prefix -prefix --launch-agent -launcher -bootstrap -rmk"),
        *left_out("", "-v --verbose -q --quiet --display-map --display-allocation --enable-recovery", takes=0),
        option("--display", why=""),
        option("--app", "several"),
    ),
    abbreviates=False,
)


def read_mpirun(draft: Draft, words: list[Word]) -> list[Word]:
    """Reads what follows `mpirun`.

    Returns:
        The words of the program that it starts.

    Raises:
        UsageError: an option is unknown, or it starts several programs.
    """
    given, rest = read_options(words, MPIRUN)
    draft.backend = "mpi"
    for one in given:
        _take(draft, one)
    if any(word.text == ":" for word in rest) or any(one.option.key == "several" for one in given):
        raise UsageError(
            "mpirun starts several programs, and a run has one",
            hint="import one of them, or choose by RANK in one script",
        )
    _share(draft)
    return rest


def _take(draft: Draft, given: Given) -> None:
    value = given.values[0] if given.values else given.word
    match given.option.key:
        case "total":
            draft.total = whole_number(value, "the number of ranks")
        case "ranks":
            draft.ranks = whole_number(value, "the number of ranks on each node")
        case "hosts":
            draft.nodes += [host for host in value.text.split(",") if host]
        case "hostfile":
            draft.hostfile = value.text
        case "map-by":
            parts = value.text.split(":")
            if parts[0] == "ppr" and len(parts) > 2 and parts[2] == "node":
                draft.ranks = whole_number(Word(parts[1], value.place), "the number of ranks on each node")
            elif parts[0] == "node":
                draft.leave_out(f"--map-by {value.text}", 'set layout.order = "cyclic"')
            else:
                draft.leave_out(f"--map-by {value.text}", BINDING)
        case "export":
            name, equals, text = value.text.partition("=")
            if equals:
                draft.set_env(name, text)
            else:
                draft.leave_out(f"-x {name}", "ranks on this machine inherit it; for others, set its value in [env]")
        case "variable":
            draft.set_env(given.values[0].text, given.values[1].text)
        case "mca":
            draft.set_env(f"OMPI_MCA_{given.values[0].text}", given.values[1].text)
        case "workdir":
            draft.workdir = value.text
        case _:
            draft.leave_out(given.word.text.partition("=")[0], given.option.why)


def _share(draft: Draft) -> None:
    """Shares the ranks among the hosts: those with slots are filled in their order, as mpirun fills them."""
    slots = [host.rpartition(":")[2] for host in draft.nodes]
    if draft.hostfile and draft.total is not None:
        draft.leave_out(f"-n {draft.total}", "the hostfile gives the ranks of each node")
        draft.total = None
    if (
        draft.nodes
        and draft.ranks is None
        and all(":" in host and slot.isdecimal() for host, slot in zip(draft.nodes, slots, strict=True))
    ):
        left = sum(map(int, slots)) if draft.total is None else draft.total
        shared: list[str] = []
        for host, slot in zip(draft.nodes, slots, strict=True):
            count = min(left, int(slot))
            left -= count
            if count:
                shared.append(f"{host.rpartition(':')[0]}:{count}")
        if left:
            raise UsageError(
                f"{draft.total} ranks do not fit into the slots of {', '.join(draft.nodes)}",
                hint="name more hosts, or fewer ranks",
            )
        draft.nodes, draft.total = shared, None
    elif draft.nodes and draft.ranks is not None:
        draft.nodes = [host.rpartition(":")[0] or host for host in draft.nodes]
        draft.total = None
