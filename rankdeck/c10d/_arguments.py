"""Methods that are operations, and checks of their arguments. A mistake raises in the caller's thread, before anything is sent, and names the
operation.

torch's tools do not see a process group in Python: the profiler, and modes that see each operator, such as make_fx and CommDebugMode. While
one of them is active, an operation takes torch's own way: a plain group of torch's, its twin, calls the operator of torch
(`c10d::allreduce_`). Our kernel of that operator runs it after all modes, and passes on what other groups call.
"""

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from rankdeck._torch_compat import add_kernels, begin_event, c10d_library, watchers
from rankdeck.c10d._tensors import DTYPE_NUMBERS, Staged, Tensors
from rankdeck.c10d._work import Together, here

Method = TypeVar("Method", bound=Callable[..., Any])

_OPTIONS = frozenset(
    kind for name, kind in vars(c10d_library()).items() if name.endswith("Options") and hasattr(kind, "timeout")
)
"""torch's classes of options. A method may get the class of another one, such as that of several tensors for one."""

_is_profiled, _count_modes = watchers()

_FIELDS = {"op": "reduceOp", "root": "rootRank", "timeout": "timeout"}
"""Fields of torch's options by the names of its short forms."""


DTYPES_OF_A_TAG = 32  # the library has so many tags for each tag of torch

QUESTIONS, ANSWERS, TEXTS = RESERVED = 1, 2, 3  # uses of the largest tags by `_agreement`


def only(items: Sequence[Any]) -> Any:
    """Returns the only item. Raises ValueError if there is not exactly one."""
    if len(items) != 1:
        raise ValueError(f"needs one tensor, or one list of tensors, but got {len(items)}")
    return items[0]


def full_tag(tag: int, dtype: torch.dtype, tags: int) -> int:
    """Returns the tag of a message, which has the number of the dtype in it, for its receiver to compare. `tags`: number of
    tags that the library has. Raises ValueError: the tag is below 0 or too large; some of the largest are reserved."""
    most = tags // DTYPES_OF_A_TAG - len(RESERVED)
    if not 0 <= tag < most:
        raise ValueError(f"the tag {tag} is not from 0 to {most - 1}")
    return tag * DTYPES_OF_A_TAG + DTYPE_NUMBERS.get(dtype, 0)


def reserved_tag(tags: int, use: int) -> int:
    """Returns one of the largest tags, which no message of a script has. Arguments: see `full_tag` and RESERVED."""
    return (tags // DTYPES_OF_A_TAG - use) * DTYPES_OF_A_TAG


def operation(
    name: str, options: Any = None, leading: int = 0, *words: str, wraps: bool = True
) -> Callable[[Method], Method]:
    """Makes a method an operation of torch's: an error in its arguments begins with the operation's name, and it takes torch's short forms
    too, which have a tensor in place of a list, and values in place of options.

    Args:
        options: torch's class of the method's options; None: it has no short forms.
        leading: number of arguments before the options.
        *words: the arguments of a short form, in place of options, in this order: op, root, timeout.
        wraps: whether a short form has one tensor in place of a list, or one list in place of a list of lists.
    """

    def full(given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        first, rest = list(given[:leading]), given[leading:]
        first += [named.pop(word) for word in tuple(named) if word not in (*words, "opts")]
        if len(first) > leading or len(rest) > max(1, len(words)):
            raise TypeError(f"takes {leading} arguments and {', '.join(words)}")
        if wraps and any(isinstance(one, torch.Tensor) for one in first):
            first = [[one] if isinstance(one, torch.Tensor) or one else [] for one in first]
        if rest and (rest[0] is None or type(rest[0]) in _OPTIONS):
            named["opts"], rest = rest[0], rest[1:]
        if (opts := named.pop("opts", None)) is None:
            opts = options()
        for word, value in (*zip(words, rest), *named.items()):
            setattr(opts, _FIELDS[word], dist.ReduceOp(value) if isinstance(value, dist.ReduceOp.RedOpType) else value)
        return (*first, opts)

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def call(self: Any, *given: Any, **named: Any) -> Any:
            try:
                if options is not None and (named or len(given) != leading + 1 or type(given[leading]) not in _OPTIONS):
                    given, named = full(given, named), {}
                if (_is_profiled() or _count_modes()) and not named:
                    return _Call(self, name, method, given).make()
                return method(self, *given, **named)
            except (TypeError, ValueError) as error:
                if not str(error).startswith(f"{name}: "):
                    error.args = (f"{name}: {error}",)
                raise

        return cast("Method", call)

    return decorate


_EVENTS = {"recv_anysource": "recvAnySource"}  # names of events that are not those of their operations


class _Call:
    """An operation of a group. `name`: for the profiler. `method`: runs it. `given`: arguments of the method."""

    def __init__(self, group: Any, name: str, method: Callable[..., Any], given: tuple[Any, ...]) -> None:
        self.twin = group.twin
        self._group, self._name, self._method, self._given = group, name, method, given
        self._work: Any = None
        self._left = threading.Event()  # set once the operator has ended

    def make(self) -> Any:
        """Makes the call. Returns its work; if a mode has kept the operator to itself, the work of that mode."""
        operator = getattr(dist.ProcessGroup, self._method.__name__, None)
        if here.call is not None or operator is None:  # a part of another operation, or none of torch's
            return self._method(self._group, *self._given)
        _add_kernels()
        here.call = self
        try:
            found = operator(self.twin, *self._given)
        finally:
            here.call = None
            self._left.set()
        return found if self._work is None else self._work  # what Python has of a work ends if only C++ holds it

    def run(self, tensors: tuple[Any, ...]) -> Any:
        """Runs the operation on the tensors with which its operator was called, unless a mode only thinks of them. Returns its work."""
        if any(tensor.is_meta or hasattr(tensor, "fake_mode") for tensor in _flat(tensors)):
            self._work = Together([])
            return self._work
        count = sum(isinstance(one, (torch.Tensor, list, tuple)) for one in self._given[: len(tensors)])
        given = (*tensors[:count], *self._given[count:])
        inputs = given[1] if count > 1 else given[0] if count else ()
        if not _is_profiled():
            self._work = self._method(self._group, *given)
            return self._work
        end = begin_event(f"{self._group.NAME}:{_EVENTS.get(self._name, self._name)}", [*_flat(inputs)])

        def end_later() -> None:
            """Ends the event after its operator, in another thread than it began in: so the profiler shows it as asynchronous."""
            self._left.wait()
            end()

        here.ending = threading.Thread(target=end_later, name="rankdeck profiler", daemon=True)
        try:
            self._work = self._method(self._group, *given)
        except BaseException:
            end()
            raise
        finally:
            here.ending = None
        return self._work


def _flat(tensors: Any) -> Iterator[torch.Tensor]:
    if isinstance(tensors, torch.Tensor):
        yield tensors
    else:
        for one in tensors:
            yield from _flat(one)


def _run(twin: Any, tensors: tuple[Any, ...]) -> Any:
    """The kernel of every operator: returns the work of the call that this thread makes, None for a call of another group."""
    call = here.call
    return call.run(tensors) if call is not None and call.twin is twin else None


@functools.cache
def _add_kernels() -> None:
    add_kernels(_run)


def check_rank(rank: int, world: int) -> int:
    """Returns a rank. Raises ValueError if the group has no such rank."""
    if not 0 <= rank < world:
        raise ValueError(f"there is no rank {rank} in this group of {world} ranks")
    return rank


def describe(tensors: Tensors) -> str:
    """Returns the number of elements and the dtype of each tensor, as text that all ranks must agree on."""
    if len(tensors) == 1:
        return f"{tensors[0].numel()} x {tensors[0].dtype}"
    return ", ".join([f"{tensor.numel()} x {tensor.dtype}" for tensor in tensors])


def sizes_of(tensors: Tensors, mine: torch.Tensor, rank: int, world: int, equal: bool = False) -> list[int]:
    """Returns the number of elements of each tensor in a list with one tensor per rank. `mine`: this rank's own tensor: `tensors[rank]`
    must have its size, and all tensors its dtype. `equal`: whether all sizes must be equal. Raises ValueError: the list does not match
    the group or this rank's tensor."""
    sizes = [tensor.numel() for tensor in tensors]
    if len(sizes) != world:
        raise ValueError(f"a list of {len(sizes)} tensors for {world} ranks")
    if sizes[rank] != mine.numel() or (equal and len(set(sizes)) > 1):
        raise ValueError(f"{mine.numel()} elements do not fit a list of {sizes} elements on rank {rank}")
    if any(tensor.dtype != mine.dtype for tensor in tensors):
        raise ValueError(f"all tensors must be {mine.dtype} as this rank's own")
    return sizes


def check_share(output: torch.Tensor, tensor: torch.Tensor, world: int, input_is_share: bool) -> None:
    """Checks that the whole tensor has `world` times the elements of a share. `input_is_share`: whether `tensor` is the share and
    `output` the whole; False: the reverse. Raises ValueError: sizes or dtypes do not match."""
    whole, share = (output, tensor) if input_is_share else (tensor, output)
    if output.dtype != tensor.dtype:
        raise ValueError(f"the output is {output.dtype}, and the input {tensor.dtype}")
    if whole.numel() != share.numel() * world:
        raise ValueError(f"{whole.numel()} elements are not {world} (the world size) times {share.numel()}")


def cut(tensor: torch.Tensor, splits: Sequence[int], world: int) -> list[int]:
    """Returns the number of elements of each rank's part of a tensor that is split along its first dimension. `splits`: lengths of the
    parts; empty: equal parts. Raises ValueError: the parts do not add up to the first dimension."""
    length = len(tensor) if tensor.dim() else 1
    if not splits:
        if length % world:
            raise ValueError(f"a first dimension of {length} can't be cut into {world} parts")
        return [tensor.numel() // world] * world
    if len(splits) != world or sum(splits) != length or min(splits) < 0:
        raise ValueError(f"the splits {list(splits)} do not cut a first dimension of {length} into {world} parts")
    return [tensor.numel() // length * split if length else 0 for split in splits]


def joined(tensors: Tensors) -> torch.Tensor:
    """Returns all elements, one tensor after the other."""
    return torch.cat([tensor.view(-1) for tensor in tensors])


def deal(rows: torch.Tensor, targets: Sequence[Staged]) -> None:
    for target, row in zip(targets, rows):
        target.host.view(-1).copy_(row)
