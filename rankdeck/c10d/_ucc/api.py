"""The part of UCC's C interface that is used here, for ctypes: structures, numbers and functions. The layouts are those of ucc.h on
64-bit machines. From 1.3 to 1.9, it has only grown at the end of `ucc_coll_args_t`; these structures have the larger size and zeros
there, so that they match all of these versions."""

import ctypes
from collections.abc import Mapping
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    Union,
    c_char_p,
    c_double,
    c_int,
    c_int64,
    c_size_t,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

OK, IN_PROGRESS = 0, 1
ERROR = -6  # UCC_ERR_NO_MESSAGE: a callback returns this if it fails

ALLGATHER, ALLREDUCE, ALLTOALL, ALLTOALLV = 1 << 0, 1 << 2, 1 << 3, 1 << 4
BCAST, GATHER, REDUCE, REDUCE_SCATTER, SCATTERV = 1 << 6, 1 << 9, 1 << 11, 1 << 12, 1 << 15

INT8, INT16, INT32, INT64 = (number << 3 for number in range(4))
UINT8, UINT16, UINT32, UINT64 = (number << 3 for number in range(5, 9))
FLOAT32, FLOAT64, COMPLEX64, COMPLEX128 = (number << 3 for number in (11, 12, 15, 16))

SUM, PROD, MAX, MIN = range(4)
BAND, BOR, BXOR = range(7, 10)

THREAD_MULTIPLE = 2
SHARED = 1
HOST = 0

ARGS_FLAGS = 1 << 0
IN_PLACE, PERSISTENT, COUNTS_64_BIT, DISPLACEMENTS_64_BIT = 1 << 0, 1 << 1, 1 << 2, 1 << 3

LIB_THREAD_MODE = 1 << 0
CONTEXT_TYPE, CONTEXT_OOB = 1 << 0, 1 << 2
TEAM_EP, TEAM_EP_RANGE, TEAM_OOB, TEAM_ID = 1 << 2, 1 << 4, 1 << 7, 1 << 11

AllgatherCallback = CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, c_void_p, POINTER(c_void_p))
RequestCallback = CFUNCTYPE(c_int, c_void_p)


def structure(**fields: Any) -> Any:
    """Returns a structure of C with these fields, in their order."""
    return type("Fields", (Structure,), {"_fields_": tuple(fields.items())})


# ucc_lib_params_t
LibParams = structure(mask=c_uint64, thread_mode=c_int, coll_types=c_uint64, reduction_types=c_uint64, sync_type=c_int)

# ucc_oob_coll_t
Oob = structure(
    allgather=AllgatherCallback, req_test=RequestCallback, req_free=RequestCallback, coll_info=c_void_p, n_oob_eps=c_uint32, oob_ep=c_uint32
)  # fmt: skip

# ucc_mem_map_params_t
_MemMapParams = structure(segments=c_void_p, n_segments=c_uint64)

# ucc_context_params_t
ContextParams = structure(
    mask=c_uint64, type=c_int, sync_type=c_int, oob=Oob, ctx_id=c_uint64, mem_params=_MemMapParams
)

# ucc_ep_map_t
_EpMap = structure(type=c_int, ep_num=c_uint64, how=c_uint64 * 2)

# ucc_team_params_t
TeamParams = structure(
    mask=c_uint64, flags=c_uint64, ordering=c_int, outstanding_colls=c_uint64, ep=c_uint64, ep_list=c_void_p, ep_range=c_int,
    team_size=c_uint64, sync_type=c_int, oob=Oob, p2p_conn=c_void_p * 5, mem_params=_MemMapParams, ep_map=_EpMap, id=c_uint64,
)  # fmt: skip


class BufferInfo(Structure):
    """ucc_coll_buffer_info_t"""

    _fields_ = (("buffer", c_void_p), ("count", c_uint64), ("datatype", c_uint64), ("mem_type", c_int))


class BufferInfoV(Structure):
    """ucc_coll_buffer_info_v_t"""

    _fields_ = (*((name, c_void_p) for name in ("buffer", "counts", "displacements")), ("datatype", c_uint64), ("mem_type", c_int))  # fmt: skip


class _Buffer(Union):
    _fields_ = (("info", BufferInfo), ("info_v", BufferInfoV))


# ucc_coll_callback_t, and a subset of a team's ranks
_Callback = structure(function=c_void_p, data=c_void_p)
_ActiveSet = structure(start=c_uint64, stride=c_int64, size=c_uint64)

# ucc_coll_args_t
CollArgs = structure(
    mask=c_uint64, coll_type=c_int, src=_Buffer, dst=_Buffer, op=c_int, flags=c_uint64, root=c_uint64, error_type=c_int, tag=c_uint16,
    global_work_buffer=c_void_p, cb=_Callback, timeout=c_double, active_set=_ActiveSet, src_memh=c_void_p, dst_memh=c_void_p,
)  # fmt: skip

SIGNATURES = {
    "ucc_get_version": (None, (POINTER(c_uint32),) * 3),
    "ucc_lib_config_read": (c_int, (c_char_p, c_char_p, POINTER(c_void_p))),
    "ucc_lib_config_release": (None, (c_void_p,)),
    "ucc_init_version": (c_int, (c_uint32, c_uint32, POINTER(LibParams), c_void_p, POINTER(c_void_p))),
    "ucc_context_config_read": (c_int, (c_void_p, c_char_p, POINTER(c_void_p))),
    "ucc_context_config_modify": (c_int, (c_void_p, c_char_p, c_char_p, c_char_p)),
    "ucc_context_config_release": (None, (c_void_p,)),
    "ucc_context_create": (c_int, (c_void_p, POINTER(ContextParams), c_void_p, POINTER(c_void_p))),
    "ucc_context_progress": (c_int, (c_void_p,)),
    "ucc_team_create_post": (c_int, (POINTER(c_void_p), c_uint32, POINTER(TeamParams), POINTER(c_void_p))),
    "ucc_team_create_test": (c_int, (c_void_p,)),
    "ucc_team_destroy": (c_int, (c_void_p,)),
    "ucc_collective_init": (c_int, (POINTER(CollArgs), POINTER(c_void_p), c_void_p)),
    "ucc_collective_post": (c_int, (c_void_p,)),
    "ucc_collective_finalize": (c_int, (c_void_p,)),
    "ucc_status_string": (c_char_p, (c_int,)),
}
"""Result and arguments of each function."""


def declare(library: ctypes.CDLL, signatures: Mapping[str, tuple[Any, tuple[Any, ...]]]) -> None:
    """Declares functions of a library for ctypes. Raises AttributeError if one is missing."""
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
