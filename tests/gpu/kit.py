"""Shows on a machine with an NVIDIA GPU what no other machine can show: `python tests/gpu/kit.py OUT [--dry] [--only NAME…]`.

It needs a Python with torch for CUDA and rankdeck's dependencies, and no network, tmux or ssh. One GPU is enough. Each step prints
one line when it ends. OUT gets `steps.jsonl`, with the figures, and `commands.log`, with the output of every command. All steps
together take less than eight minutes. `--dry` tries the kit itself without a GPU: with gloo and CPU tensors.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

PROJECT = Path(__file__).resolve().parent.parent.parent
LIMIT = 470.0  # seconds after which no further step begins

HEAD = """
import os, signal, sys, time
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
device = torch.device(os.environ["KIT_DEVICE"])
backend = os.environ["KIT_BACKEND"]
"""

GROUP = "dist.init_process_group(backend)\n"


class FellShortError(Exception):
    """A step saw something else than it should see."""


def need(condition: object, seen: object) -> None:
    """Raises FellShortError with the end of what was seen, unless a condition holds."""
    if not condition:
        raise FellShortError(str(seen).strip()[-600:])


class Kit:
    """Runs rankdeck's commands in a home of their own, and scripts on the machine's GPU. `out`: Folder for the results. `dry`: Use gloo and CPU
    tensors."""

    def __init__(self, out: Path, *, dry: bool) -> None:
        self.dry = dry
        self.backend, self.device = ("gloo", "cpu") if dry else ("nccl", "cuda")
        self._work = Path(tempfile.mkdtemp(prefix="gpu-kit-"))
        runtime = self._work / "runtime"
        runtime.mkdir(mode=0o700)
        paths = [path for path in (os.environ.get("PYTHONPATH", ""), str(PROJECT)) if path]
        self._environment = {
            **os.environ,
            "XDG_STATE_HOME": str(self._work / "state"),
            "XDG_CONFIG_HOME": str(self._work / "config"),
            "XDG_RUNTIME_DIR": str(runtime),
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "2",
            "PYTHONPATH": os.pathsep.join(paths),
            "KIT_DEVICE": self.device,
        }
        self._log: TextIO = (out / "commands.log").open("a", encoding="utf-8")

    def command(self, *words: str, timeout: float = 60.0, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs a command of rankdeck; its output also goes to `commands.log`."""
        argv = [sys.executable, str(PROJECT / "rankdeck_command.py"), *words]
        environment = {**self._environment, **variables}
        done = subprocess.run(
            argv, cwd=self._work, env=environment, text=True, capture_output=True, timeout=timeout, check=False
        )
        self._log.write(
            f"$ rankdeck {' '.join(words)}   [{done.returncode}]\n{done.stdout[-4000:]}\n{done.stderr[-3000:]}\n"
        )
        self._log.flush()
        return done

    def script(self, name: str, body: str) -> str:
        """Writes a script, below the lines that all scripts begin with, and returns its path."""
        path = self._work / f"{name}.py"
        path.write_text(HEAD + body, encoding="utf-8")
        return str(path)

    def run(self, name: str, body: str, *options: str, ranks: int = 1, backend: str = "", **variables: str) -> str:
        """Runs a script to its end, which must be good, and returns what was printed."""
        done = self.try_run(name, body, *options, ranks=ranks, backend=backend, **variables)
        need(done.returncode == 0, f"exit {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def try_run(
        self, name: str, body: str, *options: str, ranks: int = 1, backend: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs a script to its end, good or bad."""
        backend = backend or self.backend
        words = ("run", "-n", str(ranks), "-b", backend, *options, self.script(name, body))
        return self.command(*words, timeout=90.0, KIT_BACKEND=backend, **variables)

    def start(self, name: str, body: str) -> str:
        """Starts a script of one rank in the background, and returns the run's id."""
        words = ("run", "-n", "1", "-b", self.backend, "--detach", "--json", self.script(name, body))
        done = self.command(*words, KIT_BACKEND=self.backend)
        need(done.returncode == 0, done.stderr)
        return str(json.loads(done.stdout)["run"])

    def torchrun(self, name: str) -> float:
        """Runs a script that exists under torchrun, and returns the seconds it took."""
        argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
        environment = {**self._environment, "KIT_BACKEND": self.backend}
        begun = time.monotonic()
        done = subprocess.run(
            [*argv, str(self._work / f"{name}.py")],
            env=environment,
            text=True,
            capture_output=True,
            timeout=60,
            check=False,
        )
        need(done.returncode == 0, done.stderr)
        return round(time.monotonic() - begun, 2)


def machine(kit: Kit) -> object:
    import torch

    found: dict[str, object] = {"python": sys.version.split()[0], "torch": torch.__version__, "cores": os.cpu_count()}
    if not kit.dry:
        query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
        found["gpu"] = subprocess.run(query, text=True, capture_output=True, check=True).stdout.strip()
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return found


def backends_says_that_nccl_is_ready(kit: Kit) -> object:
    answer = kit.command("backends").stdout
    line = next((line for line in answer.splitlines() if re.match(r"\S+ +nccl", line)), "")
    need(kit.dry or line.startswith("●"), answer)
    return line


def quickstart_trains_on_the_gpu(kit: Kit) -> object:
    seen = []
    for _ in range(3):  # the first is cold
        begun = time.monotonic()
        settings = ("recipe.args=['--steps','60']", f"backend.name='{kit.backend}'", "layout.ranks_per_node=1")
        done = kit.command(
            "launch", "nccl-single", *(word for one in settings for word in ("--set", one)), timeout=110.0
        )
        need(done.returncode == 0 and "final loss" in done.stdout, done.stdout + done.stderr)
        rates = [float(rate.replace(",", "")) for rate in re.findall(r"([\d,]+) tok/s", done.stdout)]
        seen.append({"seconds": round(time.monotonic() - begun, 2), "tok_per_s": max(rates, default=0.0)})
    return seen


def a_warm_template_forks_a_rank_with_cuda(kit: Kit) -> object:
    body = (
        GROUP
        + """
begun = time.monotonic()
x = torch.ones(1024, device=device)
dist.all_reduce(x)
assert not torch.cuda._is_in_bad_fork()
print("sum", x.sum().item(), "after", round(time.monotonic() - begun, 3), flush=True)
dist.destroy_process_group()
"""
    )
    seen = []
    for _ in range(3):
        begun = time.monotonic()
        out = kit.run("first", body)
        need("sum 1024.0" in out, out)
        seen.append(round(time.monotonic() - begun, 2))
    return {"seconds": seen, "torchrun": kit.torchrun("first")}


def a_forked_rank_compiles(kit: Kit) -> object:
    body = (
        GROUP
        + """
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).to(device)
ddp = torch.compile(torch.nn.parallel.DistributedDataParallel(model))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(1, 21):
    optimizer.zero_grad()
    loss = ddp(torch.randn(32, 64, device=device)).pow(2).mean()
    loss.backward()
    optimizer.step()
print("step 20 loss", loss.item(), flush=True)
dist.destroy_process_group()
"""
    )
    out = kit.run("compiled", body)
    need("step 20 loss" in out, out)
    return None


def gloo_moves_cuda_tensors_between_ranks_of_one_gpu(kit: Kit) -> object:
    body = (
        GROUP
        + """
x = torch.full((1000,), float(rank + 1), device=device)
dist.all_reduce(x)
print("sum", x[0].item(), x.device.type, flush=True)
dist.destroy_process_group()
"""
    )
    out = kit.run("gloo_cuda", body, ranks=2, backend="gloo")
    need(out.count(f"sum 3.0 {kit.device}") == 2, out)
    return None


def two_nccl_ranks_on_one_gpu_are_explained(kit: Kit) -> object:
    done = kit.try_run("duplicate", GROUP + "dist.all_reduce(torch.ones(4, device=device))\n", ranks=2)
    if kit.dry:
        return None
    said = done.stdout + done.stderr
    need(done.returncode != 0 and re.search(r"one for each|Duplicate GPU|same GPU", said), said)
    return said.strip().splitlines()[-2:]


def two_ranks_that_choose_the_same_gpu_are_explained(kit: Kit) -> object:
    body = "dist.init_process_group('nccl')\ndist.all_reduce(torch.ones(4, device='cuda:0'))\n"
    if kit.dry:
        return None
    done = kit.try_run("same_gpu", body, "--set", "env={NCCL_DEBUG='WARN'}", ranks=2, backend="gloo")
    said = done.stdout + done.stderr + kit.command("diagnose", "-").stdout
    return {"exit": done.returncode, "says": said.strip().splitlines()[-6:]}


def status_shows_use_and_memory_of_the_gpu(kit: Kit) -> object:
    body = (
        GROUP
        + """
a, begun, step = torch.randn(4096, 4096, device=device) if device.type == "cuda" else torch.randn(64, 64), time.time(), 0
while time.time() - begun < 14:
    a, step = (a @ a).clamp(-1, 1), step + 1
    if step % 50 == 0:
        if device.type == "cuda":
            torch.cuda.synchronize()
        print(f"step {step} loss {1 / step:.4f}", flush=True)
"""
    )
    run = kit.start("busy", body)
    deadline = time.monotonic() + 20
    use = None
    while time.monotonic() < deadline and not (use and use["utilisation"]):
        use = json.loads(kit.command("status", run, "--json").stdout)["ranks"][0]["gpu"]
        if kit.dry:
            break
        time.sleep(0.5)
    kit.command("wait", run)
    need(kit.dry or (use and use["utilisation"] and use["memory"]), use)
    return use


def the_cause_is_named(kit: Kit, name: str, body: str, cause: str) -> object:
    """Runs a script that must fail, and looks for a cause in what `diagnose` says."""
    if kit.dry:
        return None
    done = kit.try_run(name, body)
    said = kit.command("diagnose", "-").stdout
    need(done.returncode != 0 and re.search(cause, said), said)
    return said.strip().splitlines()[:2]


def out_of_gpu_memory_is_the_cause(kit: Kit) -> object:
    body = GROUP + "held = []\nwhile True:\n    held.append(torch.empty(2**33, dtype=torch.uint8, device=device))\n"
    return the_cause_is_named(kit, "oom", body, "GPU memory|CUDA out of memory")


def an_assertion_in_a_kernel_is_the_cause(kit: Kit) -> object:
    body = GROUP + "print(torch.zeros(3, device=device)[torch.tensor([5], device=device)].sum().item())\n"
    return the_cause_is_named(kit, "assertion", body, "assertion in a GPU kernel|CUDA_LAUNCH_BLOCKING")


def a_rank_in_an_endless_kernel_is_named_and_ends(kit: Kit) -> object:
    body = (
        GROUP
        + """
print("step 1 loss 1.0", flush=True)
if device.type == "cuda":
    torch.cuda._sleep(10**13)
    torch.cuda.synchronize()
time.sleep(1000)
"""
    )
    run = kit.start("endless", body)
    deadline = time.monotonic() + 30
    said, place = "", "endless.py" if kit.dry else "waiting for the GPU"
    while time.monotonic() < deadline and place not in said:
        said = kit.command("stacks", run).stdout
    begun = time.monotonic()
    ended = kit.command("stop", run)
    need(ended.returncode == 0, ended.stderr)
    need(place in said, said)
    return {"stop_seconds": round(time.monotonic() - begun, 1), "says": said.strip().splitlines()[:1]}


def an_elastic_rank_with_cuda_state_comes_back(kit: Kit) -> object:
    body = """
import hashlib
import rankdeck.elastic
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8)).to(device)
state = rankdeck.elastic.State(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2), step=0)
@rankdeck.elastic.run(state)
def train():
    ddp = torch.nn.parallel.DistributedDataParallel(state.model)
    while state.step < 60:
        if "KIT_KILL" in os.environ and rank == 1 and state.step == 20 and os.environ["RANKDECK_GENERATION"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        generator = torch.Generator().manual_seed(state.step * 10 + rank)
        state.optimizer.zero_grad()
        ddp(torch.randn(16, 32, generator=generator).to(device)).pow(2).mean().backward()
        state.optimizer.step()
        state.step += 1
train()
data = b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())
print("DIGEST", hashlib.sha256(data).hexdigest()[:12], flush=True)
"""
    restart = ("--set", "launch.on_failure='restart'")
    seen = {
        what: sorted(
            set(re.findall(r"DIGEST (\w+)", kit.run("elastic", body, *restart, ranks=2, backend="gloo", **more)))
        )
        for what, more in (("undisturbed", {}), ("after a kill", {"KIT_KILL": "1"}))
    }
    need(len(seen["undisturbed"]) == 1 and seen["undisturbed"] == seen["after a kill"], seen)
    return seen


def an_nccl_rank_that_dies_restarts(kit: Kit) -> object:
    body = (
        GROUP
        + """
dist.all_reduce(torch.ones(4, device=device))
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    os.kill(os.getpid(), signal.SIGKILL)
print("came back", flush=True)
dist.destroy_process_group()
"""
    )
    need("came back" in kit.run("comes_back", body, "--set", "launch.on_failure='restart'"), "it did not come back")
    return None


def recipes_train_on_the_gpu(kit: Kit) -> object:
    seen = {}
    for name, words in (
        ("ddp-mlp", ("--epochs", "2")),
        ("fsdp-gpt", ("--steps", "20")),
        ("gpt", ("--steps", "50")),
        ("allreduce", ()),
    ):
        begun = time.monotonic()
        done = kit.command("run", "-n", "1", "-b", kit.backend, name, *words, timeout=90.0)
        need(done.returncode == 0, f"{name}: {done.stdout}{done.stderr}")
        seen[name] = round(time.monotonic() - begun, 1)
    return seen


def nothing_is_left(kit: Kit) -> object:
    kit.command("clean", "--template", "--yes")
    listed = json.loads(kit.command("ps", "--json").stdout or "[]")
    need(not [run for run in listed if run["state"] in ("running", "starting", "failing")], listed)
    if kit.dry:
        return None
    query = ["nvidia-smi", "--query-compute-apps=pid,name,used_memory", "--format=csv,noheader"]
    processes = subprocess.run(query, text=True, capture_output=True, check=True).stdout.strip()
    need(not processes, processes)
    return None


STEPS: tuple[Callable[[Kit], object], ...] = (
    machine,
    backends_says_that_nccl_is_ready,
    quickstart_trains_on_the_gpu,
    a_warm_template_forks_a_rank_with_cuda,
    a_forked_rank_compiles,
    gloo_moves_cuda_tensors_between_ranks_of_one_gpu,
    two_nccl_ranks_on_one_gpu_are_explained,
    two_ranks_that_choose_the_same_gpu_are_explained,
    status_shows_use_and_memory_of_the_gpu,
    out_of_gpu_memory_is_the_cause,
    an_assertion_in_a_kernel_is_the_cause,
    a_rank_in_an_endless_kernel_is_named_and_ends,
    an_elastic_rank_with_cuda_state_comes_back,
    an_nccl_rank_that_dies_restarts,
    recipes_train_on_the_gpu,
    nothing_is_left,
)


def row_of(step: Callable[[Kit], object], kit: Kit) -> dict[str, Any]:
    """Runs a step. Whatever goes wrong in it ends this step alone."""
    begun = time.monotonic()
    try:
        row = {"step": step.__name__, "ok": True, "seen": step(kit)}
    except subprocess.TimeoutExpired as error:
        kit.command("stop", "-", "--now")
        row = {"step": step.__name__, "ok": False, "seen": str(error)}
    except (FellShortError, subprocess.SubprocessError, LookupError, ValueError) as error:
        row = {"step": step.__name__, "ok": False, "seen": f"{type(error).__name__}: {error}"}
    return {**row, "seconds": round(time.monotonic() - begun, 1)}


def main() -> int:
    """Runs the steps. Returns 1 if one fell short or was not reached."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":", 1)[0])
    parser.add_argument("out", type=Path, help="folder for the results")
    parser.add_argument("--dry", action="store_true", help="use gloo and CPU tensors")
    parser.add_argument("--only", nargs="*", default=[], choices=[step.__name__ for step in STEPS], metavar="NAME")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    kit = Kit(options.out, dry=options.dry)
    begun, missed = time.monotonic(), 0
    with (options.out / "steps.jsonl").open("a", encoding="utf-8") as rows:
        for step in [step for step in STEPS if not options.only or step.__name__ in options.only]:
            if time.monotonic() - begun > LIMIT:
                print(f"late {step.__name__}", flush=True)
                missed += 1
                continue
            row = row_of(step, kit)
            missed += not row["ok"]
            rows.write(json.dumps(row) + "\n")
            print("ok  " if row["ok"] else "FAIL", row["step"], f"({row['seconds']} s)", row["seen"] or "", flush=True)
    print(f"{time.monotonic() - begun:.0f} s, {missed} steps fell short")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
