"""nccl, and the watchdog of torch that watches it."""

from __future__ import annotations

from engine.core.failures.causes.cause import Cause

CAUSES: tuple[Cause, ...] = (
    Cause(
        id="N5",
        pattern=r"remote process exited or there was a network error|ncclRemoteError|NCCL communicator was aborted on rank(?![^\n]{0,200}Watchdog)",
        detail="it lost its connection to another rank",
        hint="look at the rank that ended first",
        kind="consequence",
    ),
    Cause(
        id="N7",
        pattern=r"Connection closed by remote peer",
        detail="it lost its connection to another rank",
        hint="look at the rank that ended first",
        kind="consequence",
    ),
    Cause(
        id="N1",
        pattern=r"Duplicate GPU detected : rank (?P<rank>\d+) and rank (?P<rank_2>\d+) both on CUDA device (?P<device>\w+)",
        detail="both use GPU {device}",
        blames="{who} use the same GPU",
        hint="call torch.cuda.set_device(LOCAL_RANK) first, and start at most one rank for each GPU",
        fix='layout.ranks_per_node = "auto"',
    ),
    Cause(
        id="N1",
        pattern=r"Multiple Ranks are using the same GPU",
        detail="several ranks use the same GPU",
        hint="call torch.cuda.set_device(LOCAL_RANK) first, and start at most one rank for each GPU",
        fix='layout.ranks_per_node = "auto"',
    ),
    Cause(
        id="N11",
        pattern=r"Mismatched NCCL version detected",
        detail="ranks have different versions of nccl",
        hint="install the same versions on every node",
        fix="rankdeck check PROFILE",
    ),
    Cause(
        id="N2",
        pattern=r"Bootstrap : no socket interface found|no NCCL_SOCKET_IFNAME interface|NET/Socket : no interface found",
        detail="nccl finds no network interface: NCCL_SOCKET_IFNAME names one that this node does not have, or there is none",
        hint="unset NCCL_SOCKET_IFNAME, or set it to an interface of this node",
        fix="ip -brief address",
    ),
    Cause(
        id="N8",
        pattern=r"(?:failed to|Error while) (?:extend|creat\w+|open\w*|attaching)[^\n]{0,120}(?:/dev/shm|shared memory)",
        detail="nccl can't create its shared memory: /dev/shm is too small or not usable",
        hint="make /dev/shm larger (docker: --shm-size=1g --ulimit memlock=-1, or --ipc=host)",
        fix="docker run --ipc=host …",
    ),
    Cause(
        id="N9",
        pattern=r"unlink shared memory /dev/shm/nccl-\S{1,100} failed",
        detail="nccl's shared memory was removed; systemd does this when a user's last session ends",
        hint="set RemoveIPC=no in /etc/systemd/logind.conf",
        fix="loginctl enable-linger",
    ),
    Cause(
        id="N10",
        pattern=r"Got completion from peer [^\n]{0,300}status=(?:IBV_WC_RETRY_EXC_ERR\S{0,20}|12)\b",
        detail="InfiniBand or RoCE could not reach another node: a link is down, or a GID or MTU is wrong",
        hint="check that the link is up on both nodes; if it is only slow, increase NCCL_IB_TIMEOUT",
        fix='backend.env.NCCL_IB_TIMEOUT = "22"',
    ),
    Cause(
        id="N6",
        pattern=r"(?:NCCL WARN|Last error:\n|socket(?:Start|Poll)Connect)[^\n]{0,300}"
        r"(?P<why>Connection refused|No route to host|Connection timed out|timed out)",
        detail="nccl can't connect to another rank: {why}",
        hint="set the interface that connects the nodes, and open the ports between them",
        fix='backend.env.NCCL_SOCKET_IFNAME = "eth0"',
    ),
    Cause(
        id="N4",
        pattern=r"Cuda failure (?:\d+ )?'(?P<said>[^'\n]{1,200})'",
        detail="CUDA failed inside nccl: {said}",
        hint="resolve that CUDA error; look for Xid in dmesg",
        fix="dmesg -T | grep -i xid",
    ),
    Cause(
        id="N12",
        pattern=r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<number>\d+), OpType=(?P<what>\w+)"
        r"(?:[^\n]{0,200}? ran for (?P<ms>\d+) milliseconds)?",
        detail="{what} number {number} did not finish within {ms} ms: a rank did not enter it, or hangs in it",
        hint="look for the rank that is behind and the branch it took; increase backend.timeout if it is only slow",
        fix="rankdeck stacks -",
        waits=True,
    ),
    Cause(
        id="N14",
        pattern=r"[Hh]eartbeat monitor timed out|watchdog got stuck for (?P<seconds>\d+) seconds",
        detail="nccl's watchdog itself is blocked: by a CUDA or nccl call, or because Python holds the GIL",
        hint="see where the ranks are; increase the limit if such long calls are expected",
        fix='env.TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC = "1800"',
    ),
    Cause(
        id="N4",
        pattern=r"unhandled cuda error|ncclUnhandledCudaError",
        detail="CUDA failed inside nccl",
        hint="run it once with NCCL_DEBUG=WARN, which prints CUDA's error",
        fix='backend.env.NCCL_DEBUG = "WARN"',
        yields_to="NC",
    ),
    Cause(
        id="N3",
        pattern=r"unhandled system error|ncclSystemError",
        detail="a system call failed in nccl: socket, shared memory or file descriptor; often because of a wrong network interface",
        hint="run it once with NCCL_DEBUG=WARN, which prints the reason",
        fix='backend.env.NCCL_DEBUG = "WARN"',
        yields_to="NC",
    ),
    Cause(
        id="N15",
        pattern=r"destroy_process_group\(\) was not called|process group has NOT been destroyed",
        detail="it exited without destroy_process_group()",
        hint="harmless; call it at the end to avoid the warning",
        fix="torch.distributed.destroy_process_group()",
        kind="remark",
    ),
    Cause(
        id="N16",
        pattern=r"using GPU \d+ [^\n]{0,200}as device used by this process is currently unknown"
        r"|barrier\(\): using the device under current context",
        detail="torch guesses which GPU a rank uses",
        hint="no problem if each rank has its own GPU; to make that certain, pass device_id to init_process_group",
        fix='init_process_group(device_id=torch.device("cuda", local_rank))',
        kind="remark",
    ),
)
