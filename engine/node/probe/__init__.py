"""The probe: a program that looks at a node before anything is launched there.

It is sent through stdin by the agent's boot command, answers questions, and exits when its stdin ends. In both directions a frame
is 4 bytes of length and JSON, as with the agent. One question, one answer:

    clock                                      the time of the node
    machine                                    what the node has, and which ranks of earlier runs still live on it
    job {workdir, script, module, ...}         what a rank of this job would find
    torch {seconds, ...}                       the result of importing torch, in a child that may hang or crash
    run {program, seconds, ...}                the output of a program in the Python of a rank, in such a child too
    listen {token}                             opens a port and returns its addresses; who connects is sent the token
    connect {addresses, port, token, seconds}  at which of these addresses a port of another node answers with the token

The probe itself is isolated (`-I`), so that no module of the user's breaks it. What only a rank sees (PYTHONPATH, the user's site
folder, the profile's environment) is asked of a child that is started as a rank would be. Nothing is changed on the node. It runs
on Python 3.8 and later.
"""
