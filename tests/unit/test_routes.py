"""A launch is not refused because a node once answered too late."""

import asyncio
from typing import cast

import pytest

from engine.core.wire import agent_reports as reports
from engine.core.wire import agent_requests as requests
from engine.supervisor.nodes import questions as routes
from engine.supervisor.nodes.questions import NoRouteError, Questions, find_routes


class Agents:
    """Answers for all agents; `failures`: the answers to the first tries."""

    def __init__(self, *failures: str) -> None:
        self.failures = list(failures)
        self.open = 0

    async def ask(self, node: str, question: requests.Question, answer: type[reports.Answer]) -> reports.Answer:
        match question:
            case requests.OpenListener():
                self.open += 1
                return reports.ListenerOpened(number=1, port=7, addresses=("10.0.0.1",))
            case requests.TryAddresses():
                failure = self.failures.pop(0) if self.failures else ""
                if failure == "late":
                    raise TimeoutError
                return reports.AddressesTried(number=1, reached=() if failure else (("10.0.0.1", "eth1"),))
            case _:
                return reports.InterfaceNamed(number=1, name="eth0")

    def send(self, node: str, request: requests.Request) -> None:
        assert isinstance(request, requests.CloseListener)
        self.open -= 1


@pytest.fixture(autouse=True)
def pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "PAUSE", 0.0)


def find(agents: Agents) -> routes.Routes:
    found = asyncio.run(find_routes(cast("Questions", agents), "node1", ["node2"]))
    assert agents.open == 0
    return found


@pytest.mark.parametrize("failures", [(), ("unreached",), ("late",), ("unreached", "late")])
def test_nodes_try_again(failures: tuple[str, ...]) -> None:
    assert find(Agents(*failures)) == routes.Routes("10.0.0.1", (("node1", "eth0"), ("node2", "eth1")))


def test_a_node_that_is_never_reached_is_told() -> None:
    with pytest.raises(NoRouteError, match=r"node2 does not reach node1 \(tried 10.0.0.1\)"):
        find(Agents(*["unreached"] * routes.TRIES))
