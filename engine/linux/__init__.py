"""Files, locks, sockets and processes of Linux, in one way for nodes and supervisors.

Python 3.8 and later, standard library only: agents bring these modules along (`engine.launchers.bundle`).
"""
