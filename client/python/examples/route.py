#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Route requests over engines that share a daemon, by how much of each prompt is cached; measure it.

In: SGLang servers, the checkpoint that they serve. Out: times to first token, in turn and by work.
Next: docs/routing.md.
"""

import argparse
import asyncio
import json
import random
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

import attnd


@dataclass
class Engine:
    url: str
    queue: list = field(default_factory=list)
    work: int = 0  # tokens that it has still to compute


class Router:
    def __init__(self, model: Path, dtype: str, urls: list[str]) -> None:
        self.engines = [Engine(u) for u in urls]
        config = json.loads((model / "config.json").read_text())
        heads = config["num_attention_heads"]
        self.cache = attnd.connect(name="router").cache(
            config["model_type"],
            fingerprint=attnd.checkpoint_fingerprint(model, dtype=dtype),
            num_layers=config["num_hidden_layers"],
            num_heads=heads,
            num_kv_heads=config.get("num_key_value_heads", heads),
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            kv_dtype=dtype,
            create=False,
        )

    def assign(self, prompts: list[list[int]], by_work: bool) -> list[list[tuple[int, int]]]:
        """For each engine its prompts in order, as (number, tokens to compute)."""
        cached, _ = self.cache.peek_many(prompts)
        work = [(i, len(p) - n) for i, (p, n) in enumerate(zip(prompts, cached, strict=True))]
        queues: list[list[tuple[int, int]]] = [[] for _ in self.engines]
        load = [0] * len(queues)
        for turn, (i, tokens) in enumerate(sorted(work, key=lambda w: w[1]) if by_work else work):
            at = min(range(len(queues)), key=load.__getitem__) if by_work else turn % len(queues)
            queues[at].append((i, tokens))
            load[at] += tokens
        return queues


async def first_token(session: aiohttp.ClientSession, url: str, prompt: list[int], begun: float) -> float:
    body = {
        "input_ids": prompt,
        "stream": True,
        "sampling_params": {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True},
    }
    first = 0.0
    async with session.post(f"{url}/generate", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if line.startswith(b"data:") and not first:
                first = time.monotonic() - begun
    return first


async def run(router: Router, prompts: list[list[int]], by_work: bool) -> list[float]:
    """All prompts are there at once; each engine takes its own one after the other."""
    queues = router.assign(prompts, by_work)
    begun = time.monotonic()
    async with aiohttp.ClientSession() as session:

        async def drain(engine: Engine, queue: list[tuple[int, int]]) -> list[float]:
            return [await first_token(session, engine.url, prompts[i], begun) for i, _ in queue]

        times = await asyncio.gather(*(drain(e, q) for e, q in zip(router.engines, queues, strict=True)))
    return [t for each in times for t in each]


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--model", type=Path, required=True, help="the checkpoint's directory")
    p.add_argument("--dtype", default="float16", help="that the engines compute in")
    p.add_argument("--engine", action="append", required=True, help="URL of a server; give several")
    p.add_argument("--vocabulary", type=int, default=250)
    options = p.parse_args()
    rnd = random.Random(1)

    def tokens(n: int) -> list[int]:
        return [rnd.randrange(options.vocabulary) for _ in range(n)]

    documents = [tokens(600) for _ in range(4)]

    def mix() -> list[list[int]]:
        known = [rnd.choice(documents) + tokens(20) for _ in range(12)]
        new = [tokens(700) for _ in range(4)]
        both = known + new
        rnd.shuffle(both)
        return both

    # The cache is there once an engine serves.
    router = Router(options.model, options.dtype, options.engine)
    asyncio.run(run(router, documents, False))
    for name, by_work in (("in turn", False), ("by work", True)):
        times = sorted(t for _ in range(3) for t in asyncio.run(run(router, mix(), by_work)))
        late = times[int(0.9 * len(times))]
        print(f"{name}: first token after {1e3 * statistics.mean(times):.0f} ms, of nine in ten within {1e3 * late:.0f} ms")


if __name__ == "__main__":
    main()
