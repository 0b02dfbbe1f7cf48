# SPDX-License-Identifier: Apache-2.0
"""Arena memory as arrays of NumPy and tensors of torch, without copies.

In: a block of attnd_alloc. Out: an `Array`, and views of it that keep the block. Next: plan.py
passes its address.

A block goes back to the arena when its last view is gone; the arena stays mapped until the last
block is gone, also after the connection was closed. Finalizers only note what is to be freed: they
may run in any thread, the connection belongs to one.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Any

import numpy as np

from .dtypes import DType

if TYPE_CHECKING:
    from .connection import Handle


class Block:
    """Owns one allocation."""

    __slots__ = ("address", "handle", "nbytes")

    def __init__(self, handle: Handle, address: int, nbytes: int) -> None:
        self.handle = handle
        self.address = address
        self.nbytes = nbytes

    def __del__(self) -> None:
        self.handle.garbage.append(self.address)


class Array:
    """Memory that the daemon reads and writes; give it to jobs as it is.

    `numpy()` and `torch()` are views of the same memory, the buffer protocol (`memoryview(a.buffer)`)
    and DLPack work, too. Views keep the memory. A forked child must not touch any of them.
    """

    __slots__ = ("_block", "address", "dtype", "nbytes", "shape")

    def __init__(self, block: Block, shape: tuple[int, ...], dtype: DType | np.dtype[Any]) -> None:
        self._block = block
        self.address = block.address
        self.shape = shape
        self.dtype = dtype
        self.nbytes = block.nbytes

    def __repr__(self) -> str:
        name = self.dtype.name.lower() if isinstance(self.dtype, DType) else str(self.dtype)
        return f"attnd.Array({list(self.shape)}, {name}, {self.address:#x})"

    @property
    def buffer(self) -> Any:
        """The bytes, with the buffer protocol."""
        memory = (ctypes.c_ubyte * self.nbytes).from_address(self.address)
        memory.owner = self._block  # type: ignore[attr-defined]
        return memory

    def numpy(self) -> np.ndarray[Any, Any]:
        """A view; of bf16 and fp8 as unsigned integers (see `from_bf16`)."""
        dtype = self.dtype.numpy if isinstance(self.dtype, DType) else self.dtype
        return np.frombuffer(self.buffer, dtype).reshape(self.shape)

    def torch(self) -> Any:
        """A view as a tensor."""
        import torch

        dtype = self.dtype.torch if isinstance(self.dtype, DType) else getattr(torch, self.dtype.name)
        return torch.frombuffer(self.buffer, dtype=dtype).view(self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        view = self.numpy()
        return view.astype(dtype) if dtype is not None and view.dtype != dtype else view.copy() if copy else view

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # the CPU

    def __dlpack__(self, **_: Any) -> Any:
        return _capsule(self)


# ---- DLPack, by ctypes: a capsule of a DLManagedTensor that holds the block ----


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    ]


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _DLManagedTensor(ctypes.Structure):
    _fields_ = [("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]


_exported: dict[int, tuple[Any, ...]] = {}


def _delete(managed: int) -> None:
    _exported.pop(managed, None)


def _unused(capsule: int) -> None:
    """A capsule that nobody took: its name is still the first one."""
    api = ctypes.pythonapi
    if api.PyCapsule_IsValid(ctypes.c_void_p(capsule), b"dltensor"):
        api.PyCapsule_GetPointer.restype = ctypes.c_void_p
        _delete(api.PyCapsule_GetPointer(ctypes.c_void_p(capsule), b"dltensor"))


_delete_pointer = _Deleter(_delete)
_unused_pointer = _Deleter(_unused)
_CODES = {"f": 2, "i": 0, "u": 1}


def _capsule(a: Array) -> Any:
    if isinstance(a.dtype, DType):
        code = {DType.BF16: 4, DType.INT8: 0, DType.FP8_E4M3: 10, DType.FP8_E5M2: 12}.get(a.dtype, 2)
    else:
        code = _CODES[a.dtype.kind]
    shape = (ctypes.c_int64 * len(a.shape))(*a.shape)
    managed = _DLManagedTensor(deleter=_delete_pointer)
    t = managed.tensor
    t.data, t.device_type, t.ndim = a.address, 1, len(a.shape)
    t.code, t.bits, t.lanes = code, a.dtype.itemsize * 8, 1
    t.shape = ctypes.addressof(shape)
    address = ctypes.addressof(managed)
    _exported[address] = (managed, shape, a._block)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(address, b"dltensor", ctypes.cast(_unused_pointer, ctypes.c_void_p))


# ---- Addresses ----


def address_of(x: Any) -> int | None:
    """Where an Array, an array, a tensor or a plain address points; None for None."""
    if x is None or isinstance(x, int):
        return x
    if isinstance(x, Array):
        return x.address
    if hasattr(x, "data_ptr"):
        return int(x.data_ptr())
    return int(x.__array_interface__["data"][0])


def size_of(shape: int | Seq[int], itemsize: int) -> tuple[tuple[int, ...], int]:
    dims = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(int(d) for d in shape)
    return dims, math.prod(dims) * itemsize


def as_tokens(tokens: Any) -> np.ndarray[Any, Any]:
    """Token keys as contiguous uint64: from a list, an array of any integer type, a tensor."""
    if hasattr(tokens, "detach"):
        tokens = tokens.detach().cpu().numpy()
    a = np.asarray(tokens)
    if a.dtype == np.int64:  # the same bits
        a = a.view(np.uint64) if a.flags.c_contiguous else np.ascontiguousarray(a).view(np.uint64)
    elif a.dtype != np.uint64:
        if a.size and a.dtype.kind not in "iu":
            raise TypeError(f"tokens are integers, not {a.dtype}")
        a = a.astype(np.uint64)
    if a.ndim != 1:
        raise ValueError(f"tokens are one list, not an array of {a.ndim} dimensions")
    return np.ascontiguousarray(a)


