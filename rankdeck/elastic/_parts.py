"""The parts of a state: what of a part is shared, and how a part takes what another rank or an earlier moment had. Values are written
into the objects that are there. The script, optimizers and closures refer to them."""

import collections
from collections.abc import Iterator
from typing import Any

from rankdeck._torch_compat import buffers_of, buffers_outside_state


def read(part: Any) -> Any:
    """Returns the shared state of a part: its `state_dict()`, for a module also buffers that are not in it; else the part itself."""
    import torch

    if isinstance(part, torch.nn.Module):
        return {
            "state": part.state_dict(),
            "buffers": {name: buffer for name, buffer in _buffers(part) if buffer is not None},
        }
    return part.state_dict() if hasattr(part, "state_dict") else part


def write(part: Any, value: Any) -> Any:
    """Gives a part what `read` returned on another rank, or before. Returns the part, or its replacement if it can't be written."""
    import torch

    if isinstance(part, torch.nn.Module):
        _make_buffers_writable(part)
        part.load_state_dict(value["state"])
        own = dict(_buffers(part))
        for name, buffer in value["buffers"].items():
            module, _, last = name.rpartition(".")
            buffers_of(part.get_submodule(module))[last] = restore(own.get(name), buffer)
    elif hasattr(part, "load_state_dict"):
        part.load_state_dict(value)
        if isinstance(part, torch.optim.Optimizer):
            _keep_dtypes(part, value)
    else:
        return restore(part, value)
    return part


def restore(current: Any, value: Any) -> Any:
    """Returns `current` with the contents of `value`, if they are of one type and it can be written in place; else `value`."""
    import torch

    if isinstance(current, torch.Tensor) and isinstance(value, torch.Tensor):
        return _fill(current, value)
    if type(current) is not type(value) or current is value:
        return value
    if isinstance(current, dict):
        items = {key: restore(current.get(key), item) for key, item in value.items()}
        current.clear()
        current.update(items)
    elif isinstance(current, list):
        head = [*map(restore, current, value)]
        current[:] = [*head, *value[len(head) :]]
    elif isinstance(current, set):
        current.clear()
        current.update(value)
    elif isinstance(current, collections.deque):
        current.clear()
        current.extend(value)
    elif not isinstance(current, (type, tuple)) and hasattr(current, "__dict__") and not callable(current):
        restore(vars(current), vars(value))
        return current
    else:
        return value
    if hasattr(current, "__dict__"):  # for example OrderedDict, which as the state of a module has `_metadata`
        vars(current).update(vars(value))
    return current


def _fill(own: Any, value: Any) -> Any:
    import torch

    with torch.no_grad():
        strided = own.layout is torch.strided and value.layout is torch.strided
        if strided and own.shape == value.shape and own.dtype == value.dtype and not shares_elements(own):
            own.detach().copy_(value)
            return own
        try:
            own.data = value.detach().to(own.device)
        except (RuntimeError, TypeError):  # of another layout
            return value
        return own


def shares_elements(tensor: Any) -> bool:
    """Whether elements of a tensor share memory, as after `expand`: such a tensor can't be written."""
    return any(tensor.size(at) > 1 and tensor.stride(at) == 0 for at in range(tensor.dim()))


def _buffers(part: Any) -> Iterator[tuple[str, Any]]:
    """The buffers of a module that are not in its state (`persistent=False`). DDP gives the buffers of rank 0 to all ranks."""
    for prefix, module in part.named_modules():
        for name in buffers_outside_state(module):
            yield f"{prefix}.{name}" if prefix else name, buffers_of(module)[name]


def _make_buffers_writable(part: Any) -> None:
    """Copies buffers of a module whose elements share memory (`expand`): `load_state_dict` can't write into them."""
    import torch

    for module in part.modules():
        for name, buffer in buffers_of(module).items():
            if buffer is not None and buffer.layout is torch.strided and shares_elements(buffer):
                buffers_of(module)[name] = buffer.clone(memory_format=torch.contiguous_format)


def _keep_dtypes(optimizer: Any, value: Any) -> None:
    """Restores the dtypes of an optimizer's state: `load_state_dict` casts it to the dtypes of the parameters (NAdam with bfloat16)."""
    import torch

    for number, own in optimizer.state_dict()["state"].items():  # its inner dicts are the optimizer's own
        for key, tensor in value["state"].get(number, {}).items():
            if isinstance(tensor, torch.Tensor) and own[key].dtype != tensor.dtype:
                own[key] = tensor.to(own[key].device)
