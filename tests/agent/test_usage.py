"""What the processes of ranks use, as an agent reports it."""

from tests.agent.driver import FOR_EVER, Node

BUSY = "import os\nblock = bytearray(64 << 20)\nout = os.open(os.devnull, 1)\nwhile True:\n    os.write(out, block[: 1 << 20])\n    sum(range(100000))\n"


def test_processor_time_memory_and_writing_of_each_rank_are_told(node: Node):
    bridge, _ = node.connect()
    node.spawn(bridge, BUSY, FOR_EVER)
    while True:
        told = {rank: use for rank, *use in bridge.expect("usage", attempt=0)["ranks"]}
        if len(told) == 2 and told[0][0] and told[0][3]:
            break
    assert told[0][1] > 64 << 20
    assert told[1][1] < told[0][1]
    assert told[1][0] < 50
