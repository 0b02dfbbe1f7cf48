# SPDX-License-Identifier: Apache-2.0
"""The fingerprint of a model: who may share a cache.

In: tensors, or a checkpoint's files; what else decides K and V. Out: 16 bytes for a cache's
identity. Next: cache.py.

All front ends use this one, so that two engines that serve the same checkpoint with the same
settings meet in one cache, and nothing else does. It is a hash of every tensor's name, type, shape
and some of its bytes (both ends and 62 places between), in the order of their names, and of the
settings: the configuration without what has no influence on K and V (`IGNORED`), the type that is
computed in, and the shard of a tensor-parallel rank. A change of a few values inside a large tensor
may go unseen: give such a model a setting of its own (`settings={"revision": ...}`).
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .dtypes import DTypeLike, as_dtype

WHOLE, PIECES, PIECE = 8192, 64, 128

# A checkpoint's files: of the first kind that there are any of.
FILES: tuple[tuple[str, ...], ...] = ((".safetensors",), (".bin",), (".pt",))

# Of a configuration: names, versions, how it is trained, stored and decoded.
IGNORED = frozenset(
    """_name_or_path transformers_version architectures torch_dtype dtype use_cache return_dict output_attentions
    output_hidden_states bos_token_id eos_token_id pad_token_id id2label label2id initializer_range attention_dropout
    attn_implementation _attn_implementation _attn_implementation_internal _commit_hash _attn_implementation_autoset
    pretraining_tp chunk_size_feed_forward is_encoder_decoder problem_type
    router_aux_loss_coef output_router_logits cache_implementation""".split()
)

_TORCH_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


class TensorBytes(NamedTuple):
    """One tensor: `dtype` as safetensors calls it, `data` its bytes in row-major order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Any


def places(nbytes: int) -> list[tuple[int, int]]:
    """Which bytes of a tensor count: [begin, end) of each piece."""
    if nbytes <= WHOLE:
        return [(0, nbytes)]
    step = (nbytes - PIECE) / (PIECES - 1)
    return [(at := int(i * step), at + PIECE) for i in range(PIECES)]


def samples(data: Any) -> bytes:
    """Those bytes."""
    view = memoryview(data).cast("B")
    return b"".join(bytes(view[begin:end]) for begin, end in places(len(view)))


def tensor_bytes(name: str, tensor: Any) -> TensorBytes:
    """Of an array or a tensor."""
    if hasattr(tensor, "detach"):
        import torch

        kind = str(tensor.dtype).removeprefix("torch.")
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        return TensorBytes(name, _TORCH_NAMES.get(kind, kind), tuple(tensor.shape), flat)
    array = np.ascontiguousarray(tensor)
    kind = array.dtype.name
    return TensorBytes(name, _TORCH_NAMES.get(kind, kind), array.shape, array.reshape(-1).view(np.uint8))


def plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration without what does not decide K and V."""
    return {k: plain(v) if isinstance(v, Mapping) else v for k, v in settings.items() if k not in IGNORED}


def digest(tensors: Iterable[TensorBytes], settings: Mapping[str, Any]) -> bytes:
    """The hash itself."""
    h = hashlib.blake2b(digest_size=16, person=b"attnd.model.1")
    for t in sorted(tensors, key=lambda t: t.name):
        head = json.dumps([t.name, t.dtype, list(t.shape)]).encode()
        piece = samples(t.data)
        h.update(len(head).to_bytes(8, "little") + head + len(piece).to_bytes(8, "little") + piece)
    h.update(json.dumps(settings, sort_keys=True, default=str).encode())
    return h.digest()


def _settings(
    config: Mapping[str, Any], dtype: DTypeLike, shard: tuple[int, int], settings: Mapping[str, Any] | None
) -> dict[str, Any]:
    return {
        "config": plain(config),
        "dtype": as_dtype(dtype).name,
        "shard": list(shard),
        "settings": dict(settings or {}),
    }


def fingerprint(
    tensors: Mapping[str, Any],
    config: Mapping[str, Any],
    *,
    dtype: DTypeLike,
    shard: tuple[int, int] = (0, 1),
    settings: Mapping[str, Any] | None = None,
) -> bytes:
    """Of weights in memory, by their checkpoint's names; `config`: config.json as a dict, RoPE's settings included.

    `dtype`: computed in; `shard`: (rank, ranks) of tensor parallelism; `settings`: whatever else
    decides K and V (quantisation, overrides).
    """
    found = (tensor_bytes(name, t) for name, t in tensors.items())
    return digest(found, _settings(config, dtype, shard, settings))


def checkpoint_fingerprint(
    path: str | os.PathLike[str],
    *,
    dtype: DTypeLike,
    shard: tuple[int, int] = (0, 1),
    settings: Mapping[str, Any] | None = None,
    files: Iterable[tuple[str, ...]] = FILES,
) -> bytes:
    """Of a checkpoint's directory: config.json and its safetensors files, else its *.bin, else its *.pt files.

    `files`: which suffixes, in the order in which they are looked for. Of safetensors it is equal to
    `fingerprint` of the same tensors and configuration.
    """
    folder = Path(path)
    config = json.loads((folder / "config.json").read_text())
    return digest(checkpoint_tensors(folder, files), _settings(config, dtype, shard, settings))


def checkpoint_tensors(folder: Path, files: Iterable[tuple[str, ...]] = FILES) -> list[TensorBytes]:
    """The tensors of a checkpoint; their data are views of the files."""
    for suffixes in files:
        found = sorted(f for f in folder.glob("*") if f.suffix in suffixes)
        if found:
            return [t for f in found for t in (_safetensors(f) if f.suffix == ".safetensors" else _pickled(f))]
    raise FileNotFoundError(f"{folder} has no {' or '.join('*' + s for suffixes in files for s in suffixes)}")


def adapter_digest(path: str | os.PathLike[str]) -> bytes:
    """Of a LoRA adapter's folder, for `Connection.namespace(adapter=...)`: what its files hold, not what they are called by.

    Files are read whole: adapters are small, and of two that were trained from one most bytes may be the same.
    """
    files = sorted(f for f in Path(path).glob("*") if f.suffix in (".safetensors", ".bin", ".pt", ".json"))
    if all(f.suffix == ".json" for f in files):
        raise FileNotFoundError(f"{path} has neither *.safetensors nor *.bin nor *.pt")
    h = hashlib.blake2b(digest_size=16)
    for f in files:
        with open(f, "rb") as data:
            h.update(f.name.encode() + b"\0" + hashlib.file_digest(data, "blake2b").digest())
    return h.digest()


def _mapped(path: Path) -> memoryview:
    with open(path, "rb") as f:
        return memoryview(mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ))


def _pickled(path: Path) -> list[TensorBytes]:
    """What torch.save wrote: an archive of storages, each with its checksum; older ones are read whole."""
    file = _mapped(path)
    if not zipfile.is_zipfile(path):
        return [TensorBytes(path.name, "file", (len(file),), hashlib.blake2b(file).digest())]
    found = []
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            head = entry.header_offset
            name, extra = (int.from_bytes(file[head + at : head + at + 2], "little") for at in (26, 28))
            begin = head + 30 + name + extra
            data = file[begin : begin + entry.compress_size]
            found.append(TensorBytes(f"{path.name}/{entry.filename}", f"crc {entry.CRC}", (entry.file_size,), data))
    return found


def _safetensors(path: Path) -> list[TensorBytes]:
    """Eight bytes of length, a JSON header, the data."""
    file = _mapped(path)
    begin = 8 + int.from_bytes(file[:8], "little")
    header = json.loads(bytes(file[8:begin]))
    header.pop("__metadata__", None)
    return [
        TensorBytes(name, t["dtype"], tuple(t["shape"]), file[begin + t["data_offsets"][0] : begin + t["data_offsets"][1]])
        for name, t in header.items()
    ]
