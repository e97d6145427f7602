"""The probe: a program that examines a node before a launch.

It is sent through stdin by the agent's boot command, answers questions, and exits when its stdin ends. In both directions a frame
is 4 bytes of length and JSON, as with the agent. Each question has one answer:

    clock                                      the time of the node
    machine                                    hardware, limits, network, and ranks of earlier runs that still run
    job {workdir, script, module, ...}         what a rank of this job would find
    torch {seconds, ...}                       the result of importing torch, in a child that may hang or crash
    run {program, seconds, ...}                the output of a program in the Python of a rank, in such a child too
    listen {token}                             opens a port and returns its addresses; connections receive the token
    connect {addresses, port, token, seconds}  at which of these addresses a port of another node answers with the token

The probe is isolated (`-I`), so that modules of the user can't break it. A child that is started like a rank answers questions that depend
on the rank's environment (PYTHONPATH, the user's site folder, variables of the profile). Nothing is changed on the node. It runs on
Python 3.8 and later.
"""
