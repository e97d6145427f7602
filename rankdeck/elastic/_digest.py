"""Numbers that differ if values differ: a digest of all of a value, and a cheap fingerprint of a part of it. pickle's bytes are no
measure: equal values pickle differently where they share objects in another way."""

import ctypes
import itertools
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from rankdeck._torch_compat import version_of_scaler, versions

BITS = (1 << 62) - 1  # digests are below 2**62, so that their negative is an int64 too

_ROW = 4096  # elements of a row: the digest of a large tensor is made of the sums of its rows and columns

_SMALL = 1 << 16  # bytes up to which the checksum of a tensor is faster than sums of it

_SAMPLE = 4  # items at both ends of a container that a fingerprint looks at


def digest(value: Any) -> int:
    """Returns a number for everything in a value: tensors bit by bit, containers, and objects by what pickle would save. Types of
    containers count, and the order of a dict does not."""
    return _Walk().number(value)


def combine(numbers: Iterable[int]) -> int:
    """Returns one number for several, in their order."""
    return hash(tuple(numbers)) & BITS


class _Walk:
    def __init__(self) -> None:
        self._open: set[int] = set()  # objects that contain the current one

    def number(self, value: Any) -> int:
        import torch

        if isinstance(value, torch.Tensor):
            return _of_tensor(value)
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
            return _of_text(f"{type(value).__name__} {value!r}")
        if id(value) in self._open:
            return 0
        self._open.add(id(value))
        try:
            return self._of_object(value)
        finally:
            self._open.discard(id(value))

    def _of_object(self, value: Any) -> int:
        name = _of_text(f"{type(value).__module__}.{type(value).__qualname__}")
        if isinstance(value, Mapping):
            return combine((name, sum(combine((self.number(key), self.number(item))) for key, item in value.items())))
        if isinstance(value, (set, frozenset)):
            return combine((name, sum(map(self.number, value))))
        if isinstance(value, (list, tuple)):
            return combine((name, *map(self.number, value)))
        if callable(getattr(value, "__qualname__", None)) or isinstance(value, type):
            return name
        try:
            parts = value.__reduce_ex__(4)
        except Exception:  # noqa: BLE001 - what pickle can't save has no contents to compare
            return name
        if isinstance(parts, str):
            return _of_text(parts)
        made_by, arguments, *rest = parts
        contents = [list(part) if hasattr(part, "__next__") else part for part in (arguments, *rest)]
        return combine((_of_text(getattr(made_by, "__qualname__", "")), *map(self.number, contents)))


def _of_text(text: str) -> int:
    data = text.encode(errors="surrogatepass")
    return zlib.crc32(data) << 30 ^ zlib.adler32(data)


def _of_tensor(tensor: Any) -> int:
    """The checksum of a tensor. The 64-bit words of a large one are added with wrap-around, as fast as any device reads its memory, and the
    checksum is that of these sums."""
    import torch

    name = _of_text(f"{tuple(tensor.shape)} {tensor.dtype} {tensor.layout}")
    with torch.no_grad():
        tensor = tensor.detach()
        if tensor.layout is torch.sparse_coo:
            tensor = tensor.coalesce()
            return combine((name, _of_tensor(tensor.indices()), _of_tensor(tensor.values())))
        if tensor.layout is not torch.strided or tensor.is_quantized:
            return name
        data = as_bytes(tensor)
        if data.numel() <= _SMALL:
            return combine((name, _checksum(data)))
        size = data.numel() // 8 * 8
        words, rest = data[:size].view(torch.int64), data[size:]
        whole = words.numel() // _ROW * _ROW
        rows = words[:whole].view(-1, _ROW)
        sums = (rows.sum(1), rows.sum(0), words[whole:])
        return combine((name, *map(_checksum, (*sums, rest))))


def _checksum(tensor: Any) -> int:
    here = as_bytes(tensor.cpu())
    return zlib.crc32(ctypes.string_at(here.data_ptr(), here.numel())) if here.numel() else 0


def as_bytes(tensor: Any) -> Any:
    """Returns a strided tensor as a flat tensor of bytes: backends and sums may not support its dtype."""
    import torch

    return tensor.resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)


def fingerprint(value: Any, depth: int = 4) -> int:
    """Returns a number that changes with nearly every change of a value, in a time that does not depend on the value's size. Looks at the
    version counters of tensors, and at the first and last items of containers."""
    import torch

    if isinstance(value, torch.Tensor):
        return hash((id(value), 0 if value.is_inference() else versions([value])))
    if isinstance(value, torch.nn.Module):
        return versions(list(value.parameters()))
    if isinstance(value, (bool, int, float, complex, str, bytes)) or value is None:
        return hash(value)
    if depth == 0 or callable(value):  # each access makes a new method
        return hash(getattr(value, "__qualname__", type(value).__qualname__))
    if isinstance(value, Mapping):
        return hash(
            (len(value), *((hash(key), fingerprint(item, depth - 1)) for key, item in _ends(list(value.items()))))
        )
    if isinstance(value, (list, tuple)):
        return hash((len(value), *(fingerprint(one, depth - 1) for one in _ends(value))))
    if (version := version_of_scaler(value)) is not None:
        return version
    if hasattr(value, "state_dict") and hasattr(
        value, "optimizer"
    ):  # a scheduler; what it says of its optimizer changes by itself
        return fingerprint(value.state_dict(), depth)
    if hasattr(value, "__dict__"):
        return hash((len(value) if hasattr(value, "__len__") else 0, fingerprint(vars(value), depth - 1)))
    return hash((id(value), len(value) if hasattr(value, "__len__") else 0))


def _ends(items: Any) -> Any:
    if len(items) <= 2 * _SAMPLE:
        return items
    return itertools.chain(items[:_SAMPLE], items[-_SAMPLE:])
