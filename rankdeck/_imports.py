"""Which installed modules a training script uses, so that the next launch can import them before ranks are forked."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from types import BuiltinFunctionType, FunctionType, ModuleType

from rankdeck._torch_compat import is_initializing

MOST = 64  # modules that are reported
LEFT_OUT = frozenset({"torch", "rankdeck"})  # packages that are imported before every rank

STANDARD = f"/python{sys.version_info.major}.{sys.version_info.minor}/"


NOTABLE = 0.05  # seconds of an import that are reported


class ImportTimes:
    """Measures imports of the main thread, as the first entry of `sys.meta_path`. It finds no module itself. Python does not report the
    end of an import. So the time of a module ends where the last import inside it begins: `seconds`, by module, is never too large, and 0
    for a module that imports nothing. Wrapped loaders would measure it exactly, but appear in tracebacks of scripts."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._thread = threading.get_ident()
        self._open: list[tuple[str, float, float]] = []
        """Imports that may not have ended, from the outside: name, begin, and when the last one inside began (monotonic clock)."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if threading.get_ident() == self._thread:
            self._close()
            now = time.monotonic()
            if self._open:
                self._open[-1] = (*self._open[-1][:2], now)
            self._open.append((name, now, now))

    def stop(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        self._close()

    def _close(self) -> None:
        while self._open and not _is_importing(self._open[-1][0]):
            name, begin, last = self._open.pop()
            self.seconds[name] = last - begin
            if self._open:
                outer, begin, _ = self._open[-1]
                self._open[-1] = outer, begin, last


_times: ImportTimes | None = None

_template: tuple[str, list[str]] = ("", [])
"""The last module that the template had imported when it forked this process, and the template's modules that are not installed."""


def note_template() -> None:
    """Notes, before ranks are forked, which modules a rank need not look at: that would copy 2,800 pages of 4 KiB, in 9 ms."""
    global _template
    _template = next(reversed(sys.modules)), [name for name, module in sys.modules.items() if _is_own(module)]


def time_imports() -> None:
    """Measures imports from now on, until `report_imports`."""
    global _times
    _times = ImportTimes()
    sys.meta_path.insert(0, _times)


def report_imports() -> str:
    """The installed modules that the script uses, separated by spaces; `NAME=SECONDS` if the import took long."""
    seconds: dict[str, float] = {}
    if _times is not None:
        _times.stop()
        seconds = _times.seconds
    took = ((name, seconds.get(name, 0.0)) for name in installed_modules())
    return " ".join(f"{name}={time:.2f}" if time >= NOTABLE else name for name, time in took)


def installed_modules() -> list[str]:
    """The installed modules from which the script, or a module beside it, has a name: `transformers.trainer` after `from transformers
    import Trainer`. Their own imports are not named. Sorted, at most `MOST`."""
    values: list[object] = []
    last, before = _template
    # No line of Python runs here, since other threads may import.
    since = list(itertools.takewhile(last.__ne__, reversed(sys.modules)))
    for module in map(sys.modules.get, {*since, *before, "__main__"}):
        if module is not None and _is_own(module):
            values += list(_names(module).values())
    frame = sys._getframe()
    while frame.f_back is not None:  # a script may import in a function
        frame = frame.f_back
        if not _is_installed(frame.f_code.co_filename):
            values += _named_in(frame.f_code.co_names)
    names = {name for name in map(_module_of, values) if name.partition(".")[0] not in LEFT_OUT}
    return sorted(name for name in names if _is_installed(_path(sys.modules.get(name))))[:MOST]


def _named_in(names: tuple[str, ...]) -> list[object]:
    """Modules that code names, with the names from them. Reading `f_locals` would keep the script's objects alive before Python 3.13."""
    found = map(sys.modules.get, names)
    modules = [one for one in found if one is not None and issubclass(type(one), ModuleType)]
    return [*modules, *(_names(one)[name] for one in modules for name in names if name in _names(one))]


def _names(module: ModuleType) -> dict[str, object]:
    """The names of a module. One of `importlib.util.LazyLoader` is not loaded for this, as `vars` would do."""
    names: dict[str, object] = ModuleType.__getattribute__(module, "__dict__")
    return names


def _path(module: ModuleType | None) -> str:
    """The file of a module; empty if it has none. Other objects may stand in `sys.modules` too."""
    path = _names(module).get("__file__") if isinstance(module, ModuleType) else None
    return path if isinstance(path, str) else ""


def _is_own(module: ModuleType) -> bool:
    """Whether a module is the script, or lies beside it."""
    path = _path(module)
    return bool(path) and not _is_installed(path) and STANDARD not in path


def _is_importing(name: str) -> bool:
    module = sys.modules.get(name)
    spec = _names(module).get("__spec__") if issubclass(type(module), ModuleType) else None  # type: ignore[arg-type]
    return is_initializing(spec)


def _is_installed(path: str) -> bool:
    return "/site-packages/" in path or "/dist-packages/" in path


def _module_of(value: object) -> str:
    """The module that a value is, or comes from if it is a class or a function; empty for other values."""
    kind = type(value)  # isinstance would run the __class__ of proxies
    if issubclass(kind, ModuleType):
        name: object = _names(value).get("__name__")  # type: ignore[arg-type]
    elif issubclass(kind, (type, FunctionType, BuiltinFunctionType)):
        name = value.__module__
    else:
        return ""
    return name if isinstance(name, str) else ""
