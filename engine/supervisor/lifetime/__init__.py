"""How a supervisor is replaced when it dies, and how a run ends without one."""
