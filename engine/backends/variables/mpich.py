"""MPICH and its mpirun, Hydra (4.0 to 5.0); and mpi4py, whichever MPI is below it (4.1)."""

from __future__ import annotations

from engine.backends.variables.base import WHOLE, Family, Gone, Takes, Variable, one_of

_MPI = frozenset({"mpi"})
_SWITCH = Takes(words="0 or 1", pattern="0|1|y|n|yes|no|t|f|true|false|on|off")

MPICH = Family(
    title="MPICH",
    reader="MPICH",
    prefixes=("HYDRA_", "MPIR_CVAR_", "MPIEXEC_"),
    backends=_MPI,
    variables=(
        Variable(
            "FI_TCP_IFACE",
            "found",
            "The network interface of MPICH over libfabric's TCP",
            sets="on several nodes, the interface that leads to the first",
        ),
        Variable(
            "HYDRA_LAUNCHER_EXTRA_ARGS",
            "none",
            "Arguments of the command that starts daemons on other nodes",
            sets="on several nodes, the agents start the daemons",
        ),
        Variable("HYDRA_LAUNCHER", "ssh", "How daemons are started on other nodes; rankdeck's agents start them"),
        Variable(
            "HYDRA_LAUNCHER_EXEC",
            "found",
            "The command that starts daemons on other nodes; rankdeck's agents start them",
        ),
        Variable("HYDRA_HOST_FILE", "none", "File of the nodes; rankdeck names them itself"),
        Variable("HYDRA_IFACE", "found", "The network interface of the daemons"),
        Variable("HYDRA_ENV", "all", "Whether ranks get the environment of mpirun", takes=one_of("all", "none")),
        Variable("HYDRA_RMK", "found", "Which batch system's list of nodes is read"),
        Variable("HYDRA_BINDING", "none", "Which cores each rank is bound to"),
        Variable("HYDRA_MAPPING", "none", "In which order cores are assigned"),
        Variable("HYDRA_TOPO_DEBUG", "0", "Prints how ranks are bound", takes=_SWITCH),
        Variable("HYDRA_DEBUG", "0", "Prints what mpirun does", when="ranks do not start", takes=_SWITCH),
        Variable("HYDRA_PROXY_RETRY_COUNT", "5", "How often a daemon tries to call back", takes=WHOLE),
        Variable("MPIEXEC_TIMEOUT", "none", "Seconds after which mpirun ends the job", takes=WHOLE),
        Variable("MPIEXEC_PORT_RANGE", "any", "Ports that may be used: 10000:10100", aliases=("MPIEXEC_PORTRANGE",)),
        Variable("MPIR_CVAR_CH4_NETMOD", "found", "Which network library: ofi or ucx, if MPICH was built with both"),
        Variable("MPIR_CVAR_OFI_USE_PROVIDER", "found", "Which provider of libfabric: tcp, verbs, cxi"),
        Variable("MPIR_CVAR_CH4_NUM_VCIS", "1", "Network connections that threads share", takes=WHOLE),
        Variable("MPIR_CVAR_ASYNC_PROGRESS", "0", "A thread moves messages while ranks compute", takes=_SWITCH),
        Variable("MPIR_CVAR_DEFAULT_THREAD_LEVEL", "MPI_THREAD_SINGLE", "Thread level if a program asks for none"),
        Variable("MPIR_CVAR_ERROR_CHECKING", "1", "Arguments are checked", takes=_SWITCH),
        Variable("MPIR_CVAR_PRINT_ERROR_STACK", "1", "Errors come with MPICH's own stack", takes=_SWITCH),
        Variable("MPIR_CVAR_COREDUMP_ON_ABORT", "0", "Leaves a core file after MPI_Abort", takes=_SWITCH),
        Variable("MPIR_CVAR_ENABLE_GPU", "1", "GPU memory can be sent", takes=_SWITCH),
        Variable(
            "MPIR_CVAR_POLLS_BEFORE_YIELD",
            "1000",
            "Checks for messages before a waiting rank yields its core",
            when="ranks share cores: 0",
            takes=WHOLE,
        ),
        Variable("MPIR_CVAR_DEBUG_SUMMARY", "0", "Prints what was chosen at the start", takes=_SWITCH),
        Variable("MPIR_CVAR_CH4_OFI_CAPABILITY_SETS_DEBUG", "0", "Prints what libfabric offers", takes=_SWITCH),
        Variable(
            "MPIR_CVAR_NOLOCAL",
            "0",
            "Ranks of one node use the network too",
            takes=_SWITCH,
            aliases=("MPIR_CVAR_NO_LOCAL",),
        ),
    ),
    gone=(
        Gone(
            "HYDRA_BOOTSTRAP",
            "it is the old name of HYDRA_LAUNCHER, which has no effect either: rankdeck's agents start the daemons",
            "leave it out",
        ),
        Gone("MPICH_INTERFACE_HOSTNAME", "MPICH reads it no more", "set MPIR_CVAR_INTERFACE_HOSTNAME"),
        Gone("MPICH_TIMEOUT", "MPICH has no such variable", "set backend.timeout = 600 (seconds)"),
    ),
    others="""
        HYDRA_BOOTSTRAP_EXEC HYDRA_CONFIG_FILE HYDRA_HOSTNAME_PROPAGATION HYDRA_LAUNCHER_AUTOFORK
        HYDRA_LAUNCHER_SSH_ENABLE_WARNINGS HYDRA_LAUNCHER_SSH_LIMIT HYDRA_LAUNCHER_SSH_LIMIT_TIME HYDRA_MEMBIND
        HYDRA_TOPOLIB HYDRA_USE_LOCALHOST HYDRA_USER_PROVIDED_BINDING MPIR_CVAR_INTERFACE_HOSTNAME
        MPIR_CVAR_CH4_SHM HYDRA_LAUNCH MPIR_CVAR_CH3_ENABLE_HCOLL MPIR_CVAR_CH3_INTERFACE_HOSTNAME
        MPIR_CVAR_CH4_NUM_VNIS MPIR_CVAR_ENABLE_FT MPIR_CVAR_ENABLE_HCOLL
    """,
)

MPI4PY = Family(
    title="mpi4py",
    reader="mpi4py",
    prefixes=("MPI4PY_",),
    backends=_MPI,
    variables=(
        Variable(
            "MPI4PY_MPIABI",
            "found",
            "Which MPI mpi4py is to use",
            takes=one_of("openmpi", "mpich", "mpiabi", "impi", "msmpi"),
            sets="that of mpirun",
        ),
        Variable("MPI4PY_LIBMPI", "found", "File of the MPI library that is loaded"),
        Variable(
            "MPI4PY_RC_INITIALIZE",
            "1",
            "Whether the import of mpi4py initialises MPI; rankdeck's group does that itself",
        ),
        Variable("MPI4PY_RC_FINALIZE", "1", "Whether mpi4py finalises MPI when Python ends"),
        Variable("MPI4PY_RC_THREADS", "1", "Whether mpi4py asks for threads"),
        Variable(
            "MPI4PY_RC_THREAD_LEVEL",
            "multiple",
            "Which level of threads mpi4py asks for",
            takes=one_of("single", "funneled", "serialized", "multiple"),
        ),
        Variable(
            "MPI4PY_RC_ERRORS",
            "exception",
            "What an error of MPI becomes",
            takes=one_of("exception", "abort", "fatal", "default"),
        ),
    ),
    others="""
        MPI4PY_RC_RECV_MPROBE MPI4PY_RC_FAST_REDUCE MPI4PY_RC_IREALTIME MPI4PY_FUTURES_MAX_WORKERS
        MPI4PY_FUTURES_USE_PKL5 MPI4PY_FUTURES_BACKOFF MPI4PY_PICKLE_PROTOCOL MPI4PY_PICKLE_THRESHOLD
    """,
)
