"""The agent owns one node's ranks for one run. It is sent to the node as one program (`engine.launchers.bundle`).

Nothing is installed on a node. Booting it makes three processes:

    bridge   the booted process: copies between its stdin/stdout (a pipe or ssh) and the agent's socket
    warden   own session; parent of the agent. It restarts a killed agent and records how ranks ended meanwhile
    agent    own socket, 0600, in the user's private runtime folder; starts, watches and ends ranks

The bridge ends with its connection. Warden and agent stay until the supervisor closes them or, without a supervisor, until the lease ends. Ranks write to files and lead their own sessions, so they
survive the end of each of the three. The agent kills a rank's process group *before* it reaps the leader: until then, the kernel
can't give that number to another process.

A reconnecting bridge imports only `bridge` and what that needs. `loop` holds the parts and the table of requests. The parts share
`state.NodeState` and do not import each other. Common arguments of the parts: `state` of the node, `selector` of the loop, `send`, which
queues a message for the supervisor, and `start`, which starts a job by the template or without it: its arguments are the job, the message
that requests it, the environment of all its processes, and additions for this one. Python 3.8 and later,
standard library only.
"""
