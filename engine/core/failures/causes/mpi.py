"""MPI: Open MPI 4 and 5, MPICH, what they say of processes that ended; and ucc."""

from __future__ import annotations

from engine.core.failures.causes.cause import Cause

_INTERFACE = 'env.OMPI_MCA_btl_tcp_if_include = "eth0"'

CAUSES: tuple[Cause, ...] = (
    # --- before anything runs
    Cause(
        id="M1",
        pattern=r"There are not enough slots available in the system to satisfy the (?P<count>\d+)",
        detail="mpirun may start fewer processes than the {count} that were asked for",
        hint="ask for fewer, give the hosts more slots, or allow more processes than cores",
        fix="mpirun --map-by :OVERSUBSCRIBE …",
    ),
    Cause(
        id="M2",
        pattern=r"has detected an attempt to run as root",
        detail="Open MPI does not start anything for root unless it is told twice that it may",
        hint="run it as another user, or allow it, in a container for instance",
        fix="export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
    ),
    Cause(
        id="M5",
        pattern=r"(?P<name>orted|prted|hydra_pmi_proxy): (?:command not found|not found|No such file or directory"
        r"|error while loading shared libraries)",
        detail="the other node does not find {name}, which mpirun starts there",
        hint="install the same MPI there, at the same path: rankdeck starts it by that; of a job of your own, PATH in shells without "
        "a terminal has to lead there, or mpirun --prefix",
    ),
    Cause(
        id="M6",
        pattern=r"was unable to (?:find the specified executable file|launch the specified application)"
        r"(?:[^~]{0,600}?Executable: (?P<path>[^\n]{1,300}))?|execvp error on file (?P<path_2>[^\n(]{1,300}?) \(",
        detail="mpirun does not find the program {path}{path_2}",
        hint="write the whole path of the program, and have it on every node",
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
        detail="mpirun's daemon on another node failed, or could not call back",
        hint="see that ssh to the node works without a question, and that nodes reach each other on all ports",
        fix="export PRTE_MCA_prte_if_include=eth0 OMPI_MCA_oob_tcp_if_include=eth0",
        general="S",
    ),
    Cause(
        id="M3",
        pattern=r"was unable to reliably start one or more daemons|(?:ssh|rsh|launcher)[^\n]{0,80} exited with status|"
        r"unable to resolve \S{1,200} \(?|failed to resolve host",
        detail="mpirun could not start its daemon on another node",
        hint="see that ssh to the node works without a question, and that the same MPI is on PATH there",
        fix="ssh NODE which orted prted hydra_pmi_proxy",
        general="S",
    ),
    # --- while it runs
    Cause(
        id="M8",
        pattern=r"MPI_ABORT was invoked on rank (?P<rank>\d+)[^\n]{0,200}\n(?:[^\n]{0,300}\n){0,4}?[^\n]{0,100}[Ee]rrorcode:? (?P<status>\d+)",
        detail="it ended the job with status {status}",
        blames="{who} called MPI_Abort",
        hint="read what it wrote before that",
        kind="end",
    ),
    Cause(
        id="M8",
        pattern=r"application called MPI_Abort\([^\n]{0,100}, (?P<status>\d+)\) - process (?P<rank>\d+)",
        detail="it ended the job with status {status}",
        blames="{who} called MPI_Abort",
        hint="read what it wrote before that",
        kind="end",
    ),
    Cause(
        id="M7",
        pattern=r"noticed that process rank (?P<rank>\d+) with PID \d+ on node (?P<node>\S{1,200})\s+exited\s+on\s+signal\s+(?P<signal>\d+)",
        detail="it was killed on {node}",
        hint="read the end of what it wrote; look into `dmesg` there",
        kind="end",
    ),
    Cause(
        id="M10",
        pattern=r"rank (?P<rank>\d+) with PID \d+ on\s+node\s+(?P<node>\S{1,200})\s+exiting\s+improperly\. There are (?:three|two) reasons",
        detail="the others would have waited for it for ever",
        blames="{who} ended without MPI_Finalize",
        hint="end ranks by leaving the script, not by os._exit, and on every way out",
        kind="end",
    ),
    Cause(
        id="M9",
        pattern=r"Process name: \[[^\n]{0,200}?,(?P<rank>\d+)\]\s{1,40}Exit code:\s{1,20}(?P<status>\d+)",
        detail="it ended with {status}, and mpirun ended the others",
        hint="read what it wrote before that",
        kind="end",
    ),
    Cause(
        id="M19",
        pattern=r"BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES[^\n]{0,80}\n(?:=[^\n]{0,200}\n){0,4}?=\s{1,20}EXIT CODE: (?P<status>\d+)",
        detail="a rank ended with {status}, and mpirun ended the others",
        hint="look for the rank that wrote something last before that",
        kind="end",
    ),
    Cause(
        id="M15",
        pattern=r"attempted to initialize\s{1,20}MPI [^\n]{0,40}more than once|Calling MPI_Init or MPI_Init_thread twice",
        detail="MPI was initialised twice, by two libraries of one program",
        hint="let mpi4py leave it to the other",
        fix="export MPI4PY_RC_INITIALIZE=0",
    ),
    Cause(
        id="M17",
        pattern=r"(?:orte|prte|pmix)_(?:ess_)?init failed[^\n]{0,200}(?:\n[^\n]{0,200}){0,3}?No permission",
        detail="a child process of a rank initialised MPI anew",
        hint="import mpi4py.MPI in the rank alone, not in what DataLoader workers import",
    ),
    Cause(
        id="M13",
        pattern=r"at least one MPI process is unreachable|unable to reach each other for\s+MPI|pml-add-procs",
        detail="two ranks have no transport in common: a setting excludes the one that they need",
        hint="take settings of btl and pml out, or allow for shared memory and TCP",
        fix="export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader,tcp",
    ),
    Cause(
        id="M12",
        pattern=r"btl_tcp_endpoint[^\n]{0,300}(?:connect\(\) to \S{1,100} failed|No route to host)|failed to TCP connect to a peer"
        r"|unexpected process identifier|TCP connection [^\n]{0,60}peer [^\n]{0,200}No route to host",
        detail="ranks try to reach each other by an interface that leads nowhere, as docker0 and virbr0 do",
        hint="name the interface by which the nodes reach each other",
        fix=_INTERFACE,
    ),
    Cause(
        id="M14",
        pattern=r"PMIX ERROR[^\n]{0,300}gds_ds12",
        detail="a known fault of old PMIx",
        hint="bring Open MPI up to date, or take the other store",
        fix="export PMIX_MCA_gds=hash",
    ),
    Cause(
        id="M11",
        pattern=r"Read -1, expected \d+, errno = 1\b",
        detail="the container does not let ranks copy memory between each other",
        hint="do without, or give the container CAP_SYS_PTRACE",
        fix="export OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_smsc=^cma",
    ),
    Cause(
        id="M16",
        pattern=r"fork\(\)\W{1,3}system call|calling the fork\(\)",
        detail="a rank forked after MPI had been initialised",
        hint="harmless where the child only runs Python; else start DataLoader workers by spawn or forkserver",
        fix="export OMPI_MCA_mpi_warn_on_fork=0",
        kind="remark",
    ),
    # --- ucc
    Cause(
        id="U1",
        pattern=r"no CL components were found in the ucc modules dir",
        detail="libucc finds none of its own modules",
        hint="install its development package as well, which holds the links by which it looks for them",
        fix="apt-get install libucc-dev",
    ),
    Cause(
        id="U2",
        pattern=r"unsupported reduction type \((?P<name>\w+)\)",
        detail="ucc does not reduce {name} on a CPU",
        hint="reduce in float32 or bfloat16",
    ),
    Cause(
        id="U3",
        pattern=r"timeout [\d.]+ sec\. has expired on (?P<what>\w+)",
        detail="{what} did not end in time: another rank did not enter it",
        hint="look for the rank that is a step behind or took another branch",
        fix="rankdeck stacks -",
        waits=True,
    ),
    Cause(
        id="U5",
        pattern=r"network device '(?P<name>[^'\n]{1,100})' is not available, please use one or more of: (?P<devices>[^\n]{1,300})",
        detail="this node has no network device {name}; it has {devices}",
        hint="take UCX_NET_DEVICES out, or name one of these",
    ),
    Cause(
        id="U4",
        pattern=r"UCX\s+ERROR\s+no active messages transport to",
        detail="ucx has no transport to another rank: UCX_TLS leaves none over",
        hint="take UCX_TLS out, or allow for shared memory and TCP",
        fix='env.UCX_TLS = "self,sm,tcp"',
    ),
    Cause(
        id="U6",
        pattern=r"process_vm_readv\([^\n]{0,300}returned -1: (?:Bad address|Operation not permitted)",
        detail="the container does not let ranks copy memory between each other",
        hint="do without, or give the container CAP_SYS_PTRACE",
        fix='env.UCX_TLS = "^cma"',
    ),
    Cause(
        id="U9",
        pattern=r"nothing has come from \[[\d, ]{1,2000}\] though UCC says that it has",
        detail="ucx did not get through to another rank",
        hint="let ucx say by which address it tried; UCX_NET_DEVICES names the interface that leads to the other nodes",
        fix='backend.env.UCX_LOG_LEVEL = "error"',
    ),
    Cause(
        id="U8",
        pattern=r"\bucc_\w{1,60} failed",
        detail="ucc failed",
        hint="read what ucc and ucx wrote before that",
        fix='env.UCC_LOG_LEVEL = "info"',
        general="U",
    ),
    Cause(
        id="U7",
        pattern=r"version .(?P<version>(?:GLIBC|GLIBCXX|CXXABI)_[\w.]{1,20}).{1,3}not found(?: \(required by (?P<library>[^)\n]{1,300})\))?",
        detail="a library was built for a newer system than runs here: it wants {version}",
        hint="take the library of this distribution",
    ),
)
