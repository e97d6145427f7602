"""UCC, and UCX, which it and MPI send through (UCC 1.9, UCX 1.13 to 1.18)."""

from __future__ import annotations

from engine.backends.variables.base import Family, Gone, Takes, Variable

_LEVELS = Takes(
    words="fatal, error, warn, info, debug or trace",
    pattern="fatal|error|warn|diag|info|debug|trace|trace_?req|trace_?data|trace_?async|trace_?func|trace_?poll|req|data|async|func|poll",
)
_YES_NO = Takes(words="y or n", pattern="y|n|yes|no|1|0|on|off|try")

UCX = Family(
    title="UCX",
    reader="UCX",
    prefixes=("UCX_",),
    backends=frozenset({"mpi", "ucc"}),
    variables=(
        Variable(
            "UCX_TLS",
            "all",
            "Which transports may be used, such as self,sm,tcp; ^cma: all others",
            when="one of them fails, or to find the one that does",
        ),
        Variable(
            "UCX_NET_DEVICES",
            "all",
            "Which network devices may be used: eth0, mlx5_0:1",
            when="a node has several networks, and some do not reach the other nodes",
        ),
        Variable("UCX_LOG_LEVEL", "warn", "How much UCX logs", takes=_LEVELS),
        Variable("UCX_LOG_FILE", "standard output", "File that UCX writes to; %h and %p stand for host and process"),
        Variable(
            "UCX_PROTO_INFO",
            "n",
            "Prints which protocol and device are chosen for each size",
            when="it is slower than expected",
        ),
        Variable("UCX_PROTO_ENABLE", "depends on the version", "The newer choice of protocols", takes=_YES_NO),
        Variable("UCX_RNDV_THRESH", "auto", "Smallest message that waits for its receiver, in bytes"),
        Variable("UCX_RNDV_SCHEME", "auto", "How large messages are fetched: get_zcopy, put_zcopy and others"),
        Variable("UCX_ZCOPY_THRESH", "auto", "Smallest message that is sent without a copy, in bytes"),
        Variable("UCX_MAX_RNDV_RAILS", "2", "Network devices that share a large message"),
        Variable("UCX_MAX_EAGER_RAILS", "1", "Network devices that share a small message"),
        Variable(
            "UCX_MEMTYPE_CACHE",
            "try",
            "Caches which memory belongs to a GPU",
            when="GPU memory is mistaken for host memory: n",
            takes=_YES_NO,
        ),
        Variable("UCX_IB_GID_INDEX", "auto", "Which address of a RoCE port is used"),
        Variable("UCX_IB_TRAFFIC_CLASS", "auto", "Traffic class of InfiniBand packets"),
        Variable("UCX_IB_SL", "auto", "Service level of InfiniBand packets"),
        Variable("UCX_RC_TIMEOUT", "1 s", "How long InfiniBand waits for an acknowledgement before it sends again"),
        Variable("UCX_RC_RETRY_COUNT", "7", "How often InfiniBand sends again before it gives up"),
        Variable("UCX_KEEPALIVE_INTERVAL", "20 s", "Time between two checks whether peers are alive"),
        Variable(
            "UCX_ERROR_SIGNALS",
            "SIGILL,SIGSEGV,SIGBUS,SIGFPE",
            "Signals on which UCX prints its own stack; Python's faulthandler does not receive them",
            when="you want the Python stack of a crash: set it empty",
        ),
        Variable(
            "UCX_HANDLE_ERRORS", "bt", "What UCX does when a rank crashes: none, bt (print a stack), freeze, debug"
        ),
        Variable("UCX_WARN_UNUSED_ENV_VARS", "y", "UCX warns about UCX_ names that it does not know", takes=_YES_NO),
        Variable("UCX_SHM_DEVICES", "all", "Which kinds of shared memory may be used"),
        Variable(
            "UCX_UNIFIED_MODE",
            "n",
            "Assumes that all nodes have the same hardware, which shortens the start",
            takes=_YES_NO,
        ),
        Variable("UCX_SOCKADDR_TLS_PRIORITY", "rdmacm,tcp", "Order of ways to connect by address"),
    ),
    gone=(
        Gone("UCX_TIMEOUT", "UCX has no such variable", "set UCX_RC_TIMEOUT for InfiniBand, or backend.timeout"),
        Gone("UCX_IFACE", "UCX has no such variable", "set UCX_NET_DEVICES"),
        Gone("UCX_DEBUG", "UCX has no such variable", "set UCX_LOG_LEVEL to debug"),
    ),
)

UCC = Family(
    title="UCC",
    reader="UCC",
    prefixes=("UCC_", "TORCH_UCC_"),
    backends=frozenset({"mpi", "ucc"}),
    variables=(
        Variable("UCC_CLS", "basic", "Collective layers: basic, or basic,hier to use the layout of nodes"),
        Variable("UCC_CL_BASIC_TLS", "all", "Transports of the basic layer: ucp, shm, self and others"),
        Variable("UCC_CL_BASIC_TUNE", "none", "Scores of the basic layer, written as in UCC_TL_UCP_TUNE"),
        Variable(
            "UCC_CL_HIER_TUNE",
            "none",
            "Scores of the layer that uses the layout of nodes, written as in UCC_TL_UCP_TUNE",
        ),
        Variable("UCC_MODULES", "all", "Which modules are loaded: ^cuda, or tl_ucp,cl_basic", since="1.9"),
        Variable(
            "UCC_TL_UCP_TUNE", "none", "Which algorithm for which sizes: allreduce:0-inf:@ring#bcast:0-4k:@knomial"
        ),
        Variable("UCC_TL_UCP_NPOLLS", "10", "How often UCX is polled in each round"),
        Variable("UCC_TL_UCP_ALLREDUCE_KN_RADIX", "auto", "Width of the tree of an all-reduce of small tensors"),
        Variable(
            "UCC_TL_SHM_TUNE", "none", "Which algorithm for which sizes in shared memory, written as in UCC_TL_UCP_TUNE"
        ),
        Variable("UCC_LOG_LEVEL", "warn", "How much UCC logs", takes=_LEVELS),
        Variable("UCC_LOG_FILE", "standard output", "File that UCC writes to; %h and %p stand for host and process"),
        Variable("UCC_COLL_TRACE", "warn", "How much UCC logs about collectives; info: a line for each", takes=_LEVELS),
        Variable("UCC_CONFIG_FILE", "~/ucc.conf", "File with settings of UCC"),
        Variable("UCC_NET_DEVICES", "all", "Which network devices may be used"),
        Variable("UCC_INTERNAL_OOB", "1", "Ranks exchange addresses through UCC's own service team"),
        Variable("UCC_TEAM_IDS_POOL_SIZE", "32", "How many process groups may exist at once, divided by 64"),
        Variable(
            "UCC_CHECK_ASYMMETRIC_DT", "n", "Compares data types of all ranks in gather and scatter", takes=_YES_NO
        ),
        Variable("UCC_PROFILE_MODE", "none", "Records times: log or accum"),
        Variable("UCC_PROFILE_FILE", "ucc_%h_%p.prof", "File for the times that UCC_PROFILE_MODE records"),
    ),
    gone=(
        Gone("UCC_TLS", "it is no setting of its own", "set UCC_CL_BASIC_TLS, or UCC_MODULES with UCC 1.9 and newer"),
        Gone("UCC_TIMEOUT", "UCC has no such variable", "set backend.timeout = 600 (seconds)"),
        Gone("UCC_DEBUG", "UCC has no such variable", "set UCC_LOG_LEVEL = debug"),
        *(
            Gone(f"TORCH_UCC_{name}", "only a torch that was built with UCC reads it, and no wheel is", "leave it out")
            for name in ("BLOCKING_WAIT", "USE_FUTURE", "SHARED_COMM", "USE_ALLGATHERV", "ENABLE_HEALTH_CHECK")
        ),
    ),
    others="""
        UCC_PROFILE_LOG_SIZE UCC_LOG_FILE_SIZE UCC_LOG_FILE_ROTATE UCC_LOG_BUFFER UCC_LOG_DATA_SIZE
        UCC_LOG_PRINT_ENABLE UCC_LOG_LEVEL_TRIGGER UCC_LOCAL_COPY_TYPE UCC_THROTTLE_PROGRESS
        UCC_ESTIMATED_NUM_EPS UCC_ESTIMATED_NUM_PPN UCC_LOCK_FREE_PROGRESS_Q UCC_NODE_LOCAL_ID
        UCC_CL_BASIC_LOG_LEVEL UCC_TL_UCP_LOG_LEVEL UCC_CL_HIER_NODE_SBGP_TLS UCC_CL_HIER_NODE_LEADERS_SBGP_TLS
        UCC_CL_HIER_NET_SBGP_TLS UCC_CL_HIER_FULL_SBGP_TLS UCC_TL_UCP_OOB_NPOLLS UCC_TL_UCP_PRECONNECT
        UCC_TL_CUDA_TUNE UCC_TL_NCCL_TUNE UCC_TL_SHARP_TUNE UCC_TL_MLX5_TUNE UCC_TL_SELF_TUNE UCC_TL_RCCL_TUNE
    """,
)
