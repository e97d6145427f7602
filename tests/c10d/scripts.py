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
