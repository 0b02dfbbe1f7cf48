# SPDX-License-Identifier: Apache-2.0
"""Element types and their names in attnd, NumPy and torch.

In: any of the names. Out: a `DType`. Next: memory.py, objects.py.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from typing import Any

import numpy as np


class DType(IntEnum):
    F32 = 0
    F16 = 1
    BF16 = 2
    INT8 = 3
    FP8_E4M3 = 4
    FP8_E5M2 = 5

    @property
    def itemsize(self) -> int:
        return (4, 2, 2, 1, 1, 1)[self]

    @property
    def numpy(self) -> np.dtype[Any]:
        """NumPy's type of the same size; it has none for bf16 and fp8: their bits as unsigned integers."""
        return np.dtype(("float32", "float16", "uint16", "int8", "uint8", "uint8")[self])

    @property
    def torch(self) -> Any:
        import torch

        return getattr(torch, ("float32", "float16", "bfloat16", "int8", "float8_e4m3fn", "float8_e5m2")[self])


@cache
def torch_dtype(dtype: DType) -> Any:
    """Its type in torch, looked up once."""
    return dtype.torch


_NAMES = {
    "f32": DType.F32,
    "float32": DType.F32,
    "float": DType.F32,
    "f16": DType.F16,
    "float16": DType.F16,
    "half": DType.F16,
    "bf16": DType.BF16,
    "bfloat16": DType.BF16,
    "int8": DType.INT8,
    "fp8_e4m3": DType.FP8_E4M3,
    "float8_e4m3fn": DType.FP8_E4M3,
    "fp8_e5m2": DType.FP8_E5M2,
    "float8_e5m2": DType.FP8_E5M2,
}

DTypeLike = Any  # DType, "bf16", "bfloat16", torch.bfloat16, np.float16, np.dtype("float32")


def as_dtype(x: DTypeLike) -> DType:
    """The DType of a name, a NumPy type or a torch type."""
    if isinstance(x, DType):
        return x
    name = x.__name__ if isinstance(x, type) else x.name if isinstance(x, np.dtype) else str(x)
    found = _NAMES.get(name.removeprefix("torch."))
    if found is None:
        raise ValueError(f"attnd has no dtype {x!r}; it has {', '.join(d.name.lower() for d in DType)}")
    return found


def to_bf16(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Round float32 to the nearest bf16 (ties to even); the bits, as uint16."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16
    return np.where(np.isnan(x), (bits >> 16) | 0x40, rounded).astype(np.uint16)


def from_bf16(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """bf16 bits as float32."""
    return (np.asarray(x, np.uint32) << 16).view(np.float32)
