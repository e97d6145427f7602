"""Python runs this at its start where `tests/light` is on PYTHONPATH: processes of tests do without what they don't need of torch.

Importing torch takes two seconds of processor time, a third of it for torch._meta_registrations, and torch._dynamo, which the first
optimizer imports, takes two more. Most of the time of all tests went there. RANKDECK_TESTS_TORCH=whole in the environment leaves torch as it is.

- torch._dynamo, torch._meta_registrations and torch._higher_order_ops are stand-ins until somebody compiles: eager training asks for
  nothing but what the stand-in has.
- Modules that `import torch` imports without need are loaded when they are used.
- Nothing is collected while torch is imported.
- The store of a run whose script mentions neither torch nor rankdeck.elastic is asked for nothing, and does without torch.
- Any other store is torch's own, without the Python around it.

Any doubt means the real torch.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any
else:
    ModuleType = type(sys)


class Unhurried:
    """Turns garbage collection off while torch is imported: it takes a tenth of that time, and finds nothing."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Part of the protocol of `sys.meta_path`."""
        if name != "torch":
            return None
        import gc
        from importlib.machinery import PathFinder

        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name)
        if spec is None or spec.loader is None or not gc.isenabled():
            return spec
        load = spec.loader.exec_module

        def load_without_collections(module: ModuleType) -> None:
            gc.disable()
            try:
                load(module)
            finally:
                gc.enable()

        spec.loader.exec_module = load_without_collections  # type: ignore[method-assign]
        return spec


class LazyFinder:
    """Finds modules of torch that are loaded when something is asked of them. Most programs ask nothing."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Part of the protocol of `sys.meta_path`."""
        if name not in LAZY:
            return None
        from importlib.machinery import PathFinder
        from importlib.util import LazyLoader

        spec = PathFinder.find_spec(name, path)  # type: ignore[arg-type]
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


LAZY = frozenset(
    "torch." + name
    for name in (
        *(
            "_native",
            "ao",
            "distributions",
            "export",
            "fx.passes",
            "hub",
            "masked",
            "profiler",
            "quantization",
            "testing",
        ),
        *("nn.intrinsic", "nn.qat", "nn.quantizable", "nn.quantized"),
    )
)
"""What `import torch` imports and most training does not use: a sixth of its time, with what has a stand-in."""


class StandInFinder:
    """Finds the stand-ins, which the real modules replace when more is asked of them."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Part of the protocol of `sys.meta_path`."""
        if name not in STANDINS and not name.startswith(NEED_REAL):
            return None
        import importlib.machinery

        if name in STANDINS:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]  # looks like one
        self.real(name)
        try:
            self.found = importlib.import_module(name)
        except ModuleNotFoundError:
            return None
        del sys.modules[name]  # the import that asks for it puts it there again
        return importlib.machinery.ModuleSpec(name, self)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Part of the protocol of loaders."""
        return StandIn(spec.name) if spec.name in STANDINS else self.found

    def exec_module(self, module: ModuleType) -> None:
        """Part of the protocol of loaders. What torch.Generator needs is set by a module that the stand-in does not import."""
        if type(module) is StandIn and module.__name__ == "torch._meta_registrations":
            import importlib

            metaclass = importlib.import_module("torch._opaque_base").OpaqueBaseMeta
            sys.modules["torch._C"].__dict__["_set_generator_metaclass"](metaclass)

    def real(self, name: str) -> ModuleType:
        """Imports the real modules in place of the stand-ins, and then the one that is asked for."""
        import importlib

        if self in sys.meta_path:
            sys.meta_path.remove(self)
            for standin in STANDINS:
                sys.modules.pop(standin, None)
                sys.modules["torch"].__dict__.pop(standin.rpartition(".")[2], None)
            importlib.import_module("torch._meta_registrations")
            for user, owner, names in TAKEN:
                for taken in names if user in sys.modules else ():
                    setattr(sys.modules[user], taken, getattr(importlib.import_module(owner), taken))
        return importlib.import_module(name)


TAKEN = (
    ("torch", "torch._higher_order_ops", ("cond", "while_loop")),
    ("torch.compiler", "torch._higher_order_ops.invoke_subgraph", ("NestedCompileRegionOptions",)),
)
"""What modules have taken from stand-ins by `from … import …`."""

STANDINS = ("torch._dynamo", "torch._meta_registrations", *(owner for _, owner, _ in TAKEN))
NEED_REAL = ("torch._dynamo.", "torch._higher_order_ops.", "torch.distributed.tensor.")
"""Beginnings of modules that need what has a stand-in."""


class StandIn(ModuleType):
    """What eager training asks of the modules with a stand-in; anything else is the real one's."""

    disable = staticmethod(lambda fn=None, recursive=True, **options: fn)
    graph_break = staticmethod(lambda: None)
    cond = staticmethod(lambda *args, **options: call_real("cond", *args, **options))
    while_loop = staticmethod(lambda *args, **options: call_real("while_loop", *args, **options))

    class utils:
        """For DistributedDataParallel."""

        get_optimize_ddp_mode = staticmethod(lambda: "ddp_optimizer")

    class NestedCompileRegionOptions:
        """For an annotation of torch.compiler."""

    class trace_rules:
        """For init_process_group."""

        clear_lru_cache = staticmethod(lambda: None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(FINDER.real(self.__name__), name)


def call_real(name: str, *args: Any, **options: Any) -> Any:
    """Calls a function that torch has taken from a stand-in."""
    return getattr(FINDER.real("torch._higher_order_ops"), name)(*args, **options)


def ranks_need_torch(program: str) -> bool:
    """Whether ranks may use the store. `program`: the path of store_host.py, in a library in the run's folder."""
    import json
    from pathlib import Path

    try:
        plan = json.loads(Path(program.partition("/nodes/")[0], "plan.json").read_bytes())
        text = Path(plan["program"]["target"]).read_text(encoding="utf-8")
    except (OSError, ValueError, KeyError):
        return True
    return (
        plan["program"]["kind"] != "script"
        or plan["launch"]["warm"]
        or any(word in text for word in ("torch", "elastic"))
    )


def bare_torch() -> None:
    """Loads torch's TCPStore alone, which takes a quarter of the time. What fails leaves the way to the whole torch free."""
    import ctypes
    from importlib.machinery import PathFinder

    package = PathFinder.find_spec("torch")
    if package is None or not package.submodule_search_locations:
        return
    folder = package.submodule_search_locations[0]
    torch: Any = ModuleType("torch")
    torch.__path__, torch.distributed = [folder], ModuleType("torch.distributed")
    sys.modules["torch"], sys.modules["torch.distributed"] = torch, torch.distributed
    try:
        ctypes.CDLL(f"{folder}/lib/libtorch_global_deps.so", ctypes.RTLD_GLOBAL)
        __import__("torch._C")
        torch._C._c10d_init()
        torch.distributed.TCPStore = torch._C._distributed_c10d.TCPStore
    except Exception:  # noqa: BLE001 - the whole torch fails again, and says why
        for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
            del sys.modules[name]


FINDER = StandInFinder()

if os.environ.get("RANKDECK_TESTS_TORCH") != "whole":
    sys.meta_path[:0] = [FINDER, Unhurried(), LazyFinder()]
for _word in sys.orig_argv[1:3]:
    if _word.endswith("/rankdeck/store_host.py"):
        if "/nodes/" in _word and not ranks_need_torch(_word):
            sys.path.insert(0, f"{__file__.rpartition('/')[0]}/store")
        elif FINDER in sys.meta_path:
            bare_torch()
