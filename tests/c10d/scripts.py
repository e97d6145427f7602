"""Scripts of ranks that hold for every backend of ours. `tests/c10d/jobs.py` has the names that they use."""

from __future__ import annotations

MODELS_TRAIN = """
import copy, warnings
warnings.simplefilter("ignore")
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
folder = sys.argv[1]
start_beside_gloo()
gloo = dist.new_group(backend="gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.BatchNorm1d(32)) for _ in range(3)])
def train(group):
    ddp = DistributedDataParallel(copy.deepcopy(model), process_group=group, bucket_cap_mb=0.005)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(4):
        torch.manual_seed(10 * step + rank)
        ddp(torch.randn(8, 32)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return ddp.module.state_dict()
ours, theirs = train(None), train(gloo)
say("same bits" if all(torch.equal(ours[name], theirs[name]) for name in ours) else "other bits")

sharded = copy.deepcopy(model)
mesh = init_device_mesh("cpu", (world,))
for layer in (*sharded, sharded):
    fully_shard(layer, mesh=mesh)
optimizer = torch.optim.AdamW(sharded.parameters())
sharded(torch.randn(8, 32)).square().mean().backward()
torch.nn.utils.clip_grad_norm_(sharded.parameters(), 1.0)
optimizer.step()
dcp.save({"model": sharded.state_dict()}, checkpoint_id=f"{folder}/checkpoint")
state = {"model": sharded.state_dict()}
dcp.load(state, checkpoint_id=f"{folder}/checkpoint")

whole = torch.arange(12.0).reshape(4, 3)
spread = distribute_tensor(whole, mesh, [Shard(0)])
assert torch.equal(spread.redistribute(mesh, [Shard(1)]).full_tensor(), whole)
assert torch.equal(spread.redistribute(mesh, [Replicate()]).to_local(), whole)

objects = [None] * world
dist.all_gather_object(objects, {"rank": rank})
assert objects == [{"rank": 0}, {"rank": 1}]
box = [objects if rank == 0 else None]
dist.broadcast_object_list(box, src=0)
assert box == [objects]
scattered = [None]
dist.scatter_object_list(scattered, ["a", "b"] if rank == 0 else None, src=0)
assert scattered == ["ab"[rank]]
dist.destroy_process_group()
"""

ASYNC_OPERATIONS = """
start()
tensors = [torch.full((1000,), float(index)) for index in range(50)]
works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
dist.all_reduce(sync := torch.ones(1))
assert all(work.is_completed() for work in works), "what was begun before a synchronous one is done after it"
for index, (work, tensor) in enumerate(zip(works, tensors)):
    assert work.wait() and work.is_success() and work.result()[0] is tensor
    assert tensor[0].item() == 2.0 * index
while rank == 1 and not os.path.exists(sys.argv[1] + "/begun"):
    time.sleep(0.01)
work = dist.all_reduce(late := torch.ones(1), async_op=True)
if rank == 0:
    assert not work.is_completed()
    open(sys.argv[1] + "/begun", "w").close()
assert work.get_future().wait()[0] is late and late.item() == 2.0
twice = work.get_future().then(lambda future: future.value()[0] * 2).wait()
assert twice.item() == 4.0
strided = torch.zeros(4, 2)[:, 0]
peer = 1 - rank
received = dist.irecv(strided, peer)
dist.isend(torch.arange(4.0) + rank, peer).wait()
received.wait()
assert strided.tolist() == [float(peer + index) for index in range(4)]
if rank == 0:
    assert [dist.recv(strided) for _ in range(2)] == [1, 1]
else:
    dist.send(strided.contiguous(), 0), dist.send(strided.contiguous(), 0)
say("done")
dist.destroy_process_group()
"""

REFUSALS = """
start()
ones = torch.ones(4)
say(error_of(dist.all_reduce, ones.to(torch.float8_e5m2)))
say(error_of(dist.all_reduce, ones.to(torch.bool), dist.ReduceOp.AVG))
say(error_of(dist.all_reduce, ones, dist.ReduceOp.BAND))
say(error_of(dist.broadcast, ones.to_sparse(), 0))
say(error_of(dist.all_reduce, ones.to("meta")))
say(error_of(dist.all_gather_single, torch.ones(5), ones))
dist.all_reduce(ones)
factor = dist._make_nccl_premul_sum(0.5)
dist.all_reduce(ones, factor)
say(ones.tolist())
frozen = torch.nn.Parameter(torch.ones(2, 2).t())
dist.all_reduce(frozen)
with torch.inference_mode():
    inference = torch.ones(4)[::2]
dist.all_reduce(inference)
dist.barrier()
dist.destroy_process_group()
"""

A_TIMEOUT = """
start()
other = dist.new_group()
dist.barrier(other)
other.set_timeout(timedelta(seconds=1))
if rank == 0:
    works = [dist.all_reduce(torch.ones(4), group=other, async_op=True) for _ in range(3)]
    say(error_of(works[0].wait))
    say(error_of(works[2].wait))
    say(error_of(works[1].get_future().wait))
    say(error_of(dist.all_reduce, torch.ones(4), group=other))
    say(error_of(dist.recv, torch.ones(4), 1, group=dist.new_group([0])) != "")
meet("said", 0, 1)
os._exit(0)
"""

SYNCHRONOUS_TIMEOUTS = """
start()
groups = [dist.new_group(timeout=timedelta(seconds=5)), dist.new_group()]
groups[1].set_timeout(timedelta(seconds=1))
if rank == 0:
    say(error_of(dist.broadcast, torch.ones(4), 1, group=groups[0]))
    say(error_of(dist.recv, torch.ones(4), 1, group=groups[1]))
meet("said", 0, 1)
os._exit(0)
"""

DIFFERENT_CALLS = """
start()
if rank == 2:
    say(error_of(dist.broadcast, torch.ones(3), 0))
else:
    say(error_of(dist.all_reduce, torch.ones(4)))
meet("said", 0, 1, 2)
"""

MEMBERS_DO_NOT_COME = """
start()
if rank != 1:
    meet("begins", 0, 2)
    say(error_of(dist.new_group, [0, 1, 2], timeout=timedelta(seconds=5)))
meet("said", 0, 1, 2)
"""

ENDS_WITHOUT_DESTROYING = """
start()
dist.new_group([1])
meet("grouped", 0, 1)
dist.all_reduce(torch.ones(4), async_op=True)
if rank == 1:
    time.sleep(1)
else:
    dist.irecv(torch.ones(1), 1)
say("end")
"""

REFUSED_WITH = (
    "can be moved, but not reduced",
    "it supports SUM",
    "can't reduce torch.float32 by BAND",
    "to_dense()",
    "on meta",
    "5 elements",
)
"""What the first lines of REFUSALS have in them."""

CALLBACKS = """
start()
def doubled(future):
    tensor = future.value()[0] * 2
    dist.all_reduce(tensor)
    dist.all_reduce(tensor, async_op=True).wait()
    return dist.all_reduce(tensor, async_op=True).get_future().wait()[0]
first = dist.all_reduce(torch.ones(3), async_op=True).get_future()
say(first.then(doubled).wait().tolist())
pair = [dist.all_reduce(torch.ones(2), async_op=True).get_future() for _ in range(2)]
def both(future):
    total = sum(one.value()[0] for one in future.value())
    dist.all_reduce(total)
    return total
say(torch.futures.collect_all(pair).then(both).wait().tolist())
def failing(future):
    raise ValueError("of the callback")
say(error_of(dist.all_reduce(torch.ones(3), async_op=True).get_future().then(failing).wait))
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
"""

SAID_BY_CALLBACKS = [str([32.0 for _ in range(3)]), "[8.0, 8.0]"]
"""What each of two ranks says first in CALLBACKS."""

HOOKS = """
import copy, warnings
warnings.simplefilter("ignore")
from torch.distributed.algorithms.ddp_comm_hooks import (
    debugging_hooks, default_hooks as default, optimizer_overlap_hooks as overlap, post_localSGD_hook as local,
    powerSGD_hook as power)
from torch.nn.parallel import DistributedDataParallel
start_beside_gloo()
gloo = dist.new_group(backend="gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(3)])

def hooked(state_of, hook):
    return lambda ddp, group: ddp.register_comm_hook(state_of(group), hook)

def overlapped(ddp, group):
    class Functional:
        def __init__(self, params, lr): self.lr = lr
        def step_param(self, param, grad):
            with torch.no_grad(): param.add_(grad, alpha=-self.lr)
    state = overlap._OptimizerHookState.__new__(overlap._OptimizerHookState)
    state.functional_optimizer, state.params_to_optimize = Functional([], 0.1), None
    ddp.register_comm_hook(None, overlap._hook_then_optimizer(hooks_group(group), state))

def hooks_group(group):
    def hook(state, bucket):
        return default.allreduce_hook(group, bucket)
    return hook

HOOKS = {
    "allreduce": hooked(lambda group: group, default.allreduce_hook),
    "fp16": hooked(lambda group: group, default.fp16_compress_hook),
    "bf16": hooked(lambda group: group, lambda group, bucket: default.bf16_compress_hook(group, bucket)),
    "fp16 wrapper": hooked(lambda group: group, default.fp16_compress_wrapper(default.allreduce_hook)),
    "bf16 wrapper": hooked(
        lambda group: group, lambda group, bucket: default.bf16_compress_wrapper(default.allreduce_hook)(group, bucket)
    ),
    "power": hooked(lambda group: power.PowerSGDState(group, start_powerSGD_iter=2), power.powerSGD_hook),
    "fp16 power": hooked(
        lambda group: power.PowerSGDState(group, start_powerSGD_iter=2), default.fp16_compress_wrapper(power.powerSGD_hook)
    ),
    "local": hooked(lambda group: local.PostLocalSGDState(group, group, start_localSGD_iter=2), local.post_localSGD_hook),
    "noop": hooked(lambda group: None, debugging_hooks.noop_hook),
    "overlap": overlapped,
}

def train(register, group):
    ddp = DistributedDataParallel(copy.deepcopy(model), process_group=group, gradient_as_bucket_view=False)
    register(ddp, group)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(5):
        torch.manual_seed(10 * step + rank)
        ddp(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return ddp.module.state_dict()

for name, register in HOOKS.items():
    ours, theirs = train(register, dist.group.WORLD), train(register, gloo)
    wrong = [key for key in ours if not torch.allclose(ours[key], theirs[key], rtol=1e-3, atol=1e-4)]
    say(f"{name}: {'other values' if wrong else 'well'}")
say("end")
dist.destroy_process_group()
"""
"""The hooks of torch that work over gloo. Left out: those that fail in torch 2.13 over every backend but nccl (`quantization_hooks`, which
expect nccl's shape of results, and `batched_powerSGD_hook`, which its own assertion stops), and those built into C++.
"""

WRONG_CALLS = """
import warnings
warnings.simplefilter("ignore")
import torch.distributed._functional_collectives as functional
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor, Replicate
start()
world_group = dist.group.WORLD

class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), named=None):
        return function(*arguments, **(named or {}))

def freed():
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor

fake = FakeTensorMode().from_tensor(torch.ones(4))
others = {"fake": fake, "wrapper": Wrapper(torch.ones(4)), "freed": freed(), "meta": torch.ones(4, device="meta")}
calls = {
    "all_reduce": lambda one: dist.all_reduce(one),
    "broadcast": lambda one: dist.broadcast(one, 0),
    "reduce": lambda one: dist.reduce(one, 0),
    "all_gather": lambda one: dist.all_gather([torch.ones(4) for _ in range(world)], one),
    "into": lambda one: dist.all_gather([one for _ in range(world)], torch.ones(4)),
    "all_to_all": lambda one: dist.all_to_all([torch.ones(4) for _ in range(world)], [one for _ in range(world)]),
    "all_to_all_single": lambda one: dist.all_to_all_single(torch.ones(4), one),
    "reduce_scatter": lambda one: dist.reduce_scatter_tensor(torch.ones(2), one),
    "send": lambda one: dist.send(one, 1 - rank),
    "recv": lambda one: dist.recv(one, 1 - rank),
}
for kind, tensor in others.items():
    for name, call in calls.items():
        error = error_of(call, tensor)
        if "can't be sent" not in error:
            say(f"{kind} {name}: {error}")
expanded = torch.ones(1).expand(4)
for name in ("all_reduce", "reduce", "into", "recv"):
    error = error_of(calls[name], expanded)
    if "share memory" not in error:
        say(f"expanded {name}: {error}")
for root in (world, 7, -3):
    for call in (
        lambda: dist.broadcast(torch.ones(2), root), lambda: dist.reduce(torch.ones(2), root), lambda: dist.gather(torch.ones(2), None, root),
        lambda: dist.scatter(torch.ones(2), None, root), lambda: dist.send(torch.ones(2), root), lambda: dist.recv(torch.ones(2), root),
    ):
        error = error_of(call)
        if f"there is no rank {root}" not in error:
            say(f"root {root}: {error}")
dist.all_reduce(one := torch.ones(1))
say(f"alive {one.item()}")

def apart(name, call):
    group = dist.new_group()
    say(f"{name}: {error_of(call, group)}")

first = rank == 0
apart("even", lambda group: dist.all_to_all_single(torch.zeros(2 if first else 4), torch.ones(2 if first else 4), group=group))
apart("cross", lambda group: dist.all_to_all_single(
    torch.zeros(4), torch.ones(5 if first else 4), [2, 2], [2, 3] if first else [2, 2], group=group))
apart("mixed", lambda group: dist.all_to_all_single(
    torch.zeros(4), torch.ones(4), *(([2, 2], [1, 3]) if first else ([], [])), group=group))
apart("lists", lambda group: dist.all_to_all(
    [torch.zeros(2), torch.zeros(2)], [torch.ones(2), torch.ones(3 if first else 2)], group=group))
apart("counts", lambda group: dist.all_reduce(torch.ones(4 if first else 5), group=group))
apart("dtypes", lambda group: dist.all_reduce(torch.ones(4, dtype=torch.float64 if first else torch.float32), group=group))
apart("roots", lambda group: dist.broadcast(torch.ones(4), 0 if first else 1, group=group))
apart("order", lambda group: dist.all_reduce(torch.ones(4), group=group) if first else dist.barrier(group))
dist.all_reduce(one := torch.ones(1))
say(f"alive {one.item()}")
if first:
    dist.send(torch.ones(2), 1)
else:
    say(f"short: {error_of(dist.recv, torch.zeros(4), 0)}")
meet("said", 0, 1)
os._exit(0)
"""
"""Calls that are errors: in the arguments, which a rank sees by itself, or of ranks that do not fit each other."""

SAID_OF_WRONG_CALLS = (
    "alive 2.0",
    "even: DistBackendError: .*a rank sends 1 elements to each rank, and another one 2",
    "cross: DistBackendError: .*rank 0 sends another number of elements to rank 1",
    "mixed: DistBackendError: .*rank 0 sends another number of elements to rank [01]",
    "lists: DistBackendError: .*rank 0 sends another number of elements to rank 1",
    "counts: DistBackendError: .*rank 0: all_reduce.4 x .*; rank 1: all_reduce.5 x ",
    "dtypes: DistBackendError: .*rank 0: .*float64.*; rank 1: .*float32",
    "roots: DistBackendError: .*rank 0: .*from rank 0.*; rank 1: .*from rank 1",
    "order: DistBackendError: .*rank 0: all_reduce.*; rank 1: barrier",
    "alive 2.0",
    "short: DistBackendError: .*8 bytes came for a tensor of 16",
)
"""What rank 1 says in WRONG_CALLS; rank 0 says all but the last."""

SHORT_FORMS = """
import warnings
warnings.simplefilter("ignore")
import torch.distributed._functional_collectives as functional
start()
group, MAX, limit = dist.group.WORLD, dist.ReduceOp.MAX, timedelta(seconds=LONGEST)
own = lambda n=2: torch.full((n,), rank + 1.0)

def check(name, call, tensor, expected):
    call(tensor).wait()
    found = torch.stack(tensor).tolist() if isinstance(tensor, list) else tensor.tolist()
    if found != expected:
        say(f"{name}: {found} instead of {expected}")

both, gathered = [3.0, 3.0], [[1.0, 1.0], [2.0, 2.0]]
check("op", lambda t: group.allreduce([t], MAX), own(), [2.0, 2.0])
check("tensor", lambda t: group.allreduce(t), own(), both)
check("tensor and op", lambda t: group.allreduce(t, op=MAX), own(), [2.0, 2.0])
check("op and timeout", lambda t: group.allreduce([t], MAX, limit), own(), [2.0, 2.0])
check("named tensors", lambda t: group.allreduce(tensors=[t]), own(), both)
check("root", lambda t: group.broadcast(t, root=1), own(), [2.0, 2.0])
check("root by place", lambda t: group.broadcast(t, 1, limit), own(), [2.0, 2.0])
check("reduce", lambda t: group.reduce(t, 0), own(), both if rank == 0 else [2.0, 2.0])
check("reduce by op", lambda t: group.reduce(t, 0, MAX), own(), [2.0, 2.0])
check("allgather", lambda t: group.allgather(t, own()), [own(), own()], gathered)
check("gather", lambda t: group.gather(t if rank == 0 else [], own(), 0), [torch.zeros(2) for _ in range(2)],
      gathered if rank == 0 else [[0.0, 0.0]] * 2)
check("scatter", lambda t: group.scatter(t, [own(), own()] if rank == 0 else [], 0), own(), [1.0, 1.0])
check("reduce_scatter", lambda t: group.reduce_scatter(t, [own(), own()]), own(), both)
check("alltoall", lambda t: group.alltoall(t, [own(), own()]), [own(), own()], gathered)
check("alltoall_base", lambda t: group.alltoall_base(t, own(4), [], []), own(4), [1.0, 1.0, 2.0, 2.0])
check("_allgather_base", lambda t: group._allgather_base(t, own()), own(4), [1.0, 1.0, 2.0, 2.0])
check("_reduce_scatter_base", lambda t: group._reduce_scatter_base(t, own(4)), own(), both)
group.barrier(timeout=limit).wait()
group.barrier().wait()
twice = own()
dist.all_reduce_coalesced([twice, twice])
say(twice.tolist())
pending = functional.all_reduce(own(), "sum", group)
dist.all_reduce(pending)
say(pending.tolist())
parts = [functional.all_reduce(own(), "sum", group) for _ in range(2)]
dist.all_to_all(outputs := [torch.zeros(2) for _ in range(2)], parts)
say([one.tolist() for one in outputs])
say([group.supports_splitting, group.options.backend, group._get_sequence_number_for_group() > 0])
dist.destroy_process_group()
"""
