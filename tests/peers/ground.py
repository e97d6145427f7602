"""What torch's own tests of other parts cover, in our words, because its wheel brings only those of process groups: functional collectives,
DTensor, tensor parallelism, FSDP2, checkpoints, hooks of DDP, ZeRO, pipelines, meshes, Join. Each result is compared with that of one process."""

from __future__ import annotations

import importlib
import os
import unittest
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

functional: Any = importlib.import_module("torch.distributed._functional_collectives")
differentiable: Any = importlib.import_module("torch.distributed.nn.functional")
dcp: Any = importlib.import_module("torch.distributed.checkpoint")

SIZE = 12  # of layers: 2, 3 and 4 ranks divide it


def layers(count: int = 2) -> nn.Sequential:
    """A model, the same on each rank."""
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(SIZE, SIZE), nn.ReLU()) for _ in range(count)])


def batch(part: int | None = None) -> torch.Tensor:
    """The inputs of one rank; None: of all."""
    torch.manual_seed(1)
    rows = torch.randn(dist.get_world_size(), 4, SIZE)
    return rows.flatten(0, 1) if part is None else rows[part]


def trained(model: Any, inputs: torch.Tensor, optimizer: Any = None) -> dict[str, torch.Tensor]:
    """The state of a model after two steps."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    state = model.module.state_dict() if hasattr(model, "module") else model.state_dict()
    return {name: one.full_tensor() if isinstance(one, DTensor) else one for name, one in state.items()}


class Ground(unittest.TestCase):
    """Runs in the process group that there is."""

    def setUp(self) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.mesh = init_device_mesh("cpu", (self.world,))
        self.everybody = range(self.world)
        self.alone = trained(layers(), batch())
        dist.barrier()

    def same(self, found: Any, expected: Any) -> None:
        torch.testing.assert_close(found, expected)

    def test_ground_functional_collectives(self) -> None:
        group, mine = dist.group.WORLD, torch.full((self.world,), float(self.rank))
        ranks = torch.arange(float(self.world))
        self.same(functional.all_reduce(mine, "sum", group) + 0, torch.full((self.world,), ranks.sum().item()))
        self.same(functional.all_gather_tensor(mine[:1], 0, group) + 0, ranks)
        self.same(functional.reduce_scatter_tensor(mine, "max", 0, group) + 0, torch.tensor([self.world - 1.0]))
        self.same(functional.all_to_all_single(mine, None, None, group) + 0, ranks)
        self.same(functional.broadcast(mine, self.world - 1, group) + 0, torch.full((self.world,), self.world - 1.0))
        one, other = functional.all_reduce_coalesced([mine, mine * 2], "sum", group)
        self.same(one * 2, other + 0)

    def test_ground_functions_with_gradients(self) -> None:
        mine = torch.full((3,), float(self.rank), requires_grad=True)
        differentiable.all_reduce(mine).sum().backward()
        self.same(mine.grad, torch.full((3,), float(self.world)))

    def test_ground_dtensor(self) -> None:
        whole = torch.arange(float(SIZE * SIZE)).reshape(SIZE, SIZE)
        rows: Any = distribute_tensor(whole, self.mesh, [Shard(0)])
        for placement in (Shard(1), Replicate()):
            self.same(rows.redistribute(self.mesh, [placement]).full_tensor(), whole)
        columns: Any = distribute_tensor(whole, self.mesh, [Shard(1)])
        self.same((rows @ columns).full_tensor(), whole @ whole)
        part = DTensor.from_local(whole, self.mesh, [Partial()])
        self.same(part.redistribute(self.mesh, [Shard(0)]).full_tensor(), whole * self.world)

    def test_ground_tensor_parallel(self) -> None:
        ways: Any = {"0.0": ColwiseParallel(), "1.0": RowwiseParallel()}
        self.same(trained(parallelize_module(layers(), self.mesh, ways), batch()), self.alone)

    def test_ground_fsdp2_and_checkpoints(self) -> None:
        model, loaded = layers(), layers()
        for one in (*model, model, *loaded, loaded):
            fully_shard(one, mesh=self.mesh)
        self.same(trained(model, batch(self.rank)), self.alone)
        dcp.save({"model": model.state_dict()}, checkpoint_id=f"{os.environ['TEMP_DIR']}/checkpoint")
        state = {"model": loaded.state_dict()}
        dcp.load(state, checkpoint_id=f"{os.environ['TEMP_DIR']}/checkpoint")
        self.same({name: one.full_tensor() for name, one in state["model"].items()}, self.alone)

    def test_ground_ddp_and_its_hooks(self) -> None:
        hooks: dict[Any, float] = {None: 0, default_hooks.allreduce_hook: 0, default_hooks.fp16_compress_hook: 0.01}
        for hook, tolerance in hooks.items():
            model = DistributedDataParallel(layers())
            if hook:
                model.register_comm_hook(None, hook)
            found = trained(model, batch(self.rank))
            for name, one in self.alone.items():
                torch.testing.assert_close(found[name], one, rtol=1e-5, atol=1e-6 + tolerance)
        model = DistributedDataParallel(layers())
        model.register_comm_hook(powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook)
        mine = trained(model, batch(self.rank))["0.0.weight"]
        self.same(functional.all_reduce(mine, "avg", dist.group.WORLD) + 0, mine)

    def test_ground_zero(self) -> None:
        model = DistributedDataParallel(layers())
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
        alone = layers()
        expected = trained(alone, batch(), torch.optim.Adam(alone.parameters(), lr=0.1))
        self.same(trained(model, batch(self.rank), optimizer), expected)

    def test_ground_pipelines(self) -> None:
        for schedule in (ScheduleGPipe, Schedule1F1B):
            whole: Any = layers(self.world)
            expected = whole(batch())
            expected.square().mean().backward()
            mine: Any = layers(self.world)[self.rank]
            stage = PipelineStage(mine, self.rank, self.world, torch.device("cpu"))
            made: Any = schedule(stage, self.world, loss_fn=lambda output, _: output.square().mean())
            given = (batch(),) if self.rank == 0 else ()
            output = made.step(*given, **({"target": batch()} if self.rank == self.world - 1 else {}))
            if self.rank == self.world - 1:
                self.same(output, expected)
            self.same(mine[0].weight.grad, whole[self.rank][0].weight.grad)

    def test_ground_meshes(self) -> None:
        mesh = init_device_mesh("cpu", (self.world, 1), mesh_dim_names=("outer", "inner"))
        assert [mesh["outer"].size(), mesh["inner"].size()] == [self.world, 1]
        dist.all_reduce(total := torch.ones(1), group=mesh.get_group("outer"))
        dist.all_reduce(total, group=mesh.get_group("inner"))
        self.same(total, torch.tensor([float(self.world)]))

    def test_ground_join(self) -> None:
        model = DistributedDataParallel(layers())
        with Join([model]):
            for _ in range(self.rank + 1):
                model(batch(self.rank)).sum().backward()
        dist.barrier()

    def test_ground_objects(self) -> None:
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, {"rank": self.rank})
        assert found == [{"rank": rank} for rank in self.everybody]
        box = [found if self.rank == 0 else None]
        dist.broadcast_object_list(box, src=0)
        assert box == [found]
