"""The program itself, its files and its memory."""

from __future__ import annotations

from engine.core.failures.causes.cause import Cause

CAUSES: tuple[Cause, ...] = (
    Cause(
        id="P1",
        pattern=r"can't start: (?:No such file or directory|Permission denied|Not a directory|Exec format error)",
        hint="set launch.python to an executable Python of this node, and launch.workdir to a folder",
        fix='launch.python = "/path/to/env/bin/python"',
    ),
    Cause(
        id="M18",
        pattern=r"(?:ImportError: |RuntimeError: )[^\n]{0,200}libmpi\w*\.so|cannot load MPI library|every rank would be alone",
        detail="the libmpi that ranks load is missing, or does not belong to mpirun",
        hint="make mpi4py use the libmpi of the mpirun that starts the job",
        fix="export MPI4PY_MPIABI=openmpi",
    ),
    Cause(
        id="P13",
        pattern=r"ImportError: (?P<library>[\w.+-]{1,100}): cannot open shared object file",
        detail="the shared library {library} is missing on this node",
        hint="install it, or add its folder to LD_LIBRARY_PATH, for example in launch.setup",
    ),
    Cause(
        id="P2",
        pattern=r"No module named '?(?P<name>[\w.]+)",
        hint="a package: install {name} for the Python of the ranks, or set launch.python to one that has it. A folder or file of your project: "
        "add the folder that contains it to PYTHONPATH",
        fix='env.PYTHONPATH = "."',
    ),
    Cause(
        id="P16",
        pattern=r"ImportError: attempted relative import with no known parent package",
        detail="the script is a part of a package, and runs as a file",
        hint="run it as a module, in the folder that contains its package: recipe.module instead of recipe.script, or rankdeck run -m",
        fix='recipe.module = "package.train"',
    ),
    Cause(
        id="P17",
        pattern=r"EOFError: EOF when reading a line",
        detail="the script asks for input, and ranks have none: their standard input is empty",
        hint="pass the answer as an argument or a variable, or leave the question out where RANK is set",
    ),
    Cause(
        id="P3",
        pattern=r"can't open file '(?P<path>[^'\n]*)'",
        detail="there is no script {path}",
        hint="correct recipe.script; it is relative to launch.workdir",
    ),
    Cause(
        id="P4",
        pattern=r"(?:SyntaxError|IndentationError|TabError): ",
        hint="correct the script; syntax that is too new for launch.python causes the same error",
    ),
    Cause(
        id="P15",
        pattern=r"(?:error: the following arguments are required: [^\n]{0,200}?|Missing option ')(?P<flag>--local[-_]rank)\b",
        detail="the script needs its local rank as an argument, as older launchers passed it",
        hint="pass it: {{local_rank}} in recipe.args stands for the local rank",
        fix='recipe.args = ["{flag}={{local_rank}}"]',
    ),
    Cause(
        id="P5",
        pattern=r"^(?:usage: [^\n]{1,4000}\n(?:[ \t][^\n]*\n){0,100}[^\n]{1,200}: error: "
        r"|[^\n]{1,200}: error: (?=[^\n]{1,300}\(--help lists the arguments\)))(?P<said>[^\n]{1,300})",
        detail="the script rejects its arguments: {said}",
        hint="correct its arguments: recipe.args in a profile",
    ),
    Cause(
        id="P6",
        pattern=r"Error\(s\) in loading state_dict for (?P<name>\w+)",
        detail="the checkpoint does not match the {name} that the script builds",
        hint="build the model with the sizes of the checkpoint, or start without it",
    ),
    # --- memory
    Cause(
        id="R1",
        pattern=r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory)",
        hint="use a smaller model or batch, or fewer ranks on this node",
        fix="layout.ranks_per_node = 2",
    ),
    Cause(
        id="D6",
        pattern=r"is killed by signal: Bus error|insufficient shared memory|unable to open shared memory object"
        r"|unable to (?:mmap|write|allocate)[^\n]{0,200}</torch_|/dev/shm[^\n]{0,200}No space left on device",
        detail="shared memory (/dev/shm) is full",
        hint="make /dev/shm larger (docker: --shm-size=1g or --ipc=host), or use fewer DataLoader workers",
        fix="docker run --ipc=host …",
    ),
    Cause(
        id="R2",
        pattern=r"DataLoader worker \(pid (?P<pid>\d+)\) is killed by signal: Killed",
        detail="a DataLoader worker (pid {pid}) was killed, most often because memory ran out",
        hint="use fewer DataLoader workers or a smaller batch",
        fix="dmesg -T | grep -i 'killed process'",
    ),
    Cause(
        id="R5",
        pattern=r"DataLoader worker \(pid\(s\) (?P<pids>[\d, ]{1,200})\) exited unexpectedly",
        detail="DataLoader workers ended (pid {pids})",
        hint="read their output; with num_workers=0 the traceback is in the rank itself",
        yields_to="RD",
    ),
    Cause(
        id="R4",
        pattern=r"oom-kill|[Oo]ut of memory: Killed process|Memory cgroup out of memory|oom_kill event|OOM Killed",
        blames="a process was killed because memory ran out",
        hint="use a smaller model or batch, or fewer ranks on this node",
        fix="dmesg -T | grep -i 'killed process'",
    ),
    Cause(
        id="E8",
        pattern=r"^[^\n]{0,100}: line \d+: +\d+ (?P<how>Killed|Bus error|Segmentation fault|Aborted)\b",
        detail="the shell reports: {how}",
        blames="a process was killed",
        hint="Killed: by the out-of-memory killer or `kill -9`; the others: a defect in native code",
        fix="dmesg -T | grep -i 'killed process'",
    ),
    Cause(
        id="R3",
        pattern=r"\bMemoryError\b|Cannot allocate memory|std::bad_alloc",
        hint="use a smaller model or batch, or fewer ranks on this node; also check `ulimit -v`",
        fix="ulimit -v unlimited",
    ),
    # --- files, processes
    Cause(
        id="P7",
        pattern=r"Too many open files",
        detail="it has reached the limit of open files",
        hint="increase the limit, or use fewer DataLoader workers",
        fix='launch.setup = "ulimit -n 65536"',
    ),
    Cause(
        id="P8",
        pattern=r"can't start new thread|Resource temporarily unavailable|pthread_create failed",
        detail="it can't start more threads or processes",
        hint="end processes of earlier runs, use fewer threads, or increase `ulimit -u` there",
        fix='env.OMP_NUM_THREADS = "1"',
    ),
    Cause(
        id="P9",
        pattern=r"No space left on device|PytorchStreamWriter failed writing file",
        detail="the disk is full",
        hint="free space where the script writes its checkpoints and data",
        fix="df -h .",
    ),
    Cause(
        id="P14",
        pattern=r"[Dd]isk quota exceeded",
        detail="your disk quota is used up",
        hint="free space where the script writes its checkpoints and data",
        fix="quota -s",
    ),
    Cause(
        id="P10",
        pattern=r"PermissionError: |: Permission denied$",
        hint="make that file readable or writable for the user of the run",
    ),
)
