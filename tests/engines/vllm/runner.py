# SPDX-License-Identifier: Apache-2.0
"""An engine of several processes that a test commands by lines of JSON.

In: sys.argv[1], the engine's arguments; on standard input requests {name, prompt, n} or {bench,
steps}, an empty line to end. Out: on standard output lines begun by EVENT: ready, each request's
first token, its end, a bench's times.
Next: test_processes.py.
"""

import json
import os
import sys
import threading
import time

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
EVENT = "\x1e"


def say(**event):
    print(EVENT + json.dumps(event), flush=True)


def steps(e, prompts, n):
    """Seconds of each step in which all of them decode."""
    for i, p in enumerate(prompts):
        e.add(f"b{i}", p, n + 8)
    began, times, last = set(), [], None
    while e.llm.has_unfinished_requests():
        ended = False
        for o in e.step():
            began.add(o.request_id)
            ended |= o.finished
        now = time.perf_counter()
        if last is not None and not ended:
            times.append(now - last)
        last = now if len(began) == len(prompts) and not ended else None
    return times[1:]


def main():
    import kit

    arguments = json.loads(sys.argv[1])
    e = kit.Engine(arguments.pop("model"), arguments.pop("backend", "ATTND"), core=False, **arguments)
    e.generate([[3, 4, 5]], 2)
    say(event="ready", pid=os.getpid())
    asked, lock, begun = [], threading.Lock(), {}

    def read():
        for line in sys.stdin:
            with lock:
                asked.append(line.strip())
        with lock:
            asked.append("")

    threading.Thread(target=read, daemon=True).start()
    while True:
        with lock:
            new, asked[:] = asked[:], []
        for line in new:
            if not line:
                e.close()
                say(event="end")
                return
            r = json.loads(line)
            if "bench" in r:
                say(event="bench", seconds=steps(e, r["bench"], r["steps"]))
                continue
            begun[r["name"]] = time.perf_counter()
            e.add(r["name"], r["prompt"], r["n"])
        if not e.llm.has_unfinished_requests():
            time.sleep(0.005)
            continue
        for o in e.step():
            now = time.perf_counter() - begun[o.request_id]
            tokens = list(o.outputs[0].token_ids)
            if len(tokens) == 1 or o.finished:
                say(
                    event="end" if o.finished else "first", name=o.request_id, tokens=tokens, cached=o.num_cached_tokens,
                    seconds=now,
                )  # fmt: skip


if __name__ == "__main__":
    main()
