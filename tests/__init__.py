"""The tests. What is here happens before any of their modules is imported."""

import os
import sys

# As on a user's machine: without bytecode, every process of a test compiles the engine again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
