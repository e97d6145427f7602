"""What Linux offers, in one way for nodes and supervisors: files, locks, sockets and processes.

Python 3.8 and later, standard library only: agents bring these modules along (`engine.node.bundle`).
"""
