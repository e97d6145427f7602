"""`torch.distributed` over UCC on a stock torch: importing this module makes the backend known, and loads no library.

    import rankdeck.c10d.ucc
    torch.distributed.init_process_group("ucc")     # or "cpu:ucc", or "rankdeck_ucc"

Rank and world size come from where torch takes them otherwise: the environment, or arguments.

| variable | meaning |
|---|---|
| `RANKDECK_LIBUCC` | full path of libucc.so.1, where it is not found by itself |
| `UCX_TLS`, `UCX_NET_DEVICES` | transports and network devices, as UCX reads them |
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

NAME = "rankdeck_ucc"
"""Names this backend and no other, on every torch: for those who want it beside a UCC that torch has built in."""


def register() -> None:
    """Makes the backend known under `rankdeck_ucc`, and under `ucc` where torch has no UCC of its own.

    Called when this module is imported, and by torch 2.14 and newer as the entry point `torch.distributed.backends`. Doing it
    again does no harm.
    """
    for name in (NAME, "ucc"):
        if name.upper() not in dist.Backend._plugins and not (name == "ucc" and dist.is_ucc_available()):
            dist.Backend.register_backend(name, _create, extended_api=True, devices=["cpu"])


def _create(options: Any, backend_options: object) -> Any:
    from rankdeck.c10d._ucc.group import ProcessGroup

    return ProcessGroup(options.group_id, options.store, options.group_rank, options.group_size, options.timeout)


register()
