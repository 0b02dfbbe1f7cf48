#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""SGLang on attnd in figures: the second engine's first token, decode steps, memory of two.

In: a random Llama of some size, engines with attnd and with SGLang's own attention, in turn. Out: a
table, or with --json one object of `ratios`. Next: people; docs/sglang.md.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile

import kit

MAKE = """
import sys, torch
from transformers import LlamaConfig, LlamaForCausalLM
torch.manual_seed(0)
config = LlamaConfig(vocab_size=1024, hidden_size=512, intermediate_size=1536, num_hidden_layers=8, num_attention_heads=8,
    num_key_value_heads=2, head_dim=64, max_position_embeddings=8192, tie_word_embeddings=True)
LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(sys.argv[1])
"""

GOALS = {
    "ttft_shared": ("first token of a shared 768-token prompt: second engine / first", 0.25),
    "decode_4k": ("decode step at 4k context and batch 8: attnd / torch_native", 0.6),
    "decode_short": ("decode step at 64 tokens and batch 8: attnd / torch_native", 1.1),
    "kv_memory": ("pool of two engines with the same prompts / one", 1.1),
}


def progress(text):
    print(text, file=sys.stderr, flush=True)


def ratio(name, pairs):
    """Median and spread of paired ratios."""
    progress(f"{name}: {statistics.median(a / b for a, b in pairs):.3f}")
    r = sorted(a / b for a, b in pairs)
    what, goal = GOALS[name]
    at = lambda p: r[min(len(r) - 1, round(p * (len(r) - 1)))]  # noqa: E731
    return {
        "median": statistics.median(r),
        "p10": at(0.1),
        "p90": at(0.9),
        "goal": goal,
        "better": "lower",
        "n": len(r),
        "what": what,
    }


def prompts(rnd, n, length):
    return [[rnd.randrange(1000) for _ in range(length)] for _ in range(n)]


def step_seconds(engine, batch, steps):
    """Of one decode step with the batch running: what comes after the last one's first token and before the first one's end."""
    for _ in range(5):
        tickets = [engine.generate(p, steps) for p in batch]
        times = [engine.wait(t)["times"] for t in tickets]
        begun, ended = max(t[0][0] for t in times), min(t[-1][0] for t in times)
        paces = []
        for t in times:
            inside = [x for x in t if begun <= x[0] <= ended]
            if len(inside) > 1 and inside[-1][1] - inside[0][1] >= steps // 3:
                paces.append((inside[-1][0] - inside[0][0]) / (inside[-1][1] - inside[0][1]))
        if paces:
            return statistics.median(paces)
        progress("the batch did not run together: once more")
    raise RuntimeError("requests that were sent at once did not run at once")


def first_tokens(a, b, rnd, n):
    pairs = []
    for _ in range(n):
        prompt = prompts(rnd, 1, 768)[0]
        first = a.wait(a.generate(prompt, 1))["first_s"]
        second = b.wait(b.generate(prompt, 1))
        assert second["cached"] == 767
        pairs.append((second["first_s"], first))
    return pairs


def memory(daemon, a, b, rnd):
    def used():
        pool = daemon.ctl("status")["pool"]
        return pool["bytes_cached"] + pool["bytes_referenced"]

    batch = prompts(rnd, 8, 512)
    before = used()
    a.batch(batch, [1] * 8)
    one = used() - before
    b.batch(batch, [1] * 8)
    return [(used() - before, one)]


def make(folder):
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run([sys.executable, "-c", MAKE, folder], check=True, env=kit.environment(), **quiet)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--json", action="store_true")
    p.add_argument("--dtype", default="bfloat16")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--model", help="a checkpoint; a random Llama of 25 M parameters unless given")
    p.add_argument("--only", default=",".join(GOALS), help="of " + ", ".join(GOALS))
    options = p.parse_args()

    def chosen(*names):
        return bool(set(names) & set(options.only.split(",")))

    rnd = random.Random(1)
    ratios, figures = {}, {}
    with tempfile.TemporaryDirectory() as folder, kit.Daemon(pool="1G") as daemon:
        if options.model:
            folder = options.model
        else:
            make(folder)
        same = {
            "model_path": folder,
            "dtype": options.dtype,
            "max_total_tokens": 40000,
            "chunked_prefill_size": 2048,
            "log_level": "warning",
        }
        engines = []  # all start at the same time
        try:
            a = kit.Engine(daemon, **same)
            engines.append(a)
            if chosen("ttft_shared", "kv_memory"):
                b = kit.Engine(daemon, **same)
                engines.append(b)
            if chosen("decode_4k", "decode_short"):
                native = kit.Engine(attention_backend="torch_native", **same)
                engines.append(native)
            for e in engines:
                e.up()
            progress("engines are up")
            if chosen("ttft_shared"):
                first_tokens(a, b, rnd, 2)
                ratios["ttft_shared"] = ratio("ttft_shared", first_tokens(a, b, rnd, 3 * options.rounds))
            if chosen("kv_memory"):
                ratios["kv_memory"] = ratio("kv_memory", memory(daemon, a, b, rnd))
            for name, length, steps in (("decode_4k", 4096, 24), ("decode_short", 64, 60)):
                if not chosen(name):
                    continue
                batch = prompts(rnd, 8, length)
                for e in (a, native):
                    e.batch(batch, [2] * len(batch))
                pairs = [
                    (step_seconds(a, batch, steps), step_seconds(native, batch, steps)) for _ in range(options.rounds)
                ]
                ratios[name] = ratio(name, pairs)
                for which, i in (("attnd", 0), ("torch_native", 1)):
                    figures[f"{name}.{which}"] = {"value": 1e3 * statistics.median(x[i] for x in pairs), "unit": "ms"}
        finally:
            for e in engines:
                e.close()
    (kit.tap.BUILD / "bench-engines-sglang.json").write_text(json.dumps({"ratios": ratios, "figures": figures}))
    if options.json:
        print(json.dumps({"ratios": ratios, "figures": figures}))
        return
    for name, r in ratios.items():
        print(f"{name:12} {r['median']:6.3f}  ({r['p10']:.3f} .. {r['p90']:.3f})  goal {r['goal']}  {r['what']}")
    for name, f in figures.items():
        print(f"{name:22} {f['value']:8.2f} {f['unit']}")


if __name__ == "__main__":
    main()
