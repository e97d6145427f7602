"""Makes one program of modules, which a bare Python receives through its standard input.

Measured on a busy 2-core machine (load 25), median of 40 boots to the first reply, against the agent as a single file: a bridge that
reconnects takes 60 ms of processor time instead of 123, because only imported modules are compiled; a fresh agent takes 129 ms
instead of 132.
"""

import re
import zlib
from functools import cache
from pathlib import Path

from engine import node

NODE = Path(node.__file__).parent

BOOT = (
    "import os,sys,zlib;n=int(sys.argv[1]);s=bytearray();"
    "list(iter(lambda:len(s)<n and(s.extend(os.read(0,n-len(s))or sys.exit(98))or 1),False));"
    'exec(compile(zlib.decompress(s),"rankdeck-agent","exec"))'
)
"""Reads its own compressed program from stdin, and not one byte more, so that the next byte is the first frame. One line without
single quotes, so that every login shell accepts it as a quoted word."""

BOOT_HERE = "import sys;sys.path.append(sys.argv[1]);from engine.node.agent.bridge import boot;sys.exit(boot())"
"""Runs the agent from the folder of `engine`. It comes last in the search path, so that no other package there can hide a module."""

SHARED = (
    "../__init__.py ../linux/*.py __init__.py limits.py login.py networks.py sources.py titles.py torch_files.py"
).split()
"""Modules that every program contains, relative to the folder of nodes."""

DOCSTRING = re.compile(r'^ *"""[^\n"].*?"""$', re.MULTILINE | re.DOTALL)
"""Docstrings as this project writes them: text begins on the first line, and nothing follows on the last."""

COMMENT = re.compile(r"(?:^ *|  )# .*$", re.MULTILINE)  # no string of the modules looks like one

LOADER = '''\
import sys
if sys.version_info < (3, 8):
    raise SyntaxError("needs Python 3.8 or later")

class Bundle:
    """Imports the modules of this program. Tracebacks show their names and lines."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in SOURCES:
            file, _ = SOURCES[name]
            spec = type(sys.__spec__)(name, Bundle, origin=file, is_package=file.endswith("__init__.py"))
            spec.has_location = True
            return spec

    @staticmethod
    def create_module(spec):
        return None

    @staticmethod
    def exec_module(module):
        file, source = SOURCES[module.__name__]
        exec(compile(source, file, "exec", dont_inherit=True), module.__dict__)

    @staticmethod
    def get_source(name):
        return SOURCES[name][1]

sys.meta_path.insert(0, Bundle)
'''
"""The code of a program after its sources."""


def without_docstrings(source: str) -> str:
    """Removes docstrings, which are a third of a module, and lines of comment. Lines keep their numbers."""
    return COMMENT.sub("", DOCSTRING.sub(lambda found: "\n" * found[0].count("\n"), source))


@cache
def program(package: str, call: str) -> bytes:
    """Returns the text of a program that contains the modules of a package in the folder of nodes and the shared ones. `call`: `MODULE:FUNCTION` in
    the package. The function returns the exit status."""
    here = NODE
    files = [path.resolve() for name in SHARED for path in sorted(here.glob(name))] + sorted(
        (here / package).rglob("*.py")
    )
    sources = {}
    for file in files:
        place = file.relative_to(here.parent.parent)
        name = place.parent if place.stem == "__init__" else place.with_suffix("")
        sources[".".join(name.parts)] = str(place), without_docstrings(file.read_text(encoding="utf-8"))
    module, function = call.split(":")
    start = f"from engine.node.{package}.{module} import {function}\nsys.exit({function}())\n"
    return f"SOURCES = {sources!r}\n{LOADER}{start}".encode()


def compressed(package: str, call: str) -> bytes:
    """Returns `program` in the form that BOOT reads."""
    best = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, 9)
    return best.compress(program(package, call)) + best.flush()
