"""Ranks that meet, agree and compute together: gloo, the store, DistributedDataParallel, and torchrun's word on them."""

from __future__ import annotations

from functools import partial

from engine.core.failures.causes.cause import Cause

_consequence = partial(Cause, kind="consequence")

_LOOK = "look at the ranks that did not reach this point"

CAUSES: tuple[Cause, ...] = (
    # --- consequences of another rank's failure
    _consequence(
        id="G1",
        pattern=r"Connection closed by peer|Connection reset by peer|(?:Read|Write) error \[[^\]\n]{0,200}\]:\d+: Broken pipe",
        detail="it lost its connection to another rank",
        hint="look at the rank that ended first; if no rank failed, one exited while others still needed it",
        fix="torch.distributed.barrier()",
    ),
    _consequence(
        id="K1",
        pattern=r"the process of rank [\d, ]{1,200} has ended|ranks? [\d, ]{1,200}: leaves the group",
        detail="it lost another rank of its mpi or ucc group",
        hint="look at the rank that ended first",
    ),
    _consequence(
        id="G3",
        pattern=r"Application timeout caused pair closure",
        detail="it timed out earlier, which closed its connections",
        hint="look at the rank that the others waited for",
    ),
    _consequence(
        id="T4",
        pattern=r"Failed to recv, got 0 bytes|recvValue failed|sendBytes failed|Did the remote server shutdown or crash",
        detail="it lost its connection to the store",
        hint="look at rank 0, or at the process that hosts the store",
    ),
    _consequence(
        id="B2",
        pattern=r"successfully reached monitoredBarrier, but received errors",
        detail="it reached monitored_barrier and lost its connection to rank 0 there",
        hint="look at rank 0: it names the ranks that did not reach the barrier",
    ),
    # --- one rank names the rank at fault
    Cause(
        id="B1",
        pattern=r"Ranks? (?P<ranks>\d+(?:, ?\d+){0,4000}) failed to pass monitoredBarrier in (?P<ms>\d+) ms",
        detail="it did not reach monitored_barrier within {ms} ms",
        blames="{who} did not reach monitored_barrier",
        hint="see where it is (rankdeck stacks) and which branch it took; increase the timeout if it is only slow",
        fix="rankdeck stacks -",
    ),
    Cause(
        id="D4",
        pattern=r"Detected mismatch between collectives on ranks\. Rank (?P<rank>\d+) is running collective: CollectiveFingerPrint\("
        r"(?:SequenceNumber=\d+, )?OpType=(?P<what>\w+)(?:, TensorShape=(?P<shape>\[[\d, ]{0,100}\]))?"
        r"[^\n]{0,900}? but Rank (?P<rank_2>\d+) is running collective: CollectiveFingerPrint\("
        r"(?:SequenceNumber=\d+, )?OpType=(?P<what_2>\w+)(?:, TensorShape=(?P<shape_2>\[[\d, ]{0,100}\]))?",
        detail="rank {rank} called {what} {shape}, rank {rank_2} called {what_2} {shape_2}",
        blames="{who} called a different collective, or one with a different shape",
        hint="make all ranks take the same branch, with tensors of the same shape and type",
    ),
    Cause(
        id="D4",
        pattern=r"Detected mismatch between collectives on ranks",
        detail="ranks called different collectives, or the same one with different shapes",
        hint="make all ranks take the same branch, with tensors of the same shape and type",
    ),
    Cause(
        id="D3",
        pattern=r"DDP expects same model across all ranks, but Rank (?P<rank>\d+) has (?P<count>\d+) params, "
        r"while rank (?P<rank_2>\d+)",
        detail="the models of ranks {rank} and {rank_2} have different numbers of parameters",
        blames="{who} built different models",
        hint="build the model from the same configuration, checkpoint and seed on every rank",
    ),
    Cause(
        id="D3",
        pattern=r"appears not to match (?:sizes|strides) of the same param in process (?P<one>\d+)"
        r"|DDP expects same model across all ranks",
        detail="ranks built models whose parameters differ",
        hint="build the model from the same configuration, checkpoint and seed on every rank",
    ),
    # --- gloo
    Cause(
        id="G6",
        pattern=r"ifa != nullptr\. Unable to find address for: (?P<name>\S{1,200})",
        detail="this node has no network interface {name} with an address",
        hint="name an interface of this node; gloo takes complete names, comma-separated, without ^. If it is not set, rankdeck finds one",
        fix="ip -brief address",
    ),
    Cause(
        id="G7",
        pattern=r"rp != nullptr\. Unable to find address for: (?P<name>\S{1,200})",
        detail="this machine's host name {name} has no address",
        hint="add it to /etc/hosts, or set the interface to use",
        fix='backend.env.GLOO_SOCKET_IFNAME = "eth0"',
    ),
    Cause(
        id="G5",
        pattern=r"Gloo connectFullMesh failed with",
        detail="a rank could not connect to another: the exchanged addresses are not reachable, or a firewall blocks them",
        hint="set the interface that connects the nodes, and open the ports between them",
        fix='backend.env.GLOO_SOCKET_IFNAME = "eth0"',
    ),
    Cause(
        id="G4",
        pattern=r"Unable to resolve hostname to a \(local\) address\. Using the loopback",
        detail="gloo uses the loopback address because this machine's host name has no address: other nodes can't reach it",
        hint="harmless on one node; otherwise add the name to /etc/hosts, or set the interface",
        fix='backend.env.GLOO_SOCKET_IFNAME = "eth0"',
        kind="remark",
    ),
    Cause(
        id="G8",
        pattern=r"op\.preamble\.length <= op\.nbytes",
        detail="ranks entered one collective with tensors of different sizes or types",
        hint="set TORCH_DISTRIBUTED_DEBUG=DETAIL in [env] to see which collective it is",
        fix='env.TORCH_DISTRIBUTED_DEBUG = "DETAIL"',
    ),
    Cause(
        id="G2",
        pattern=r"Timed out waiting (?P<ms>\d+)ms for (?:recv|send) operation",
        detail="another rank did not enter the collective within {ms} ms",
        hint="look for the rank that is a step behind or took another branch; increase backend.timeout if it is only slow",
        fix="rankdeck stacks -",
        waits=True,
    ),
    # --- the store
    Cause(
        id="T1",
        pattern=r"EADDRINUSE|[Aa]ddress already in use|errno: 98\b",
        detail="a port that it needs is already in use",
        hint="end the process that uses the port, or let init_process_group use env://, for which rankdeck chooses a free port",
        fix="ss -ltnp",
    ),
    Cause(
        id="T3",
        pattern=r"Timed out after \d+ seconds waiting for clients\. (?P<here>\d+)/(?P<all>\d+) clients joined",
        detail="only {here} of {all} ranks reached the rendezvous",
        hint="look at the missing ranks; increase backend.timeout if their imports are only slow",
        fix="backend.timeout = 1800",
        waits=True,
    ),
    Cause(
        id="T5",
        pattern=r"Timed out initializing process group in store based barrier[^\n]{0,300}num_workers_joined=(?P<here>\d+)",
        detail="only {here} ranks reached the barrier of init_process_group",
        hint=_LOOK,
        waits=True,
    ),
    Cause(
        id="T13",
        pattern=r'/multiprocessing/spawn\.py", line \d{1,6}, in _wrap\n(?:[^\n]{0,1000}\n){1,60}?'
        r"torch\.distributed\.Dist(?:Network|Store)Error: (?:The client socket has|Timed out after)",
        detail="the script starts its own ranks, and they waited for a store that no process hosts: under a launcher, torch expects it from the launcher",
        hint="launch it without the variables of a launcher, once on each node",
        fix="--set launch.environment=plain --set layout.ranks_per_node=1",
    ),
    Cause(
        id="T10",
        # Alone, the first line is a warning that torch prints on every node without IPv6 or DNS.
        pattern=r"gai error: -?\d+[^\n]{0,200}\n[^\n]{0,200}The client socket has (?:timed out after|failed to connect)"
        r"|getaddrinfo[^\n]{0,100}failed",
        detail="this node can't resolve the name of the node that hosts the store",
        hint="correct MASTER_ADDR or --rdzv-endpoint, or add the name to /etc/hosts on every node",
        fix="getent hosts NODE",
    ),
    Cause(
        id="T2",
        pattern=r"The client socket has (?:timed out after|failed to connect)",
        detail="the store of the run did not answer",
        hint="look at rank 0 if the script hosts a store of its own, otherwise restart the run",
        fix="nc -zv $MASTER_ADDR $MASTER_PORT",
        yields_to="T",
    ),
    Cause(
        id="E5",
        pattern=r"RendezvousConnectionError|RendezvousTimeoutError|RendezvousClosedError",
        detail="torchrun's rendezvous of the nodes failed",
        hint="check that every node runs torchrun with the same --rdzv-endpoint and --rdzv-id, and can reach that address",
        fix="nc -zv HOST 29400",
        yields_to="T",
    ),
    Cause(
        id="T6",
        pattern=r"wait timeout after \d+ms, keys: |Socket Timeout",
        detail="another rank did not answer through the store in time",
        hint="look at the ranks that did not reach this point; every rank must create the same groups in the same order",
        waits=True,
    ),
    Cause(
        id="T11",
        pattern=r"Default process group has not been initialized",
        detail="it called a collective before it created a process group",
        hint="call init_process_group first; rankdeck.init_process_group() follows the profile",
        fix="rankdeck.init_process_group()",
    ),
    Cause(
        id="T12",
        pattern=r"environment variable (?P<name>[A-Z_]{2,40}) expected, but not set",
        detail="{name} is not set: the script was not started by a launcher",
        hint="start it with rankdeck launch, or with torchrun",
        fix="rankdeck launch PROFILE",
    ),
    # --- DistributedDataParallel
    Cause(
        id="D1",
        pattern=r"Expected to have finished reduction in the prior iteration",
        detail="DistributedDataParallel expects gradients of parameters that this step did not use",
        hint="use every parameter in forward, or set find_unused_parameters; TORCH_DISTRIBUTED_DEBUG=DETAIL names the parameters",
        fix="DistributedDataParallel(model, find_unused_parameters=True)",
    ),
    Cause(
        id="D2",
        pattern=r"Parameter indices which did not receive grad for rank (?P<rank>\d+): (?P<indices>[\d ]{1,200})",
        detail="parameters {indices} got no gradient on rank {rank}",
        hint="use every parameter in forward, or set find_unused_parameters",
        fix="DistributedDataParallel(model, find_unused_parameters=True)",
    ),
    # --- torchrun's messages about processes
    _consequence(
        id="E3",
        pattern=r"Sending process \d+ closing signal SIGTERM",
        detail="torchrun ended it because another failed",
        hint="look at the rank that failed before torchrun sent SIGTERM",
    ),
    Cause(
        id="E6",
        pattern=r"SignalException: Process \d+ got signal: (?P<number>\d+)|Received \d+ death signal, shutting down workers",
        detail="torchrun itself was ended: by a scheduler, a time limit, a closed terminal, or Ctrl-C",
        hint="check the job's time limit; use a launch that a closed terminal does not end",
        fix="rankdeck launch PROFILE --detach",
    ),
    Cause(
        id="E7",
        pattern=r"Setting OMP_NUM_THREADS environment variable for each process to be 1",
        detail="torchrun gives each rank one thread",
        hint="harmless; for training on CPUs, set OMP_NUM_THREADS to the node's cores divided by its ranks",
        fix='env.OMP_NUM_THREADS = "4"',
        kind="remark",
    ),
)
