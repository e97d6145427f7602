"""The agent: owns one node's ranks for one run. It runs on nodes and is sent there as one program (`engine.node.bundle`).

Nothing of it is installed on a node. Booting it makes three processes:

    bridge   the process that was booted: copies between its stdin/stdout (a pipe or ssh) and the agent's socket
    warden   own session; parent of the agent. It starts a killed agent again and records how ranks ended meanwhile
    agent    own socket, 0600, in the user's private runtime folder; starts, watches and ends ranks

The bridge ends with its connection. Warden and agent stay for as long as the lease. Ranks write to files and lead their own
sessions, so they survive the end of each of the three. The agent kills a rank's process group *before* it reaps the leader:
until then the kernel can't give that number to another process.

`boot` and `bridge` are all that a reconnecting bridge imports. `loop` holds the parts and the table of requests; the parts
share `state.NodeState` and do not import each other. Python 3.8 and later, standard library only.
"""
