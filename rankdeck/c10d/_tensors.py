"""Contiguous memory that a library may use for a caller's tensor."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

Tensors = Sequence[torch.Tensor]


DTYPES = (
    "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex32",
    "complex64", "complex128", "bool", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
)  # fmt: skip
"""Dtypes in the order of their numbers in messages, from 1; older versions of torch lack some. Others have the number 0."""

DTYPE_NUMBERS = {getattr(torch, name): number for number, name in enumerate(DTYPES, 1) if hasattr(torch, name)}

_STRIDED = torch.strided

_PLAIN = {torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.Tensor)}
"""Types of tensors that have memory of their own."""


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor that has the memory: the result of a functional collective is waited for. Raises TypeError: there is no such
    memory (a wrapper such as DTensor, a freed storage), or a library can't read it (sparse, another device)."""
    if type(tensor) not in _PLAIN and type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        wait = getattr(tensor, "trigger_wait", None)
        if wait is None:
            raise TypeError(
                f"a {type(tensor).__name__} can't be sent: pass the tensor that it wraps, such as to_local() of a DTensor"
            )
        tensor = wait()
    if tensor.layout is not _STRIDED:
        raise TypeError(f"a tensor of layout {tensor.layout} can't be sent: call to_dense() first")
    if tensor.is_nested or tensor.is_quantized:
        raise TypeError("a nested or quantized tensor can't be sent: send its parts as plain tensors")
    if not tensor.is_cpu and not tensor.is_cuda:
        raise TypeError(f"a tensor on {tensor.device} can't be sent: copy it to the CPU first")
    if not tensor.data_ptr() and tensor.numel():
        raise TypeError("a tensor whose storage was freed, or has no memory yet, can't be sent")
    return tensor


def _is_direct(tensor: torch.Tensor, takes_cuda: bool) -> bool:
    """Whether a library may use the tensor's own memory."""
    plain = tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
    return plain and (tensor.is_cpu or takes_cuda)


class Staged(NamedTuple):
    """A caller's tensor, and contiguous memory for it: its own if possible, else other host memory."""

    tensor: torch.Tensor
    host: torch.Tensor

    def give_back(self) -> None:
        """Copies the result to the caller's tensor. On return it is there, for every CUDA stream."""
        if self.host is not self.tensor:
            with torch.inference_mode():
                self.tensor.copy_(self.host)
            _synchronize(self.tensor)


def readable(tensor: torch.Tensor, takes_cuda: bool = False) -> Staged:
    """Returns memory with a tensor's contents; the library may also write to it. Called in the thread that called torch. Waits for that
    thread's CUDA stream, which may still be writing the contents. Raises TypeError: see `_own`."""
    if _is_simple(tensor):
        return Staged(tensor, tensor)
    tensor = _own(tensor)
    if _is_direct(tensor, takes_cuda):
        _synchronize(tensor)
        return Staged(tensor, tensor)
    with torch.inference_mode():
        host = tensor.contiguous().resolve_conj().resolve_neg()
        return Staged(tensor, host.cpu() if host.is_cuda else host)


def writable(tensor: torch.Tensor, takes_cuda: bool = False) -> Staged:
    """Returns memory of a tensor's shape and dtype, whose contents the library replaces. Waits for the thread's CUDA stream, which may
    still be using the tensor. Arguments and errors: see `readable`, and `check_writable`."""
    if _is_simple(tensor):
        return Staged(tensor, tensor)
    tensor = _own(tensor)
    check_writable(tensor)
    _synchronize(tensor)
    if _is_direct(tensor, takes_cuda):
        return Staged(tensor, tensor)
    with torch.inference_mode():
        return Staged(tensor, torch.empty(tensor.shape, dtype=tensor.dtype))


def _is_simple(tensor: torch.Tensor) -> bool:
    """Whether all is well with a tensor at the first look, as with most: contiguous on the CPU, with memory of its own."""
    return (
        type(tensor) in _PLAIN
        and tensor.is_cpu
        and tensor.layout is _STRIDED
        and tensor.is_contiguous()
        and tensor.data_ptr() != 0
        and not (tensor.is_conj() or tensor.is_neg() or tensor.is_nested or tensor.is_quantized)
    )


def check_writable(tensor: torch.Tensor) -> None:
    """Raises ValueError if elements share memory, as after `expand`."""
    if not tensor.is_contiguous() and any(tensor.size(at) > 1 and not tensor.stride(at) for at in range(tensor.dim())):
        raise ValueError(
            "the result can't be written into a tensor whose elements share memory: call contiguous() first"
        )


def _synchronize(tensor: torch.Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()


def overlaps(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two contiguous tensors share memory. Libraries do not allow that for an input and an output."""
    start, begin = one.data_ptr(), other.data_ptr()
    return start < begin + other.numel() * other.element_size() and begin < start + one.numel() * one.element_size()


def pieces(tensor: torch.Tensor, most: int) -> Sequence[torch.Tensor]:
    """Divides a contiguous tensor into pieces of at most `most` items."""
    count = tensor.numel()
    if count <= most:
        return (tensor,)
    flat = tensor.view(-1)
    return [flat[at : at + most] for at in range(0, count, most)]
