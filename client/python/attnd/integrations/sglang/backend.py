# SPDX-License-Identifier: Apache-2.0
"""SGLang's attention backend over attnd, the pool that allocates nothing, and how both begin.

In: SGLang's model, forward batches, q, k, v. Out: attention outputs. Next: session.py.

`start` runs when SGLang sizes its pools: it connects, opens the cache of the model's fingerprint
and has room guaranteed; what is granted is SGLang's max_total_num_tokens. A forward is one plan;
`_forward` stands around ModelRunner.forward, so that a step whose daemon went is computed again:
what attnd no longer has is filled in first, then the step is repeated.
"""

from __future__ import annotations

import copy
import json
import logging
import secrets
from typing import Any

import numpy as np
import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType, RadixAttention
from sglang.srt.mem_cache.memory_pool import NoOpMHATokenToKVPool
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.runtime_context import get_parallel, get_schedule

import attnd

from ..checkpoints import checkpoint, long_rope
from . import NAME
from .options import refuse
from .session import Agree, Held, Session, Step, alone

logger = logging.getLogger(__name__)

REPEATS = 20  # of one step: a daemon that goes each time is not going to serve
RECOMPUTE_TOKENS = 4096  # of one forward that fills in what is missing
THREADED_TOKENS = 64  # from here on copies are torch's, with all its threads


# ---- Beginning ----


def start(configurator: Any, limit: int) -> int:
    """Connect and be granted room: how many tokens SGLang may hold at once, at most `limit`."""
    if Session.current is not None:
        return min(limit, Session.current.tokens)
    layers = attention_layers(configurator.model)
    _check_model(configurator, layers)
    rank, size = get_parallel().tp_rank, get_parallel().tp_size
    agree = _agreement(size)
    try:
        connection = attnd.connect(name=f"sglang {rank}/{size}" if size > 1 else "sglang")
    except attnd.NoDaemon as e:
        raise refuse(f"no daemon ({e})", "start attnd, or set ATTND_SOCKET to its socket") from None
    first = layers[0]
    dtype = str(configurator.model_dtype).removeprefix("torch.")
    cache = connection.cache(
        configurator.model_config.hf_config.model_type,
        fingerprint=_fingerprint(configurator, dtype, (rank, size)),
        num_layers=max(layer.layer_id for layer in layers) + 1,
        num_heads=first.tp_q_head_num,
        num_kv_heads=first.tp_k_head_num,
        head_dim=first.qk_head_dim,
        head_dim_v=first.v_head_dim,
        kv_dtype=dtype,
    )
    tokens = agree([_grant(cache, limit)])[0]
    session = Session(connection, cache, agree)
    session.tokens = tokens
    Session.current = session
    logger.info(
        "attnd: daemon %d at %s, cache %s of %s: %d tokens for this engine, %d in the pool",
        connection.daemon_pid, connection.socket, cache.fingerprint.hex(), cache.name, tokens, cache.capacity_tokens,
    )  # fmt: skip
    return tokens


def attention_layers(model: torch.nn.Module) -> list[RadixAttention]:
    """In the order in which a forward comes to them."""
    return [m for m in model.modules() if isinstance(m, RadixAttention)]


def _check_model(configurator: Any, layers: list[RadixAttention]) -> None:
    config = configurator.model_config
    if configurator.use_mla_backend:
        raise refuse("multi-head latent attention was not tested", "use another backend for this model")
    for what, name in ((config.is_encoder_decoder, "encoder-decoder"), (config.is_multimodal, "multimodal")):
        if what:
            raise refuse(f"{name} models are not supported", "use another backend for this model")
    if not config.is_generation:
        raise refuse("only models that generate are supported", "use another backend for this model")
    original = long_rope(config.hf_text_config)
    if original is not None and config.context_len > original:
        raise refuse(
            f"beyond {original} tokens the positions of this model depend on what else is in a batch",
            f"use --context-length {original}, or another backend",
        )
    if getattr(config.hf_text_config, "dual_chunk_attention_config", None):
        raise refuse("dual chunk attention is not supported", "use another backend for this model")
    if configurator.mambaish_config is not None:
        raise refuse("state-space layers have no KV", "use another backend for this model")
    if not layers:
        raise refuse("this model has no attention that it knows", "use another backend for this model")
    shapes = {(m.tp_q_head_num, m.tp_k_head_num, m.tp_v_head_num, m.qk_head_dim, m.v_head_dim) for m in layers}
    if len(shapes) > 1 or layers[0].tp_k_head_num != layers[0].tp_v_head_num:
        raise refuse(f"layers of different shapes: {sorted(shapes)}", "use another backend for this model")
    for m in layers:
        odd = {
            "cross attention": m.is_cross_attention,
            f"attention of type {m.attn_type.value}": m.attn_type is not AttentionType.DECODER,
            f"capping by {m.logit_capping_method}": m.logit_cap > 0 and m.logit_capping_method != "tanh",
            f"positions by {m.pos_encoding_mode}": m.pos_encoding_mode != "NONE",
            "a temperature by position": m.xai_temperature_len > 0,
            "chunked attention (irope)": bool(m.use_irope),
            "quantised KV": m.k_scale is not None or m.v_scale is not None,
        }
        for name, found in odd.items():
            if found:
                raise refuse(f"layer {m.layer_id} has {name}", "use another backend for this model")


def _agreement(size: int) -> Agree:
    if size == 1:
        return alone
    from sglang.srt.distributed.parallel_state import get_tp_group

    group = get_tp_group().cpu_group

    def least(numbers: Any) -> list[int]:
        t = torch.tensor(numbers, dtype=torch.int64)
        torch.distributed.all_reduce(t, op=torch.distributed.ReduceOp.MIN, group=group)
        return [int(n) for n in t]

    return least


# Arguments that decide K and V beside the checkpoint.
_SETTINGS = (
    "quantization",
    "modelopt_quant",
    "modelopt_checkpoint_restore_path",
    "quantize_and_serve",
    "rl_quant_profile",
    "decrypted_config_file",
)


def _settings(args: Any, config: Any) -> dict[str, Any]:
    settings = {name: value for name in _SETTINGS if (value := getattr(args, name, None))}
    if (args.json_model_override_args or "{}") != "{}":
        settings["overrides"] = json.loads(args.json_model_override_args)
    if long_rope(config.hf_text_config) is not None:
        settings["long positions"] = False
    return settings


def _fingerprint(configurator: Any, dtype: str, shard: tuple[int, int]) -> bytes:
    args, config = configurator.server_args, configurator.model_config
    how: dict[str, Any] = {"dtype": dtype, "shard": shard, "settings": _settings(args, config)}
    if args.load_format == "dummy":
        return attnd.fingerprint(
            dict(configurator.model.named_parameters()), config.hf_config.to_dict(), **how
        )
    found = checkpoint(config.model_path, config.revision, args.download_dir, args.load_format, **how)
    return found or secrets.token_bytes(16)


def _grant(cache: attnd.Cache, limit: int) -> int:
    """What was asked for, or up to half of what the pool holds, so that a second engine fits beside."""
    asked = get_schedule().max_total_tokens
    rows = get_schedule().max_running_requests
    tokens = min(limit, cache.capacity_tokens // 2) if asked is None else limit
    while True:
        try:
            cache.grant(tokens, rows)
            return tokens
        except attnd.PoolFull as e:
            least = 2 * rows if asked is None else tokens
            if tokens <= least:
                raise refuse(
                    f"no room for {tokens} tokens of {rows} requests in a pool of {cache.capacity_tokens} tokens "
                    f"({e.strerror})",
                    "lower --max-total-tokens or --max-running-requests, or raise the daemon's pool-size",
                ) from None
            tokens = max(tokens * 3 // 4, least)


class AttndKVPool(NoOpMHATokenToKVPool):
    """Capacity without memory."""

    def set_kv_buffer(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("attnd owns the KV: nobody else writes it")

    def get_cpu_copy(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("attnd owns the KV")


# ---- Serving ----


class LayerJob:
    """One attention layer: its job with q, k, v and out as they come, and with them in the arena."""

    def __init__(self, params: attnd.Params, layer: int, staging: attnd.Staging, epoch: bytes, **kind: Any) -> None:
        self.params = params
        self.kind = params.q_dtype.torch
        self.epoch = epoch  # of the weights that its sinks are copies of
        self.staging = staging
        self.copied = attnd.CopiedLayer(params, layer, staging, **kind)
        self.direct = attnd.Layer(params, layer, **kind)
        self._of: Any = None

    def run(self, plan: attnd.Plan, q: Any, k: Any, v: Any, out: Any) -> None:
        n = len(q)
        kind = self.kind  # some models compute q and k in another type than the rest
        if n < THREADED_TOKENS and q.dtype is kind and (k is None or (k.dtype is kind and v.dtype is kind)):
            self.copied.run(plan, q, k, v, out)
            return
        s = self.staging
        if s.max_tokens < n:
            s.ensure(1 << (n - 1).bit_length())
        if self._of is not s.q:  # it has grown
            self._of = s.q
            self.direct.bind(s.q, s.k, s.v, s.out)
        for to, x in ((s.q, q), (s.k, k), (s.v, v)):
            if x is not None:
                to.torch()[:n].copy_(x)
        self.direct.run(plan)
        out.copy_(s.out.torch()[:n])


class WatchedWeights:
    """SGLang's updater of weights: with others, what is cached is no hit, and what comes is none for the old ones."""

    def __init__(self, updater: Any, session: Session) -> None:
        self._updater = updater
        self._session = session

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("update_weights_from", "load_weights_from", "receive_weights_from", "begin_weight_update")):
            self._session.new_epoch()
        return getattr(self._updater, name)


class AttndBackend(AttentionBackend):
    needs_cpu_seq_lens = True

    def __init__(self, runner: Any) -> None:
        super().__init__()
        if Session.current is None or not isinstance(runner.token_to_kv_pool, AttndKVPool):
            raise RuntimeError(
                f"--attention-backend {NAME}: SGLang did not call the plug-in when it made its pools. Is this a CPU "
                "platform, and a version that docs/sglang.md names?"
            )
        self.session = Session.current
        self.runner = runner
        self.generation = runner.req_to_token_pool.req_generation
        self.layers = attention_layers(runner.model)
        self.jobs: dict[int, LayerJob] = {}
        self.staging: attnd.Staging | None = None
        self.step: Step | None = None
        self._next: Step | None = None
        self.session.adapter_path = self._adapter_path
        self._forward_of_sglang = runner.forward
        runner.forward = self._forward
        runner.weight_updater = WatchedWeights(runner.weight_updater, self.session)

    def support_triton(self) -> bool:
        return False

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        return 1

    def _adapter_path(self, lora: str) -> str | None:
        manager = self.runner.lora_manager
        known = manager.lora_refs.get(lora) if manager is not None else None
        return None if known is None else known.lora_path

    # ---- Steps ----

    def _forward(self, batch: ForwardBatch, *args: Any, **kwargs: Any) -> Any:
        if batch.forward_mode.is_idle():
            return self._forward_of_sglang(batch, *args, **kwargs)
        mode = batch.forward_mode
        for _ in range(REPEATS):
            batch.forward_mode = mode
            step = self._step(batch)
            self.session.forget_all()  # matched, but not admitted to this batch
            if self._fill_in(batch, step):
                self._next = step
                out = self._forward_of_sglang(batch, *args, **kwargs)
                if not step.done:
                    raise RuntimeError(f"attnd: layer {self.layers[-1].layer_id} did not come last in its forward")
                if self.session.settled(step):
                    return out
        raise step.lost or RuntimeError("attnd: another rank lost the daemon again and again")

    def _step(self, batch: ForwardBatch) -> Step:
        indices = batch.req_pool_indices
        rows = zip(indices.tolist(), self.generation[indices].tolist(), strict=True)
        requests = batch.rids or [None] * batch.batch_size
        held = [self.session.bind(row, r) for row, r in zip(rows, requests, strict=True)]
        if batch.forward_mode.is_decode():
            starts, counts = (batch.seq_lens - 1).tolist(), [1] * len(held)
        else:
            starts, counts = list(batch.extend_prefix_lens_cpu), list(batch.extend_seq_lens_cpu)
        return Step(held, starts, counts, batch.input_ids.numpy().astype(np.uint64))

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        if batch.forward_mode.is_idle():
            return
        step, self._next = self._next, None
        self.step = step or self._step(batch)
        self.session.begin(self.step)

    def _job(self, layer: RadixAttention, brings_kv: bool, sinks: Any, old: LayerJob | None) -> LayerJob:
        window = layer.sliding_window_size
        params = self.session.cache.params(
            sm_scale=layer.scaling,
            logit_cap=layer.logit_cap,
            sliding_window=window + 1 if window is not None and window > -1 else 0,
            q_dtype=str(self.runner.dtype).removeprefix("torch."),
            sinks=sinks,
            id=None if old is None else old.params.id,
        )
        if self.staging is None:
            self.staging = attnd.Staging(params, 256)
        kind = {"last": layer is self.layers[-1], "src_layer": None if brings_kv else layer.layer_id}
        return LayerJob(params, layer.layer_id, self.staging, self.session.epoch, **kind)

    def forward_decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        sinks: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        if kwargs or (k is not None) != save_kv_cache:
            raise NotImplementedError(f"attnd: layer {layer.layer_id} with {sorted(kwargs)}, {save_kv_cache=}")
        step = self.step
        assert step is not None
        n = len(q)
        if n != len(step.tokens):
            raise RuntimeError(f"attnd: {n} rows of q in a step of {len(step.tokens)} tokens")
        job = self.jobs.get(id(layer))
        if job is None or job.epoch != self.session.epoch:
            job = self.jobs[id(layer)] = self._job(layer, k is not None, sinks, job)
        q = q.reshape(n, layer.tp_q_head_num, layer.qk_head_dim)
        if k is not None and v is not None:
            k = k.reshape(n, layer.tp_k_head_num, layer.qk_head_dim)
            v = v.reshape(n, layer.tp_v_head_num, layer.v_head_dim)
        out = q.new_empty((n, layer.tp_q_head_num, layer.v_head_dim))
        if not self.session.run(step, job.run, q, k, v, out):
            out.zero_()
        if layer is self.layers[-1]:
            self.session.end(step)
        return out.view(n, -1)

    forward_extend = forward_decode

    # ---- What attnd no longer has ----

    def _fill_in(self, batch: ForwardBatch, step: Step) -> bool:
        """Compute again what is missing before the step. False: the daemon went meanwhile."""
        while missing := self.session.missing(step):
            rows, starts, counts, left = [], [], [], RECOMPUTE_TOKENS
            for i, start in missing:
                n = min(step.starts[i] - start, left)
                if n:
                    rows.append(i)
                    starts.append(start)
                    counts.append(n)
                    left -= n
            held: list[Held] = [step.rows[i] for i in rows]
            tokens = np.concatenate([h.known[s : s + n] for h, s, n in zip(held, starts, counts, strict=True)])
            again = Step(held, starts, counts, tokens)
            self._next = again
            extend = self._extend_batch(batch, rows, again)
            self._adapters_of(extend)
            self.runner._forward_raw(extend, None)
            self._adapters_of(batch)
            if not self.session.settled(again):
                return False
        return True

    def _adapters_of(self, batch: ForwardBatch) -> None:
        if self.runner.lora_manager is not None:
            self.runner.lora_manager.prepare_lora_batch(batch)

    def _extend_batch(self, batch: ForwardBatch, rows: list[int], step: Step) -> ForwardBatch:
        """A batch of SGLang's that extends these rows, for its KV only."""
        b = copy.copy(batch)
        starts, counts = torch.tensor(step.starts), torch.tensor(step.counts)
        ends = starts + counts
        n = len(step.tokens)
        b.forward_mode = ForwardMode.EXTEND
        b.batch_size = len(rows)
        b.input_ids = torch.from_numpy(step.tokens.view(np.int64))
        b.positions = torch.cat([torch.arange(s, e) for s, e in zip(starts.tolist(), ends.tolist(), strict=True)])
        b.req_pool_indices = batch.req_pool_indices[rows]
        b.req_pool_indices_cpu = b.req_pool_indices
        b.seq_lens = ends.to(batch.seq_lens.dtype)
        b.seq_lens_cpu = ends
        b.orig_seq_lens = b.seq_lens
        b.seq_lens_sum = int(ends.sum())
        b.out_cache_loc = torch.zeros(n, dtype=torch.int64)
        b.extend_num_tokens = n
        b.extend_seq_lens = counts.to(torch.int32)
        b.extend_prefix_lens = starts.to(torch.int32)
        b.extend_start_loc = (torch.cumsum(counts, 0) - counts).to(torch.int32)
        b.extend_prefix_lens_cpu = step.starts
        b.extend_seq_lens_cpu = step.counts
        b.extend_logprob_start_lens_cpu = step.counts
        b.extend_input_logprob_token_ids_gpu = None
        b.global_num_token_non_padded_cpu = n
        if b.global_num_token_non_padded is not None:
            b.global_num_token_non_padded = torch.tensor(n, dtype=torch.int32)
        b.next_token_logits_buffer = None
        b.return_logprob = False
        b.top_logprobs_nums = b.token_ids_logprobs = None
        b.input_embeds = b.replace_embeds = b.replace_positions = None
        b.capture_hidden_mode = CaptureHiddenMode.NULL
        b.rids = [batch.rids[i] for i in rows] if batch.rids else None
        if batch.lora_ids is not None:
            b.lora_ids = [batch.lora_ids[i] for i in rows]
        return b
