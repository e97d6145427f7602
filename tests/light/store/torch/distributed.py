"""What `rankdeck/store_host.py` uses of torch.distributed."""

import socket


class TCPStore:
    """Listens where the real one would, and answers nobody."""

    def __init__(self, host: str, port: int, *, master_listen_fd: int, **options: object) -> None:
        self.port = port
        self._listener = socket.socket(fileno=master_listen_fd)

    def set(self, key: str, value: str) -> None:
        """Keeps nothing."""
