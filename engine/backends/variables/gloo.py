"""gloo: what the gloo in torch 2.6 to 2.13 reads, and torch's own switch for it."""

from __future__ import annotations

from engine.backends.variables.base import Family, Gone, Takes, Variable, one_of

_NAMES = Takes(words="whole names of interfaces, such as eth0; gloo knows no ^ and no =", pattern=r"[^\^=][^\^=]*")
_TRUE = one_of("1", "True", "0", "False", exact=True)

FAMILY = Family(
    title="gloo",
    reader="gloo",
    prefixes=("GLOO_", "TORCH_GLOO_"),
    backends=frozenset({"gloo", "nccl"}),
    is_complete=True,
    variables=(
        Variable(
            "GLOO_SOCKET_IFNAME",
            "found by the host's name",
            "The network interface for connections between ranks; several, separated by commas, are used in turn",
            when="the host's name resolves to the wrong network, or to none",
            takes=_NAMES,
            sets="lo on one node; on several, the interface that leads to the first",
        ),
        Variable(
            "GLOO_DEVICE_TRANSPORT",
            "TCP",
            "How ranks connect: TCP, or UV (libuv), or TCP_TLS (encrypted) where torch was built with OpenSSL",
            takes=one_of("TCP", "TCP_TLS", "UV", "IBVERBS", exact=True),
        ),
        *(
            Variable(f"GLOO_DEVICE_TRANSPORT_TCP_TLS_{name}", "none", f"{does}, for GLOO_DEVICE_TRANSPORT=TCP_TLS")
            for name, does in (
                ("PKEY", "File of the private key"),
                ("CERT", "File of the certificate"),
                ("CA_FILE", "File of the authorities that are trusted"),
                ("CA_PATH", "Folder of the authorities that are trusted"),
            )
        ),
        Variable(
            "GLOO_LOG_LEVEL",
            "WARN",
            "How much gloo logs, in capitals; any other word means ERROR",
            when="ranks do not find each other: DEBUG",
            takes=one_of("DEBUG", "INFO", "WARN", "ERROR", exact=True),
        ),
        Variable(
            "TORCH_GLOO_LAZY_INIT",
            "0",
            "Connects two ranks at their first message, instead of all ranks at the start",
            when="there are hundreds of ranks",
        ),
        Variable("GLOO_DISABLE_CONNECTION_RETRIES", "0", "A connection that fails is not tried again", takes=_TRUE),
        Variable(
            "GLOO_ENABLE_STORE_V2_API",
            "0",
            "Fetches the entries of all ranks from the store in one request",
            takes=_TRUE,
        ),
        Variable(
            "GLOO_ENABLE_RANK_AS_SEQUENCE_NUMBER",
            "0",
            "Numbers the connections by rank, which shortens the start of many ranks",
            takes=_TRUE,
        ),
    ),
    gone=(
        Gone("GLOO_TIMEOUT", "gloo has no such variable", "set backend.timeout = 600 (seconds)"),
        Gone("GLOO_TIMEOUT_SECONDS", "gloo has no such variable", "set backend.timeout = 600 (seconds)"),
        Gone("GLOO_IFACE", "gloo has no such variable", "set GLOO_SOCKET_IFNAME"),
        Gone("GLOO_SOCKET_INTERFACE", "gloo has no such variable", "set GLOO_SOCKET_IFNAME"),
        Gone("GLOO_DEBUG", "gloo has no such variable", "set GLOO_LOG_LEVEL to DEBUG"),
    ),
)
