# SPDX-License-Identifier: Apache-2.0
"""The attention ops of others on the same work, and attnd's whole path through the daemon.

In: flags. Out: a table, BUILD/bench-peers.json, with --json the same on standard output: a member of
`ratios` for each work and peer, the peer's time over attnd's (the median of pairs).
Next: a person, or a dashboard.

One process, one layer of Llama-3-8B's heads in bf16, two threads, rotating order. Each op's outputs
are compared with float64 once. The caches hold several layers that take turns, more than the last
level of cache holds. attnd's time is a job's from the call to the answer, its plan's share of 32
layers with it; vLLM's and OpenVINO's have the writing of the new tokens in them, but no metadata;
torch's neither.

    decode       8 sequences of 4096 tokens, one new token each
    extend       512 new tokens on 4096
    shared_4k    16 sequences that share 4096 tokens, 128 of their own
    shared_32k   16 sequences that share 32768
"""

import argparse
import json
import os
import statistics
import sys
import time

import kit

THREADS = int(os.environ["OMP_NUM_THREADS"])
HEADS, KV, DIM = 32, 8, 128
SCALE = DIM**-0.5
# name: (sequences, shared tokens, own tokens before this step, new tokens, layers)
WORKS = {
    "decode": (8, 0, 4095, 1, 3),
    "extend": (1, 0, 4096, 512, 4),
    "shared_4k": (16, 4096, 127, 1, 4),
    "shared_32k": (16, 32768, 127, 1, 2),
}
GOALS = {"decode": 2.7, "extend": 2.4, "shared_4k": 2.8, "shared_32k": 6.0}
SKIPPED = {("shared_32k", "torch"): "it has no shared prefix: 16 copies of it would not fit"}


def amx():
    import torch

    return torch.cpu._is_amx_tile_supported()


class Data:
    """Random K and V of a work: [layer][token] of the shared tokens and of each sequence's own."""

    def __init__(self, work):
        import torch

        self.n, self.shared, self.past, self.new, self.layers = WORKS[work]
        g = torch.Generator().manual_seed(5)

        def r(*shape):
            return torch.randn(*shape, generator=g, dtype=torch.float32).bfloat16()

        own = self.past + self.new
        self.prefix = [(r(self.shared, KV, DIM), r(self.shared, KV, DIM)) for _ in range(self.layers)]
        self.own = [(r(self.n, own, KV, DIM), r(self.n, own, KV, DIM)) for _ in range(self.layers)]
        self.q = r(self.n, self.new, HEADS, DIM)

    @property
    def length(self):
        return self.shared + self.past + self.new

    def new_kv(self, layer):
        """k, v of the new tokens, all sequences: [tokens, heads, dim]."""
        return tuple(x[:, self.past :].reshape(-1, KV, DIM) for x in self.own[layer])

    def whole(self, layer, i):
        import torch

        return tuple(torch.cat([p, o[i]]) for p, o in zip(self.prefix[layer], self.own[layer], strict=True))

    def exact(self, layer):
        """[sequences, new, heads, dim] in float64."""
        import torch

        out = torch.empty(self.n, self.new, HEADS, DIM, dtype=torch.float64)
        hidden = torch.arange(self.length) > torch.arange(self.length - self.new, self.length)[:, None]
        for i in range(self.n):
            k, v = (x.double() for x in self.whole(layer, i))
            for h in range(HEADS):
                s = self.q[i, :, h].double() @ k[:, h * KV // HEADS].T * SCALE
                out[i, :, h] = s.masked_fill(hidden, -torch.inf).softmax(-1) @ v[:, h * KV // HEADS]
        return out


class Attnd:
    name = "attnd"

    def __init__(self, data):
        import attnd
        import numpy as np

        self.d, d = data, data
        self.a = attnd.connect()
        self.cache = self.a.cache(
            f"peers-{os.getpid()}-{id(self)}", num_layers=d.layers, num_heads=HEADS, num_kv_heads=KV, head_dim=DIM, kv_dtype="bf16"
        )
        self.params = self.cache.params(q_dtype="bf16")
        rows = max(d.n * d.new, 4096)
        kind = {"q": HEADS, "k": KV, "v": KV, "out": HEADS}
        self.buffers = {x: self.a.empty((rows, heads, DIM), "bf16") for x, heads in kind.items()}
        self.views = {x: b.torch() for x, b in self.buffers.items()}
        ids = np.arange(1 << 20, dtype=np.int64)
        self.tokens = [np.concatenate([ids[: d.shared], ids[: d.past + d.new] + (i + 1) * (1 << 21)]) for i in range(d.n)]
        self.sequences = []
        for i in range(d.n):
            s = self.a.sequence(self.tokens[i])
            self._fill(s, i)
            self.sequences.append(s)
        self.jobs = [attnd.Layer(self.params, x, **self.buffers) for x in range(d.layers)]
        self.views["q"][: d.n * d.new].copy_(d.q.reshape(-1, HEADS, DIM))
        self.begin()

    def _fill(self, s, i):
        import attnd

        whole = [self.d.whole(layer, i) for layer in range(self.d.layers)]
        end = self.d.shared + self.d.past
        while s.length < end:
            at, n = s.length, min(4096, end - s.length)
            plan = self.cache.plan([(s, self.tokens[i][at : at + n], at)])
            for layer, (k, v) in enumerate(whole):
                self.views["k"][:n].copy_(k[at : at + n])
                self.views["v"][:n].copy_(v[at : at + n])
                attnd.Layer(
                    self.params, layer, k=self.buffers["k"], v=self.buffers["v"], last=layer == self.d.layers - 1
                ).run(plan)

    def begin(self):
        d = self.d
        at = d.shared + d.past
        begun = time.perf_counter()
        self.plan = self.cache.plan([(s, t[at : at + d.new], at, 0) for s, t in zip(self.sequences, self.tokens, strict=True)])
        self.plan_seconds = time.perf_counter() - begun

    def run(self, layer):
        n = self.d.n * self.d.new
        k, v = self.d.new_kv(layer)
        self.views["k"][:n].copy_(k)
        self.views["v"][:n].copy_(v)
        begun = time.perf_counter()
        self.jobs[layer].run(self.plan)
        return time.perf_counter() - begun + self.plan_seconds / 32

    def out(self):
        return self.views["out"][: self.d.n * self.d.new].reshape(self.d.n, self.d.new, HEADS, DIM)

    def close(self):
        self.a.close()


class Vllm:
    name = "vllm"
    block = 128

    def __init__(self, data):
        import torch
        from vllm import _custom_ops as ops
        from vllm.platforms import current_platform
        from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

        current_platform.import_kernels()
        self.ops, self.d, d = ops, data, data
        self.isa = _get_attn_isa(torch.bfloat16, self.block, DIM)
        shared, own = d.shared // self.block, -(-(d.past + d.new) // self.block)
        blocks = shared + d.n * own
        order = torch.randperm(blocks, generator=torch.Generator().manual_seed(1)).to(torch.int32)
        self.table = torch.stack([torch.cat([order[:shared], order[shared + i * own : shared + (i + 1) * own]]) for i in range(d.n)])
        self.lens = torch.full((d.n,), d.length, dtype=torch.int32)
        self.starts = torch.arange(d.n + 1, dtype=torch.int32) * d.new
        self.meta = ops.cpu_attn_get_scheduler_metadata(
            num_reqs=d.n, num_heads=HEADS, num_kv_heads=KV, head_dim=DIM, seq_lens=self.lens, dtype=torch.bfloat16,
            query_start_loc=self.starts, causal=True, sliding_window_size=-1, isa=self.isa, enable_kv_split=True,
        )  # fmt: skip
        self.caches = []
        for layer in range(d.layers):
            cache = torch.zeros(blocks, KV, self.block * 2, DIM, dtype=torch.bfloat16).chunk(2, dim=2)
            for i in range(d.n):
                k, v = d.whole(layer, i)
                ops.cpu_attn_reshape_and_cache(k, v, *cache, self.slots(i, 0, d.length), self.isa)
            self.caches.append(cache)
        self.new_slots = torch.cat([self.slots(i, d.length - d.new, d.length) for i in range(d.n)])
        self.o = torch.empty(d.n * d.new, HEADS, DIM, dtype=torch.bfloat16)
        self.q = d.q.reshape(-1, HEADS, DIM).contiguous()

    def slots(self, i, begin, end):
        import torch

        at = torch.arange(begin, end)
        return self.table[i][at // self.block].long() * self.block + at % self.block

    def run(self, layer):
        k, v = (x.contiguous() for x in self.d.new_kv(layer))
        begun = time.perf_counter()
        self.ops.cpu_attn_reshape_and_cache(k, v, *self.caches[layer], self.new_slots, self.isa)
        self.ops.cpu_attention_with_kv_cache(
            query=self.q, key_cache=self.caches[layer][0], value_cache=self.caches[layer][1], output=self.o,
            query_start_loc=self.starts, seq_lens=self.lens, scale=SCALE, causal=True, alibi_slopes=None, sliding_window=-1,
            block_table=self.table, softcap=0.0, scheduler_metadata=self.meta, s_aux=None,
        )  # fmt: skip
        return time.perf_counter() - begun

    def out(self):
        return self.o.reshape(self.d.n, self.d.new, HEADS, DIM)

    def close(self):
        pass


class Sdpa:
    """torch's scaled_dot_product_attention; a KV head's query heads are rows of it."""

    name = "torch"

    def __init__(self, data):
        import torch

        self.d, d = data, data
        group = HEADS // KV
        self.kv = [
            tuple(torch.stack(x).transpose(1, 2).contiguous() for x in zip(*[d.whole(layer, i) for i in range(d.n)], strict=True))
            for layer in range(d.layers)
        ]
        self.q = d.q.reshape(d.n, d.new, KV, group, DIM).permute(0, 2, 3, 1, 4).reshape(d.n, KV, group * d.new, DIM).contiguous()
        self.mask = None
        if d.new > 1:
            seen = torch.arange(d.length) <= torch.arange(d.length - d.new, d.length)[:, None]
            self.mask = seen.repeat(group, 1)
        self.group = group

    def run(self, layer):
        from torch.nn.functional import scaled_dot_product_attention

        begun = time.perf_counter()
        self.o = scaled_dot_product_attention(self.q, *self.kv[layer], attn_mask=self.mask, scale=SCALE)
        return time.perf_counter() - begun

    def out(self):
        d = self.d
        return self.o.reshape(d.n, KV, self.group, d.new, DIM).permute(0, 3, 1, 2, 4).reshape(d.n, d.new, HEADS, DIM)

    def close(self):
        pass


class OpenVino:
    """OpenVINO's PagedAttention: a model of that one op; keys and values lie in tensors of this side."""

    name = "openvino"
    block = 32  # the op's own on CPUs

    def __init__(self, data):
        import openvino
        import torch

        self.d, d = data, data
        self.ov = openvino
        compiled = openvino.Core().compile_model(
            self._model(),
            "CPU",
            {"INFERENCE_PRECISION_HINT": "bf16", "KV_CACHE_PRECISION": "bf16", "INFERENCE_NUM_THREADS": THREADS},
        )
        shared, own = d.shared // self.block, -(-(d.past + d.new) // self.block)
        blocks = shared + d.n * own
        order = torch.randperm(blocks, generator=torch.Generator().manual_seed(1)).to(torch.int32)
        table = [torch.cat([order[:shared], order[shared + i * own : shared + (i + 1) * own]]) for i in range(d.n)]
        each = torch.arange(d.n + 1, dtype=torch.int32)
        batch = {
            "past_lens": torch.full((d.n,), d.length - d.new, dtype=torch.int32),
            "subsequence_begins": each * d.new,
            "block_indices": torch.cat(table),
            "block_indices_begins": each * len(table[0]),
            "max_context_len": torch.tensor(d.length, dtype=torch.int32),
        }
        self.held = [d.q.reshape(-1, HEADS * DIM).contiguous()]
        self.q = self._tensor(self.held[0])
        self.requests = []
        for layer in range(d.layers):
            caches = torch.zeros(2, blocks, KV, self.block, DIM, dtype=torch.bfloat16)
            for i in range(d.n):
                for cache, x in zip(caches, d.whole(layer, i), strict=True):
                    padded = torch.zeros(len(table[i]) * self.block, KV, DIM, dtype=torch.bfloat16)
                    padded[: d.length - d.new] = x[: d.length - d.new]  # it stores the new ones itself
                    cache[table[i].long()] = padded.view(-1, self.block, KV, DIM).transpose(1, 2)
            request = compiled.create_infer_request()
            for name, x in {"q": self.held[0], "key_cache.0": caches[0], "value_cache.0": caches[1]}.items():
                request.set_tensor(name, self._tensor(x))
            for name, x in batch.items():
                request.set_tensor(name, openvino.Tensor(x.numpy()))
            self.held += [caches, batch]
            self.requests.append(request)

    def _tensor(self, x):
        """bf16 values where they lie."""
        import torch

        return self.ov.Tensor(x.view(torch.int16).numpy(), self.ov.Shape(x.shape), self.ov.Type.bf16)

    def _model(self):
        from openvino import PartialShape, Shape, Type, opset13
        from openvino.op import Constant, Parameter, _PagedAttentionExtension

        def given(name, kind, *shape):
            p = Parameter(kind, PartialShape(list(shape)))
            p.output(0).set_names({name})
            return p

        def fixed(kind, *values, shape=None):
            return Constant(kind, Shape([len(values)] if shape is None else shape), list(values))

        def none(kind=Type.i32):
            return fixed(kind)

        i32, f32, bf16 = Type.i32, Type.f32, Type.bf16
        rows = [given(x, bf16, -1, heads * DIM) for x, heads in (("q", HEADS), ("k", KV), ("v", KV))]
        caches = [given(f"{x}_cache.0", bf16, -1, KV, self.block, DIM) for x in ("key", "value")]
        names = ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins")
        batch = [given(x, i32, -1) for x in names]
        longest = given("max_context_len", i32)
        zero = fixed(i32, 0, shape=[])
        inputs = [
            *rows, *caches, *batch, fixed(f32, SCALE, shape=[]), zero, none(f32), longest,  # scale, window, slopes
            none(), none(), none(), none(f32),  # scores, rotation
            none(f32), zero, zero, none(f32),  # sparse prefill, sinks
            zero, none(), none(), none(),  # eviction
            none(), none(Type.u8), none(),  # kinds of tokens, bias
        ]  # fmt: skip
        op = _PagedAttentionExtension([x.output(0) for x in inputs])
        for name, value in {"num_k_heads": KV, "num_v_heads": KV, "k_head_size": DIM, "v_head_size": DIM}.items():
            op.get_rt_info()[name] = value
        return self.ov.Model([opset13.result(op.output(0))], [*rows, *caches, *batch, longest], "attention")

    def run(self, layer):
        k, v = (x.reshape(-1, KV * DIM).contiguous() for x in self.d.new_kv(layer))
        self.last = request = self.requests[layer]
        request.set_tensor("k", self._tensor(k))
        request.set_tensor("v", self._tensor(v))
        begun = time.perf_counter()
        request.infer(share_outputs=True)
        return time.perf_counter() - begun

    def out(self):
        import numpy as np
        import torch

        rows = torch.from_numpy(self.last.get_output_tensor(0).data.view(np.int16).copy()).view(torch.bfloat16)
        return rows.reshape(self.d.n, self.d.new, HEADS, DIM)

    def close(self):
        self.requests = self.held = None


def check(side, data, exact):
    """Within what bf16 inputs, weights and outputs allow."""
    side.run(0)
    error = (side.out().double() - exact).norm() / exact.norm()
    assert error < 8e-3, f"{side.name}: {error:.2e} away from float64"
    return float(error)


def measure(work, seconds):
    data = Data(work)
    sides = [kind(data) for kind in (Attnd, Vllm, OpenVino, Sdpa) if (work, kind.name) not in SKIPPED]
    exact = data.exact(0)
    errors = {s.name: check(s, data, exact) for s in sides}
    times = {s.name: [] for s in sides}
    until, i = time.monotonic() + seconds, 0
    while time.monotonic() < until or i < 8:
        for s in sides[i % len(sides) :] + sides[: i % len(sides)]:
            times[s.name].append(s.run(i % data.layers))
        i += 1
    for s in sides:
        s.close()
    return times, errors


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--json", action="store_true")
    a.add_argument("--only", default=",".join(WORKS))
    a.add_argument("--seconds", type=float, default=20)
    o = a.parse_args()
    import torch

    torch.set_num_threads(THREADS)
    ratios, figures, works = {}, {}, o.only.split(",")
    with kit.Daemon("--pool-size", "3G", "--threads", str(THREADS)):
        for work, name in SKIPPED:
            if work in works:
                ratios[f"P12.{work}.{name}"] = {"skipped": SKIPPED[work, name]}
        for work in works:
            times, errors = measure(work, o.seconds / len(works))
            for name, t in times.items():
                print(f"{work:11} {name:8} {statistics.median(t) * 1e3:9.2f} ms   error {errors[name]:.1e}", file=sys.stderr, flush=True)
                if name == "attnd":
                    continue
                pairs = [x / y for x, y in zip(t, times["attnd"], strict=True)]
                q = statistics.quantiles(pairs, n=10)
                goal = GOALS[work] if name == "vllm" and not amx() else 1.0
                ratios[f"P12.{work}.{name}"] = {
                    "median": round(statistics.median(pairs), 3), "p10": round(q[0], 3), "p90": round(q[-1], 3), "goal": goal,
                    "better": "higher", "n": len(pairs), "what": f"{name}'s time / attnd's through the daemon, {work}, KV from memory",
                }  # fmt: skip
                figures[f"P12.{work}.{name}"] = {"value": round(statistics.median(t) * 1e3, 3), "unit": "ms"}
            figures[f"P12.{work}.attnd"] = {"value": round(statistics.median(times["attnd"]) * 1e3, 3), "unit": "ms"}
    result = {"threads": THREADS, "amx": amx(), "ratios": ratios, "figures": figures}
    (kit.BUILD / "bench-peers.json").write_text(json.dumps(result, indent=1))
    if o.json:
        print(json.dumps(result))
        return
    for name, f in ratios.items():
        if "skipped" in f:
            print(f"{name:22} skipped: {f['skipped']}")
            continue
        met = "met" if f["median"] >= f["goal"] else "not met"
        print(f"{name:22} {f['median']:6.2f}  ({f['p10']:.2f} .. {f['p90']:.2f})  goal {f['goal']}: {met}")


if __name__ == "__main__":
    main()
