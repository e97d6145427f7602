"""A rank that is forked from the template is what `python script.py` would be: every case runs both ways."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.command_server import ROOM
from tests.support import kill_hard

SAY = "import json, sys\ndef say(**what): print('SAID ' + json.dumps(what, default=str), flush=True)\n"

SAME = {
    "the main module": """
import __main__
say(name=__name__, file=__file__, doc=__doc__, package=__package__, spec=__spec__, cached=__cached__,
    loader=type(__loader__).__name__, same=__main__ is sys.modules["__main__"], builtins=type(__builtins__).__name__)
""",
    "arguments": "say(argv=sys.argv, orig=sys.orig_argv)",
    "paths": "import os\nsay(path=sys.path, cwd=os.getcwd(), pwd=os.environ.get('PWD'))",
    "flags": "say(flags=str(sys.flags), warn=sys.warnoptions, xoptions=sys._xoptions)",
    "environment": """
import os
ours = ("MASTER_PORT", "RANKDECK_RUN", "TORCHELASTIC_RUN_ID", "RANKDECK_MARK", "RANKDECK_STORE_KEY", "PYTHONPATH", "OLDPWD")
say(env={k: v for k, v in os.environ.items() if k not in ours and "/runs/" not in v})
import subprocess
child = dict(line.split("=", 1) for line in subprocess.check_output(["env"], text=True).splitlines())
say(child={k: v for k, v in child.items() if k not in ours and "/runs/" not in v and k != "_"})
""",
    "session and group": "import os\npid = os.getpid()\nsay(ours=[os.getsid(0) == pid, os.getpgid(0) == pid])",
    "descriptors": """
import os, stat
say(files={n: stat.S_IFMT(os.fstat(n).st_mode) for n in range(3)}, tty=[s.isatty() for s in (sys.stdin, sys.stdout)],
    more=sorted(n for n in map(int, os.listdir("/proc/self/fd")) if n > 2 and os.path.exists(f"/proc/self/fd/{n}")
                and "stacks" not in os.readlink(f"/proc/self/fd/{n}")),
    streams=[(s.encoding, s.errors, s.line_buffering, s.write_through) for s in (sys.stdin, sys.stdout, sys.stderr)])
""",
    "signals": """
import signal
say(actions={n: str(signal.getsignal(n)) for n in range(1, 32)}, wakeup=signal.set_wakeup_fd(-1),
    mask=[str(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, [])])
""",
    "threads": "import os, threading\nsay(count=threading.active_count(), tasks=len(os.listdir('/proc/self/task')), main=threading.current_thread() is threading.main_thread())",
    "thread counts of torch": "import torch\nsay(n=torch.get_num_threads(), inter=torch.get_num_interop_threads())",
    "limits": "import resource\nsay(limits=[resource.getrlimit(n) for n in range(16)])",
    "no cuda": "import torch\nsay(up=torch.cuda.is_initialized())",
    "the command that ps shows": "say(words=open('/proc/self/cmdline').read().split(chr(0))[:3])",
    "modules beside the script": "import neighbour\nsay(it=neighbour.IT, file=neighbour.__file__)",
    "pickles of classes of the main module": """
import pickle
class Here: pass
say(module=Here.__module__, back=type(pickle.loads(pickle.dumps(Here()))) is Here)
""",
    "exit status": "sys.exit(3)",
    "exit with words": "sys.exit('goodbye')",
    "exit with None": "sys.exit(None)",
    "exit with a large number": "sys.exit(256 + 7)",
    "os._exit": "import os\nos._exit(9)",
    "an exception": "def inner():\n    raise ValueError('wrong')\ninner()",
    "a chain of exceptions": "try:\n    1/0\nexcept ZeroDivisionError as e:\n    raise RuntimeError('so') from e",
    "an exception with a hook": "sys.excepthook = lambda kind, value, trace: print('hook', kind, value, trace.tb_lineno)\n1/0",
    "a syntax error": "x = = 1",
    "a keyboard interrupt": "raise KeyboardInterrupt",
    "SIGINT to itself": "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(5)",
    "a signal": "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)",
    "abort": "import os\nos.abort()",
    "SIGPIPE is ignored": "import os\nr, w = os.pipe()\nos.close(r)\ntry: os.write(w, b'x')\nexcept BrokenPipeError: say(broken=True)",
    "atexit": "import atexit\natexit.register(say, last=1)\natexit.register(say, first=1)",
    "atexit after an exception": "import atexit\natexit.register(say, last=1)\n1/0",
    "a thread that outlives the script": "import threading, time\nsaid = threading.Event()\nthreading.Thread(target=lambda: (said.wait(), time.sleep(0.2), say(late=1))).start()\nsay(end=1)\nsaid.set()",
    "objects at the end": "class Last:\n    def __del__(self): print('deleted')\nkept = Last()",
    "objects of a module at the end": "import neighbour\nneighbour.kept = neighbour.Last()",
    "objects that hold each other at the end": "class Last:\n    def __del__(self): print('deleted')\nkept = Last()\nkept.kept = kept",
    "a generator that has not ended": "def go():\n    try: yield\n    finally: print('closed')\nkept = go()\nnext(kept)",
    "a module that is loaded on its first use": """
import importlib.util
spec = importlib.util.find_spec("neighbour")
spec.loader = importlib.util.LazyLoader(spec.loader)
kept = sys.modules["neighbour"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kept)
""",
    "a proxy": """
class Proxy:
    @property
    def __class__(self): print('asked'); raise RuntimeError
kept = Proxy()
""",
    "a log that is written at the end": "import logging, logging.handlers\nlogging.getLogger().addHandler(logging.handlers.MemoryHandler(9, target=logging.FileHandler('/dev/stdout')))\nlogging.warning('loss 1.0')",
    "a process that has not ended": "import multiprocessing, time\ndef save(): time.sleep(0.5); say(saved=1)\nmultiprocessing.get_context('fork').Process(target=save).start()",
    "a finalizer of an object that torch holds": "import torch, weakref\nclass Held: pass\ntorch.held = Held()\nweakref.finalize(torch.held, print, 'finalizer')",
    "a handler of a signal": "import signal\ndef act(*given): pass\nsignal.signal(signal.SIGTERM, act)\nclass Last:\n    def __del__(self): print('deleted')\nkept = Last()",
    "a stdout of a class of the script": "class Tee:\n    def write(self, text): sys.__stdout__.write(text)\n    def flush(self): pass\nsys.stdout = Tee()\nclass Last:\n    def __del__(self): sys.__stdout__.write('deleted')\nkept = Last()",
    "a function that another module holds": "import warnings\ndef show(*given): pass\nwarnings.showwarning = show\nclass Last:\n    def __del__(self): print('deleted')\nkept = Last()",
    "a thread that computes": "import threading, time\nexec('import threading\\ndef busy():\\n n = 0\\n while True: n += 1\\nthreading.Thread(target=busy, daemon=True).start()', {})\nclass Last:\n    def __del__(self, sleep=time.sleep, say=print): sleep(0.05); say('closed')\nkept = Last()",
    "a thread that holds the lock of a file": "import os, threading, time\nr, w = os.pipe()\nfile = open(w, 'wb', buffering=8192)\nthreading.Thread(target=lambda: file.write(b'x' * 1000000), daemon=True).start()\ntime.sleep(0.2)",
    "a hook that exits": "sys.excepthook = lambda *given: sys.exit(9)\nraise ValueError",
    "exit with a number that C does not have": "sys.exit(10 ** 30)",
    "a pool that is not closed": "import multiprocessing\npool = multiprocessing.get_context('fork').Pool(1)\nsay(results=pool.map(abs, [-1]))",
    "SIGINT while an object is deleted": "import os, signal\nclass Last:\n    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGINT): kill(pid, number)\nkept = Last()",
    "a daemon thread": "import threading, time\ndef run():\n    while True: time.sleep(1e-4); ONE + 1\nONE = 1\nthreading.Thread(target=run, daemon=True).start()\ntime.sleep(0.05)",
    "a forked process": "import os\npid = os.fork()\nif pid: say(status=os.waitpid(pid, 0)[1])\nelse: sys.exit(4)",
    "output that is not flushed": "sys.stdout.write('no line feed')",
    "output of C that is not flushed": "import ctypes\nctypes.CDLL(None).printf(b'no line feed')",
    "a file that is not closed": "kept = open('/dev/stdout', 'a')\nkept.write('no line feed')",
    "a file that torch keeps open": "import torch\ntorch.kept = open('/dev/stdout', 'a')\ntorch.kept.write('no line feed')",
    "a stdout of one's own": "class Twice:\n    def write(self, text): sys.__stdout__.write(2 * text)\n    def flush(self): self.write('flushed')\nsys.stdout = Twice()\nprint('all')",
    "a stdout that can't be flushed": "class Broken:\n    def __repr__(self): return 'broken'\n    def write(self, text): pass\nsys.stdout = Broken()",
    "a stdout that is closed": "sys.stdout.close()",
    "no stdout": "sys.stdout = None",
    "a library with an end of its own": "import ctypes, os\nctypes.CDLL(os.path.dirname(__file__) + '/ending.so')",
    "multiprocessing": """
import multiprocessing
def double(x): return 2 * x
if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            say(method=method, results=pool.map(double, [1, 2]))
""",
    "data loader workers": """
import torch
from torch.utils.data import DataLoader
if __name__ == "__main__":
    loader = DataLoader(torch.arange(8), batch_size=4, num_workers=2)
    say(batches=[batch.tolist() for batch in loader])
""",
    "a subprocess": "import subprocess\nsay(out=subprocess.check_output([sys.executable, '-c', 'print(7)'], text=True))",
    "training": """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
torch.manual_seed(1)
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(4, 2))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().sum().backward()
    optimizer.step()
say(sum=sum(p.double().sum().item() for p in model.parameters()))
dist.destroy_process_group()
""",
}
"""Whatever these print, to either stream, and how they end must be the same."""


@pytest.fixture(autouse=True)
def whole_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here it matters what the imports of a template leave in a rank."""
    monkeypatch.setenv("RANKDECK_TESTS_TORCH", "whole")


NEIGHBOUR = """
import sys
print('neighbour is loaded')
IT = 'beside'
class Last:
    def __del__(self):
        print('deleted', IT)
"""

ENDING = 'int puts(const char *); __attribute__((destructor)) static void end(void) { puts("the library ends"); }'


def compile_library(path: Path) -> None:
    """Makes a library that says something at the end of the process."""
    command = [shutil.which("cc") or "gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=ENDING, text=True, check=True)


ALONE = ("training", "thread counts of torch")
"""What one rank has to itself. All others are attempts of a few runs, or each would wait for a template that imports torch."""

OF_NEW_PROCESSES = (
    "environment",
    "a library with an end of its own",
    "a stdout that can't be flushed",
    "a log that is written at the end",
    "a finalizer of an object that torch holds",
    "a process that has not ended",
    "a thread that computes",
)
"""What tests/forked_node.py does not do as a new process would."""

SECOND_RANK = "import os, signal\nwhile os.environ['RANK'] == '1': signal.pause()\n"
"""Keeps a run going when rank 0 has ended. The test kills it, and then the run can be restarted at once."""

IN_COMPANY = [case for case in SAME if case not in ALONE]


@pytest.mark.parametrize("part", range(4))
def test_forked_ranks_are_like_executed_ones(rankdeck, write_script, write_profile, work, part, monkeypatch):
    (work / "neighbour.py").write_text(NEIGHBOUR)
    compile_library(work / "ending.so")
    cases = IN_COMPANY[part::4]
    cold, warm = (attempts_of(rankdeck, write_script, write_profile, cases, warm) for warm in (False, True))
    assert [(case, cold[case], warm[case]) for case in cases if warm[case] != cold[case]] == []
    monkeypatch.delenv("RANKDECK_TESTS_TORCH")
    cases = [case for case in cases if case not in OF_NEW_PROCESSES]
    forked = attempts_of(rankdeck, write_script, write_profile, cases, True, threads=1)
    assert [(case, cold[case], forked[case]) for case in cases if forked[case] != cold[case]] == []


def attempts_of(
    rankdeck, write_script, write_profile, cases: list[str], warm: bool, threads: int | None = None
) -> dict[str, tuple[Any, ...]]:
    """Runs each case as an attempt of one run. Returns what became of rank 0 by case: its exit, what it printed, and its errors."""
    script = write_script("script.py", "")
    launch = {"warm": warm, "on_failure": "hold", "stop_ladder": [["SIGKILL", 5]]}
    env = {"OMP_NUM_THREADS": str(threads or len(os.sched_getaffinity(0)))}  # as for a rank that is alone
    recipe = {"script": str(script), "args": ["--a", "b c"]}
    profile, run, exits = write_profile(recipe, ranks=2, launch=launch, env=env), "", []
    for attempt, case in enumerate(cases):
        script.write_text(SAY + SECOND_RANK + SAME[case], encoding="utf-8")
        if attempt == 0:
            run = rankdeck.launch(profile)
        else:
            assert f"attempt {attempt}" in rankdeck("restart", run).stdout
        status = rankdeck.wait_status(run, has_ended(attempt), what=case)
        exits.append(status["ranks"][0]["exit"])
        kill_hard(status["ranks"][1]["pid"])
        rankdeck.wait_state(run, "holding")
    assert is_fork(rankdeck.agent(run)) == (threads is not None)
    rankdeck("stop", run)
    rankdeck.wait_state(run, "failed")
    assert (rankdeck.folder(run) / "nodes" / "localhost" / "template.log").exists() == warm
    said = [
        [rankdeck.log(run, 0, stream, attempt).decode().replace(run, "RUN") for stream in ("out", "err")]
        for attempt in range(len(cases))
    ]
    return {case: (exits[number], *said[number]) for number, case in enumerate(cases)}


def is_fork(pid: int) -> bool:
    """Whether a process was not executed: it keeps the room for the variables of whatever was forked."""
    return len(Path(f"/proc/{pid}/environ").read_bytes()) > len(ROOM["ROOM"])


def has_ended(attempt: int) -> Callable[[dict[str, Any]], bool]:
    """Whether rank 0 of an attempt has ended, and rank 1 has a process."""
    return lambda status: (
        status["attempt"] == attempt
        and all(rank["attempt"] == attempt and rank["pid"] for rank in status["ranks"])
        and status["ranks"][0]["exit"] is not None
    )


@pytest.mark.parametrize("case", ALONE)
def test_a_forked_rank_is_like_an_executed_one(rankdeck, write_script, write_profile, work, case):
    script = write_script("script.py", SAY + SAME[case])
    found = {}
    for warm in (False, True):
        profile = write_profile(
            {"script": str(script), "args": ["--a", "b c"]}, launch={"warm": warm, "on_failure": "stop"}
        )
        run = rankdeck.launch(profile)
        rankdeck("wait", run)
        (rank,) = rankdeck.status(run)["ranks"]
        both = [rankdeck.log(run, 0, stream).decode().replace(run, "RUN") for stream in ("out", "err")]
        found[warm] = (rank["exit"], *both)
        assert (rankdeck.folder(run) / "nodes" / "localhost" / "template.log").exists() == warm
    assert found[True] == found[False]


@pytest.mark.parametrize("text", ["", "raise ValueError('wrong')"])
def test_a_module_is_run_as_a_module(rankdeck, write_profile, work, text):
    (work / "pkg").mkdir()
    (work / "pkg" / "__init__.py").touch()
    (work / "pkg" / "job.py").write_text(
        SAY
        + f"import pkg\nsay(name=__name__, argv=sys.argv, spec=__spec__.name, package=__package__, path=sys.path[0])\n{text}\n"
    )
    found = {}
    for warm in (False, True):
        run = rankdeck.launch(
            write_profile({"module": "pkg.job", "args": ["x"]}, launch={"warm": warm, "on_failure": "stop"})
        )
        rankdeck("wait", run)
        found[warm] = (rankdeck.log(run, 0), rankdeck.log(run, 0, "err"), rankdeck.status(run)["ranks"][0]["exit"])
    assert found[True] == found[False]
    assert b'"pkg.job"' in found[True][0]


def test_every_rank_has_random_numbers_of_its_own(rankdeck, write_script, write_profile):
    text = "import random, secrets, uuid, tempfile, numpy, torch, multiprocessing\nsay(numbers=[random.random(), numpy.random.rand(), secrets.token_hex(), str(uuid.uuid4()), tempfile.mktemp(), multiprocessing.current_process().authkey.hex(), torch.initial_seed(), torch.rand(1).item()])"
    run = rankdeck.launch(write_profile(write_script("dice.py", SAY + text), ranks=3, launch={"warm": True}))
    rankdeck("wait", run)
    rows = [json.loads(rankdeck.log(run, rank).split(b" ", 1)[1])["numbers"] for rank in range(3)]
    assert [len(set(column)) for column in zip(*rows, strict=True)] == [3] * 8


def test_what_a_rank_shares_with_the_template_is_not_taken_apart(rankdeck, write_script, write_profile):
    """What a module of the template holds would be deleted with it. That it is not, shows that the interpreter did not end this rank."""
    text = "import torch.distributed as dist\ndist.init_process_group('gloo')\nimport json\nclass Last:\n    def __del__(self): print('deleted')\njson.kept = Last()\nprint('end')"
    said = {}
    for warm in (False, True):
        run = rankdeck.launch(write_profile(write_script("last.py", text), launch={"warm": warm}))
        rankdeck("wait", run)
        said[warm] = rankdeck.log(run, 0)
    assert said[False] == b"end\ndeleted\n"
    assert said[True] == b"end\n"


def test_torch_compile_works_in_a_forked_rank(rankdeck, write_script, write_profile):
    text = "import torch\nf = torch.compile(lambda x: (x * 2).sin().sum(), backend='aot_eager')\nsay(ok=torch.allclose(f(torch.ones(3)), (torch.ones(3) * 2).sin().sum()))"
    run = rankdeck.launch(write_profile(write_script("compile.py", SAY + text), launch={"warm": True}))
    rankdeck("wait", run)
    assert b'{"ok": true}' in rankdeck.log(run, 0), rankdeck.log(run, 0, "err")
