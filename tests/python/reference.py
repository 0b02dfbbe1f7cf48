# SPDX-License-Identifier: Apache-2.0
"""Attention in float64, as DESIGN's formula says it. In: q, k, v of one sequence. Out: out, lse. Next: the tests."""

import numpy as np


def attend(q, k, v, *, scale, cap=0.0, window=0, causal=True, sinks=None):
    """q [Lq, heads, d], k and v [Lk, kv_heads, d]; the Lq are the last of the Lk."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    lq, lk, group = len(q), len(k), q.shape[1] // k.shape[1]
    k, v = (np.repeat(x, group, axis=1) for x in (k, v))
    s = np.einsum("ihd,jhd->hij", q, k) * scale
    if cap:
        s = cap * np.tanh(s / cap)
    i, j = np.arange(lq)[:, None] + lk - lq, np.arange(lk)[None]
    seen = np.ones((lq, lk), bool)
    if causal:
        seen &= j <= i
    if window:
        seen &= j > i - window
    s = np.where(seen, s, -np.inf)
    m = s.max(-1, keepdims=True)
    p = np.exp(s - m)
    total = p.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(np.asarray(sinks, np.float64)[:, None, None] - m)
    return np.einsum("hij,jhd->ihd", p / total, v), (m + np.log(total))[..., 0].T
