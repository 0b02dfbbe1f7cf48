#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What Python costs, and what a shared prompt saves.

overhead, overhead.copied: a decode job by Python less the same job by C, on one connection, in turns.
ttft: `generate`'s first token in a second process over the first's, a shared prompt of 768 tokens.

In: $BUILD. Out: a table, or with --json one object of `ratios` and `figures`. --only chooses.
"""

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time

import tap

tap.needs("numpy")
import numpy as np

import attnd
from attnd import _lib

MODEL = tap.SRC / "client/examples/model"
PROMPT, ROUNDS = 768, 7


def quantile(x, q):
    return sorted(x)[round(q * (len(x) - 1))]


class Report:
    def __init__(self):
        self.ratios, self.figures = {}, {}

    def ratio(self, name, samples, goal, what):
        median = statistics.median(samples)
        self.ratios[name] = {
            "median": round(median, 4),
            "p10": round(quantile(samples, 0.1), 4),
            "p90": round(quantile(samples, 0.9), 4),
            "goal": goal,
            "better": "lower",
            "n": len(samples),
            "what": what,
        }

    def skipped(self, name, why):
        self.ratios[name] = {"skipped": why}

    def figure(self, name, value, unit):
        self.figures[name] = {"value": round(value, 3), "unit": unit}

    def print(self, as_json):
        if as_json:
            print(json.dumps({"ratios": self.ratios, "figures": self.figures}, indent=2))
            return
        for name, r in self.ratios.items():
            if "skipped" in r:
                print(f"{name:20} skipped: {r['skipped']}")
                continue
            met = "met" if r["median"] <= r["goal"] else ""
            print(
                f"{name:20} {r['median']:8.3f}  [{r['p10']:.3f} {r['p90']:.3f}]  goal <= {r['goal']:.3g}  {met:4} "
                f"n {r['n']:3}  {r['what']}"
            )
        for name, f in self.figures.items():
            print(f"{name:52} {f['value']:10.3f} {f['unit']}")


# ---- A job by Python and by C ----


def overhead(report, seconds):
    """An 8B Llama's layer, one row of few tokens: the job itself is short, so that the difference shows."""
    heads, kv_heads, dim, jobs = 32, 8, 128, 200
    _lib.lib()  # loop.so's symbols are found in it
    loop = ctypes.CDLL(str(tap.BUILD / "tests/python/loop.so"))
    for f in (loop.loop_decode, loop.loop_copied):
        f.restype, f.argtypes = ctypes.c_int64, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
    with attnd.private(pool_size="32M", hugepages="off", log_level="warn") as a:
        cache = a.cache("bench", num_layers=1, num_heads=heads, num_kv_heads=kv_heads, head_dim=dim, kv_dtype="bf16")
        params = cache.params(q_dtype="bf16")
        shapes = {"q": heads, "k": kv_heads, "v": kv_heads, "out": heads}
        buffers = {n: a.empty((1, h, dim), "bf16") for n, h in shapes.items()}
        for b in buffers.values():
            b.numpy()[:] = 0
        layer = attnd.Layer(params, 0, **buffers)
        outside = {n: np.zeros((1, h, dim), np.uint16) for n, h in shapes.items()}
        if tap.has("torch"):  # what engines have; NumPy tells an array's address slowly
            import torch

            outside = {n: torch.zeros((1, h, dim), dtype=torch.bfloat16) for n, h in shapes.items()}
        copied = attnd.CopiedLayer(params, 0, attnd.Staging(params, 1))
        with a.sequence([1]) as s:
            plan = cache.plan([(s, [1])])
            layer.run(plan)
            copied.run(plan, **outside)

            def python(call):
                begin = time.perf_counter_ns()
                for _ in range(jobs):
                    call()
                return (time.perf_counter_ns() - begin) / jobs

            kinds = {
                "overhead": (
                    lambda: layer.run(plan),
                    lambda: loop.loop_decode(a.pointer, ctypes.addressof(layer._c), jobs),
                    "arena memory",
                ),
                "overhead.copied": (
                    lambda: copied.run(plan, **outside),
                    lambda: loop.loop_copied(a.pointer, ctypes.addressof(copied._c), jobs),
                    "tensors copied",
                ),
            }
            for name, (call, c, what) in kinds.items():
                pairs, until = [], time.monotonic() + seconds / 4
                while time.monotonic() < until or len(pairs) < 10:
                    pairs.append((python(call), c()))
                assert min(x for _, x in pairs) > 0, "the C loop failed"
                report.ratio(
                    name,
                    [(p - x) / 1000 for p, x in pairs],
                    15.0,
                    f"microseconds a decode job by Python, less by C; {what}",
                )
                for who, i in (("Python", 0), ("C", 1)):
                    report.figure(f"{name}, a job by {who}", statistics.median(x[i] for x in pairs) / 1000, "us")


# ---- The first token ----

CHILD = f"""
import json, sys, time, torch
from transformers import AutoModelForCausalLM, logging
import attnd.integrations.transformers as hf
logging.set_verbosity_error(); logging.disable_progress_bar(); torch.set_num_threads(1)
hf.configure(socket=sys.argv[1])
m = AutoModelForCausalLM.from_pretrained({str(MODEL)!r}, attn_implementation="attnd", dtype=torch.float32)
prompts = json.loads(sys.argv[2])
def first(ids):
    ids = torch.tensor([ids]); begin = time.perf_counter()
    m.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=1, do_sample=False)
    return 1000 * (time.perf_counter() - begin)
for _ in range(3):
    first([int(x) for x in torch.randint(1, 256, (100,))])  # what is loaded lazily
print(json.dumps([first(p) for p in prompts]))
"""


def ttft(report, _):
    for m in ("torch", "transformers"):
        if not tap.has(m):
            report.skipped("ttft", f"{m} cannot be imported")
            return
    rng = np.random.default_rng(0)
    prompts = rng.integers(1, 256, (ROUNDS, PROMPT)).tolist()
    with attnd.private(pool_size="128M", hugepages="off", log_level="warn") as a:
        times = []
        for _ in range(2):
            run = subprocess.run(
                [sys.executable, "-c", CHILD, a.socket, json.dumps(prompts)],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
                env={**os.environ, "OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1"},
            )
            times.append(json.loads(run.stdout))
    report.ratio(
        "ttft",
        [second / first for first, second in zip(*times, strict=True)],
        1 / 3,
        f"first token of {PROMPT} shared tokens, second process / first",
    )
    for who, x in zip(("cold", "second process"), times, strict=True):
        report.figure(f"ttft, {who}", statistics.median(x), "ms")


def main():
    goals = {"overhead": overhead, "ttft": ttft}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", default=",".join(goals), help=f"of {', '.join(goals)}")
    parser.add_argument("--seconds", type=float, default=20)
    arguments = parser.parse_args()
    report = Report()
    for name in arguments.only.split(","):
        goals[name](report, arguments.seconds)
    report.print(arguments.json)


if __name__ == "__main__":
    main()
