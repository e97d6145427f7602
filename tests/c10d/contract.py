"""One rank of the contract suite: random collectives, each over one of our backends and over gloo, or worked out in torch where gloo can't do it.

    python contract.py BACKEND FOLDER SEED CASES [COUNT_LIMIT]

All ranks draw the same cases. Each writes FOLDER/RANK.jsonl with a line for every case: what it was, and what was wrong or "".
"""

from __future__ import annotations

import json
import os
import random
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import rankdeck.c10d.mpi
import rankdeck.c10d.ucc  # noqa: F401 - so that torch knows them

Tensors = list[torch.Tensor]

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
COMPLEX = (torch.complex64, torch.complex128)
INTEGERS = (
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64,
)  # fmt: skip
MOVED_ONLY = (torch.float8_e4m3fn, torch.float8_e5m2)
COMPUTED_AS = {torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.int64, torch.bool: torch.int32}
"""Dtypes that torch itself can't add, and those in which it can."""

REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "SUM": lambda rows: rows.sum(0, dtype=rows.dtype),
    "PRODUCT": lambda rows: rows.prod(0, dtype=rows.dtype),
    "MIN": lambda rows: rows.amin(0),
    "MAX": lambda rows: rows.amax(0),
    "AVG": lambda rows: rows.sum(0, dtype=rows.dtype).div(
        len(rows), rounding_mode=None if rows.is_floating_point() or rows.is_complex() else "trunc"
    ),
    "BAND": lambda rows: fold(torch.bitwise_and, rows),
    "BOR": lambda rows: fold(torch.bitwise_or, rows),
    "BXOR": lambda rows: fold(torch.bitwise_xor, rows),
}


def fold(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
    """Reduces over the first dimension."""
    result = rows[0]
    for row in rows[1:]:
        result = function(result, row)
    return result


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call of one collective, the same on every rank."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    reduction: str
    root: int
    layout: str
    is_async: bool
    sizes: tuple[tuple[int, ...], ...]  # for the uneven ones: how much rank i gives to rank j
    seed: int


def draw_case(draw: random.Random, world: int) -> Case:
    """A case at random."""
    name = draw.choice(sorted(COLLECTIVES))
    reduces = "reduce" in name
    kinds = [FLOATS, INTEGERS, (torch.bool,), COMPLEX, *([] if reduces else [MOVED_ONLY])]
    dtype = draw.choice(draw.choice(kinds))
    able = ["SUM", "PRODUCT", "MIN", "MAX", "AVG"]
    if dtype in COMPLEX:
        able = ["SUM", "AVG"]
    elif dtype is torch.bool:
        able = ["SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"]
    elif dtype in INTEGERS:
        able += ["BAND", "BOR", "BXOR"]
        if dtype in COMPUTED_AS:
            able.remove("AVG")
    return Case(
        name=name,
        dtype=dtype,
        shape=tuple(draw.choice((0, 1, 2, 3, 5, 17)) for _ in range(draw.choice((1, 1, 2, 3)))),
        reduction=draw.choice(able),
        root=draw.randrange(world),
        layout=draw.choice(("contiguous", "contiguous", "strided", "transposed")),
        is_async=draw.random() < 0.5,
        sizes=tuple(tuple(draw.randrange(4) for _ in range(world)) for _ in range(world)),
        seed=draw.randrange(1 << 30),
    )


def make(case: Case, rank: int, index: int = 0, shape: tuple[int, ...] | None = None) -> torch.Tensor:
    """A tensor of some rank, which every rank can make."""
    generator = torch.Generator().manual_seed(case.seed * 64 + rank * 8 + index)
    shape = case.shape if shape is None else shape
    if case.dtype in COMPLEX:
        values = torch.complex(torch.randn(shape, generator=generator), torch.randn(shape, generator=generator))
    elif case.dtype in FLOATS or case.dtype in MOVED_ONLY:
        values = torch.randn(shape, generator=generator)
    else:
        values = torch.randint(0, 2 if case.dtype is torch.bool else 4, shape, generator=generator)
    return laid_out(case, values.to(case.dtype))


def laid_out(case: Case, tensor: torch.Tensor) -> torch.Tensor:
    """The same values, in memory as the case wants it."""
    if case.layout == "strided":
        wide = torch.zeros(*tensor.shape, 2, dtype=tensor.dtype)
        wide[..., 0] = tensor
        return wide[..., 0]
    if case.layout == "transposed" and tensor.dim() > 1:
        return tensor.transpose(0, 1).contiguous().transpose(0, 1)
    return tensor.clone()


def empty(case: Case, shape: tuple[int, ...] | None = None) -> torch.Tensor:
    """Room for a result."""
    return laid_out(case, torch.zeros(case.shape if shape is None else shape).to(case.dtype))


def reduced(case: Case, rows: Tensors) -> torch.Tensor:
    """What a reduction of all ranks' tensors comes to."""
    stacked = torch.stack(rows).to(COMPUTED_AS.get(case.dtype, case.dtype))
    if case.dtype in (torch.float16, torch.bfloat16):
        stacked = stacked.double()
    return REDUCTIONS[case.reduction](stacked).to(case.dtype)


# --- the collectives: how to call one, and what every rank must have then -----------------------------------------------------


class Collective:
    """One of torch's. `call` gives the outputs and the work (None if it has waited); `expect` what the outputs must be."""

    def call(self, case: Case, rank: int, world: int, group: Any) -> tuple[Tensors, Any]:
        raise NotImplementedError

    def expect(self, case: Case, rank: int, world: int) -> Tensors:
        raise NotImplementedError


class AllReduce(Collective):
    def call(self, case: Case, rank: int, world: int, group: Any) -> tuple[Tensors, Any]:
        tensor = make(case, rank)
        return [tensor], dist.all_reduce(tensor, getattr(dist.ReduceOp, case.reduction), group, case.is_async)

    def expect(self, case: Case, rank: int, world: int) -> Tensors:
        return [reduced(case, [make(case, one) for one in range(world)])]


class Reduce(Collective):
    def call(self, case: Case, rank: int, world: int, group: Any) -> tuple[Tensors, Any]:
        tensor = make(case, rank)
        work = dist.reduce(tensor, case.root, getattr(dist.ReduceOp, case.reduction), group, case.is_async)
        return [tensor] if rank == case.root else [], work

    def expect(self, case: Case, rank: int, world: int) -> Tensors:
        return AllReduce().expect(case, rank, world) if rank == case.root else []


class Broadcast(Collective):
    def call(self, case: Case, rank: int, world: int, group: Any) -> tuple[Tensors, Any]:
        tensor = make(case, rank)
        return [tensor], dist.broadcast(tensor, case.root, group, case.is_async)

    def expect(self, case: Case, rank: int, world: int) -> Tensors:
        return [make(case, case.root)]


class AllGather(Collective):
    def call(self, case: Case, rank: int, world: int, group: Any) -> tuple[Tensors, Any]:
        outputs = [empty(case) for _ in range(world)]
        return outputs, dist.all_gather(outputs, make(case, rank), group, case.is_async)

    def expect(self, case: Case, rank: int, world: int) -> Tensors:
        return [make(case, one) for one in range(world)]


class AllGatherUneven(Collective):
    def call(self, case: Case, rank: int, world: int, group: Any) -> tuple[Tensors, Any]:
        outputs = [empty(case, (size, 2)) for size in case.sizes[0]]
        return outputs, dist.all_gather(outputs, make(case, rank, shape=(case.sizes[0][rank], 2)), group, case.is_async)

    def expect(self, case: Case, rank: int, world: int) -> Tensors:
        return [make(case, one, shape=(size, 2)) for one, size in enumerate(case.sizes[0])]


class AllGatherSingle(Collective):
    def call(self, case: Case, rank: int, world: int, group: Any) -> tuple[Tensors, Any]:
        output = empty(case, (world * case.shape[0], *case.shape[1:]))
        return [output], dist.all_gather_into_tensor(output, make(case, rank), group, case.is_async)

    def expect(self, case: Case, rank: int, world: int) -> Tensors:
        return [torch.cat([make(case, one) for one in range(world)])]


class ReduceScatter(Collective):
    def call(self, case: Case, rank: int, world: int, group: Any) -> tuple[Tensors, Any]:
        output, inputs = empty(case), [make(case, rank, index) for index in range(world)]
        op = getattr(dist.ReduceOp, case.reduction)
        return [output], dist.reduce_scatter(output, inputs, op, group, case.is_async)

    def expect(self, case: Case, rank: int, world: int) -> Tensors:
        return [reduced(case, [make(case, one, rank) for one in range(world)])]


class ReduceScatterSingle(Collective):
    def call(self, case: Case, rank: int, world: int, group: Any) -> tuple[Tensors, Any]:
        output, tensor = empty(case), torch.cat([make(case, rank, index) for index in range(world)])
        op = getattr(dist.ReduceOp, case.reduction)
        return [output], dist.reduce_scatter_tensor(output, tensor, op, group, case.is_async)

    expect = ReduceScatter.expect


class AllToAll(Collective):
    def call(self, case: Case, rank: int, world: int, group: Any) -> tuple[Tensors, Any]:
        outputs = [empty(case, (case.sizes[one][rank], 3)) for one in range(world)]
        inputs = [make(case, rank, one, (size, 3)) for one, size in enumerate(case.sizes[rank])]
        return outputs, dist.all_to_all(outputs, inputs, group, case.is_async)

    def expect(self, case: Case, rank: int, world: int) -> Tensors:
        return [make(case, one, rank, (case.sizes[one][rank], 3)) for one in range(world)]


class AllToAllSingle(Collective):
    def call(self, case: Case, rank: int, world: int, group: Any) -> tuple[Tensors, Any]:
        outgoing, incoming = list(case.sizes[rank]), [row[rank] for row in case.sizes]
        tensor = laid_out(case, torch.cat([make(case, rank, one, (size, 3)) for one, size in enumerate(outgoing)]))
        output = empty(case, (sum(incoming), 3))
        return [output], dist.all_to_all_single(output, tensor, incoming, outgoing, group, case.is_async)

    def expect(self, case: Case, rank: int, world: int) -> Tensors:
        return [torch.cat(AllToAll().expect(case, rank, world))]


class AllToAllEven(Collective):
    def call(self, case: Case, rank: int, world: int, group: Any) -> tuple[Tensors, Any]:
        tensor = torch.cat([make(case, rank, one) for one in range(world)])
        output = empty(case, tuple(tensor.shape))
        return [output], dist.all_to_all_single(output, tensor, group=group, async_op=case.is_async)

    def expect(self, case: Case, rank: int, world: int) -> Tensors:
        return [torch.cat([make(case, one, rank) for one in range(world)])]


class Gather(Collective):
    def call(self, case: Case, rank: int, world: int, group: Any) -> tuple[Tensors, Any]:
        outputs = [empty(case) for _ in range(world)] if rank == case.root else None
        return outputs or [], dist.gather(make(case, rank), outputs, case.root, group, case.is_async)

    def expect(self, case: Case, rank: int, world: int) -> Tensors:
        return [make(case, one) for one in range(world)] if rank == case.root else []


class Scatter(Collective):
    def call(self, case: Case, rank: int, world: int, group: Any) -> tuple[Tensors, Any]:
        output = empty(case)
        inputs = [make(case, rank, one) for one in range(world)] if rank == case.root else None
        return [output], dist.scatter(output, inputs, case.root, group, case.is_async)

    def expect(self, case: Case, rank: int, world: int) -> Tensors:
        return [make(case, case.root, rank)]


class Ring(Collective):
    """Everybody sends to the next rank and receives from the one before."""

    def call(self, case: Case, rank: int, world: int, group: Any) -> tuple[Tensors, Any]:
        output = empty(case)
        operations = [
            dist.P2POp(dist.isend, make(case, rank), (rank + 1) % world, group, tag=3),
            dist.P2POp(dist.irecv, output, (rank - 1) % world, group, tag=3),
        ]
        for work in dist.batch_isend_irecv(operations if rank % 2 else operations[::-1]):
            work.wait()
        return [output], None

    def expect(self, case: Case, rank: int, world: int) -> Tensors:
        return [make(case, (rank - 1) % world)]


COLLECTIVES: dict[str, Collective] = {
    "all_reduce": AllReduce(),
    "reduce": Reduce(),
    "broadcast": Broadcast(),
    "all_gather": AllGather(),
    "all_gather_uneven": AllGatherUneven(),
    "all_gather_single": AllGatherSingle(),
    "reduce_scatter": ReduceScatter(),
    "reduce_scatter_single": ReduceScatterSingle(),
    "all_to_all": AllToAll(),
    "all_to_all_single": AllToAllSingle(),
    "all_to_all_even": AllToAllEven(),
    "gather": Gather(),
    "scatter": Scatter(),
    "ring": Ring(),
}


def run(case: Case, rank: int, world: int, group: Any) -> Tensors:
    """What a group makes of a case."""
    outputs, work = COLLECTIVES[case.name].call(case, rank, world, group)
    if work is not None:
        work.wait()
    return outputs


def difference(found: Tensors, expected: Tensors) -> str:
    """What is wrong with it; empty: nothing."""
    try:
        for one, other in zip(found, expected, strict=True):
            if one.dtype in MOVED_ONLY:
                one, other = (tensor.contiguous().view(torch.uint8) for tensor in (one, other))
            torch.testing.assert_close(one, other)
    except (AssertionError, ValueError) as error:
        return f"{error}; found {found}, expected {expected}"
    return ""


GLOO_KNOWS = {
    "all_reduce", "reduce", "broadcast", "all_gather", "all_gather_single", "reduce_scatter_single", "all_to_all_single",
    "all_to_all_even", "gather", "scatter", "ring",
}  # fmt: skip
GLOO_DTYPES = (torch.float32, torch.float64, torch.int32, torch.int64, torch.int8, torch.uint8)


def main() -> None:
    """Runs the cases."""
    backend, folder, seed, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE") if backend == "mpi" else ("RANK", "WORLD_SIZE")
    rank, world = (int(os.environ[name]) for name in names)
    limit = timedelta(seconds=300)
    dist.init_process_group(f"cpu:{backend}", f"file://{folder}/store", limit, rank=rank, world_size=world)
    if len(sys.argv) > 5:
        from rankdeck.c10d._mpi import tensors as mpi_tensors

        mpi_tensors.COUNT_LIMIT = int(sys.argv[5])
    gloo = dist.new_group(backend="gloo", timeout=limit)
    draw = random.Random(seed)
    for _ in range(count):
        case = draw_case(draw, world)
        expected = COLLECTIVES[case.name].expect(case, rank, world)
        wrong = difference(run(case, rank, world, dist.group.WORLD), expected)
        able = case.name in GLOO_KNOWS and case.dtype in GLOO_DTYPES and case.layout == "contiguous"
        able = able and 0 not in case.shape and case.reduction != "AVG"
        if able and difference(run(case, rank, world, gloo), expected):
            wrong = wrong or "gloo differs from what is expected"
        with (folder / f"{rank}.jsonl").open("a") as file:
            file.write(json.dumps({"what": str(case), "wrong": wrong}) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
