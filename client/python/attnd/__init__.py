# SPDX-License-Identifier: Apache-2.0
"""attnd for Python: one KV cache for every model runner of a machine, attention where the cache lies.

    import attnd

    with attnd.connect() as a:                     # or attnd.private(pool_size="64M")
        cache = a.cache("llama", num_layers=32, num_heads=32, num_kv_heads=8, head_dim=128, ...)
        with a.sequence(prompt) as s:              # s.cached tokens need not be computed
            plan = cache.plan([(s, prompt[s.cached:])])
            layer.run(plan)                        # once a layer

README.md beside this package has the whole of it.
"""

from .cache import Cache, Kv, Params, SlotTable
from .connection import Connection, EngineId, Job, connect, private
from .dtypes import DType, as_dtype, from_bf16, to_bf16
from .errors import (
    ConnectionLost,
    DeadlineExceeded,
    Error,
    Invalid,
    NoDaemon,
    NotFound,
    PoolFull,
    QueueFull,
    QuotaExceeded,
    Stale,
)
from .fingerprint import adapter_digest, checkpoint_fingerprint, fingerprint
from .memory import Array
from .plan import CopiedLayer, Layer, Plan, Row, Staging
from .sequence import Sequence, Wait

__version__ = "0.1.0"

__all__ = [
    "Array",
    "Cache",
    "Connection",
    "ConnectionLost",
    "CopiedLayer",
    "DType",
    "DeadlineExceeded",
    "EngineId",
    "Error",
    "Invalid",
    "Job",
    "Kv",
    "Layer",
    "NoDaemon",
    "NotFound",
    "Params",
    "Plan",
    "PoolFull",
    "QueueFull",
    "QuotaExceeded",
    "Row",
    "Sequence",
    "SlotTable",
    "Stale",
    "Staging",
    "Wait",
    "adapter_digest",
    "as_dtype",
    "checkpoint_fingerprint",
    "connect",
    "fingerprint",
    "from_bf16",
    "private",
    "to_bf16",
]
