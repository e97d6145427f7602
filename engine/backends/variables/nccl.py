"""NCCL (its source and its user guide at 2.30), and what torch's process group around it reads (torch 2.13)."""

from __future__ import annotations

from engine.backends.variables.base import SWITCH, TORCH_SWITCH, WHOLE, Family, Gone, Takes, Variable, one_of

_NCCL = frozenset({"nccl"})
_TIMEOUT = "set backend.timeout = 600 (seconds)"
_FAMILIES = Takes(words="AF_INET or AF_INET6", pattern="AF_INET6?")
_LEVEL = Takes(
    words="LOC, NVL, PIX, PXB, PHB, SYS or a number", pattern=r"LOC|NVL|C2C|PIX|PXB|P2C|PXN|PHB|SYS|NODE|\d+"
)


def _switch(name: str, default: str, does: str, *, was_short: bool = False, sets: str = "") -> Variable:
    """A switch of torch's group. `was_short`: its name had no `TORCH_` once."""
    aliases = (f"NCCL_{name}",) if was_short else ()
    return Variable(f"TORCH_NCCL_{name}", default, does, takes=TORCH_SWITCH, aliases=aliases, sets=sets)


TORCH_NCCL = Family(
    title="torch's nccl process group",
    reader="torch's nccl group",
    prefixes=("TORCH_NCCL_",),
    backends=_NCCL,
    variables=(
        Variable(
            "TORCH_NCCL_ASYNC_ERROR_HANDLING",
            "3",
            "What ends a rank whose collective failed or timed out: 0 nothing, 1 aborts NCCL and ends it, 2 aborts NCCL, 3 ends it",
            takes=one_of("0", "1", "2", "3"),
            aliases=("NCCL_ASYNC_ERROR_HANDLING",),
            sets="1",
        ),
        _switch(
            "BLOCKING_WAIT",
            "0",
            "Waiting for a collective blocks until the GPU has finished, and raises an error after the timeout",
            was_short=True,
        ),
        _switch("ENABLE_MONITORING", "1", "A thread ends the rank when the watchdog is stuck"),
        Variable(
            "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",
            "480 (600 before torch 2.8)",
            "Seconds without progress of the watchdog until a rank is ended",
            when="loading or compiling holds the GIL for minutes",
            takes=WHOLE,
        ),
        _switch(
            "DUMP_ON_TIMEOUT", "1 (0 to torch 2.5)", "Writes the flight recorder's files after a timeout", sets="1"
        ),
        Variable(
            "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
            "none",
            "A pipe: writing to it makes the rank write the flight recorder's files immediately",
        ),
        Variable(
            "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC",
            "15000",
            "Milliseconds that a rank waits after a timeout for the flight recorder's files",
            takes=WHOLE,
        ),
        Variable(
            "TORCH_NCCL_COORD_CHECK_MILSEC",
            "1000",
            "Milliseconds between two checks whether another rank timed out",
            takes=WHOLE,
        ),
        _switch("DESYNC_DEBUG", "0", "Reports after a timeout which ranks are behind", was_short=True),
        _switch("ENABLE_TIMING", "0", "Measures every collective", was_short=True),
        _switch("NAN_CHECK", "0", "Ends the rank when it sends NaN"),
        _switch("EXTRA_DUMP_ON_EXEC", "0", "Writes the flight recorder's files after an exception as well"),
        _switch("PROPAGATE_ERROR", "0", "Reports an error to the other ranks through the store"),
        _switch("RETHROW_CUDA_ERRORS", "1", "A CUDA error in the watchdog ends the rank"),
        _switch("HIGH_PRIORITY", "0", "Communication runs on streams of high priority"),
        _switch("CUDA_EVENT_CACHE", "1", "Reuses CUDA events"),
        _switch("AVOID_RECORD_STREAMS", "depends on the version", "Keeps tensors alive by references"),
        _switch("BCAST_UNIQUEID", "1", "Rank 0 sends the id of a group to all"),
        Variable("TORCH_NCCL_RANKS_PER_ROOT", "128", "Ranks for each root while thousands connect", takes=WHOLE),
        _switch("USE_COMM_NONBLOCKING", "0", "NCCL's calls return immediately"),
        Variable(
            "TORCH_NCCL_NONBLOCKING_TIMEOUT",
            "1800",
            "Seconds that a call of NCCL may take if calls return immediately",
            takes=WHOLE,
        ),
        _switch("USE_TENSOR_REGISTER_ALLOCATOR_HOOK", "0", "Registers all memory of torch with NCCL", was_short=True),
        _switch("LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN", "1", "Logs C++ stacks when a rank is ended"),
    ),
    gone=(
        Gone("TORCH_NCCL_TIMEOUT", "torch has no such variable", _TIMEOUT),
        Gone("TORCH_NCCL_TIMEOUT_SEC", "torch has no such variable", _TIMEOUT),
        Gone("TORCH_NCCL_ABORT_IN_DESTROY_PG", "torch has removed it", "leave it out"),
    ),
    others="TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING",
)

NCCL = Family(
    title="NCCL",
    reader="NCCL",
    prefixes=("NCCL_",),
    backends=_NCCL,
    variables=(
        Variable(
            "NCCL_DEBUG",
            "none",
            "How much NCCL logs",
            when="ranks do not find each other, or are slow: INFO",
            takes=one_of("VERSION", "WARN", "INFO", "ABORT", "TRACE", "NONE"),
        ),
        Variable(
            "NCCL_DEBUG_SUBSYS",
            "INIT,BOOTSTRAP,ENV",
            "Which parts of NCCL log: INIT, NET, COLL, GRAPH, TUNING and more, or ALL; ^NET: all but this one",
        ),
        Variable(
            "NCCL_DEBUG_FILE", "standard output", "File that NCCL writes to; %h and %p stand for host and process"
        ),
        Variable("NCCL_DEBUG_TIMESTAMP_LEVELS", "WARN", "Which lines begin with the time", since="2.26"),
        Variable("NCCL_DEBUG_TIMESTAMP_FORMAT", "[%F %T]", "How NCCL writes the time", since="2.26"),
        Variable(
            "NCCL_SOCKET_IFNAME",
            "all but lo and docker*",
            "Network interfaces for connections between ranks, by prefixes of names; =eth0: exactly this one; ^docker: all others",
            when="a node has networks that do not reach the other nodes",
            sets="lo on one node; on several, the interface that leads to the first",
        ),
        Variable("NCCL_SOCKET_FAMILY", "both", "AF_INET or AF_INET6: only IPv4 or only IPv6", takes=_FAMILIES),
        Variable("NCCL_COMM_ID", "none", "Host and port of the first rank, for programs without a launcher"),
        Variable("NCCL_HOSTID", "the host's name", "Which ranks count as being on one machine"),
        Variable(
            "NCCL_SOCKET_RETRY_CNT", "34", "How often a refused connection is tried again", takes=WHOLE, since="2.24"
        ),
        Variable(
            "NCCL_SOCKET_RETRY_SLEEP_MSEC",
            "100",
            "Milliseconds before a refused connection is tried again; longer each time",
            takes=WHOLE,
            since="2.24",
        ),
        Variable("NCCL_SOCKET_NTHREADS", "auto", "Threads of each connection over TCP", takes=WHOLE),
        Variable(
            "NCCL_NSOCKS_PERTHREAD",
            "auto",
            "Sockets of each thread of a connection over TCP; 64 for a connection at most",
            takes=WHOLE,
        ),
        Variable(
            "NCCL_NET",
            "auto",
            "Which network is used: IB, Socket, or a plugin's name",
            when="InfiniBand may be at fault: Socket shows whether it is",
        ),
        Variable("NCCL_NET_PLUGIN", "found", "Which network plugin is loaded; none: no plugin"),
        Variable(
            "NCCL_NET_GDR_LEVEL", "auto", "How far GPU and network card may be apart for direct transfers", takes=_LEVEL
        ),
        Variable("NCCL_NET_GDR_READ", "auto", "The network card also reads GPU memory directly", takes=SWITCH),
        Variable("NCCL_DMABUF_ENABLE", "1", "Direct transfers need no nvidia-peermem", takes=SWITCH),
        Variable("NCCL_IB_DISABLE", "0", "InfiniBand and RoCE are not used", takes=SWITCH),
        Variable(
            "NCCL_IB_HCA",
            "all",
            "Which InfiniBand cards: mlx5 (prefix), =mlx5_0:1 (exactly this one), ^mlx5_3 (all others)",
        ),
        Variable(
            "NCCL_IB_GID_INDEX", "-1", "Which address of a RoCE port is used; -1: chosen automatically", takes=WHOLE
        ),
        Variable(
            "NCCL_IB_TIMEOUT",
            "20",
            "How long an InfiniBand packet may be unanswered: 4 µs, doubled this many times",
            when="transfers end with IBV_WC_RETRY_EXC_ERR on large networks: 22",
            takes=WHOLE,
        ),
        Variable("NCCL_IB_RETRY_CNT", "7", "How often an InfiniBand packet is sent again", takes=WHOLE),
        Variable("NCCL_IB_TC", "-1", "Traffic class of InfiniBand packets", takes=WHOLE),
        Variable("NCCL_IB_SL", "-1", "Service level of InfiniBand packets", takes=WHOLE),
        Variable("NCCL_IB_QPS_PER_CONNECTION", "1", "Queue pairs of each connection", takes=WHOLE),
        Variable(
            "NCCL_IB_PCI_RELAXED_ORDERING", "2", "PCI may reorder writes; 2: if the card supports it", takes=WHOLE
        ),
        Variable("NCCL_CROSS_NIC", "2", "Whether a ring may change the network card between nodes", takes=WHOLE),
        Variable(
            "NCCL_P2P_DISABLE",
            "0",
            "GPUs of a node do not read each other's memory",
            when="they hang at the start: 1 shows whether PCI is at fault",
            takes=SWITCH,
        ),
        Variable("NCCL_P2P_LEVEL", "auto", "How far apart two GPUs may be that read each other's memory", takes=_LEVEL),
        Variable("NCCL_SHM_DISABLE", "0", "Ranks of a node do not use shared memory", takes=SWITCH),
        Variable("NCCL_CUMEM_ENABLE", "auto", "Allocates memory with the cuMem functions", takes=WHOLE, since="2.18"),
        Variable(
            "NCCL_CUMEM_HOST_ENABLE",
            "auto",
            "Allocates host memory with the cuMem functions",
            when="a container has no NUMA: 0",
            takes=WHOLE,
            since="2.23",
        ),
        Variable(
            "NCCL_NVLS_ENABLE",
            "2",
            "Reductions in the NVLink switch; 2: if it supports them",
            when="it takes too much GPU memory: 0",
            takes=WHOLE,
            since="2.17",
        ),
        Variable("NCCL_MNNVL_ENABLE", "2", "NVLink between nodes; 2: if there is one", takes=WHOLE, since="2.21"),
        Variable(
            "NCCL_ALGO",
            "auto",
            "Which algorithms: Ring, Tree, CollnetChain, NVLS, …; ^Tree: all others",
            when="you compare algorithms, and only while you do",
        ),
        Variable(
            "NCCL_PROTO",
            "auto",
            "Which protocols: LL, LL128, Simple",
            when="you compare algorithms, and only while you do",
        ),
        Variable(
            "NCCL_MIN_NCHANNELS", "auto", "Minimum of channels, each of which uses a block of the GPU", takes=WHOLE
        ),
        Variable(
            "NCCL_MAX_NCHANNELS", "auto", "Maximum of channels, each of which uses a block of the GPU", takes=WHOLE
        ),
        Variable("NCCL_MIN_CTAS", "auto", "Minimum of GPU blocks", takes=WHOLE, since="2.17"),
        Variable("NCCL_MAX_CTAS", "auto", "Maximum of GPU blocks", takes=WHOLE, since="2.17"),
        Variable("NCCL_BUFFSIZE", "4 MiB", "Bytes of the buffer between two ranks"),
        Variable("NCCL_NTHREADS", "auto", "GPU threads of each block: 64, 128, 256 or 512", takes=WHOLE),
        Variable(
            "NCCL_IGNORE_CPU_AFFINITY",
            "0",
            "NCCL's threads run near the GPU, whatever cores the rank is bound to",
            takes=SWITCH,
        ),
        Variable("NCCL_TOPO_FILE", "found", "File with a description of the node, used instead of the real one"),
        Variable("NCCL_TOPO_DUMP_FILE", "none", "File for the description of the node that was found"),
        Variable("NCCL_GRAPH_DUMP_FILE", "none", "File for the rings and trees that were found"),
        Variable("NCCL_COMM_BLOCKING", "as asked", "Whether NCCL's calls wait", takes=SWITCH, since="2.14"),
        Variable("NCCL_RUNTIME_CONNECT", "1", "Ranks connect at their first message", takes=SWITCH, since="2.22"),
        Variable(
            "NCCL_LAUNCH_ORDER_IMPLICIT",
            "0",
            "Keeps the order of kernels of several groups",
            takes=SWITCH,
            since="2.26",
        ),
        Variable(
            "NCCL_LAUNCH_MODE",
            "PARALLEL",
            "How a process with several GPUs launches: PARALLEL or GROUP",
            takes=one_of("PARALLEL", "GROUP"),
        ),
        Variable("NCCL_RAS_ENABLE", "1", "Each rank answers the ncclras command", since="2.24", takes=SWITCH),
        Variable("NCCL_RAS_ADDR", "localhost:28028", "Where a rank answers the ncclras command", since="2.24"),
        Variable("NCCL_RAS_TIMEOUT_FACTOR", "1", "Multiplies all timeouts of the ncclras service", since="2.24"),
        Variable("NCCL_MULTI_RANK_GPU_ENABLE", "0", "Two ranks may share a GPU", since="2.30", takes=SWITCH),
        Variable("NCCL_CONF_FILE", "/etc/nccl.conf", "File with settings of NCCL", since="2.23"),
        Variable("NCCL_TUNER_PLUGIN", "found", "A plugin that chooses algorithms"),
        Variable("NCCL_PXN_DISABLE", "0", "GPUs do not send through another GPU's network card", takes=SWITCH),
    ),
    gone=(
        Gone("NCCL_TIMEOUT", "NCCL has no such variable", _TIMEOUT),
        Gone("NCCL_TIMEOUT_MS", "NCCL has no such variable", _TIMEOUT),
        Gone("NCCL_TIMEOUT_SEC", "NCCL has no such variable", _TIMEOUT),
        Gone("NCCL_BACKEND", "NCCL has no such variable", 'set backend.name = "nccl"'),
        Gone("NCCL_IFNAME", "NCCL has no such variable", "set NCCL_SOCKET_IFNAME"),
        Gone("NCCL_DEBUG_LEVEL", "NCCL has no such variable", "set NCCL_DEBUG"),
        Gone("NCCL_LOG_LEVEL", "NCCL has no such variable", "set NCCL_DEBUG"),
        Gone("NCCL_LL_THRESHOLD", "NCCL has removed it", "set NCCL_PROTO"),
        Gone("NCCL_TREE_THRESHOLD", "NCCL has removed it", "set NCCL_ALGO"),
        Gone("NCCL_SINGLE_RING_THRESHOLD", "NCCL has removed it", "set NCCL_MIN_NCHANNELS or NCCL_MAX_NCHANNELS"),
        Gone("NCCL_RINGS", "NCCL has removed it", "set NCCL_GRAPH_FILE"),
        Gone("NCCL_CHECKS_DISABLE", "NCCL has removed it", "set NCCL_CHECK_POINTERS = 0, which is the default"),
        Gone("NCCL_IB_GDR_LEVEL", "NCCL has renamed it", "set NCCL_NET_GDR_LEVEL"),
        Gone("NCCL_IB_GDR_READ", "NCCL has renamed it", "set NCCL_NET_GDR_READ"),
        Gone("NCCL_IB_CUDA_SUPPORT", "NCCL has removed it", "set NCCL_NET_GDR_LEVEL"),
    ),
    others="""
        NCCL_ALLGATHERV_ENABLE NCCL_ALLOC_P2P_NET_LL_BUFFERS NCCL_CGA_CLUSTER_SIZE NCCL_CHECK_MODE
        NCCL_CHECK_POINTERS NCCL_CHUNK_SIZE NCCL_COLLNET_ENABLE NCCL_COLLNET_NODE_THRESHOLD
        NCCL_COMM_SHRINK_SHARE_RESOURCES NCCL_COMM_SPLIT_SHARE_RESOURCES NCCL_CONNECT_ROUND_MAX_PEERS
        NCCL_CTA_POLICY NCCL_DEV_API_JIT NCCL_DISABLE_MEM_MANAGER NCCL_ELASTIC_BUFFER_REGISTER
        NCCL_ENABLE_VERSION_CHECK NCCL_ENV_PLUGIN NCCL_GDAKI_USE_RELIABLE_DB NCCL_GDRCOPY_ENABLE
        NCCL_GDRCOPY_FIFO_ENABLE NCCL_GDRCOPY_FLUSH_ENABLE NCCL_GDRCOPY_SYNC_ENABLE NCCL_GDR_FLUSH_DISABLE
        NCCL_GIN_ENABLE NCCL_GIN_ERROR_QUERY_SEC NCCL_GIN_GDAKI_MAX_DEST_RD_ATOMIC
        NCCL_GIN_GDAKI_MAX_QP_RD_ATOMIC NCCL_GIN_GDAKI_NIC_HANDLER NCCL_GIN_GDAKI_QP_DEPTH NCCL_GIN_IB_TC
        NCCL_GIN_NCONNECTIONS NCCL_GIN_PLUGIN NCCL_GIN_PLUGIN_REF_COUNT NCCL_GIN_PROXY_QUEUE_SIZE NCCL_GIN_TYPE
        NCCL_GRAPH_DUMP_FILE_RANK NCCL_GRAPH_FILE NCCL_GRAPH_HELPER_DISABLE NCCL_GRAPH_MIXING_SUPPORT
        NCCL_GRAPH_REGISTER NCCL_GRAPH_STREAM_ORDERING NCCL_GROUP_CUDA_STREAM NCCL_IBVERBS_LIB
        NCCL_IBEXT_DISABLE NCCL_IB_ADAPTIVE_ROUTING NCCL_IB_ADDR_FAMILY NCCL_IB_ADDR_RANGE NCCL_IB_AR_THRESHOLD NCCL_IB_DATA_DIRECT
        NCCL_IB_DEVICE_PCI_ORDER NCCL_IB_ECE_ENABLE NCCL_IB_FIFO_TC NCCL_IB_MERGE_NICS NCCL_IB_MERGE_VFS
        NCCL_IB_MQP_RETRY_ALL NCCL_IB_MQP_RETRY_CNT NCCL_IB_MQP_RETRY_SLEEP_MSEC NCCL_IB_OOO_RQ NCCL_IB_PKEY
        NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS NCCL_IB_QUERY_PORT_SPEED NCCL_IB_RECEIVER_SIDE_MATCHING_SCHEME
        NCCL_IB_RESILIENCY_PORT_FAILOVER NCCL_IB_RESILIENCY_PORT_FAILOVER_MAX_ATTEMPTS
        NCCL_IB_RESILIENCY_PORT_FAILOVER_PROBE_DELAY NCCL_IB_RESILIENCY_PORT_RECOVERY
        NCCL_IB_RESILIENCY_PORT_RECOVERY_ACK_TIMEOUT NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_INTERVAL
        NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_SIZE
        NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_SEQUENCE_SIZE
        NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_TIMEOUT NCCL_IB_RESILIENCY_PORT_RECOVERY_ATTEMPTS_MAX
        NCCL_IB_RESILIENCY_PORT_RECOVERY_START_DELAY NCCL_IB_RETURN_ASYNC_EVENTS NCCL_IB_ROCE_VERSION_NUM
        NCCL_IB_ROUTABLE_FLID_GID_INDEX NCCL_IB_SPLIT_DATA_ON_QPS NCCL_IB_SUBNET_AWARE_ROUTING
        NCCL_IB_SUBNET_PREFIX_LEN NCCL_IB_USE_INLINE NCCL_IB_WARN_RAIL_LOCAL NCCL_IGNORE_COLLNET_MISMATCH
        NCCL_IGNORE_DISABLED_P2P NCCL_IGNORE_NET_MISMATCH NCCL_IPC_USE_ABSTRACT_SOCKET
        NCCL_L1_SHARED_MEMORY_CARVEOUT NCCL_LAUNCH_RACE_FATAL NCCL_LEGACY_CUDA_REGISTER NCCL_LL128_BUFFSIZE
        NCCL_LL128_C2C NCCL_LL128_NTHREADS NCCL_LL_BUFFSIZE NCCL_LOCAL_REGISTER NCCL_LSA_TEAM_SIZE
        NCCL_MAX_NRINGS NCCL_MAX_P2P_NCHANNELS NCCL_MEM_SYNC_DOMAIN NCCL_MIN_NRINGS NCCL_MIN_P2P_NCHANNELS
        NCCL_MLOPART_RDMA_ENABLE NCCL_MNNVL_CLIQUE_ID NCCL_MNNVL_CROSS_CLIQUE NCCL_MNNVL_RAIL_PER_HOST
        NCCL_MNNVL_SCATTER_NETS_ENABLE NCCL_MNNVL_UUID NCCL_MULTI_SEGMENT_REGISTER NCCL_NCHANNELS_PER_NET_PEER
        NCCL_NETDEVS_POLICY NCCL_NET_DISABLE_INTRA NCCL_NET_FORCE_FLUSH NCCL_NET_FORCE_MERGE NCCL_NET_GDR_C2C
        NCCL_NET_GDR_MLOPART NCCL_NET_MERGE_LEVEL NCCL_NET_MERGE_POLICY NCCL_NET_OPTIONAL_RECV_COMPLETION
        NCCL_NET_OVERHEAD NCCL_NET_PLUGIN_REF_COUNT NCCL_NET_SHARED_BUFFERS NCCL_NET_SHARED_COMMS NCCL_NO_CACHE
        NCCL_NUM_RMA_CTX NCCL_NVB_DISABLE NCCL_NVB_PRECONNECT NCCL_NVLINK_UTIL_CENTRIC_SCHED_ENABLE
        NCCL_NVLSTREE_MAX_CHUNKSIZE NCCL_NVLS_CHUNKSIZE NCCL_NVLS_NCHANNELS NCCL_NVTX_DISABLE
        NCCL_OOB_NET_ENABLE NCCL_OOB_NET_IFNAME NCCL_P2P_DIRECT_DISABLE NCCL_P2P_EPOCH_ENABLE
        NCCL_P2P_LL_THRESHOLD NCCL_P2P_MAX_PEERS NCCL_P2P_NET_CHUNKSIZE NCCL_P2P_NVL_CHUNKSIZE
        NCCL_P2P_PCI_CHUNKSIZE NCCL_P2P_PER_CHANNEL_NET_BW NCCL_P2P_PXN_LEVEL NCCL_P2P_READ_ENABLE
        NCCL_P2P_SCHEDULE_GROUP_SIZE NCCL_P2P_USE_CUDA_MEMCPY NCCL_PARAM_DUMP_ALL NCCL_PAT_ENABLE
        NCCL_PROFILER_PLUGIN NCCL_PROGRESS_APPENDOP_FREQ NCCL_PROXY_APPEND_BATCH_SIZE NCCL_PROXY_CPUSET
        NCCL_PROXY_DUMP_SIGNAL NCCL_PXN_C2C NCCL_REPORT_CONNECT_PROGRESS NCCL_RMA_DISABLE NCCL_RMA_PLUGIN
        NCCL_RMA_PLUGIN_REF_COUNT NCCL_RMA_PROXY_DUMP_SIGNAL NCCL_RMA_PROXY_QUEUE_SIZE NCCL_SET_CPU_STACK_SIZE
        NCCL_SET_STACK_SIZE NCCL_SET_THREAD_NAME NCCL_SHADOW_MEMPOOL_MAX_SIZE NCCL_SHM_LOCALITY
        NCCL_SINGLE_PROC_MEM_REG_ENABLE NCCL_SOCKET_INLINE NCCL_SOCKET_MAGIC NCCL_SOCKET_MIN_TASKSIZE
        NCCL_SOCKET_POLL_TIMEOUT_MSEC NCCL_SOCKET_RCVBUF NCCL_SOCKET_SNDBUF NCCL_SYM_CE_THRESHOLD NCCL_SYM_CTAS
        NCCL_SYM_GIN_KERNELS_ENABLE NCCL_SYM_KERNEL NCCL_SYM_NOWIN_ENABLE NCCL_SYM_REUSE_SYSMEM_HANDLES
        NCCL_SYM_RS_GIN_CHUNK_SIZE NCCL_SYM_TMA_ENABLE NCCL_THREAD_THRESHOLDS NCCL_TOPO_DUMP_FILE_RANK
        NCCL_TOPO_SPLIT_MLOPART NCCL_UID_STAGGER_RATE NCCL_UID_STAGGER_THRESHOLD NCCL_UNPACK_DOUBLE_NCHANNELS
        NCCL_WARN_ENABLE_DEBUG_INFO NCCL_WIN_ENABLE NCCL_WIN_STRIDE NCCL_WORK_ARGS_BYTES NCCL_WORK_FIFO_BYTES
    """,
)
