# SPDX-License-Identifier: Apache-2.0
"""vLLM on attnd beside vLLM's own CPU attention: decode steps, and a prompt that another process has read.

In: flags. Out: a table, or with --json one object whose `ratios` has a member for each figure; the
object in BUILD/bench-engines-vllm.json. Next: a person, or a dashboard.

Both engines run at the same time, each as its user would start it, and take turns: the other one
sleeps. The model has the layers of a Llama of 1B, two of them, with random weights.

    decode_4k     step time, batch 8 at 4096 tokens: attnd / vLLM's own
    decode_short  the same at 64 tokens
    ttft_shared   a 768-token prompt's first token, in the second process / in the first
    kv_memory     blocks in use after both have read the same prompts / after the first
"""

import argparse
import json
import os
import random
import statistics
import sys
import time

import kit
from processes import Runner

if not os.environ.get("BENCH_OMP_WAIT_POLICY"):
    del os.environ["OMP_WAIT_POLICY"]  # each engine's own choice

GOALS = {"decode_4k": 0.9, "decode_short": 1.1, "ttft_shared": 0.25, "kv_memory": 1.1}
WHAT = {
    "decode_4k": "decode step on attnd / on vLLM's own CPU attention, batch 8 at 4096 tokens",
    "decode_short": "decode step on attnd / on vLLM's own CPU attention, batch 8 at 64 tokens",
    "ttft_shared": "first token of a 768-token prompt in the second process / in the first",
    "kv_memory": "blocks in use by two engines / by one, same prompts",
}
BATCH = 8


def model(layers):
    return kit.llama(
        f"bench{layers}", num_hidden_layers=layers, hidden_size=2048, num_attention_heads=32, num_key_value_heads=8,
        intermediate_size=8192, torch_dtype="bfloat16",
    )  # fmt: skip


def progress(text):
    print(text, file=sys.stderr, flush=True)


def prompt(n, rng):
    return [rng.randrange(3, 250) for _ in range(n)]


def decode(engines, context, steps, rounds, rng):
    """Paired ratios of the median step: the engines take turns on prompts of this length."""
    ratios, times = [], {}
    prompts = [prompt(context, rng) for _ in range(BATCH)]
    for e in engines.values():  # prefill, which attnd keeps
        e.bench(prompts, 2)
    for i in range(rounds):
        for name in (list(engines), list(engines)[::-1])[i % 2]:
            times.setdefault(name, []).append(statistics.median(engines[name].bench(prompts, steps)))
        ratios.append(times["attnd"][-1] / times["vllm"][-1])
    for name, t in times.items():
        progress(f"  {name:6} {statistics.median(t) * 1e3:8.2f} ms a step of {BATCH} x {context}")
    return ratios


def shared(first, second, rounds, rng):
    ratios = []
    for _ in range(rounds):
        p = prompt(768, rng)
        t = []
        for e in (first, second):
            name = str(rng.random())
            e.ask(name, p, 1)
            t.append(e.end(name)["seconds"])
        ratios.append(t[1] / t[0])
    progress(f"  the last: {t[0] * 1e3:.1f} ms, then {t[1] * 1e3:.1f} ms")
    return ratios


def memory(daemon, first, second, rng):
    prompts = [prompt(768, rng) for _ in range(BATCH)]

    def used():
        return sum(c["blocks_evictable"] + c["blocks_referenced"] for c in daemon.ask("caches")["caches"])

    before, counts = used(), []
    for e in (first, second):
        e.generate(prompts, 8)
        counts.append(used() - before)
    return [counts[1] / counts[0]]


def figure(name, ratios):
    q = statistics.quantiles(ratios, n=10) if len(ratios) > 1 else ratios * 9
    return {
        "median": round(statistics.median(ratios), 3), "p10": round(q[0], 3), "p90": round(q[-1], 3), "goal": GOALS[name],
        "better": "lower", "n": len(ratios), "what": WHAT[name],
    }  # fmt: skip


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--json", action="store_true")
    a.add_argument("--only", default=",".join(GOALS))
    a.add_argument("--layers", type=int, default=2)
    a.add_argument("--rounds", type=int, default=5)
    a.add_argument("--steps", type=int, default=24)
    o = a.parse_args()
    wanted, rng, folder = o.only.split(","), random.Random(1), model(o.layers)
    kw = dict(
        dtype="bfloat16", max_model_len=4608, max_num_batched_tokens=2048, kv_cache_memory_bytes=None, enable_prefix_caching=True
    )
    out, begun = {}, time.monotonic()
    with kit.Daemon("--pool-size", "2G") as daemon:
        progress("starting engines")
        attnd = Runner(folder, ready=False, **kw)
        engines = {"attnd": attnd}
        if "decode_4k" in wanted or "decode_short" in wanted:
            engines["vllm"] = Runner(folder, ready=False, backend=None, **kw | {"kv_cache_memory_bytes": 2 << 30})
        second = Runner(folder, ready=False, **kw) if {"ttft_shared", "kv_memory"} & set(wanted) else None
        for e in [*engines.values(), *([second] if second else [])]:
            e.wait_ready()
        begun = time.monotonic()
        for name in wanted:
            progress(name)
            if name == "ttft_shared":
                out[name] = figure(name, shared(attnd, second, 2 * o.rounds, rng))
            elif name == "kv_memory":
                out[name] = figure(name, memory(daemon, attnd, second, rng))
            else:
                out[name] = figure(name, decode(engines, 4096 if name == "decode_4k" else 64, o.steps, o.rounds, rng))
        for e in [*engines.values(), *([second] if second else [])]:
            e.close()
    result = {"seconds": round(time.monotonic() - begun, 1), "ratios": {f"vllm.{k}": v for k, v in out.items()}}
    (kit.BUILD / "bench-engines-vllm.json").write_text(json.dumps(result))
    if o.json:
        print(json.dumps(result))
        return
    for name, f in out.items():
        met = "met" if f["median"] <= f["goal"] else "not met"
        print(f"{name:14} {f['median']:6.3f}  ({f['p10']:.3f} .. {f['p90']:.3f})  goal {f['goal']}: {met}")


if __name__ == "__main__":
    main()
