# SPDX-License-Identifier: Apache-2.0
"""libattnd through ctypes: where it is, its structs and its functions, as attnd.h declares them.

In: $ATTND_LIBRARY, this package's place, the system's loader. Out: `lib()`, loaded at the first
call, so that importing the package needs no library. Next: connection.py.

ctypes releases the GIL for the time of each call. tests/python compares the structs with the
header by a compiler.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import Structure, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

SONAME = "libattnd.so.0"


class ConnectOptions(Structure):
    _fields_ = [
        ("socket", c_char_p),
        ("name", c_char_p),
        ("timeout_us", c_uint64),
        ("queue_entries", c_uint32),
        ("engine_id", c_char_p),
        ("engine_create", c_int),
        ("owner_pidfd", c_int),
        ("default_deadline_us", c_uint64),
        ("spin_us", c_int64),
    ]


class CacheDesc(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("fingerprint", c_uint8 * 16),
        ("num_layers", c_uint32),
        ("num_heads", c_uint32),
        ("num_kv_heads", c_uint32),
        ("head_dim", c_uint32),
        ("head_dim_v", c_uint32),
        ("block_size", c_uint32),
        ("kv_dtype", c_int),
        ("scale_mode", c_int),
        ("layout", c_int),
        ("v_in_k", c_int),
    ]


class CacheInfo(Structure):
    _fields_ = [("cache", c_uint32), ("chunk", c_uint32), ("step", c_uint32), ("capacity_tokens", c_uint64)]


class Namespace(Structure):
    _fields_ = [
        ("tenant", c_char_p),
        ("adapter", c_char_p),
        ("salt", c_char_p),
        ("tenant_bytes", c_uint32),
        ("adapter_bytes", c_uint32),
        ("salt_bytes", c_uint32),
    ]


class Params(Structure):
    _fields_ = [
        ("cache", c_uint32),
        ("sm_scale", c_float),
        ("logit_cap", c_float),
        ("sliding_window", c_uint32),
        ("causal", c_int),
        ("q_dtype", c_int),
        ("out_dtype", c_int),
        ("kv_in_dtype", c_int),
        ("sinks", c_void_p),
        ("alibi", c_void_p),
        ("q_token_stride", c_uint64),
        ("q_head_stride", c_uint64),
        ("k_token_stride", c_uint64),
        ("k_head_stride", c_uint64),
        ("v_token_stride", c_uint64),
        ("v_head_stride", c_uint64),
        ("out_token_stride", c_uint64),
        ("out_head_stride", c_uint64),
        ("k_scales_delta", c_uint64),
        ("v_scales_delta", c_uint64),
    ]


class Prompt(Structure):
    _fields_ = [("tokens", c_void_p), ("num_tokens", c_uint64)]


class OpenInfo(Structure):
    _fields_ = [("cached", c_uint64)]


class Row(Structure):
    _fields_ = [
        ("key", c_uint64),
        ("start", c_uint64),
        ("tokens", c_void_p),
        ("num_tokens", c_uint32),
        ("flags", c_uint32),
        ("publish_upto", c_uint64),
        ("mask", c_void_p),
    ]


class RowStatus(Structure):
    _fields_ = [("status", c_int32), ("cached", c_uint32)]


class Attend(Structure):
    _fields_ = [
        ("plan", c_uint32),
        ("params", c_uint32),
        ("layer", c_uint32),
        ("src_layer", c_uint32),
        ("flags", c_uint32),
        ("q", c_void_p),
        ("k", c_void_p),
        ("v", c_void_p),
        ("out", c_void_p),
        ("lse", c_void_p),
        ("deadline_us", c_uint64),
    ]


class Rows(Structure):
    _fields_ = [("data", c_void_p), ("token_stride", c_uint64), ("head_stride", c_uint64)]


class Copied(Structure):
    _fields_ = [
        ("job", Attend),
        ("num_tokens", c_uint32),
        ("decode", c_int),
        ("q", Rows),
        ("k", Rows),
        ("v", Rows),
        ("out", Rows),
    ]


class Kv(Structure):
    _fields_ = [
        ("cache", c_uint32),
        ("layer", c_uint32),
        ("key", c_uint64),
        ("start", c_uint64),
        ("num_tokens", c_uint32),
        ("data", c_void_p),
        ("deadline_us", c_uint64),
    ]


class SlotTable(Structure):
    _fields_ = [
        ("unit", c_int),
        ("width", c_uint32),
        ("plan", c_uint32),
        ("capacity", c_uint32),
        ("kv_indices", c_void_p),
        ("seq_lens", c_void_p),
        ("kv_indptr", c_void_p),
        ("qo_indptr", c_void_p),
    ]


class Result(Structure):
    _fields_ = [("job", c_uint64), ("status", c_int32), ("reserved", c_uint32), ("value", c_uint64)]


# The header's name of each struct.
STRUCTS: dict[str, type[Structure]] = {
    "attnd_connect_options": ConnectOptions,
    "attnd_cache_desc": CacheDesc,
    "attnd_cache_info": CacheInfo,
    "attnd_namespace": Namespace,
    "attnd_params": Params,
    "attnd_prompt": Prompt,
    "attnd_open_info": OpenInfo,
    "attnd_row": Row,
    "attnd_row_status": RowStatus,
    "attnd_attend": Attend,
    "attnd_rows": Rows,
    "attnd_copied": Copied,
    "attnd_kv": Kv,
    "attnd_slot_table": SlotTable,
    "attnd_result": Result,
}

ROW_NONCAUSAL = 1
LAST, NO_KV, NO_OUT = 1, 2, 4

_P = c_void_p
_U32, _U64 = c_uint32, c_uint64
_JOB = _P  # attnd_job_t *

_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "attnd_connect": (c_int, [_P, _P]),
    "attnd_disconnect": (None, [_P]),
    "attnd_shutdown": (None, [_P]),
    "attnd_private_start": (c_int, [_P, _P, _P]),
    "attnd_socket": (c_char_p, [_P]),
    "attnd_daemon_pid": (c_int, [_P]),
    "attnd_engine_id": (c_int, [_P]),
    "attnd_strerror": (c_char_p, [_P, c_int]),
    "attnd_fd": (c_int, [_P]),
    "attnd_ping": (c_int, [_P, _U64]),
    "attnd_ping_async": (c_int, [_P, _U64, _JOB]),
    "attnd_alloc": (c_int, [_P, c_size_t, _P]),
    "attnd_free": (None, [_P, _P]),
    "attnd_reserve": (c_int, [_P, c_size_t]),
    "attnd_in_arena": (c_int, [_P, _P, c_size_t]),
    "attnd_cache_open": (c_int, [_P, _P, c_int, _P]),
    "attnd_grant": (c_int, [_P, _U32, _U64, _U32]),
    "attnd_scales_set": (c_int, [_P, _U32, _U32, c_float, c_float]),
    "attnd_namespace": (c_int, [_P, _P, _P]),
    "attnd_params_set": (c_int, [_P, _U32, _P]),
    "attnd_peek": (c_int, [_P, _U32, _U32, _P, _U64, _P]),
    "attnd_peek_many": (c_int, [_P, _U32, _U32, _P, _U32, _P, _P]),
    "attnd_seq_open": (c_int, [_P, _U64, _U32, _P, _U64, _U64, _P]),
    "attnd_seq_open_async": (c_int, [_P, _U64, _U32, _P, _U64, _U64, _JOB]),
    "attnd_seq_fork": (c_int, [_P, _U64, _U64, _U64]),
    "attnd_seq_trim": (c_int, [_P, _U64, _U64]),
    "attnd_seq_close": (c_int, [_P, _U64]),
    "attnd_seq_close_many": (c_int, [_P, _P, _U32]),
    "attnd_reopen": (c_int, [_P, _P, _U32, _P]),
    "attnd_plan": (c_int, [_P, _U32, _U32, _P, _U32, _P, _U64]),
    "attnd_plan_async": (c_int, [_P, _U32, _U32, _P, _U32, _P, _U64, _JOB]),
    "attnd_plan_end": (c_int, [_P, _U32]),
    "attnd_decode": (c_int, [_P, _P, _JOB]),
    "attnd_extend": (c_int, [_P, _P, _JOB]),
    "attnd_attend_copied": (c_int, [_P, _P, _JOB]),
    "attnd_kv_bytes": (c_int, [_P, _U32, _U32, _P]),
    "attnd_export": (c_int, [_P, _P]),
    "attnd_export_async": (c_int, [_P, _P, _JOB]),
    "attnd_import": (c_int, [_P, _U32, _U32, _U32, _P]),
    "attnd_slot_table": (c_int, [_P, _U32, _P, _U32, _P, _P]),
    "attnd_wait": (c_int, [_P, _U64, _P]),
    "attnd_next": (c_int, [_P, _P, _U64]),
    "attnd_cancel": (c_int, [_P, _U64]),
}


def build_dir() -> Path | None:
    """The build directory of the source tree that this package lies in, if it is one."""
    root = Path(__file__).resolve().parents[3]
    build = root / "build"
    return build if (root / "client" / "attnd.h").exists() and (build / SONAME).exists() else None


def _path() -> str:
    """$ATTND_LIBRARY, else beside this package, else the source tree's build, else for the system to find."""
    explicit = os.environ.get("ATTND_LIBRARY")
    if explicit:
        return explicit
    beside = Path(__file__).resolve().parent / SONAME
    tree = build_dir()
    return str(beside) if beside.exists() else str(tree / SONAME) if tree else SONAME


@cache
def lib() -> Any:
    """The library, loaded once. OSError says where it was looked for."""
    try:
        return _declare(ctypes.CDLL(_path()))
    except OSError as e:
        raise OSError(f"{e}; set ATTND_LIBRARY to the path of {SONAME}, or install attnd") from None


def _declare(loaded: ctypes.CDLL) -> ctypes.CDLL:
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(loaded, name)
        function.restype = result
        function.argtypes = arguments
    return loaded
