"""Runs a command on a node of a PBS job, with this process's standard input and output.

A task of PBS has neither: its input is empty, and PBS appends its output to that of the job. So this program listens, has PBS start it
again on the node, and the two prove to each other over TCP that both can read a key, which is in a file of the shared home for as long
as that takes. On the node, the connection becomes standard input and output of the command.

    python pbs_task.py NODE COMMAND…             where pbs_tmrsh can start tasks: in a job
    python pbs_task.py --connect HOST PORT KEYFILE COMMAND…        on the node
"""

import collections
import contextlib
import hmac
import os
import queue
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

PATIENCE = 60.0  # seconds for the task to connect, and for each message of the proof
PAUSE = 0.1  # seconds between two looks at the task
MOST_GUESTS = 64  # connections at once that have proved nothing: any user of the network can open one
SIZE = 32  # bytes of a nonce, and of a proof by SHA-256
FAILED = 255  # exit status if no command was started, as with ssh and pbs_tmrsh


def proof(key: bytes, side: bytes, nonces: bytes) -> bytes:
    """Returns what only a holder of the key can compute."""
    return hmac.new(key, side + nonces, "sha256").digest()


def receive(link: socket.socket) -> bytes:
    """Returns a nonce or a proof. Raises OSError if the other end closes or is silent."""
    data = b""
    while len(data) < SIZE:
        part = link.recv(SIZE - len(data))
        if not part:
            raise ConnectionError("it closed the connection")
        data += part
    return data


def accepts(link: socket.socket, key: bytes, found: queue.SimpleQueue[socket.socket]) -> None:
    """Checks that the other end of a connection has the key, proves to it that this end has the key, and puts the connection into `found`.
    Closes all others.

    In this order: the command on the node may end before this process goes on.
    """
    with contextlib.suppress(OSError):
        link.settimeout(PATIENCE)
        own = secrets.token_bytes(SIZE)
        link.sendall(own)
        nonces = own + receive(link)
        if hmac.compare_digest(receive(link), proof(key, b"node", nonces)):
            link.settimeout(None)
            answer = proof(key, b"head", nonces)
            found.put(link)
            link.sendall(answer)
            return
    link.close()


def prove(link: socket.socket, key: bytes) -> None:
    """Proves to the listener that this end has the key. Raises OSError if the listener does not prove that it has the key."""
    link.settimeout(PATIENCE)
    own = secrets.token_bytes(SIZE)
    nonces = receive(link) + own
    link.sendall(own + proof(key, b"node", nonces))
    if not hmac.compare_digest(receive(link), proof(key, b"head", nonces)):
        raise ConnectionError("it does not have the key")
    link.settimeout(None)


def send_at_once(link: socket.socket) -> None:
    """Lets short messages not wait for the acknowledgement of those before."""
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def connect(host: str, port: str, key_file: str, command: list[str]) -> int:
    """On the node: connects, and becomes the command. Returns the exit status if that fails."""
    try:
        with open(key_file, "rb") as file:
            key = file.read()
        with socket.create_connection((host, int(port)), timeout=PATIENCE) as link:
            send_at_once(link)
            prove(link, key)
            os.dup2(link.fileno(), 0)
            os.dup2(link.fileno(), 1)
    except OSError as error:
        sys.stderr.write(f"{socket.gethostname()}: rankdeck can't connect to {host}: {error}\n")
        return FAILED
    os.chdir("/")
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(1, f"{command[0]}: {error.strerror}\n".encode())
        return 127 if isinstance(error, FileNotFoundError) else 126


def name_of_this_host() -> str:
    """Returns the name by which the nodes of the job know this one."""
    own = socket.gethostname()
    with contextlib.suppress(OSError, KeyError), open(os.environ["PBS_NODEFILE"]) as file:
        for name in file.read().split():
            if name.partition(".")[0] == own.partition(".")[0]:
                return name
    return own


def listener() -> socket.socket:
    """Returns a socket that listens on a free port of all addresses: which one nodes reach is not known."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def start(node: str, command: list[str]) -> int:
    """In a job: starts the command on the node, and copies until it ends. Returns its exit status."""
    folder = os.environ.get("RANKDECK_HOME") or os.path.expanduser("~")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    key = secrets.token_bytes(SIZE)
    file, key_file = tempfile.mkstemp(prefix=".rankdeck-key-", dir=folder)
    try:
        with os.fdopen(file, "wb") as opened:
            opened.write(key)
        with listener() as server:
            again = [sys.executable, "-I", "-S", os.path.abspath(__file__), "--connect", name_of_this_host()]
            words = ["pbs_tmrsh", node, *again, str(server.getsockname()[1]), key_file, *command]
            try:
                task = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=2)
            except OSError as error:
                sys.stderr.write(f"pbs_tmrsh: {error.strerror}\n")
                return FAILED
            link = wait_for(server, task, key)
    finally:
        os.unlink(key_file)
    if link is not None:
        copy(link)
        link.close()
    elif task.poll() is None:
        sys.stderr.write(f"pbs_tmrsh: {node} has not connected within {PATIENCE:g} s\n")
        task.kill()
    status = task.wait()
    return FAILED if status < 0 or (link is None and status == 0) else status


def wait_for(server: socket.socket, task: subprocess.Popen[bytes], key: bytes) -> socket.socket | None:
    """Returns the connection of the task; None if the task has ended, or has not connected in time."""
    found: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
    guests: collections.deque[socket.socket] = collections.deque()
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and task.poll() is None:
        if select.select([server], [], [], PAUSE)[0]:  # others may connect, and say nothing
            with contextlib.suppress(OSError):
                greet(server.accept()[0], key, found, guests)
        with contextlib.suppress(queue.Empty):
            return found.get_nowait()
    with contextlib.suppress(queue.Empty):  # a short command has ended since
        return found.get_nowait()
    return None


def greet(
    link: socket.socket, key: bytes, found: queue.SimpleQueue[socket.socket], guests: collections.deque[socket.socket]
) -> None:
    """Has a thread ask a new connection for its proof. The oldest of too many `guests` has to go."""
    send_at_once(link)
    if len(guests) == MOST_GUESTS:
        with contextlib.suppress(OSError):
            guests.popleft().shutdown(socket.SHUT_RDWR)  # its thread closes it
    guests.append(link)
    threading.Thread(target=accepts, args=(link, key, found), daemon=True).start()


def copy(link: socket.socket) -> None:
    """Copies both ways until the connection or the reader of our output ends."""

    def send_input() -> None:
        with contextlib.suppress(OSError):
            while data := os.read(0, 1 << 16):
                link.sendall(data)
        with contextlib.suppress(OSError):
            link.shutdown(socket.SHUT_WR)

    threading.Thread(target=send_input, daemon=True).start()
    with contextlib.suppress(OSError):
        while data := link.recv(1 << 16):
            while data:
                data = data[os.write(1, data) :]


def main(words: list[str]) -> int:
    """Runs one side. Returns the exit status."""
    if words[0] == "--connect":
        return connect(words[1], words[2], words[3], words[4:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(FAILED))  # the key is removed
    try:
        return start(words[0], words[1:])
    except OSError as error:
        sys.stderr.write(f"rankdeck can't wait for a task: {error}\n")
        return FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
