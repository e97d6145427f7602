"""Point-to-point transfers by UCX, the library below UCC, which has none. UCC's substitute, a broadcast among two ranks, reports success
if the message does not fit the receiver's memory, can't be cancelled, and can't receive from any rank (UCC 1.9). UCX supports all of
these."""

from __future__ import annotations

import ctypes
import threading
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p

import torch

from rankdeck.c10d._arguments import DTYPES_OF_A_TAG
from rankdeck.c10d._tensors import DTYPES
from rankdeck.c10d._ucc import api
from rankdeck.c10d._ucc.exchange import Exchange
from rankdeck.c10d._ucc.library import Library

_LIBRARY = "libucp.so.0"  # UCC has loaded it, so this name finds the same file
_API = (1, 10)  # the first version with ucp_request_param_t

TAGS, _WORLDS = 1 << 32, 1 << 16  # ranges of tags, and of ranks and groups, in the 64 bits of UCX's tag

_IN_PROGRESS, _CANCELED = 1, -16
_NO_IMMEDIATE_COMPLETION, _MEMORY_TYPE = 1 << 16, 1 << 6
_FEATURE_TAG = 1 << 0
_ONE_AT_A_TIME = 1  # UCS_THREAD_MODE_SERIALIZED


# The beginning of ucp_params_t, ucp_worker_params_t and ucp_ep_params_t. UCX reads only fields that the mask names.
_Params = api.structure(field_mask=c_uint64, first=c_uint64, rest=c_uint64 * 30)

# ucp_request_param_t
_RequestParam = api.structure(
    op_attr_mask=c_uint32, flags=c_uint32, request=c_void_p, cb=c_void_p, datatype=c_uint64, user_data=c_void_p, reply_buffer=c_void_p,
    memory_type=c_int, rest=c_uint64 * 8,
)  # fmt: skip

# ucp_tag_recv_info_t
_Received = api.structure(sender_tag=c_uint64, length=c_size_t)

_SIGNATURES = {
    "ucp_config_read": (c_int, (c_char_p, c_char_p, POINTER(c_void_p))),
    "ucp_config_release": (None, (c_void_p,)),
    "ucp_init_version": (c_int, (c_uint32, c_uint32, POINTER(_Params), c_void_p, POINTER(c_void_p))),
    "ucp_worker_create": (c_int, (c_void_p, POINTER(_Params), POINTER(c_void_p))),
    "ucp_worker_get_address": (c_int, (c_void_p, POINTER(c_void_p), POINTER(c_size_t))),
    "ucp_worker_release_address": (None, (c_void_p, c_void_p)),
    "ucp_worker_progress": (c_uint32, (c_void_p,)),
    "ucp_ep_create": (c_int, (c_void_p, POINTER(_Params), POINTER(c_void_p))),
    "ucp_tag_send_nbx": (c_void_p, (c_void_p, c_void_p, c_size_t, c_uint64, POINTER(_RequestParam))),
    "ucp_tag_recv_nbx": (c_void_p, (c_void_p, c_void_p, c_size_t, c_uint64, c_uint64, POINTER(_RequestParam))),
    "ucp_request_check_status": (c_int, (c_void_p,)),
    "ucp_tag_recv_request_test": (c_int, (c_void_p, POINTER(_Received))),
    "ucp_request_cancel": (None, (c_void_p, c_void_p)),
    "ucp_request_free": (None, (c_void_p,)),
    "ucs_status_string": (c_char_p, (c_int,)),
}


class TransferError(RuntimeError):
    """An error from UCX."""


class Transfers:
    """Transfers between the processes of a context. Raises MissingError if processes are missing, and errors of UCX as TransferError."""

    def __init__(self, library: Library, rank: int, exchange: Exchange, lock: threading.Lock) -> None:
        self._functions = functions = ctypes.CDLL(_LIBRARY)
        api.declare(functions, _SIGNATURES)
        self._lock = lock
        self._endpoints: dict[int, c_void_p] = {}
        self._hint = _RequestParam(op_attr_mask=_NO_IMMEDIATE_COMPLETION | _MEMORY_TYPE)
        config, context, self._worker = c_void_p(), c_void_p(), c_void_p()
        address, length = c_void_p(), c_size_t()
        with lock:
            self._check(functions.ucp_config_read(None, None, config))
            self._check(functions.ucp_init_version(*_API, _Params(field_mask=1, first=_FEATURE_TAG), config, context))
            functions.ucp_config_release(config)
            self._check(functions.ucp_worker_create(context, _Params(field_mask=1, first=_ONE_AT_A_TIME), self._worker))
            self._check(functions.ucp_worker_get_address(self._worker, address, length))
            mine = ctypes.string_at(address.value or 0, length.value)
            functions.ucp_worker_release_address(self._worker, address)
        self._addresses = exchange.all_gather(mine)

    def send(self, tensor: torch.Tensor, member: int, group: int, rank: int, tag: int) -> Transfer:
        """Starts to send contiguous memory. `member`: the receiver's rank in the context. `group`: number of the group."""
        with self._lock:
            endpoint = self._endpoint(member)
            pointer = self._functions.ucp_tag_send_nbx(
                endpoint, tensor.data_ptr(), _size(tensor), _tag(group, rank, tag), self._hint
            )
        return Transfer(self, pointer, tensor, tag, is_receive=False)

    def receive(self, tensor: torch.Tensor, group: int, rank: int | None, tag: int) -> Transfer:
        """Starts to receive into contiguous memory. `group`: number of the group. `rank`: the sender's rank in the group; None: any."""
        mask = (1 << 64) - DTYPES_OF_A_TAG  # of any dtype: another one is an error, and not waited for
        if rank is None:
            mask &= ~((_WORLDS - 1) * TAGS)
        with self._lock:
            pointer = self._functions.ucp_tag_recv_nbx(
                self._worker, tensor.data_ptr(), _size(tensor), _tag(group, rank or 0, tag), mask, self._hint
            )
        return Transfer(self, pointer, tensor, tag, is_receive=True)

    def _endpoint(self, member: int) -> c_void_p:
        if member not in self._endpoints:
            address = ctypes.create_string_buffer(self._addresses[member])
            params, endpoint = _Params(field_mask=1, first=ctypes.addressof(address)), c_void_p()
            self._check(self._functions.ucp_ep_create(self._worker, params, endpoint))
            self._endpoints[member] = endpoint
        return self._endpoints[member]

    def _check(self, status: int) -> None:
        if status < 0:
            raise TransferError(self._functions.ucs_status_string(status).decode())


class Transfer:
    """A message in progress. `pointer`: UCX's request, or the negative number of an error."""

    def __init__(
        self, transfers: Transfers, pointer: int | None, tensor: torch.Tensor, tag: int, is_receive: bool
    ) -> None:
        self._transfers, self._size, self._is_receive = transfers, _size(tensor), is_receive
        self._dtype = tag % DTYPES_OF_A_TAG
        self._received = _Received()
        self._is_cancelled = self._is_over = False
        number = ctypes.c_int64(pointer or 0).value
        if number < 0:
            transfers._check(number)
        self._request = pointer

    @property
    def source(self) -> int:
        return int(self._received.sender_tag) // TAGS % _WORLDS

    def is_done(self) -> bool:
        """Returns whether it has ended. Raises TransferError if it has failed."""
        if self._is_over:
            return True
        transfers, functions = self._transfers, self._transfers._functions
        with transfers._lock:
            functions.ucp_worker_progress(transfers._worker)
            if self._is_receive:
                status = functions.ucp_tag_recv_request_test(self._request, self._received)
            else:
                status = functions.ucp_request_check_status(self._request)
            if status == _IN_PROGRESS:
                return False
            functions.ucp_request_free(self._request)
        self._is_over = True
        if status == _CANCELED and self._is_cancelled:
            return True
        transfers._check(status)
        came = int(self._received.sender_tag) % DTYPES_OF_A_TAG
        if self._is_receive and came != self._dtype:
            raise TransferError(f"rank {self.source} has sent {DTYPES[came - 1] if came else 'another dtype'}")
        if self._is_receive and self._received.length != self._size:
            raise TransferError(
                f"{self._received.length} bytes came from rank {self.source} for a tensor of {self._size}"
            )
        return True

    def cancel(self) -> None:
        self._is_cancelled = True
        with self._transfers._lock:
            self._transfers._functions.ucp_request_cancel(self._transfers._worker, self._request)


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _tag(group: int, rank: int, tag: int) -> int:
    return (group % _WORLDS * _WORLDS + rank) * TAGS + tag % TAGS
