"""MPI: Open MPI 4 and 5, MPICH, what they say of processes that ended; and ucc."""

from __future__ import annotations

from engine.core.failures.causes.cause import Cause

_INTERFACE = 'env.OMPI_MCA_btl_tcp_if_include = "eth0"'

CAUSES: tuple[Cause, ...] = (
    # --- before ranks run
    Cause(
        id="M1",
        pattern=r"There are not enough slots available in the system to satisfy the (?P<count>\d+)",
        detail="mpirun has fewer slots than the {count} requested processes",
        hint="request fewer, give the hosts more slots, or allow more processes than cores",
        fix="mpirun --map-by :OVERSUBSCRIBE …",
    ),
    Cause(
        id="M2",
        pattern=r"has detected an attempt to run as root",
        detail="Open MPI refuses to run as root unless two variables allow it",
        hint="run it as another user, or allow root, for example in a container",
        fix="export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
    ),
    Cause(
        id="M5",
        pattern=r"(?P<name>orted|prted|hydra_pmi_proxy): (?:command not found|not found|No such file or directory"
        r"|error while loading shared libraries)",
        detail="{name}, which mpirun starts on other nodes, is missing on one of them",
        hint="install the same MPI there, at the same path, which rankdeck uses; for a job without rankdeck, PATH in non-interactive "
        "shells must contain it, or use mpirun --prefix",
    ),
    Cause(
        id="M6",
        pattern=r"was unable to (?:find the specified executable file|launch the specified application)"
        r"(?:[^~]{0,600}?Executable: (?P<path>[^\n]{1,300}))?|execvp error on file (?P<path_2>[^\n(]{1,300}?) \(",
        detail="mpirun can't find the program {path}{path_2}",
        hint="use the program's absolute path, and install it on every node",
    ),
    Cause(
        id="M20",
        pattern=r"mismatch in versions between two processes|[Vv]ersion mismatch[^\n]{0,80}(?:PMIx|Open MPI|orted|prted)",
        detail="the nodes have different versions of Open MPI",
        hint="install the same version on every node",
        fix="mpirun --version",
    ),
    Cause(
        id="M4",
        pattern=r"An? (?:ORTE|PRTE|prted) daemon has unexpectedly failed|A daemon failed to report back after being spawned",
        detail="mpirun's daemon on another node failed, or could not connect back",
        hint="check that ssh to the node works without a prompt, and that nodes reach each other on all ports",
        fix="export PRTE_MCA_prte_if_include=eth0 OMPI_MCA_oob_tcp_if_include=eth0",
        yields_to="S",
    ),
    Cause(
        id="M3",
        pattern=r"was unable to reliably start one or more daemons|(?:ssh|rsh|launcher)[^\n]{0,80} exited with status|"
        r"unable to resolve \S{1,200} \(?|failed to resolve host",
        detail="mpirun could not start its daemon on another node",
        hint="check that ssh to the node works without a prompt, and that the same MPI is on PATH there",
        fix="ssh NODE which orted prted hydra_pmi_proxy",
        yields_to="S",
    ),
    # --- while ranks run
    Cause(
        id="M8",
        pattern=r"MPI_ABORT was invoked on rank (?P<rank>\d+)[^\n]{0,200}\n(?:[^\n]{0,300}\n){0,4}?[^\n]{0,100}[Ee]rrorcode:? (?P<status>\d+)",
        detail="it ended the job with status {status}",
        blames="{who} called MPI_Abort",
        hint="read what it printed before that",
        kind="end",
    ),
    Cause(
        id="M8",
        pattern=r"application called MPI_Abort\([^\n]{0,100}, (?P<status>\d+)\) - process (?P<rank>\d+)",
        detail="it ended the job with status {status}",
        blames="{who} called MPI_Abort",
        hint="read what it printed before that",
        kind="end",
    ),
    Cause(
        id="M7",
        pattern=r"noticed that process rank (?P<rank>\d+) with PID \d+ on node (?P<node>\S{1,200})\s+exited\s+on\s+signal\s+(?P<signal>\d+)",
        detail="it was killed on {node}",
        hint="read the end of its output; check `dmesg` there",
        kind="end",
    ),
    Cause(
        id="M10",
        pattern=r"rank (?P<rank>\d+) with PID \d+ on\s+node\s+(?P<node>\S{1,200})\s+exiting\s+improperly\. There are (?:three|two) reasons",
        detail="the others would have waited for it forever",
        blames="{who} ended without MPI_Finalize",
        hint="let ranks end by returning from the script on every path, not by os._exit",
        kind="end",
    ),
    Cause(
        id="M9",
        pattern=r"Process name: \[[^\n]{0,200}?,(?P<rank>\d+)\]\s{1,40}Exit code:\s{1,20}(?P<status>\d+)",
        detail="it ended with {status}, and mpirun ended the others",
        hint="read what it printed before that",
        kind="end",
    ),
    Cause(
        id="M19",
        pattern=r"BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES[^\n]{0,80}\n(?:=[^\n]{0,200}\n){0,4}?=\s{1,20}EXIT CODE: (?P<status>\d+)",
        detail="a rank ended with {status}, and mpirun ended the others",
        hint="look at the rank that printed last before that",
        kind="end",
    ),
    Cause(
        id="M15",
        pattern=r"attempted to initialize\s{1,20}MPI [^\n]{0,40}more than once|Calling MPI_Init or MPI_Init_thread twice",
        detail="MPI was initialised twice, by two libraries of one program",
        hint="let the other library initialise MPI",
        fix="export MPI4PY_RC_INITIALIZE=0",
    ),
    Cause(
        id="M17",
        pattern=r"(?:orte|prte|pmix)_(?:ess_)?init failed[^\n]{0,200}(?:\n[^\n]{0,200}){0,3}?No permission",
        detail="a child process of a rank initialised MPI again",
        hint="import mpi4py.MPI only in the rank, not in modules that DataLoader workers import",
    ),
    Cause(
        id="M13",
        pattern=r"at least one MPI process is unreachable|unable to reach each other for\s+MPI|pml-add-procs",
        detail="two ranks have no transport in common: a setting excludes the one they need",
        hint="remove settings of btl and pml, or allow shared memory and TCP",
        fix="export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader,tcp",
    ),
    Cause(
        id="M12",
        pattern=r"btl_tcp_endpoint[^\n]{0,300}(?:connect\(\) to \S{1,100} failed|No route to host)|failed to TCP connect to a peer"
        r"|unexpected process identifier|TCP connection [^\n]{0,60}peer [^\n]{0,200}No route to host",
        detail="ranks use an interface that does not connect the nodes, such as docker0 or virbr0",
        hint="set the interface that connects the nodes",
        fix=_INTERFACE,
    ),
    Cause(
        id="M14",
        pattern=r"PMIX ERROR[^\n]{0,300}gds_ds12",
        detail="a known defect of old PMIx versions",
        hint="update Open MPI, or use the other data store",
        fix="export PMIX_MCA_gds=hash",
    ),
    Cause(
        id="M11",
        pattern=r"Read -1, expected \d+, errno = 1\b",
        detail="the container does not allow ranks to copy each other's memory",
        hint="turn this copying off, or give the container CAP_SYS_PTRACE",
        fix="export OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_smsc=^cma",
    ),
    Cause(
        id="M16",
        pattern=r"fork\(\)\W{1,3}system call|calling the fork\(\)",
        detail="a rank forked after MPI had been initialised",
        hint="harmless if the child only runs Python; otherwise start DataLoader workers with spawn or forkserver",
        fix="export OMPI_MCA_mpi_warn_on_fork=0",
        kind="remark",
    ),
    # --- ucc
    Cause(
        id="U1",
        pattern=r"no CL components were found in the ucc modules dir",
        detail="libucc can't find its own modules",
        hint="also install its development package, which contains the links that it searches for",
        fix="apt-get install libucc-dev",
    ),
    Cause(
        id="U2",
        pattern=r"unsupported reduction type \((?P<name>\w+)\)",
        detail="ucc can't reduce {name} on a CPU",
        hint="reduce in float32 or bfloat16",
    ),
    Cause(
        id="U3",
        pattern=r"timeout [\d.]+ sec\. has expired on (?P<what>\w+)",
        detail="{what} timed out: another rank did not enter it",
        hint="look for the rank that is a step behind or took another branch",
        fix="rankdeck stacks -",
        waits=True,
    ),
    Cause(
        id="U5",
        pattern=r"network device '(?P<name>[^'\n]{1,100})' is not available, please use one or more of: (?P<devices>[^\n]{1,300})",
        detail="this node has no network device {name}; it has {devices}",
        hint="unset UCX_NET_DEVICES, or set it to one of these",
    ),
    Cause(
        id="U4",
        pattern=r"UCX\s+ERROR\s+no active messages transport to",
        detail="ucx has no transport to another rank: UCX_TLS excludes all of them",
        hint="unset UCX_TLS, or allow shared memory and TCP",
        fix='env.UCX_TLS = "self,sm,tcp"',
    ),
    Cause(
        id="U6",
        pattern=r"process_vm_readv\([^\n]{0,300}returned -1: (?:Bad address|Operation not permitted)",
        detail="the container does not allow ranks to copy each other's memory",
        hint="turn this copying off, or give the container CAP_SYS_PTRACE",
        fix='env.UCX_TLS = "^cma"',
    ),
    Cause(
        id="U9",
        pattern=r"nothing has come from \[[\d, ]{1,2000}\] though UCC says that it has|UCC reports success, but the data of ranks \[",
        detail="ucx could not reach another rank",
        hint="let ucx log the address that it tried; set UCX_NET_DEVICES to the interface that connects the nodes",
        fix='backend.env.UCX_LOG_LEVEL = "error"',
    ),
    Cause(
        id="U8",
        pattern=r"\bucc_\w{1,60} failed",
        detail="ucc failed",
        hint="read what ucc and ucx printed before that",
        fix='env.UCC_LOG_LEVEL = "info"',
        yields_to="U",
    ),
    Cause(
        id="U7",
        pattern=r"version .(?P<version>(?:GLIBC|GLIBCXX|CXXABI)_[\w.]{1,20}).{1,3}not found(?: \(required by (?P<library>[^)\n]{1,300})\))?",
        detail="a library was built for a newer system than this one: it needs {version}",
        hint="install the library from this distribution",
    ),
)
