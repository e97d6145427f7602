"""Finds out how the nodes of a run reach each other, by trying: names, first addresses and interfaces that look right often are not."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any, NamedTuple, Protocol

from engine.supervisor.link import AgentMessage


class WayError(Exception):
    """There is no address by which all nodes reach the head: one line of fact and the next step."""


class Way(NamedTuple):
    """An address of the head that all others reach, and the interface by which each node does, `(node, name)`."""

    address: str
    interfaces: tuple[tuple[str, str], ...]


class Ask(Protocol):
    """Sends a message to a node's agent. Raises TimeoutError where the answer of that type does not come."""

    async def __call__(self, node: str, answer: str | None, **question: Any) -> AgentMessage:
        """Returns the answer; an empty one where none is wanted."""
        ...


async def find_way(ask: Ask, head: str, others: list[str]) -> Way:
    """Lets every other node knock at each address of the head, and takes the first at which all were heard.

    The head's own order counts: the address by which its agent was reached comes first, IPv4 before IPv6.

    Args:
        ask: how an agent is asked.
        head: the node that will host the store.
        others: all other nodes.

    Raises:
        WayError: one of them reaches none, or there is none that all reach.
    """
    word = secrets.token_hex(16)  # an address may be anybody's: 172.17.0.1 is on every node with Docker
    try:
        door = await ask(head, "door", type="open_door", word=word)
        question = {"type": "knock", "addresses": door["addresses"], "port": door["port"], "word": word}
        answers = await asyncio.gather(*(ask(node, "knocked", **question) for node in others), return_exceptions=True)
    except TimeoutError:
        raise WayError(f"{head} did not say how it can be reached") from None
    finally:
        await ask(head, None, type="close_door")
    reached: dict[str, dict[str, str]] = {}
    for node, answer in zip(others, answers, strict=True):
        if isinstance(answer, BaseException):
            raise WayError(f"{node} did not say whether it reaches {head}") from None
        reached[node] = dict(answer["reached"])
    tried = ", ".join(door["addresses"]) or "no address"
    for node in others:
        if not reached[node]:
            advice = "check routes and firewalls between the nodes"
            raise WayError(f"{node} does not reach {head} (tried {tried}): {advice}")
    address = next((one for one in door["addresses"] if all(one in reached[node] for node in others)), None)
    if address is None:
        advice = "leave a node out, or join their networks"
        raise WayError(f"no address of {head} is reached by all other nodes (tried {tried}): {advice}")
    try:
        named = await ask(head, "interface", type="name_interface", address=address)
    except TimeoutError:
        raise WayError(f"{head} did not say which interface has {address}") from None
    return Way(address, ((head, named["name"]), *((node, reached[node][address]) for node in others)))


def interface_environment(interface: str) -> dict[str, str]:
    """What makes gloo, NCCL and UCC use an interface: they guess otherwise, gloo by the name of the machine.

    Args:
        interface: its name; empty: nothing is known.
    """
    if not interface:
        return {}
    names = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}
    return {**names, "RANKDECK_INTERFACE": interface}  # whether UCX is told depends on what else a node has
