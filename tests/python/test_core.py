#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The package against a private daemon: jobs have the reference's numbers, sequences and caches do
what the library promises, errors are exceptions with its text, coroutines see every completion."""

import asyncio
import errno
import gc
import json
import logging
import os
import signal
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path

import numpy as np
import reference
import tap

import attnd
from attnd.integrations.adapters import adapter_bytes

HEADS, KV_HEADS, DIM, LAYERS = 4, 2, 32, 2


def setUpModule():
    global daemon
    daemon = attnd.private(pool_size="32M", hugepages="off", threads=2, log_level="warn", timeout=30)


def tearDownModule():
    daemon.close()


class Model:
    """Random q, k, v of a few layers for one sequence's tokens; the cache, and what to run."""

    def __init__(self, a, name, dtype="f32", num_tokens=200, seed=1, **params):
        rng = np.random.default_rng(seed)
        self.a = a
        self.cache = a.cache(
            name, num_layers=LAYERS, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, kv_dtype=dtype
        )
        self.params = self.cache.params(q_dtype=dtype, **params)
        self.tokens = rng.integers(0, 1 << 62, num_tokens)
        shapes = {"q": HEADS, "k": KV_HEADS, "v": KV_HEADS}
        self.data = {n: rng.standard_normal((LAYERS, num_tokens, h, DIM)).astype(np.float32) for n, h in shapes.items()}
        self.buffers = {n: a.empty((num_tokens, h, DIM), dtype) for n, h in {**shapes, "out": HEADS}.items()}
        self.lse = a.empty((num_tokens, HEADS))
        self.layers = [
            attnd.Layer(self.params, i, **self.buffers, lse=self.lse, last=i == LAYERS - 1) for i in range(LAYERS)
        ]

    def fill(self, layer, start, n):
        for name in ("q", "k", "v"):
            x = self.data[name][layer, start : start + n]
            b = self.buffers[name]
            b.numpy()[:n] = attnd.to_bf16(x) if b.dtype == attnd.DType.BF16 else x

    def step(self, sequence, start, n):
        """Extend by tokens [start, start + n); the outputs of each layer."""
        plan = self.cache.plan([(sequence, self.tokens[start : start + n], start)])
        outs = []
        for i, layer in enumerate(self.layers):
            self.fill(i, start, n)
            layer.run(plan)
            o = self.buffers["out"].numpy()[:n].copy()
            outs.append(attnd.from_bf16(o) if self.buffers["out"].dtype == attnd.DType.BF16 else o)
        return plan, outs

    def expect(self, layer, start, n, **how):
        d = {k: v[layer] for k, v in self.data.items()}
        return reference.attend(
            d["q"][start : start + n], d["k"][: start + n], d["v"][: start + n], scale=DIM**-0.5, **how
        )


class Jobs(unittest.TestCase):
    def check(self, dtype, tolerance, params=None, how=None):
        with attnd.connect(daemon.socket) as a:
            m = Model(a, f"jobs-{dtype}-{len(params or {})}", dtype, **(params or {}))
            with a.sequence(m.tokens) as s:
                self.assertEqual(s.cached, 0)
                for start, n in ((0, 130), (130, 1), (131, 1), (132, 68)):
                    _, outs = m.step(s, start, n)
                    for layer in range(LAYERS):
                        out, lse = m.expect(layer, start, n, **(how or {}))
                        np.testing.assert_allclose(outs[layer], out, atol=tolerance)
                    np.testing.assert_allclose(m.lse.numpy()[:n], lse, atol=tolerance * 4)
                    self.assertEqual(s.length, start + n)

    def test_f32(self):
        self.check("f32", 1e-5)

    def test_bf16(self):
        self.check("bf16", 3e-2)

    def test_cap_window_sinks(self):
        sinks = np.array([0.5, -1, 2, 0], np.float32)
        how = {"cap": 5.0, "window": 40, "sinks": sinks}
        self.check("f32", 1e-5, {"logit_cap": 5.0, "sliding_window": 40, "sinks": sinks}, how)

    def test_not_causal(self):
        with attnd.connect(daemon.socket) as a:
            m = Model(a, "bidirectional", causal=False)
            with a.sequence() as s:
                plan = m.cache.plan([attnd.Row(s, m.tokens, 0, 0, causal=False)])
                m.fill(0, 0, 200)
                m.layers[0].run(plan)
                out, _ = m.expect(0, 0, 200, causal=False)
                np.testing.assert_allclose(m.buffers["out"].numpy(), out, atol=1e-5)
                plan.end()

    def test_tree_mask(self):
        with attnd.connect(daemon.socket) as a:
            m = Model(a, "tree")
            with a.sequence() as s:
                m.step(s, 0, 10)
                mask = np.tril(np.ones((3, 3), bool))
                mask[2, 1] = False
                plan = m.cache.plan([attnd.Row(s, m.tokens[10:13], 10, 0, mask)])
                m.fill(0, 10, 3)
                m.layers[0].run(plan)
                d = {k: v[0] for k, v in m.data.items()}
                seen = np.r_[0:11, 12]  # the third token does not see the second
                out, _ = reference.attend(d["q"][12:13], d["k"][seen], d["v"][seen], scale=DIM**-0.5)
                np.testing.assert_allclose(m.buffers["out"].numpy()[2:3], out, atol=1e-5)
                plan.end()

    def test_memory_outside_the_arena(self):
        with attnd.connect(daemon.socket) as a:
            m = Model(a, "copied", seed=3)
            staging = attnd.Staging(m.params, 4)
            layers = [attnd.CopiedLayer(m.params, i, staging, last=i == LAYERS - 1) for i in range(LAYERS)]
            with a.sequence() as s:
                for start, n in ((0, 50), (50, 1), (51, 3)):
                    plan = m.cache.plan([attnd.Row(s, m.tokens[start : start + n])])
                    for i, layer in enumerate(layers):
                        d = {k: v[i, start : start + n] for k, v in m.data.items()}
                        fused = np.concatenate([d["q"], d["k"], d["v"]], axis=1)  # rows of one projection
                        headed = np.ascontiguousarray(d["q"].swapaxes(0, 1)).swapaxes(0, 1)  # [head][token]
                        out = np.full((HEADS, n, DIM), np.nan, np.float32).swapaxes(0, 1)
                        q, k, v = np.split(fused, [HEADS, HEADS + KV_HEADS], axis=1)
                        layer.run(plan, headed if start else q, k, v, out)
                        np.testing.assert_allclose(out, m.expect(i, start, n)[0], atol=1e-5)
                plan = m.cache.plan([attnd.Row(s, m.tokens[54:55])])
                with self.assertRaisesRegex(ValueError, "tokens"):
                    layers[0].run(plan, q[:0], k[:0], v[:0], out[:0])
                with self.assertRaisesRegex(ValueError, "contiguous"):
                    layers[0].run(plan, np.zeros((1, HEADS, 2 * DIM), np.float32)[..., ::2], k, v, out)
                for wrong in (q[:1, :1], q[:1, :, :8], q[0], q[None, :1]):
                    with self.assertRaisesRegex(ValueError, r"out is \[tokens, 4, 32\], not"):
                        layers[0].run(plan, q, k, v, wrong)
                with self.assertRaisesRegex(ValueError, "v has values of 2 bytes"):
                    layers[0].run(plan, q, k, v.astype(np.float16), out)
                if tap.has("torch"):
                    import torch

                    half = m.cache.params(q_dtype="f16")
                    q16, k16 = (torch.zeros(1, h, DIM, dtype=torch.bfloat16) for h in (HEADS, KV_HEADS))
                    with self.assertRaisesRegex(ValueError, "q has values of torch.bfloat16, the parameter set of f16"):
                        attnd.CopiedLayer(half, 0, attnd.Staging(half, 4)).run(plan, q16, k16, k16, q16)
                with self.assertRaisesRegex(attnd.Invalid, "q"):
                    attnd.CopiedLayer(m.params, 0, staging).run(plan, None, k, v, out)
                strided = m.cache.params(strides={"q_token_stride": 4096})
                with self.assertRaisesRegex(attnd.Invalid, "without strides"):
                    attnd.CopiedLayer(strided, 0, staging).run(plan, q, k, v, out)

    def test_batch_from_arrays(self):
        with attnd.connect(daemon.socket) as a:
            m = Model(a, "batch")
            seqs = [a.sequence() for _ in range(4)]
            counts = [5, 1, 30, 4]
            plan = m.cache.plan_arrays(
                [s.key for s in seqs], [0] * 4, counts, np.concatenate([m.tokens[:n] for n in counts]), [0] * 4
            )
            at = 0
            for n in counts:
                for name in ("q", "k", "v"):
                    m.buffers[name].numpy()[at : at + n] = m.data[name][0, :n]
                at += n
            m.layers[0].run(plan)
            at = 0
            for n in counts:
                np.testing.assert_allclose(m.buffers["out"].numpy()[at : at + n], m.expect(0, 0, n)[0], atol=1e-5)
                at += n
            a.close_sequences(seqs)


class Sequences(unittest.TestCase):
    def setUp(self):
        self.a = attnd.connect(daemon.socket)
        self.addCleanup(self.a.close)

    def test_a_prefix_is_shared_between_processes(self):
        m = Model(self.a, "share", seed=11)
        with self.a.sequence(m.tokens) as s:
            m.step(s, 0, 150)
        with attnd.connect(daemon.socket) as b:
            cache = b.cache("share", num_layers=LAYERS, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM)
            self.assertEqual(cache.peek(m.tokens), 144)
            self.assertEqual(cache.peek_many([m.tokens[:40], m.tokens, [1, 2]]), ([32, 144, 0], 1))
            with b.sequence(m.tokens) as s:
                self.assertEqual((s.cached, s.length), (150, 150))
            with b.sequence(m.tokens, max_match=77) as s:
                self.assertEqual(s.cached, 77)
            with b.sequence(m.tokens[:150]) as s:  # one is left for its logits
                self.assertEqual(s.cached, 149)
            with b.sequence(m.tokens, namespace=b.namespace(salt=b"other")) as s:
                self.assertEqual(s.cached, 0)

    def test_fork_and_trim(self):
        m = Model(self.a, "fork", seed=12)
        s = self.a.sequence(m.tokens)
        m.step(s, 0, 100)
        with s.fork(40) as t:
            self.assertEqual(t.length, 40)
            plan, outs = m.step(t, 40, 10)
            np.testing.assert_allclose(outs[0], m.expect(0, 40, 10)[0], atol=1e-5)
            self.assertEqual(int(plan.status["cached"][0]), 10)  # s has published them
        s.trim(60)
        self.assertEqual(s.length, 60)
        _, outs = m.step(s, 60, 5)
        np.testing.assert_allclose(outs[1], m.expect(1, 60, 5)[0], atol=1e-5)
        s.close()
        s.close()

    def test_waiting_for_a_twin(self):
        m = Model(self.a, "twin", seed=16)
        with self.a.sequence(m.tokens) as s:
            self.assertEqual(s.waited, None)
            with attnd.connect(daemon.socket) as b:
                cache = b.cache("twin", num_layers=LAYERS, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM)
                with b.sequence(m.tokens, wait=attnd.Wait(deadline=0.01)) as t:
                    self.assertEqual((t.waited, t.cached, t.expected), ("deadline", 0, 192))
                found = []
                thread = threading.Thread(target=lambda: found.append(b.sequence(m.tokens, wait=attnd.Wait())))
                thread.start()
                for start in (0, 100):
                    m.step(s, start, 100)
                thread.join()
                self.assertIn((found[0].waited, found[0].cached), (("done", 192), ("done", 199), ("alone", 199)))
                found[0].close()
                with b.sequence([5, 6, 7], wait=attnd.Wait()) as t:
                    self.assertEqual(t.waited, "alone")
                del cache

    def test_publish_upto(self):
        m = Model(self.a, "publish", seed=13)
        with self.a.sequence(m.tokens) as s:
            plan = m.cache.plan([attnd.Row(s, m.tokens[:100], publish_upto=64)])
            for i, layer in enumerate(m.layers):
                m.fill(i, 0, 100)
                layer.run(plan)
            with self.a.sequence(m.tokens) as t:
                self.assertEqual(t.cached, 64)

    def test_engine(self):
        engine = attnd.EngineId.random()
        with attnd.connect(daemon.socket, engine=engine, create_engine=True) as scheduler:
            with attnd.connect(daemon.socket, engine=engine) as worker:
                cache = scheduler.cache(
                    "share", num_layers=LAYERS, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM
                )
                s = scheduler.sequence([1, 2, 3])
                m = Model(worker, "share")
                self.assertEqual(m.cache.id, cache.id)
                plan = m.cache.plan([attnd.Row(s.key, [1, 2, 3], 0)])
                for layer in m.layers:
                    layer.run(plan)
                self.assertEqual(len(scheduler.reopen([])), 0)
                s.close()

    def test_export_import(self):
        m = Model(self.a, "export", "bf16", seed=14)
        with self.a.sequence(m.tokens) as s:
            m.step(s, 0, 100)
            kvs = [m.cache.export(s, i, 10, 50) for i in range(LAYERS)]
            for i, kv in enumerate(kvs):
                np.testing.assert_array_equal(kv.k.numpy(), attnd.to_bf16(m.data["k"][i, 10:60]))
                np.testing.assert_array_equal(kv.v.numpy(), attnd.to_bf16(m.data["v"][i, 10:60]))
        with self.a.sequence([7]) as t:
            plan = m.cache.plan([(t, np.arange(50))])
            for i, kv in enumerate(kvs):
                m.cache.import_layer(plan, i, kv, 1000, last=i == LAYERS - 1)
            np.testing.assert_array_equal(m.cache.export(t, 1, 0, 50).k.numpy(), kvs[1].k.numpy())

    def test_dynamic_scales(self):
        cache = self.a.cache(
            "int8", num_layers=1, num_heads=2, num_kv_heads=2, head_dim=16, kv_dtype="int8", scale_mode="dynamic"
        )
        kv = cache.kv_empty(5)
        self.assertEqual((kv.k.shape, kv.k_scales.shape), ((5, 2, 16), (5, 2)))
        static = self.a.cache(
            "int8", num_layers=1, num_heads=2, num_kv_heads=2, head_dim=16, kv_dtype="int8", scale_mode="static"
        )
        static.set_scales(0, 0.5, 0.25)
        with self.assertRaises(attnd.Error) as e:
            static.set_scales(0, 0.5, 0.5)
        self.assertEqual(e.exception.errno, errno.EEXIST)

    def test_slot_tables(self):
        m = Model(self.a, "slots", seed=15)
        with self.a.sequence(m.tokens) as s, self.a.sequence(m.tokens) as t:
            m.step(s, 0, 50)
            plan = m.cache.plan([(t, m.tokens[:20])])
            table = m.cache.slot_table([s, t])
            self.assertEqual(table.seq_lens.tolist()[0], 50)
            blocks = m.cache.slot_table(plan, unit="blocks", width=4)
            self.assertEqual(blocks.kv_indices.shape, (1, 4))
            # t's tokens were taken over from s: the same slots
            np.testing.assert_array_equal(blocks.kv_indices[0, :1], table.kv_indices[:1] // 16)
            plan.end()
            self.assertEqual(t.length, 0)

    def test_grant(self):
        m = Model(self.a, "grant")
        m.cache.grant(100, 2)
        with self.assertRaises(attnd.PoolFull):
            m.cache.grant(m.cache.capacity_tokens * 100, 1)
        m.cache.grant(0, 0)


class Errors(unittest.TestCase):
    def test_texts(self):
        with self.assertRaises(attnd.NoDaemon):
            attnd.connect("/nowhere/attnd.sock")
        with attnd.connect(daemon.socket) as a:
            with self.assertRaisesRegex(attnd.Invalid, "head_dim"):
                a.cache("x", num_layers=1, num_heads=1, num_kv_heads=1, head_dim=10000)
            with self.assertRaisesRegex(ValueError, "layout is one of"):
                a.cache("x", num_layers=1, num_heads=1, num_kv_heads=1, head_dim=16, layout="rows")
            m = Model(a, "errors")
            with self.assertRaises(attnd.NotFound) as e:
                m.cache.plan([(12345, [1], 0)])
            self.assertEqual(e.exception.__notes__, ["row 0 of the plan"])
            plan = m.cache.plan([(12345, [1], 0)], strict=False)
            self.assertEqual([i for i, _ in plan.refused()], [0])
            self.assertRegex(str(plan.refused()[0][1]), "sequence key")
            with a.sequence([1, 2]) as s:  # a call that raises leaves no plan, and no length, behind
                with self.assertRaisesRegex(attnd.Invalid, "sequence key"):
                    m.cache.plan([(s, [1]), (s, [2])])
                self.assertEqual(s.length, 0)
                m.cache.plan([(s, [1, 2])]).end()
            with self.assertRaises(attnd.Stale):
                a.wait(m.layers[0].decode(77))
            with self.assertRaises(attnd.NotFound):
                a.wait(12345)
            outside = np.zeros((4, HEADS, DIM), np.float32)
            bad = attnd.Layer(m.params, 0, q=outside, k=outside, v=outside, out=outside)
            with self.assertRaises(attnd.Invalid):
                bad.decode(plan)
            q = m.buffers["q"]
            with self.assertRaisesRegex(ValueError, r"k is \[tokens, 2, 32\], not \[200, 4, 32\]"):
                attnd.Layer(m.params, 0, q=q, k=a.empty((200, 4, 32)))
            with self.assertRaisesRegex(ValueError, "q is attnd.Array.* f16, .*, the parameter set has f32"):
                attnd.Layer(m.params, 0, q=a.empty((200, 4, 32), "f16"))
            with a.sequence(m.tokens) as s:
                long = m.cache.plan([(s, np.arange(201))])
                with self.assertRaisesRegex(ValueError, "201 tokens, the layer's arrays have room for 200"):
                    m.layers[0].run(long)
                long.end()
            with self.assertRaisesRegex(ValueError, "no dtype"):
                m.cache.params(q_dtype="f64")
            with self.assertRaises(TypeError):
                a.sequence([0.5])
        with self.assertRaisesRegex(attnd.Error, "closed"):
            a.ping()
        with self.assertRaisesRegex(attnd.Error, "closed"):
            m.layers[0].decode(plan)

    def test_fork_of_the_process(self):
        with attnd.connect(daemon.socket) as a:
            pid = os.fork()
            if not pid:
                try:
                    a.ping()
                except attnd.Error as e:
                    os._exit(e.errno)
                os._exit(0)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), errno.ECHILD)
            a.ping()


class Memory(unittest.TestCase):
    def test_views_outlive_the_connection(self):
        a = attnd.connect(daemon.socket)
        array = a.empty((100, 3), "f32")
        view = array.numpy()
        view[:] = 7
        self.assertTrue(a.in_arena(view.ctypes.data, view.nbytes))
        a.close()
        a.close()
        del array, a
        gc.collect()
        self.assertEqual(float(view.sum()), 2100)

    def test_memory_comes_back(self):
        with attnd.connect(daemon.socket) as a:
            a.reserve(1 << 20)
            seen = {a.empty(1 << 18, "int8").address for _ in range(50)}
            self.assertLess(len(seen), 5)
            kept = [a.empty(1 << 18, "int8").numpy()[5:6] for _ in range(8)]
            self.assertEqual(len({k.ctypes.data for k in kept}), 8)

    def test_a_layer_keeps_its_memory(self):
        with attnd.connect(daemon.socket) as a:
            cache = a.cache("kept", num_layers=1, num_heads=2, num_kv_heads=1, head_dim=16)
            q, out = a.empty((4, 2, 16)), a.empty((4, 2, 16))
            held = {q.address, out.address}
            layer = attnd.Layer(cache.params(), 0, q=q, k=a.empty((4, 1, 16)), v=a.empty((4, 1, 16)), out=out.torch() if tap.has("torch") else out)
            del q, out
            gc.collect()
            self.assertFalse(held & {a.empty((4, 2, 16)).address for _ in range(8)})
            layer.bind()
            gc.collect()
            self.assertTrue(held & {a.empty((4, 2, 16)).address for _ in range(8)})

    def test_dlpack(self):
        with attnd.connect(daemon.socket) as a:
            x = a.empty((3, 4), "f16")
            x.numpy()[:] = np.arange(12).reshape(3, 4)
            y = np.from_dlpack(x)
            self.assertEqual(y.ctypes.data, x.address)
            np.testing.assert_array_equal(y, x.numpy())
            capsule = x.__dlpack__()
            del capsule  # nobody took it
            x_address = x.address
            del x
            gc.collect()
            self.assertNotEqual(a.empty((3, 4), "f16").address, x_address)  # y still looks at it
            np.testing.assert_array_equal(y[2], [8, 9, 10, 11])
            self.assertEqual(a.empty(5, np.int32).numpy().dtype, np.int32)

    def test_bf16(self):
        x = np.array([1.0, -2.5, 3.14159, 1e-30, np.inf, np.nan, 1.00390625, 1.01171875], np.float32)
        y = attnd.from_bf16(attnd.to_bf16(x))
        np.testing.assert_allclose(y[:4], x[:4], rtol=2**-8)
        self.assertTrue(np.isinf(y[4]) and np.isnan(y[5]))
        self.assertEqual(y[6:].tolist(), [1.0, 1.015625])  # ties go to even


class Threads(unittest.TestCase):
    def test_waits_release_the_gil(self):
        """A thread runs while another waits for a daemon that is stopped."""
        a = attnd.private(pool_size="8M", hugepages="off", log_level="warn", pin=False, numa=True, timeout=30)
        self.addCleanup(a.close)
        self.addCleanup(os.kill, a.daemon_pid, signal.SIGCONT)
        tap.freeze(a.daemon_pid)
        failures = []

        def wait():
            try:
                a.ping(0.05)
            except attnd.DeadlineExceeded as e:
                failures.append(e)

        thread = threading.Thread(target=wait)
        thread.start()
        steps, begin = 0, time.monotonic()
        while thread.is_alive() and time.monotonic() - begin < 30:
            steps += 1
        thread.join()
        self.assertEqual(len(failures), 1)
        self.assertGreater(steps, 1000)

    def test_threads_share_a_connection(self):
        with attnd.connect(daemon.socket) as a:
            errors = []

            def work():
                try:
                    for _ in range(200):
                        a.ping()
                        a.empty(100)
                except Exception as e:
                    errors.append(e)

            threads = [threading.Thread(target=work) for _ in range(4)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            self.assertEqual(errors, [])


class Asyncio(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        asyncio.get_running_loop().slow_callback_duration = 60  # a busy machine is no news

    async def test_steps(self):
        with attnd.connect(daemon.socket) as a:
            m = Model(a, "aio", seed=21)
            s = await a.aio.sequence(m.tokens, wait=attnd.Wait())
            self.assertEqual((s.waited, s.cached), ("alone", 0))
            plan = await a.aio.plan(m.cache, [(s, m.tokens[:64])])
            for i, layer in enumerate(m.layers):
                m.fill(i, 0, 64)
                await a.aio.run(layer, plan)
            np.testing.assert_allclose(m.buffers["out"].numpy()[:64], m.expect(1, 0, 64)[0], atol=1e-5)
            with self.assertRaises(attnd.NotFound):
                await a.aio.plan(m.cache, [(999, [1], 0)])
            s.close()

    async def test_many_at_once(self):
        with attnd.connect(daemon.socket, queue_entries=64) as a:
            m = Model(a, "aio-many", seed=22)

            async def one(i):
                for _ in range(20):
                    await a.aio.ping()
                    if i % 3 == 0:
                        a.ping()  # takes the others' completions off the ring
                    s = await a.aio.sequence([i, 1, 2])
                    s.close()

            await asyncio.wait_for(asyncio.gather(*(one(i) for i in range(20))), 60)
            job = a.submit(a._lib.attnd_ping_async, 0)
            await asyncio.sleep(0)
            self.assertEqual(a.wait(job), 0)
            del m

    async def test_cancelled(self):
        """Who is cancelled while a sequence is opened, or waits for a twin, leaves none behind."""

        def alive():
            status = subprocess.run(
                [tap.BUILD / "attnctl", "--socket", daemon.socket, "--json", "status"], capture_output=True, text=True
            )
            return json.loads(status.stdout)["counters"]["sequences"]

        with attnd.connect(daemon.socket) as a:
            kept = Model(a, "aio-cancelled", seed=24)
            before = alive()
            for wait in (None, attnd.Wait()):
                tap.freeze(a.daemon_pid)
                try:
                    task = asyncio.ensure_future(a.aio.sequence(list(range(40)), wait=wait))
                    await asyncio.sleep(0)
                    task.cancel()
                finally:
                    os.kill(a.daemon_pid, signal.SIGCONT)
                with self.assertRaises(asyncio.CancelledError):
                    await task
            await a.aio.ping()
            self.assertEqual(alive(), before)
            del kept

    async def test_a_call_between(self):
        """A blocking call reaps another's completion; no signal comes for it."""
        with attnd.connect(daemon.socket) as a:
            for _ in range(50):
                waiting = asyncio.ensure_future(a.aio.ping())
                await asyncio.sleep(0)
                a.ping()
                await asyncio.wait_for(waiting, 10)


class Restart(unittest.TestCase):
    def test_lost_and_reopened(self):
        """The daemon is killed: calls say so, the next connects again, reopen says what is left."""
        import subprocess
        import tempfile

        with tempfile.TemporaryDirectory() as d:
            command = [os.environ["ATTND_DAEMON"], "--socket", f"{d}/s", "--pool-size", "8M", "--hugepages", "off"]
            command += ["--log-level", "warn"]

            def start():
                p = subprocess.Popen(command)
                for _ in range(1000):
                    if os.path.exists(f"{d}/s"):
                        return p
                    time.sleep(0.01)
                self.fail("the daemon does not listen")

            p = start()
            with attnd.connect(f"{d}/s", timeout=30) as a:
                m = Model(a, "restart")
                s = a.sequence(m.tokens)
                m.step(s, 0, 100)
                p.kill()
                p.wait()
                os.unlink(f"{d}/s")
                p = start()
                try:
                    with self.assertRaises(attnd.ConnectionLost):
                        for _ in range(3):
                            m.step(s, 100, 1)
                    left = a.reopen([s])
                    self.assertEqual(left, [s.length])
                    _, outs = m.step(s, left[0], 110 - left[0])
                    np.testing.assert_allclose(
                        outs[0][-1:], m.expect(0, 109, 1)[0], atol=1e-5
                    )
                finally:
                    p.kill()
                    p.wait()


class Adapters(unittest.TestCase):
    def test_digest(self):
        """What a LoRA's files hold, wherever they are; no weights are no adapter."""
        with tempfile.TemporaryDirectory() as d:
            folders = [Path(d, name) for name in "abc"]
            for i, f in enumerate(folders):
                f.mkdir()
                (f / "adapter_config.json").write_text("{}")
                with self.assertRaises(FileNotFoundError):
                    attnd.adapter_digest(f)
                (f / "adapter_model.safetensors").write_bytes(bytes(5000) + bytes([i // 2]) + bytes(5000))
            (folders[0] / "README.md").write_text("of no influence")
            a, b, c = map(attnd.adapter_digest, folders)
            self.assertEqual((a, len(a)), (b, 16))
            self.assertNotEqual(a, c)
            (folders[1] / "adapter_config.json").write_text('{"lora_alpha": 2}')
            self.assertNotEqual(attnd.adapter_digest(str(folders[1])), a)
        with self.assertRaises(FileNotFoundError):
            attnd.adapter_digest("/nowhere")

    def test_of_engines(self):
        """One that is not at hand is shared with nobody."""
        logging.disable(logging.WARNING)
        self.addCleanup(logging.disable, logging.NOTSET)
        names = [adapter_bytes(x) for x in ("/nowhere/a", "/nowhere/a", "", None)]
        self.assertEqual(len(set(names)), 4)


if __name__ == "__main__":
    tap.main()
