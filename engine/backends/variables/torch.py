"""torch.distributed: what it reads whatever the backend is, and what a launcher gives to ranks (torch 2.13)."""

from __future__ import annotations

from engine.backends.variables.base import TORCH_SWITCH, WHOLE, Family, Gone, Variable, one_of

_ALL = frozenset({"gloo", "mpi", "nccl", "ucc"})


def _given(name: str, does: str, sets: str = "for each rank") -> Variable:
    """One that a launcher gives to ranks."""
    return Variable(name, "none", does, sets=sets, fixed=True)


LAUNCH = Family(
    title="what every rank is given, as by torchrun",
    reader="torch",
    prefixes=(),
    backends=_ALL,
    variables=(
        _given("RANK", "Number of the rank among all"),
        _given("LOCAL_RANK", "Number of the rank on its node"),
        _given("WORLD_SIZE", "How many ranks there are"),
        _given("LOCAL_WORLD_SIZE", "How many ranks its node has"),
        _given("GROUP_RANK", "Number of the node"),
        _given("GROUP_WORLD_SIZE", "How many nodes there are"),
        _given("ROLE_NAME", "Name that torchrun gives a group of similar ranks", sets="default"),
        _given("ROLE_RANK", "Number of the rank among all, as RANK"),
        _given("ROLE_WORLD_SIZE", "How many ranks there are, as WORLD_SIZE"),
        _given("MASTER_ADDR", "Address of the store, where ranks meet", sets="the first node"),
        _given("MASTER_PORT", "Port of the store", sets="a free one, for each attempt"),
        _given("TORCHELASTIC_RUN_ID", "Id of the run", sets="the run's id"),
        _given("TORCHELASTIC_RESTART_COUNT", "Number of the attempt, from 0", sets="the attempt"),
        _given("TORCHELASTIC_MAX_RESTARTS", "How many attempts may follow", sets="launch.max_restarts"),
        _given("TORCHELASTIC_USE_AGENT_STORE", "Whether the store runs outside the ranks", sets="True"),
        _given("TORCHELASTIC_ERROR_FILE", "File for a rank's traceback", sets="a file of the run"),
        Variable(
            "OMP_NUM_THREADS",
            "all cores",
            "Threads of each rank for work on the CPU",
            when="ranks compute on the CPU: cores divided by ranks of the node",
            sets="1, where a node has several ranks",
        ),
    ),
)

TORCH = Family(
    title="torch.distributed",
    reader="torch",
    prefixes=("TORCH_", "TORCHELASTIC_"),
    backends=_ALL,
    variables=(
        Variable(
            "TORCH_DISTRIBUTED_DEBUG",
            "OFF",
            "INFO names parameters without gradient; DETAIL also compares every collective of all ranks, slowly",
            when="ranks hang in different collectives",
            takes=one_of("OFF", "INFO", "DETAIL"),
        ),
        Variable(
            "TORCH_CPP_LOG_LEVEL",
            "WARNING",
            "How much torch's C++ parts log, among them the store and DDP",
            takes=one_of("INFO", "WARNING", "ERROR", "FATAL", "0", "1", "2", "3"),
        ),
        Variable(
            "TORCH_SHOW_CPP_STACKTRACES", "0", "Adds the C++ stack to errors that reach Python", takes=TORCH_SWITCH
        ),
        Variable("TORCH_DIST_INIT_BARRIER", "0", "Ranks wait for each other at the end of init_process_group"),
        Variable("USE_LIBUV", "1", "The store uses libuv, which accepts more connections at the same time"),
        Variable("TORCH_DIST_NAN_CHECK", "0", "Checks sent tensors for NaN, on any backend", since="2.14"),
        Variable("TORCH_DISTRIBUTED_USE_TORCHCOMMS", "0", "Uses process groups of torchcomms, if it is installed"),
        Variable("TORCH_DIST_USE_NCCL2", "0", "Uses the newer nccl backend", since="2.14"),
        Variable("TORCH_DEVICE_BACKEND_AUTOLOAD", "1", "Loads installed device plugins with torch"),
        Variable(
            "TORCH_FR_BUFFER_SIZE",
            "2000",
            "Collectives that the flight recorder remembers; 0 turns it off",
            since="2.8",
            takes=WHOLE,
            aliases=("TORCH_NCCL_TRACE_BUFFER_SIZE",),
            sets="2000, with nccl",
        ),
        Variable(
            "TORCH_FR_DUMP_TEMP_FILE",
            "in the cache folder",
            "Beginning of the files that the flight recorder writes; torchfrtrace reads them",
            since="2.8",
            aliases=("TORCH_NCCL_DEBUG_INFO_TEMP_FILE",),
            sets="with nccl, nccl_trace_rank_ beside the rank's log",
        ),
        Variable(
            "TORCH_FR_CPP_STACK",
            "0",
            "The flight recorder keeps C++ stacks as well",
            since="2.8",
            takes=TORCH_SWITCH,
            aliases=("TORCH_NCCL_TRACE_CPP_STACK",),
        ),
        Variable(
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
            "0",
            "Each attempt of torchrun has a store of its own, as it always has with rankdeck",
        ),
        Variable("TORCH_HOME", "~/.cache/torch", "Where torch.hub keeps what it has downloaded"),
        Variable("TORCH_LOGS", "none", "What torch.compile and others report, such as +dynamo or recompiles"),
        Variable("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "none", "For torchrun: prefix of the ranks' lines"),
        Variable("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT", "For torchrun: what it ends on"),
        Variable("TORCHELASTIC_ENABLE_FILE_TIMER", "0", "For torchrun: ranks set timers through a pipe"),
        Variable("TORCHELASTIC_HEALTH_CHECK_PORT", "none", "For torchrun: the port of its health server"),
        Variable("TP_SOCKET_IFNAME", "found", "The network interface of torch.distributed.rpc, and of nothing else"),
    ),
    gone=(
        Gone("TORCH_DISTRIBUTED_TIMEOUT", "torch has no such variable", "set backend.timeout = 600 (seconds)"),
        Gone("TORCH_DIST_TIMEOUT", "torch has no such variable", "set backend.timeout = 600 (seconds)"),
        Gone("TORCH_DISTRIBUTED_BACKEND", "torch has no such variable", "set backend.name"),
    ),
    others="""
        TORCH_ADDR2LINE_BINARY TORCH_ALLOW_TF32_CUBLAS_OVERRIDE TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT
        TORCH_BLAS_PREFER_CUBLASLT TORCH_BLAS_PREFER_HIPBLASLT TORCH_CUDNN_USE_HEURISTIC_MODE_B
        TORCH_CUDNN_V8_API_DEBUG TORCH_CUDNN_V8_API_DISABLED TORCH_CUSTOM_TERMINATE TORCH_DISABLE_ADDR2LINE
        TORCH_DISABLE_DEADLOCK_DETECTION TORCH_FR_DUMP_DYNAMIC_FILE_NAME TORCH_INCLUDE_ONLY_ACTIVE
        TORCH_INCLUDE_STACK_TRACE TORCH_JIT_DISABLE_NEW_EXECUTOR TORCH_LINALG_PREFER_CUSOLVER
        TORCH_LINALG_PREFER_HIPSOLVER TORCH_LINEAR_FLATTEN_3D TORCH_MKLDNN_MATMUL_MIN_DIM
        TORCH_MKLDNN_MATMUL_MIN_SIZE TORCH_PROFILER_ENABLE_COLLECTIVE_PROFILING TORCH_ROCM_FA_PREFER_CK
        TORCH_SHOW_DISPATCH_TRACE TORCH_SYMBOLIZE_MODE TORCH_SYMMMEM_NBLOCKS
        TORCH_SYMMMEM_IMPLICIT_POOL TORCH_BISECT_BACKEND TORCH_BISECT_MAX TORCH_BISECT_SUBSYSTEM
        TORCH_CACHING_PRECOMPILE TORCH_COMPILER_COLLECTIVES TORCH_COMPILE_BACKEND TORCH_COMPILE_CACHE_KEY_TAG
        TORCH_COMPILE_CPROFILE TORCH_COMPILE_DEBUG TORCH_COMPILE_DEBUG_DIR TORCH_COMPILE_DEBUG_SAVE_REAL
        TORCH_COMPILE_DISABLE TORCH_COMPILE_DYNAMIC_SOURCES TORCH_COMPILE_DYNAMIC_VALUES
        TORCH_COMPILE_DYNAMO_PROFILER TORCH_COMPILE_FORCE_DISABLE_CACHES TORCH_COMPILE_GRAPH_FORMAT
        TORCH_COMPILE_JOB_ID TORCH_COMPILE_OVERRIDE_BACKENDS TORCH_COMPILE_OVERRIDE_DYNAMO_CONFIGS
        TORCH_COMPILE_OVERRIDE_INDUCTOR_CONFIGS TORCH_COMPILE_REPLAY_RECORD TORCH_COMPILE_STICKY_PGO_KEY
        TORCH_COMPILE_STICKY_PGO_READ TORCH_COMPILE_STICKY_PGO_WRITE TORCH_COMPILE_STROBELIGHT
        TORCH_COMPILE_UNBACKED_SOURCES TORCH_COMPILE_USE_LAZY_GRAPH_MODULE TORCH_CUDAGRAPH_GC
        TORCH_CUDA_ARCH_LIST TORCH_CUDA_SANITIZER TORCH_CUPTI_MONITOR_LIBCUPTI_PATH TORCH_DISABLE_NATIVE_JIT
        TORCH_DISTRIBUTED_COMPILE_ON_ONE_RANK TORCH_DONT_CHECK_COMPILER_ABI TORCH_DTRACE
        TORCH_DYNAMO_AUTOMATIC_DYNAMIC_LOCAL_PGO TORCH_DYNAMO_AUTOMATIC_DYNAMIC_REMOTE_PGO
        TORCH_DYNAMO_AUTOMATIC_DYNAMIC_SHAPES TORCH_DYNAMO_DO_NOT_EMIT_RUNTIME_ASSERTS
        TORCH_DYNAMO_RUN_GC_AFTER_COMPILE TORCH_ELASTIC_SHUTDOWN_TIMEOUT TORCH_ELASTIC_WORKER_IDENTICAL
        TORCH_ENRICH_RPOFILER_STACK_TRACE TORCH_EXTENSIONS_DIR TORCH_EXTENSION_SKIP_NVCC_GEN_DEPENDENCIES
        TORCH_FAKE_TENSOR_DEBUG TORCH_FAKE_TENSOR_DISPATCH_CACHE TORCH_FAKE_TENSOR_DISPATCH_CACHE_CROSSCHECK
        TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD TORCH_FORCE_WEIGHTS_ONLY_LOAD TORCH_INDUCTOR_CPP_WRAPPER
        TORCH_INDUCTOR_INSTALL_GXX TORCH_INDUCTOR_PRECOMPILE_HEADERS TORCH_LOGS_FORMAT TORCH_LOGS_OUT
        TORCH_LOGS_TRACE_ID_FILTER TORCH_MODEL_ZOO TORCH_HUB TORCH_MP_PARALLEL_START
        TORCH_NATIVE_SKIP_VERSION_CHECK TORCH_NO_COMPILER_WRAPPER TORCH_PYTHON_NATIVE_USER_GRAPH_ORDER_FN
        TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL TORCH_SERIALIZATION_DEBUG TORCH_STRICT_PRECOMPILE
        TORCH_SYMM_MEM_ENABLE_NATIVE_ASYNC_TP TORCH_TNT_IN_USE TORCH_TRACE TORCH_USE_RTLD_GLOBAL TORCH_WARM_POOL
        TORCH_WORKER_SERVER_SOCKET TORCH_XPU_ARCH_LIST TORCHELASTIC_ETCD_BINARY_PATH TORCHELASTIC_TIMER_FILE
        TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT
    """,
)
