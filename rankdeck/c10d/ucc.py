"""`torch.distributed` over UCC, with a stock torch. Importing this module registers the backend, and loads no library.

    import rankdeck.c10d.ucc
    torch.distributed.init_process_group("ucc")     # or "cpu:ucc", or "rankdeck_ucc"

Rank and world size come from the environment or from arguments, as for other backends.

| variable | meaning |
|---|---|
| `RANKDECK_LIBUCC` | full path of libucc.so.1, if the dynamic linker does not find it |
| `UCX_TLS`, `UCX_NET_DEVICES` | transports and network devices of UCX |
"""

from typing import Any

import torch.distributed as dist

from rankdeck._torch_compat import add_backend

NAME = "rankdeck_ucc"  # name of this backend on every torch, even if torch has UCC built in


def register() -> None:
    """Registers the backend as `rankdeck_ucc`, and as `ucc` if torch has no UCC of its own. See `rankdeck.c10d.mpi.register`."""
    for name in (NAME, "ucc"):
        if not (name == "ucc" and dist.is_ucc_available()):
            add_backend(name, _create, ["cpu"])


def _create(options: Any, backend_options: object) -> Any:
    from rankdeck.c10d._ucc.group import ProcessGroup

    return ProcessGroup(options.group_id, options.store, options.group_rank, options.group_size, options.timeout)


register()
