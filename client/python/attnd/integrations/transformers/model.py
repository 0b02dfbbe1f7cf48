# SPDX-License-Identifier: Apache-2.0
"""What a model has at the daemon: its cache, parameter sets, jobs and buffers.

In: a PreTrainedModel. Out: a `Served`, kept as long as the model and its weights are the same.
Next: cache.py, attention.py.
"""

from __future__ import annotations

import ctypes
import json
import secrets
import threading
import weakref
from pathlib import Path
from typing import Any

import torch

from ... import Connection, CopiedLayer, Layer, Params, Staging, connect, private
from ...fingerprint import checkpoint_fingerprint, checkpoint_tensors, fingerprint, places, plain

DTYPES = (torch.float32, torch.float16, torch.bfloat16)

_lock = threading.Lock()
_settings: dict[str, Any] = {}
_daemon: Connection | None = None  # of a private daemon: ends it
_served: weakref.WeakKeyDictionary[Any, Served] = weakref.WeakKeyDictionary()


def configure(
    *,
    socket: str | None = None,
    private_daemon: dict[str, Any] | bool = False,
    kv_dtype: Any = None,
    namespace: dict[str, bytes] | None = None,
) -> None:
    """Settings of this process, before the first model runs; models that ran already begin anew.

    `socket`: the daemon's, if not the machine's. `private_daemon`: start one of our own, with
    these settings ({"pool_size": "2G"}). `kv_dtype`: of the cache, if not the model's ("bf16",
    "f16", "f32"). `namespace`: who shares (`Connection.namespace`).
    """
    global _daemon
    with _lock:
        _settings.update(
            socket=socket, private=private_daemon, kv_dtype=kv_dtype, namespace=namespace or {}, generation=object()
        )
        _served.clear()
        if _daemon is not None:
            _daemon.close()
            _daemon = None


def generation() -> object:
    """Another one after each `configure`."""
    return _settings.get("generation")


def socket() -> str | None:
    """Where the daemon listens; None: where attnd.connect looks by itself. Starts a private one if that is configured."""
    global _daemon
    with _lock:
        own = _settings.get("private")
        if own and _daemon is None:
            _daemon = private(**(own if isinstance(own, dict) else {}), name="transformers")
        return _daemon.socket if _daemon is not None else _settings.get("socket")


def new_connection() -> Connection:
    """A model's own: the hits of an engine's caches are the smallest of them all."""
    return connect(socket(), name="transformers")


def refuse(what: str, instead: str) -> NotImplementedError:
    return NotImplementedError(f"attnd does not serve {what}: {instead}")


# ---- Fingerprints ----


def _adapters(modules: list[Any]) -> list[str]:
    """What adapters of PEFT's kind do at present: which are active, or none, and how much each counts."""
    said = []
    for m in modules:
        active = getattr(m, "active_adapters", None)
        if active is None or callable(active):
            continue
        scaling = getattr(m, "scaling", None)
        counts = {k: scaling[k] for k in active if k in scaling} if isinstance(scaling, dict) else {}
        said.append(f"{list(active)} {bool(getattr(m, 'disable_adapters', False))} {counts}")
    return said


def _adapted(model: Any) -> list[Any]:
    """The modules that _adapters asks."""
    return [m for m in model.modules() if not callable(getattr(m, "active_adapters", len))]


def _glance(p: torch.Tensor) -> bytes:
    """Two of its values: what writes to .data leaves no other trace."""
    if not p.numel() or p.device.type != "cpu":
        return b""
    at, size = p.data_ptr(), p.element_size()
    middle = at + p.numel() // 2 * size if p.is_contiguous() else at
    return ctypes.string_at(at, size) + ctypes.string_at(middle, size)


def _writes(parameters: list[torch.Tensor]) -> int:
    """How often they were written to; those made in inference mode do not count."""
    return sum(0 if p.is_inference() else p._version for p in parameters)


def _weights_version(model: Any) -> tuple[int, ...]:
    """Changes when somebody trains, loads or exchanges weights or adapters."""
    parameters = list(model.parameters())
    return (
        len(parameters),
        _writes(parameters),
        hash(tuple(p.data_ptr() for p in parameters)),
        hash(tuple(map(_glance, parameters))),
        hash(tuple(_adapters(_adapted(model)))),
    )


def model_fingerprint(model: Any) -> bytes:
    """That of its checkpoint, if it was loaded from a directory and is as that says; else of what is in memory.

    Processes, and engines, that load the same checkpoint share a cache.
    """
    dtype = str(model.dtype).removeprefix("torch.")
    folder = Path(str(getattr(model, "name_or_path", "") or ""))
    tensors = dict(model.state_dict())
    adapters = _adapters(_adapted(model))
    settings = {"adapters": adapters} if adapters else None
    config = _plain_config(model.config)
    if (folder / "config.json").is_file() and _is_config(config, folder, model) and _is_checkpoint(tensors, folder):
        return checkpoint_fingerprint(folder, dtype=dtype, settings=settings)
    return fingerprint(tensors, config, dtype=dtype, settings=settings)


def _plain_config(config: Any) -> dict[str, Any]:
    return json.loads(config.to_json_string(use_diff=False))  # type: ignore[no-any-return]


def _is_config(config: dict[str, Any], folder: Path, model: Any) -> bool:
    """True if nothing was overridden that decides K and V."""
    try:
        stored = type(model.config).from_pretrained(folder)
    except (OSError, TypeError, ValueError):
        return False
    return plain(_plain_config(stored)) == plain(config)


def _is_checkpoint(tensors: dict[str, Any], folder: Path) -> bool:
    """True if every tensor of the files is in memory, with the files' values in the model's type."""
    try:
        stored = checkpoint_tensors(folder)
    except FileNotFoundError:
        return False
    kinds = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    for t in stored:
        mine = tensors.get(t.name)
        if mine is None or t.dtype not in kinds or tuple(mine.shape) != t.shape:
            return False
        if mine.numel() and not _same_values(mine, t.data, kinds[t.dtype]):
            return False
    return bool(stored)


def _same_values(mine: torch.Tensor, data: Any, stored: torch.dtype) -> bool:
    """Where the fingerprint looks, the file's values in the type that they have in memory."""
    size = stored.itemsize
    places_ = [(begin // size, -(-end // size)) for begin, end in places(len(data))]
    flat = mine.detach().reshape(-1)
    file = torch.frombuffer(bytearray(b"".join(data[size * b : size * e] for b, e in places_)), dtype=stored)
    return torch.equal(torch.cat([flat[b:e] for b, e in places_]), file.to(mine.dtype))


# ---- A model ----


class Served:
    """One model's cache at the daemon, and the jobs of its layers."""

    def __init__(self, model: Any) -> None:
        config = model.config.get_text_config(decoder=True)
        _check(config)
        heads = config.num_attention_heads
        self.generation = generation()
        self.connection = new_connection()
        self.num_layers = config.num_hidden_layers
        self.version = _weights_version(model)
        self._parameters, self._adapted = list(model.parameters()), _adapted(model)
        self._quick = self._look()
        self.private = _varies(config)
        dtype = str(model.dtype).removeprefix("torch.")
        if model.dtype not in DTYPES:
            raise refuse(f"models of {dtype}", "load it with dtype=torch.float32, float16 or bfloat16")
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        self.cache = self.connection.cache(
            f"hf-{getattr(config, 'model_type', 'model')}"[:64],
            fingerprint=model_fingerprint(model),
            num_layers=self.num_layers,
            num_heads=heads,
            num_kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=head_dim,
            kv_dtype=_settings.get("kv_dtype") or dtype,
        )
        self.dtype = model.dtype
        self.namespace = self.connection.namespace(**_settings["namespace"]) if _settings.get("namespace") else 0
        self.unshared = self.connection.namespace(salt=secrets.token_bytes(16))  # nothing is published in it
        self.layers = LayerJobs(self.cache, self.num_layers - 1)

    def _look(self) -> tuple[int, list[str]]:
        return _writes(self._parameters), _adapters(self._adapted)

    def changed(self) -> bool:
        """Whether weights or adapters have changed since; quicker than _weights_version, for each step."""
        return self._look() != self._quick

    def shifted(self, offset: int) -> int:
        """The namespace of sequences whose position ids do not begin at 0: their K differ."""
        if not offset:
            return self.namespace
        names = dict(_settings.get("namespace") or {})
        names["salt"] = names.get("salt", b"") + b"\0position %d" % offset
        return self.connection.namespace(**names)


def _varies(config: Any) -> bool:
    """Whether a token's K depends on how long its prompt was: positions that are scaled as they grow."""
    found: list[Any] = [getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)]
    for x in found:
        if isinstance(x, dict):
            found += x.values()
        elif isinstance(x, str) and ("dynamic" in x or "longrope" in x):
            return True
    return False


def _check(config: Any) -> None:
    check_layers(config)
    if config.is_encoder_decoder:
        raise refuse("encoder-decoder models", 'use attn_implementation="sdpa"')
    if getattr(config, "kv_lora_rank", None):
        raise refuse("latent attention (MLA) of Transformers", 'use attn_implementation="sdpa"')
    if getattr(config, "num_kv_shared_layers", None):
        raise refuse("layers that share K and V", 'use attn_implementation="sdpa"')


def check_layers(config: Any) -> None:
    kinds = set(getattr(config, "layer_types", None) or ())
    if unknown := kinds - {"full_attention", "sliding_attention"}:
        raise refuse(f"layers of {', '.join(sorted(unknown))}", 'use attn_implementation="sdpa"')


def served(model: Any) -> Served:
    """The model's, made again when its weights have changed."""
    found = _served.get(model)
    if found is not None and found.generation is generation() and found.version == _weights_version(model):
        return found
    made = Served(model)
    _served[model] = made
    return made


# ---- Jobs ----


class LayerJobs:
    """Parameter sets and jobs of a cache's layers, made when a layer first runs.

    `last_layer`: whose job ends a plan; None: no job does. Who uses `staging` holds the lock.
    """

    def __init__(self, cache: Any, last_layer: int | None) -> None:
        self.cache = cache
        self.last_layer = last_layer
        self.lock = threading.Lock()
        self.params: dict[Any, Params] = {}
        self.made: dict[int, tuple[Any, Params, CopiedLayer, Layer]] = {}
        self.staging: Staging | None = None

    def get(
        self, index: int, dtype: torch.dtype, scale: float, cap: float, window: int, causal: bool, sinks: Any
    ) -> tuple[Any, Params, CopiedLayer, Layer]:
        """(its settings, parameter set, job that copies, job in the arena)."""
        key = (dtype, scale, cap, window, causal, None if sinks is None else (sinks.data_ptr(), sinks._version))
        found = self.made.get(index)
        if found is not None and found[0] == key:
            return found
        params = self.params.get(key)
        if params is None:
            params = self.params[key] = self.cache.params(
                sm_scale=scale,
                logit_cap=cap,
                sliding_window=window,
                causal=causal,
                q_dtype=dtype,
                sinks=sinks,
            )
        if self.staging is None or self.staging.params.q_dtype != params.q_dtype:
            self.staging = Staging(params, 1)
        last = index == self.last_layer
        made = (key, params, CopiedLayer(params, index, self.staging, last=last), Layer(params, index, last=last))
        self.made[index] = made
        return made
