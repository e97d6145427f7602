"""What is sent to nodes: modules of the standard library's Python 3.8, as one program whose tracebacks can be read."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import engine.linux
import engine.node
from engine.launchers import bundle
from tests.support import PATIENCE

NODE = Path(engine.node.__file__).parent
ENGINE = NODE.parent
SENT = sorted([*NODE.rglob("*.py"), *Path(engine.linux.__file__).parent.glob("*.py")])
BUNDLED = [path for path in SENT if path.parent != NODE or path.stem in ("__init__", "networks")]


def test_every_module_is_found():
    assert {"node/agent/loop.py", "node/networks.py", "node/template.py", "linux/files.py"} <= {
        str(path.relative_to(ENGINE)) for path in SENT
    }


@pytest.mark.parametrize("path", SENT, ids=lambda path: str(path.relative_to(ENGINE)))
def test_what_is_sent_to_a_node_compiles_as_python_3_8(path):
    ast.parse(path.read_text(), feature_version=(3, 8))


@pytest.mark.parametrize("path", BUNDLED, ids=lambda path: str(path.relative_to(ENGINE)))
def test_what_is_sent_to_a_node_imports_the_standard_library_only(path):
    tree = ast.parse(path.read_text())
    names = {alias.name for found in ast.walk(tree) if isinstance(found, ast.Import) for alias in found.names}
    names |= {found.module or "" for found in ast.walk(tree) if isinstance(found, ast.ImportFrom)}
    foreign = {name for name in names if not name.startswith(("engine.node", "engine.linux"))}
    assert {name.partition(".")[0] for name in foreign} <= sys.stdlib_module_names | {"__future__"}


@pytest.mark.parametrize("path", BUNDLED, ids=lambda path: str(path.relative_to(ENGINE)))
def test_a_module_is_sent_without_docstrings_and_with_the_lines_that_it_has(path):
    """Only statements that are a single string go; everything else keeps its line, so that tracebacks name the right one."""

    def statements(source: str) -> list[str]:
        tree = ast.parse(source)
        for node in ast.walk(tree):
            for name, value in ast.iter_fields(node):
                if isinstance(value, list) and name == "body":
                    value[:] = [one for one in value if not is_docstring(one)]
            for end in ("end_lineno", "end_col_offset"):  # a docstring may have been the last line of a function
                vars(node).pop(end, None)
        return [ast.dump(one, include_attributes=True) for one in tree.body]

    def is_docstring(statement: ast.stmt) -> bool:
        return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)

    source = path.read_text()
    sent = bundle.without_docstrings(source)
    assert statements(sent) == statements(source)
    assert '"""' not in sent or path.parent.name == "probe"


def run(program: bytes) -> subprocess.CompletedProcess[str]:
    """Runs a program, which is too long for an argument."""
    read = "import sys; exec(sys.stdin.read())"
    argv = [sys.executable, "-I", "-c", read]
    return subprocess.run(argv, input=program.decode(), capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_a_traceback_on_a_node_names_file_line_and_source():
    start = bundle.program("agent", "bridge:boot").replace(
        b"from engine.node.agent.bridge import boot\nsys.exit(boot())", b""
    )
    done = run(start + b"from engine.node.agent.wire import FrameBuffer\nFrameBuffer().feed(b'\\xff' * 8)\n")
    lines = (NODE / "agent" / "wire.py").read_text().splitlines()
    number = 1 + next(n for n, line in enumerate(lines) if "if size > MAX_FRAME" in line) + 1
    assert f'File "engine/node/agent/wire.py", line {number}, in feed\n' in done.stderr
    assert lines[number - 1].strip() in done.stderr


def test_a_python_that_is_too_old_fails_at_once():
    """Not a module that a bridge does not import, in a process whose errors nobody reads."""
    old = bundle.program("agent", "bridge:boot").replace(b"import sys\n", b"import sys\nsys.version_info = (3, 7)\n", 1)
    done = run(old)
    assert done.stderr.endswith("SyntaxError: needs Python 3.8 or later\n")
    assert done.stdout == ""


def test_a_bridge_to_an_agent_that_runs_imports_little():
    text = bundle.program("agent", "bridge:boot").decode()
    start = text.replace("sys.exit(boot())", "print(*(name for name in sys.modules if name.startswith('engine')))")
    done = run(start.encode())
    ours = {name.rpartition(".")[2] for name in done.stdout.split()}
    assert ours == set("engine node agent bridge folders wire linux files locks sockets titles".split())
