"""Records failures for real: `python tests/data/failures/record.py [NAME…]` writes a file for each, beside this one.

No test runs it. It needs root, torch, mpi4py, OpenSSH, Open MPI 4 and MPICH; what is missing is said and left out. Host name,
folders and user of the machine are replaced.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
BIN = ROOT / ".venv" / "bin"
OPENMPI_5 = str(ROOT / ".venv" / "openmpi" / "bin" / "mpirun")

SECONDS = 120
"""After which a recording is given up."""

HEADER = """\
import datetime, os, signal, sys, time
import torch
import torch.distributed as dist
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
def init(seconds=60, backend="gloo"):
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=seconds))
"""
STEPS = """\
init()
for step in range(3):
    dist.all_reduce(torch.ones(4))
"""
DDP = """\
from torch.nn.parallel import DistributedDataParallel
class Net(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.used, self.unused = torch.nn.Linear(width, 8), torch.nn.Linear(8, 8)
    def forward(self, batch):
        return self.used(batch)
"""
CGROUP = "group=/sys/fs/cgroup/memory/rankdeck; mkdir $group; echo 1500M > $group/memory.limit_in_bytes; "
UNUSED = (
    DDP + "init()\nmodel = DistributedDataParallel(Net(4))\n"
    "for step in range(2):\n    model(torch.ones(2, 4)).sum().backward()\n"
)
LOADER = """\
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        if index == 40:
            {}
        return torch.ones(4)
loader = torch.utils.data.DataLoader(Data(), batch_size=8, num_workers=1)
"""


class Recording(NamedTuple):
    """A failure. `command` is one of a shell, in a folder that holds `train.py`."""

    command: str
    script: str = ""
    env: Mapping[str, str] = MappingProxyType({})


def torchrun(script: str, *, ranks: int = 4, options: str = "--standalone", **env: str) -> Recording:
    """A script with `HEADER` under torchrun."""
    return Recording(f"torchrun {options} --nproc-per-node {ranks} train.py", HEADER + script, env)


def python(script: str, **env: str) -> Recording:
    """A script with `HEADER` by itself."""
    return Recording("python train.py", HEADER + script, env)


def rankdeck(script: str, *, ranks: int = 4) -> Recording:
    """A script with `HEADER` under rankdeck, which stops the run when a rank fails."""
    profile = (
        f'schema = 1\nname = "train"\n[backend]\nname = "gloo"\n[layout]\nranks_per_node = {ranks}\n'
        '[recipe]\nscript = "train.py"\n[launch]\non_failure = "stop"\n'
    )
    return Recording(f"printf %s {shlex.quote(profile)} > train.toml; rankdeck launch train.toml", HEADER + script)


def mpi(script: str, words: str = "", *, ranks: int = 3, program: str = "python train.py") -> dict[str, Recording]:
    """A script under all three MPIs."""
    openmpi = {**AS_ROOT, "MPI4PY_MPIABI": "openmpi"}
    library = str(ROOT / ".venv" / "openmpi" / "lib" / "libmpi.so.40")
    return {
        "openmpi4": Recording(f"mpirun.openmpi --oversubscribe {words} -np {ranks} {program}", script, openmpi),
        "openmpi5": Recording(
            f"{OPENMPI_5} --map-by :OVERSUBSCRIBE {words} -np {ranks} {program}",
            script,
            {**openmpi, "MPI4PY_LIBMPI": library},
        ),
        "mpich": Recording(
            # the wheel of mpi4py looks for the name that MPICH gives its library, which Debian has changed
            f"ln -s /usr/lib/x86_64-linux-gnu/libmpich.so.12 libmpi.so.12; mpirun.mpich {words} -np {ranks} {program}",
            script,
            {"MPI4PY_MPIABI": "mpich", "LD_LIBRARY_PATH": "."},
        ),
    }


AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
MPI = "from mpi4py import MPI\nimport os, signal, sys, time\nworld = MPI.COMM_WORLD\nrank = world.rank\n"

MPI_SCRIPTS = {
    "sigkill": MPI + "world.Barrier()\nif rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\nsignal.pause()\n",
    "sigsegv": MPI + "world.Barrier()\nif rank == 2:\n    os.kill(os.getpid(), signal.SIGSEGV)\nsignal.pause()\n",
    "exit3": MPI
    + "world.Barrier()\nif rank == 1:\n    print('cannot read data.bin', file=sys.stderr)\n    os._exit(3)\nworld.Barrier()\n",
    "abort": MPI + "world.Barrier()\nif rank == 1:\n    time.sleep(1)\n    world.Abort(7)\nsignal.pause()\n",
    "improper": MPI + "world.Barrier()\nif rank == 1:\n    os._exit(0)\nworld.Barrier()\n",
}

SELF_STARTING = """\
def meet(number):
    where = "tcp://127.0.0.1:29711"
    dist.init_process_group("gloo", init_method=where, rank=number, world_size=2, timeout=datetime.timedelta(seconds=5))
if __name__ == "__main__":
    torch.multiprocessing.spawn(meet, nprocs=2)
"""

RECORDINGS: dict[str, Recording] = {
    # --- exceptions and signals under torchrun
    "torchrun-exception": torchrun(STEPS + "    if rank == 3 and step == 1:\n        raise ValueError('bad batch')\n"),
    "torchrun-exception-tee": torchrun(
        STEPS + "    if rank == 3 and step == 1:\n        raise ValueError('bad batch')\n",
        options="--standalone --tee 3",
    ),
    "torchrun-exception-recorded": torchrun(
        "from torch.distributed.elastic.multiprocessing.errors import record\n@record\ndef main():\n    init()\n"
        "    dist.barrier()\n    if rank == 1:\n        raise KeyError('vocab_size')\n    dist.barrier()\nmain()\n"
    ),
    "torchrun-self-starting": torchrun(SELF_STARTING, ranks=1),
    "torchrun-sigkill": torchrun(STEPS + "    if rank == 2:\n        os.kill(os.getpid(), signal.SIGKILL)\n"),
    "torchrun-sigkill-tee": torchrun(
        STEPS + "    if rank == 0:\n        os.kill(os.getpid(), signal.SIGKILL)\n", options="--standalone --tee 3"
    ),
    "torchrun-sigsegv": torchrun(
        "import ctypes\n" + STEPS + "    if rank == 1:\n        ctypes.string_at(0)\n", PYTHONFAULTHANDLER="1"
    ),
    "torchrun-sigabrt": torchrun(STEPS + "    if rank == 1:\n        os.abort()\n"),
    "torchrun-exit": torchrun(
        STEPS
        + "    if rank == 2:\n        print('config: unknown key lerning_rate', file=sys.stderr)\n        os._exit(4)\n"
    ),
    "torchrun-sigterm": Recording(
        "torchrun --standalone --nproc-per-node 2 train.py & until test -e up; do sleep 0.1; done; kill -TERM $!; wait $!",
        HEADER + "init()\ndist.barrier()\nopen('up', 'w')\ntime.sleep(60)\n",
    ),
    "torchrun-restarts": torchrun(
        STEPS + "    if rank == 1:\n        raise RuntimeError('data shard 7 is empty')\n",
        ranks=2,
        options="--standalone --max-restarts 1",
        TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
    ),
    "torchrun-early-exit": torchrun(
        "init()\ndist.barrier()\nif rank == 0:\n    os._exit(0)\ntime.sleep(1)\ndist.all_reduce(torch.ones(4))\n",
        ranks=2,
    ),
    # --- the script
    "torchrun-no-module": torchrun("import flash_attn\n", ranks=2),
    "torchrun-no-script": Recording("torchrun --standalone --nproc-per-node 2 trian.py"),
    "torchrun-syntax": Recording("torchrun --standalone --nproc-per-node 2 train.py", "import os\nif True\n    pass\n"),
    "torchrun-arguments": torchrun(
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--lr', required=True)\nparser.parse_args()\n",
        ranks=2,
    ),
    "torchrun-relative-import": torchrun("from .data import batches\n", ranks=2),
    "torchrun-input": torchrun("input('Overwrite the folder? ')\n", ranks=2),
    "python-checkpoint": python(
        "torch.save(torch.nn.Linear(4, 4).state_dict(), 'last.pt')\n"
        "torch.nn.Linear(4, 8).load_state_dict(torch.load('last.pt'))\n"
    ),
    "python-disk-full": python("with open('/dev/full', 'wb') as file:\n    torch.save(torch.ones(100_000), file)\n"),
    "python-open-files": python(
        "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\nkept = [open('train.py') for _ in range(100)]\n"
    ),
    "python-threads": python(
        "import resource, threading\nos.setuid(12345)\nresource.setrlimit(resource.RLIMIT_NPROC, (1, 1))\n"
        "threading.Thread(target=print).start()\n"
    ),
    # --- memory
    "torchrun-cpu-memory": torchrun(STEPS + "    if rank == 1:\n        torch.empty(1 << 48)\n", ranks=2),
    "torchrun-oom": Recording(
        CGROUP
        + "(echo $BASHPID > $group/cgroup.procs; exec torchrun --standalone --nproc-per-node 2 train.py); rmdir $group",
        HEADER + STEPS + "    if rank == 1:\n        kept = [torch.ones(1 << 24) for _ in range(64)]\n",
    ),
    "python-oom": Recording(
        CGROUP + "(echo $BASHPID > $group/cgroup.procs; python train.py; true); rmdir $group",
        HEADER + "kept = [torch.ones(1 << 24) for _ in range(64)]\n",
    ),
    "python-memory-limit": Recording("ulimit -v 3000000; python train.py", HEADER + "kept = torch.ones(1 << 30)\n"),
    "python-memory-error": python("bytes(1 << 60)\n"),
    "python-loader-killed": python(LOADER.format("os.kill(os.getpid(), signal.SIGKILL)") + "list(loader)\n"),
    "python-resource-tracker": python(
        LOADER.format("os.kill(os.getpid(), signal.SIGKILL)")
        + "from multiprocessing import resource_tracker, shared_memory\nshared = shared_memory.SharedMemory(create=True, size=8)\n"
        "try:\n    list(loader)\nfinally:\n    resource_tracker.unregister(shared._name, 'shared_memory')\n    shared.unlink()\n"
    ),
    "python-loader-bus-error": python(LOADER.format("os.kill(os.getpid(), signal.SIGBUS)") + "list(loader)\n"),
    "torchrun-loader-exception": torchrun(
        LOADER.format("raise OSError('corrupt record 40')")
        + "init()\ndist.barrier()\nif rank == 1:\n    list(loader)\ndist.barrier()\n",
        ranks=2,
    ),
    # --- collectives
    "torchrun-shapes": torchrun(STEPS + "dist.all_reduce(torch.ones(1000 if rank == 1 else 10))\n", ranks=2),
    "torchrun-shapes-detail": torchrun(
        STEPS + "dist.all_reduce(torch.ones(1000 if rank == 1 else 10))\n", ranks=2, TORCH_DISTRIBUTED_DEBUG="DETAIL"
    ),
    "torchrun-collectives-detail": torchrun(
        STEPS + "dist.all_reduce(torch.ones(4)) if rank else dist.broadcast(torch.ones(4), 0)\n",
        ranks=3,
        TORCH_DISTRIBUTED_DEBUG="DETAIL",
    ),
    "torchrun-missing-rank": torchrun(
        "init(4)\ndist.all_reduce(torch.ones(4))\nif rank == 2:\n    time.sleep(60)\ndist.all_reduce(torch.ones(4))\n"
    ),
    "torchrun-monitored-barrier": torchrun(
        "init()\ndist.barrier()\nif rank == 1:\n    time.sleep(60)\n"
        "dist.monitored_barrier(timeout=datetime.timedelta(seconds=3))\n",
        ranks=3,
    ),
    "torchrun-monitored-barrier-all": torchrun(
        "init()\ndist.barrier()\nif rank in (1, 3):\n    time.sleep(60)\n"
        "dist.monitored_barrier(timeout=datetime.timedelta(seconds=3), wait_all_ranks=True)\n"
    ),
    "torchrun-ddp-unused": torchrun(UNUSED, ranks=2),
    "torchrun-ddp-unused-detail": torchrun(UNUSED, ranks=2, TORCH_DISTRIBUTED_DEBUG="DETAIL"),  # 2.13 crashes
    "torchrun-ddp-models": torchrun(DDP + "init()\nmodel = DistributedDataParallel(Net(4 + rank))\n", ranks=2),
    # --- rendezvous
    "torchrun-interface": torchrun("init()\n", ranks=2, GLOO_SOCKET_IFNAME="ib7"),
    "torchrun-interface-list": torchrun("init()\n", ranks=2, GLOO_SOCKET_IFNAME="^lo,docker0"),
    "torchrun-port": Recording(
        "python -c \"import socket, time; s = socket.create_server(('', 29577)); open('up', 'w'); time.sleep(60)\" &"
        " until test -e up; do sleep 0.1; done; torchrun --nproc-per-node 2 --master-port 29577 train.py; kill $!",
        HEADER + "init()\n",
    ),
    "python-port": Recording(
        "python -c \"import socket, time; s = socket.create_server(('', 29578)); open('up', 'w'); time.sleep(60)\" &"
        " until test -e up; do sleep 0.1; done; python train.py; kill $!",
        HEADER + "dist.init_process_group('gloo', 'tcp://127.0.0.1:29578', rank=0, world_size=2)\n",
    ),
    "torchrun-endpoint": torchrun(
        "init()\n",
        ranks=1,
        options="--nnodes 2 --rdzv-backend c10d --rdzv-id job --rdzv-endpoint node7.invalid:29400",
    ),
    "torchrun-endpoint-refused": torchrun(
        "init()\n",
        ranks=1,
        options="--nnodes 2 --rdzv-backend c10d --rdzv-id job --rdzv-endpoint 127.0.0.2:29579 --rdzv-conf is_host=0,read_timeout=3",
    ),
    "python-missing-clients": python(
        "init(3)\n", RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="29580"
    ),
    "python-no-store": python("init(3)\n", RANK="1", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="29581"),
    "python-no-host": python("init(3)\n", RANK="1", WORLD_SIZE="2", MASTER_ADDR="node7.invalid", MASTER_PORT="29581"),
    "python-no-environment": python("init(3)\n"),
    "torchrun-store-wait": torchrun(
        "init()\nstore = dist.distributed_c10d._get_default_store()\nstore.set_timeout(datetime.timedelta(seconds=2))\n"
        "dist.barrier()\nstore.get('shards')\n",
        ranks=2,
    ),
    "torchrun-store-gone": Recording(
        "for rank in 0 1 2; do RANK=$rank python train.py & done; wait",
        HEADER + "init()\ndist.barrier()\nif rank == 0:\n    raise ValueError('bad batch')\n"
        "dist.distributed_c10d._get_default_store().get('shards')\n",
        {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29582"},
    ),
    "torchrun-store-barrier": torchrun(
        "init()\nfrom torch.distributed import distributed_c10d as c10d\nstore = c10d._get_default_store()\n"
        "if rank == 1:\n    time.sleep(60)\n"
        "c10d._store_based_barrier(rank, store, 'workers', world, datetime.timedelta(seconds=2))\n",
        ranks=2,
    ),
    "torchrun-not-destroyed": torchrun("init()\ndist.barrier()\nraise ValueError('bad batch')\n", ranks=1),
    # --- backends and devices
    "python-backend-name": python(
        "init(3, 'glop')\n", RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0"
    ),
    "torchrun-no-nccl": torchrun("init(3, 'nccl')\n", ranks=2),
    "torchrun-no-mpi": torchrun("init(3, 'mpi')\n", ranks=2),
    "torchrun-no-ucc": torchrun("init(3, 'ucc')\n", ranks=2),
    "torchrun-no-group": torchrun("dist.all_reduce(torch.ones(4))\n", ranks=2),
    "python-cpu-build": python("torch.ones(4).cuda()\n"),
    "python-set-device": python("torch.cuda.set_device(0)\n"),
    "torchrun-broken-extension": Recording(
        "mkdir -p broken-1.dist-info; printf 'Name: broken\\nVersion: 1\\nMetadata-Version: 2.1\\n' > broken-1.dist-info/METADATA;"
        " printf '[torch.backends]\\nbroken = broken_backend:load\\n' > broken-1.dist-info/entry_points.txt;"
        " PYTHONPATH=. python train.py",
        HEADER,
    ),
    # --- under rankdeck
    "rankdeck-exception": rankdeck(STEPS + "    if rank == 3 and step == 1:\n        raise ValueError('bad batch')\n"),
    "rankdeck-sigkill": rankdeck(STEPS + "    if rank == 2:\n        os.kill(os.getpid(), signal.SIGKILL)\n"),
    "rankdeck-shapes": rankdeck(STEPS + "dist.all_reduce(torch.ones(1000 if rank == 1 else 10))\n", ranks=2),
    # --- MPI
    **{
        f"{which}-{name}": recording
        for name, script in MPI_SCRIPTS.items()
        for which, recording in mpi(script).items()
        if (which, name) != ("mpich", "improper")
    },
    "openmpi4-library": Recording(
        "mpirun.openmpi --oversubscribe -np 2 python train.py",
        "from mpi4py import MPI\n",
        {**AS_ROOT, "MPI4PY_LIBMPI": "libmpi.so.12"},
    ),
    "mpich-library": Recording(
        "mpirun.mpich -np 2 python train.py", "from mpi4py import MPI\n", {"MPI4PY_MPIABI": "mpich"}
    ),
    "openmpi4-slots": Recording("mpirun.openmpi --host localhost:2 -np 4 hostname", env=AS_ROOT),
    "openmpi5-slots": Recording(f"{OPENMPI_5} --host localhost:2 -np 4 hostname", env=AS_ROOT),
    "openmpi4-root": Recording("mpirun.openmpi -np 2 hostname"),
    "openmpi5-root": Recording(f"{OPENMPI_5} -np 2 hostname"),
    "openmpi4-executable": mpi("", program="./trian")["openmpi4"],
    "openmpi5-executable": mpi("", program="./trian")["openmpi5"],
    "mpich-executable": mpi("", program="./trian")["mpich"],
    "openmpi4-tagged": mpi(
        MPI + "world.Barrier()\nif rank == 1:\n    raise ValueError('bad batch')\nworld.Barrier()\n",
        "--tag-output",
        program="python -m mpi4py train.py",
    )["openmpi4"],
    "openmpi5-tagged": mpi(
        MPI + "world.Barrier()\nif rank == 1:\n    raise ValueError('bad batch')\nworld.Barrier()\n",
        "--tag-output",
        program="python -m mpi4py train.py",
    )["openmpi5"],
    "mpich-tagged": mpi(
        MPI + "world.Barrier()\nif rank == 1:\n    raise ValueError('bad batch')\nworld.Barrier()\n",
        "-prepend-rank",
        program="python -m mpi4py train.py",
    )["mpich"],
    "openmpi4-host": Recording("mpirun.openmpi --host node7.invalid:2 -np 2 hostname", env=AS_ROOT),
    "openmpi5-host": Recording(f"{OPENMPI_5} --host node7.invalid:2 -np 2 hostname", env=AS_ROOT),
    "mpich-host": Recording("mpirun.mpich -hosts node7.invalid -np 2 hostname"),
    # --- ssh
    "ssh-resolve": Recording("ssh -o BatchMode=yes node7.invalid true"),
    "ssh-refused": Recording("ssh -o BatchMode=yes -p 1 127.0.0.1 true"),
    "ssh-key": Recording("SSHD; ssh OPTIONS -o IdentityFile=none 127.0.0.1 true"),
    "ssh-host-key": Recording("SSHD; : > known; ssh OPTIONS -o IdentityFile=none 127.0.0.1 true"),
    "ssh-host-key-changed": Recording(
        "SSHD; echo \"[127.0.0.1]:2299 $(cut -d' ' -f1,2 other.pub)\" > known; ssh OPTIONS 127.0.0.1 true"
    ),
    "ssh-too-many-keys": Recording("SSHD MaxAuthTries=1; ssh OPTIONS -i other -i third 127.0.0.1 true"),
}

SSHD = """\
for key in host other third; do ssh-keygen -q -t ed25519 -N '' -C '' -f $key; done; mkdir -p /run/sshd
echo "[127.0.0.1]:2299 $(cut -d' ' -f1,2 host.pub)" > known
/usr/sbin/sshd -D -f /dev/null -p 2299 -h "$PWD/host" -o ListenAddress=127.0.0.1 -o PidFile=none -o PasswordAuthentication=no \
 -o KbdInteractiveAuthentication=no -o UsePAM=no {options} 2>/dev/null & sshd=$!; trap 'kill $sshd' EXIT
until ssh-keyscan -p 2299 127.0.0.1 2>/dev/null | grep -q .; do sleep 0.1; done
"""
OPTIONS = (
    "-F none -p 2299 -o BatchMode=yes -o StrictHostKeyChecking=yes -o UserKnownHostsFile=known -o IdentitiesOnly=yes"
    " -o GlobalKnownHostsFile=none"
)


def with_sshd(command: str) -> str:
    """The command with an sshd of its own, where it wants one."""

    def sshd(found: re.Match[str]) -> str:
        return SSHD.format(options=" ".join(f"-o {word}" for word in found[1].split()))

    return re.sub(r"^SSHD([^;]*);", sshd, command).replace("OPTIONS", OPTIONS)


def cleaned(text: str, folder: str) -> str:
    """What was printed, as on a machine of no name."""
    for old, new in (
        (folder, "/home/user"),
        (str(BIN.parent), "/home/user/env"),
        (str(ROOT), "/home/user/rankdeck"),
        (sys.base_prefix, "/usr"),
    ):
        text = text.replace(old, new)
    for host in (socket.getfqdn(), socket.gethostname()):
        text = re.sub(rf"\b{re.escape(host)}\b", "node1", text)
    return re.sub(r"\broot@", "user@", text)


def record(name: str, recording: Recording, say: Callable[[str], None]) -> None:
    """Writes one file."""
    with tempfile.TemporaryDirectory(prefix="rd") as folder:
        if recording.script:
            (Path(folder) / "train.py").write_text(recording.script)
        foreign = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PYTHONPATH")
        env = {key: value for key, value in os.environ.items() if key not in foreign}
        env |= {"PATH": f"{BIN}:{env['PATH']}", "RANKDECK_HOME": f"{folder}/deck", "XDG_RUNTIME_DIR": folder}
        env |= {"PYTHONUNBUFFERED": "1", "TMPDIR": folder, "OMP_NUM_THREADS": "1", **recording.env}
        done = subprocess.run(
            ["bash", "-c", with_sshd(recording.command)],
            cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=SECONDS, check=False,
        )  # fmt: skip
        text = cleaned(done.stdout.decode(errors="replace"), folder)
        (HERE / f"{name}.txt").write_text(text)
        say(f"{name}: exit {done.returncode}, {len(text)} characters")


def main() -> None:
    """Records what is named, or everything."""
    for name in sys.argv[1:] or RECORDINGS:
        try:
            record(name, RECORDINGS[name], lambda line: print(line, flush=True))
        except subprocess.TimeoutExpired:
            print(f"{name}: not within {SECONDS} s", flush=True)


if __name__ == "__main__":
    main()
