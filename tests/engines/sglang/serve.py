#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An SGLang engine that a test commands by lines of JSON.

In: sys.argv[1], the engine's arguments; on standard input commands, each with an `id`. Out: on
standard output a line for each event, begun by EVENT, so that SGLang's own prints pass by. Next:
kit.py. Commands run at the same time; `generate` says "first" at its first token.
"""

import asyncio
import json
import sys
import time

EVENT = "\x1e"


def say(**event):
    print(EVENT + json.dumps(event), flush=True)


class Server:
    def __init__(self, engine):
        self.engine = engine

    async def generate(self, id, prompt, n, rid=None, sampling=None, extra=None):
        sampling = {"max_new_tokens": n, "temperature": 0, "ignore_eos": True, **(sampling or {})}
        begun, first, last, times = time.perf_counter(), None, None, []
        try:
            stream = await self.engine.async_generate(
                input_ids=prompt, sampling_params=sampling, rid=rid, stream=True, **(extra or {})
            )
            async for chunk in stream:
                if first is None:
                    first = time.perf_counter() - begun
                    say(id=id, event="first", cached=chunk["meta_info"].get("cached_tokens", 0))
                last = chunk
                times.append((time.monotonic(), len(chunk.get("output_ids", ()))))
        except ValueError as e:  # aborted before it began
            return {"finish": "abort", "error": str(e), "tokens": [], "cached": 0}
        meta = last["meta_info"]
        return {
            "tokens": last.get("output_ids", []),
            "cached": meta.get("cached_tokens", 0),
            "finish": (meta.get("finish_reason") or {}).get("type"),
            "first_s": first,
            "total_s": time.perf_counter() - begun,
            "end": time.monotonic(),
            "times": times,
        }

    async def abort(self, id, rid):
        self.engine.tokenizer_manager.abort_request(rid)

    async def flush(self, id):
        return bool((await self.engine.tokenizer_manager.flush_cache()).success)

    async def update_weights(self, id, path):
        from sglang.srt.managers.io_struct import UpdateWeightFromDiskReqInput

        return (
            await self.engine.tokenizer_manager.update_weights_from_disk(
                UpdateWeightFromDiskReqInput(model_path=path), None
            )
        )[0]

    async def load_lora(self, id, name, path):
        from sglang.srt.managers.io_struct import LoadLoRAAdapterReqInput

        return (
            await self.engine.tokenizer_manager.load_lora_adapter(
                LoadLoRAAdapterReqInput(lora_name=name, lora_path=path), None
            )
        ).success

    async def run(self, command):
        id, do = command.pop("id"), command.pop("do")
        try:
            say(id=id, event="done", result=await getattr(self, do)(id, **command))
        except Exception as e:  # noqa: BLE001 the test decides
            say(id=id, event="failed", error=f"{type(e).__name__}: {e}")

    async def serve(self):
        lines = asyncio.StreamReader(limit=1 << 24)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        say(event="ready")
        tasks = set()
        while line := await lines.readline():
            task = loop.create_task(self.run(json.loads(line)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)


def main():
    import sglang

    engine = sglang.Engine(**json.loads(sys.argv[1]))
    engine.loop.run_until_complete(Server(engine).serve())
    engine.shutdown()


if __name__ == "__main__":
    main()
