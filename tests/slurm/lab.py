"""A real Slurm for tests: controller, munge and nodes of its own, on this machine, without any sshd.

A node is a network namespace with its own host name and slurmd; the file system is the machine's. The namespace of the tests is a
login node, and there is another. Everything ends with the process that made it, however that ends.

`Slurm(site=True)` has what sites add: accounts in slurmdbd, so `sacct` knows how jobs have ended; QOS `low` (preempted and requeued after
GraceTime), `cancelled` (preempted for good), `urgent` (preempts both) and `tiny` (limits); accounts `proj` and `poor` (2 CPUs); messages of
`job_submit.lua`; lines that are printed before each task; a /tmp of each node's own. A module of tests uses it instead of the plain one by

    @pytest.fixture(scope="session")
    def cluster(site: Slurm) -> Slurm:
        return site

and then its fixture `slurm` is the site. `Slurm.slow(seconds)` is a controller that answers late, `Slurm.rpcs()` what it was asked.
"""

import contextlib
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.cluster.namespaces import PREFIX, SBIN, free_network, ip, pids_in, program, remove, remove_leftovers
from tests.support import PATIENCE, Process, entries, is_alive, kill_hard, run_program, wait_until

NEEDED = ("ip", "munged", "mungekey", "nft", "sbatch", "setpriv", "slurmctld", "slurmd", "srun", "unshare")
OF_A_SITE = ("mariadb-install-db", "my_print_defaults", "mariadbd", "slurmdbd")
SILENCE = 600  # seconds that a slurmd may be silent before its node is down, longer than one is on a busy machine
FIRST_PORT, DATABASE_PORT, SLOW_PORT = 20000, 20300, 20600  # below those that the kernel chooses
CORES, MEMORY, GPUS = 4, 1000, 2  # Of each node; memory in MiB. The GPUs are files that Slurm counts.
CONFIG = entries("slurm/lab", "config")
SITE = {name: entries("slurm/lab", name) for name in ("accounting", "accounts", "database", "job_submit", "said")}

GRES = "Name=gpu File={folder}/gpu[0-{last}]\n"

NODE = entries("slurm/lab", "node")

LOGIN = """
hostname login2; mount --bind "$1" /etc/hosts; mount -t tmpfs none "$XDG_RUNTIME_DIR"; shift; exec "$@"
"""

_serial = itertools.count(50)


def reason_to_skip(*, site: bool = False) -> str:
    """Why there can be no Slurm here; empty: there can."""
    if os.geteuid() != 0:
        return "needs root: Slurm's nodes are network namespaces"
    for name in NEEDED + OF_A_SITE * site:
        if shutil.which(name, path=SBIN) is None:
            return f"there is no {name}, of Debian's slurmctld, slurmd, slurm-client, slurmdbd, mariadb-server-core, mariadb-client-core, munge, iproute2, nftables and util-linux"
    return ""


class Slurm:
    """A cluster that Slurm runs, as a context manager. Its nodes are sl1, sl2 and so on.

    Args:
        count: how many nodes.
        site: whether it has accounts and the rest of a site.
        shared: folders below /tmp that nodes of a site see too.
    """

    def __init__(self, count: int = 2, *, site: bool = False, shared: Iterable[Path] = ()) -> None:
        self._is_site = site
        self.names = [f"sl{number}" for number in range(1, count + 1)]
        self.bridge = f"{PREFIX}{os.getpid()}-{next(_serial)}"
        self.folder = Path(tempfile.mkdtemp(prefix="rdslurm"))  # a path of pytest is too long for a socket
        self.conf = self.folder / "slurm.conf"
        self.prolog = self.folder / "prolog.sh"
        """What Slurm runs before each task. It says what the file `said` beside it has: `print Welcome`."""
        self.unshared = self.folder / "unshared"
        """A folder of the login nodes; each node has another one under this path."""
        self._shared = [str(one) for one in (self.folder, *shared) if one.is_relative_to("/tmp")] if site else []
        self._network = free_network()
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def _port(self) -> int:
        """Of slurmctld. The kernel gives it to nobody, also while slurmctld is away."""
        return FIRST_PORT + self._network

    @property
    def environment(self) -> dict[str, str]:
        """What Slurm's commands need."""
        return {"SLURM_CONF": str(self.conf), "PATH": SBIN}

    def link(self, name: str) -> str:
        """The name of a node's namespace."""
        return f"{self.bridge}-{name.removeprefix('sl')}"

    @property
    def other_login(self) -> tuple[str, ...]:
        """The words before a command that run it on the other login node, whose name is login2. It has a runtime folder of its own."""
        inside = (program("ip"), "netns", "exec", self.link("L"), "unshare", "--uts", "--mount")
        return (*inside, "sh", "-c", LOGIN, "sh", str(self.folder / "hosts"))

    # --- commands ----------------------------------------------------------------------------------------------------

    def run(self, *words: str) -> str:
        """Runs one of Slurm's commands on the login node. Returns what it printed."""
        done = run_program(words, env=self.environment)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout.strip()

    @contextlib.contextmanager
    def job(self, *options: str) -> Iterator[str]:
        """A job on all nodes that does nothing, from when it runs; cancelled afterwards. Gives its number."""
        words = ["sbatch", "--parsable", f"--nodes={len(self.names)}", "--output=/dev/null", *options]
        job = self.run(*words, "--wrap", "exec sleep infinity")
        try:
            wait_until(lambda: self.state(job) == "RUNNING", what=f"job {job} runs")
            yield job
        finally:
            self.heal()

    def state(self, job: str) -> str:
        """A job's state; empty: Slurm has forgotten it."""
        return self.run("squeue", "-h", "-t", "all", "-o", "%T", "-j", job)

    def steps(self, job: str) -> list[str]:
        """The steps of a job, without its script and its external step."""
        found = self.run("squeue", "-h", "-s", "-o", "%i", "-j", job).split()
        return [step for step in found if step.rpartition(".")[2].isdigit()]

    def cancel_everything(self) -> None:
        """Ends every job, and waits until the nodes are free."""
        self.run("scancel", "--user=root")
        wait_until(lambda: not self.run("squeue", "-h"), what="no job is left")
        wait_until(self._is_idle, what="all nodes are idle")

    def _is_idle(self) -> bool:
        return set(self.run("sinfo", "-h", "-p", "main", "-o", "%T").split()) == {"idle"}

    def processes(self) -> dict[str, list[Process]]:
        """What goes on on the nodes besides Slurm, by their names; of those where something does."""
        found: dict[str, list[Process]] = {}
        for name in self.names:
            for pid in pids_in(self.link(name)):
                with contextlib.suppress(OSError):
                    command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    if "slurmd" not in command[:40] and "slurmstepd" not in command[:40]:
                        found.setdefault(name, []).append(Process(pid, command[:300]))
        return found

    # --- daemons -----------------------------------------------------------------------------------------------------

    def start_controller(self) -> None:
        """Starts slurmctld, and waits until it answers."""
        self._start("slurmctld", "slurmctld", "-D", "-f", str(self.conf))
        wait_until(self._answers, what="slurmctld answers")

    def _answers(self) -> bool:
        for name, process in self._daemons.items():
            said = (self.folder / f"{name}.out").read_text(errors="replace")
            assert process.poll() is None, f"{name} ended: {said[-2000:]}"
        return "is UP" in self._said("scontrol", "ping")

    def rpcs(self) -> dict[str, int]:
        """What the controller was asked since it began, or since `sdiag --reset`: how often, by kind."""
        kinds = self.run("sdiag").partition("by message type")[2].partition("by user")[0]
        return {name: int(count) for name, count in re.findall(r"(\w+) +\( *\d+\) count:(\d+)", kinds)}

    @contextlib.contextmanager
    def slow(self, seconds: float) -> Iterator[dict[str, str]]:
        """A controller that answers each question late. Gives variables with which commands ask it."""
        ended, (host, port) = threading.Event(), (f"10.213.{self._network}.254", SLOW_PORT + self._network)
        file = self.folder / "slow.conf"
        file.write_text(self.conf.read_text().replace(f"SlurmctldPort={self._port}", f"SlurmctldPort={port}"))

        def pass_on(source: socket.socket, target: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while said := source.recv(65536):
                    target.sendall(said)
                target.shutdown(socket.SHUT_WR)

        def serve(asker: socket.socket) -> None:
            with asker:
                if not ended.wait(seconds):
                    with contextlib.suppress(OSError), socket.create_connection((host, self._port)) as real:
                        asking = threading.Thread(target=pass_on, args=(asker, real), daemon=True)
                        asking.start()
                        pass_on(real, asker)
                        asker.shutdown(socket.SHUT_RDWR)
                        asking.join()

        def accept() -> None:
            with contextlib.suppress(OSError):
                while not ended.is_set():
                    threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()

        with socket.create_server((host, port)) as listening:
            threading.Thread(target=accept, daemon=True).start()
            try:
                yield {**self.environment, "SLURM_CONF": str(file)}
            finally:
                ended.set()
                listening.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def dropped_packets(self) -> Iterator[None]:
        """The other login node gets no packet through to slurmctld, and hears of none that is lost."""
        inside = [program("ip"), "netns", "exec", self.link("L"), program("nft")]
        rules = f"add table inet lab; add chain inet lab out {{ type filter hook output priority 0; }}; add rule inet lab out tcp dport {self._port} drop"
        subprocess.run([*inside, rules], check=True, timeout=PATIENCE)
        try:
            yield
        finally:
            subprocess.run([*inside, "flush ruleset"], check=True, timeout=PATIENCE)

    def start_node(self, name: str) -> None:
        """Starts a node's slurmd."""
        inside = ["ip", "netns", "exec", self.link(name), "unshare", "--uts", "--mount"]
        self._start(
            name, *inside, "sh", "-c", NODE, "sh", name, str(self.folder / "hosts"), str(self.conf), str(self.unshared), *self._shared
        )  # fmt: skip

    def kill(self, daemon: str) -> None:
        """Kills a daemon: `slurmctld`, or a node's slurmd by the node's name. Jobs go on."""
        process = self._daemons.pop(daemon)
        process.kill()
        process.wait()

    def lose(self, node: str, *, whole: bool = True) -> None:
        """Ends slurmd on a node, or everything there at once, as a loss of its power does, and tells Slurm that it is down."""
        self.kill(node)
        while whole and (left := pids_in(self.link(node))):
            for pid in left:
                kill_hard(pid)
        self.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")

    def stop_controller(self) -> None:
        """Ends slurmctld as a restart of its service does: it saves its state first. Jobs go on."""
        process = self._daemons.pop("slurmctld")
        process.terminate()
        process.wait()

    def set_silence(self, seconds: int) -> None:
        """Sets how long a slurmd may be silent before its node is down."""
        old = self.conf.read_text()
        new = re.sub(r"(?m)^SlurmdTimeout=.*$", f"SlurmdTimeout={seconds}", old)
        if new != old:
            self.conf.write_text(new)
            self.stop_controller()  # `scontrol reconfigure` can crash it while squeue asks
            self.start_controller()

    def heal(self) -> None:
        """Makes the cluster what it was at the start."""
        if "slurmctld" not in self._daemons:
            self.start_controller()
        self.set_silence(SILENCE)
        for name in self.names:
            if name not in self._daemons:
                self.start_node(name)
        for name in self.names:
            if "idle" not in self.run("sinfo", "-h", "-N", "-p", "main", "-n", name, "-o", "%T"):
                self.resume(name)
        self.cancel_everything()

    def resume(self, node: str) -> None:
        """Lets a node serve that is down; it may have come back by itself."""
        self._said("scontrol", "update", f"nodename={node}", "state=resume")

    def _said(self, *words: str) -> str:
        """What a command prints, even if it fails."""
        done = run_program(words, env=self.environment)
        return done.stdout + done.stderr

    def _start(self, name: str, command: str, *words: str) -> None:
        log = self.folder / f"{name}.out"
        with log.open("ab") as opened:
            self._daemons[name] = subprocess.Popen(
                [program("setpriv"), "--pdeathsig", "KILL", program(command), *words],
                stdin=subprocess.DEVNULL, stdout=opened, stderr=opened, env=self.environment,
            )  # fmt: skip

    # --- from nothing, and back --------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        remove_leftovers(self.bridge)
        try:
            self._begin()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _begin(self) -> None:
        self.folder.chmod(0o755)
        (self.folder / "state").mkdir()
        self.unshared.mkdir()
        address = f"10.213.{self._network}.254"
        port = self._port
        lines = []
        for number, name in enumerate(self.names, 1):
            (self.folder / f"{name}.spool").mkdir()
            size = f"CPUs={CORES} RealMemory={MEMORY} Gres=gpu:{GPUS} State=UNKNOWN"
            lines.append(f"NodeName={name} NodeAddr=10.213.{self._network}.{number} {size}")
        host = socket.gethostname().partition(".")[0]
        values = {"host": host, "address": address, "folder": self.folder, "port": port, "nodes": "\n".join(lines)}
        values["database_port"] = DATABASE_PORT + self._network
        accounting = SITE["accounting"].format(**values) if self._is_site else ""
        preempt = "preempt/qos" if self._is_site else "preempt/partition_prio"
        self.conf.write_text(CONFIG.format(silence=SILENCE, accounting=accounting, preempt=preempt, **values))
        for number in range(GPUS):
            (self.folder / f"gpu{number}").touch()
        (self.folder / "gres.conf").write_text(GRES.format(folder=self.folder, last=GPUS - 1))
        self.prolog.write_text(f"#!/bin/sh\ncat {self.folder}/said 2>/dev/null\ntrue\n")
        self.prolog.chmod(0o755)
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nConstrainCores=no\nConstrainRAMSpace=no\n")
        hosts = [f"10.213.{self._network}.{number} {name}" for number, name in enumerate(self.names, 1)]
        (self.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", f"{address} {host}", *hosts, ""]))
        self._start_munge()
        ip(f"link add {self.bridge} type bridge", f"address add {address}/24 dev {self.bridge}")
        ip(f"link set {self.bridge} up")
        if self._is_site:
            self._start_accounting(SITE["database"].format(**values))
        self.start_controller()
        for number, name in enumerate(self.names, 1):
            self._add_host(name, number)
            self.start_node(name)
        self._add_host("L", 200)
        wait_until(self._is_idle, what="all nodes are idle")

    def _add_host(self, name: str, number: int) -> None:
        """Makes a namespace whose address ends with a number."""
        link = self.link(name)
        ip(f"netns add {link}", f"link add {link} type veth peer name eth0 netns {link}")
        ip(f"link set {link} master {self.bridge} up")
        ip(
            f"address add 10.213.{self._network}.{number}/24 dev eth0", "link set eth0 up", "link set lo up",
            namespace=link,
        )  # fmt: skip

    def _start_accounting(self, config: str) -> None:
        """Starts the database, then slurmdbd, which needs a cluster before the controller may start, and adds accounts."""
        (self.folder / "said").write_text(SITE["said"])
        (self.folder / "job_submit.lua").write_text(SITE["job_submit"])
        data, listens = self.folder / "database", self.folder / "database.socket"
        own = f"--tmpdir={self.folder}"  # a server that begins removes what another one has in /tmp
        words = ["mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={data}", "--skip-test-db", own]
        subprocess.run(words, check=True, capture_output=True, timeout=PATIENCE)
        options = [
            "--skip-networking",
            "--skip-grant-tables",
            "--innodb-use-native-aio=0",
            "--innodb-flush-log-at-trx-commit=0",
            f"--socket={listens}",
        ]
        self._start("mariadbd", "mariadbd", "--no-defaults", "--user=root", f"--datadir={data}", own, *options)
        wait_until(listens.exists, what="the database listens")
        file = self.folder / "slurmdbd.conf"
        file.write_text(config)
        file.chmod(0o600)
        log = self.folder / "slurmdbd.log"
        self._start("slurmdbd", "env", f"MYSQL_UNIX_PORT={listens}", f"SLURM_CONF={file}", program("slurmdbd"), "-D")
        wait_until(lambda: log.exists() and "started" in log.read_text(), what="slurmdbd answers")
        wait_until(self._has_cluster, what="slurmdbd knows the cluster")
        for line in SITE["accounts"].strip().splitlines():
            self.run("sacctmgr", "-i", *line.split())

    def _has_cluster(self) -> bool:
        """Adds the cluster; a database that has just begun may refuse it."""
        self._said("sacctmgr", "-i", "add", "cluster", "lab")
        return "lab" in self._said("sacctmgr", "-nP", "list", "cluster", "format=cluster").split()

    def _start_munge(self) -> None:
        key, socket_file = self.folder / "munge.key", self.folder / "munge.socket"
        self.run(program("mungekey"), "--create", f"--keyfile={key}")
        options = [f"--key-file={key}", f"--socket={socket_file}", f"--pid-file={self.folder}/munge.pid"]
        files = [f"--log-file={self.folder}/munge.log", f"--seed-file={self.folder}/munge.seed"]
        self._start("munged", "munged", "--foreground", "--force", *options, *files)
        wait_until(socket_file.exists, what="munged listens")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in (*self.names, "L"):
            remove(self.link(name))
        for process in self._daemons.values():
            process.send_signal(signal.SIGKILL)
            process.wait()
        self._daemons.clear()
        remove(self.bridge)
        shutil.rmtree(self.folder, ignore_errors=True)


def end_processes(found: dict[str, list[Process]]) -> None:
    """Kills what a test has left on nodes."""
    for process in itertools.chain.from_iterable(found.values()):
        if is_alive(process.pid):
            kill_hard(process.pid)


def begin_again(slurm: Slurm, job: str) -> None:
    """Puts a job back into the queue, and lets it begin again soon: by itself, Slurm waits for two minutes."""
    slurm.run("scontrol", "requeue", job)
    wait_until(lambda: slurm.state(job) == "PENDING", what="the job waits")
    slurm.run("scontrol", "update", f"jobid={job}", "starttime=now+3")
