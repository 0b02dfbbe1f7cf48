# SPDX-License-Identifier: Apache-2.0
"""A server on attnd for a class of SGLang's kits.

In: a checkpoint of heart.py, the class's options. Out: what the kits look for (base_url, process,
model, tokenizer), and at the end whether attnd served and nothing leaked. Next: test_kits.py.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import kit
import requests

MORE = "--skip-server-warmup --sleep-on-idle --mem-fraction-static 0.3 --dtype float32 --random-seed 1"

WRONG = ("leak", "Scheduler hit an exception", "attnd: a step is repeated")  # in a log


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server(unittest.TestCase):
    model = None  # a folder
    tokenizer = None
    options = ""
    tokens = 40000
    rows = 32
    env = {}

    @classmethod
    def setUpClass(cls):
        signal.signal(signal.SIGTERM, cls.terminated)
        cls.daemon = kit.Daemon()
        cls.addClassCleanup(cls.daemon.close)
        cls.log = tempfile.NamedTemporaryFile("w+", prefix="sglang-own-", suffix=".log")
        cls.addClassCleanup(cls.log.close)
        port = free_port()
        cls.base_url = f"http://127.0.0.1:{port}"
        command = (
            f"{sys.executable} -m sglang.launch_server --model-path {cls.model} --device cpu --attention-backend attnd "
            f"--port {port} --max-total-tokens {cls.tokens} --max-running-requests {cls.rows} {MORE} {cls.options}"
        )
        cls.process = subprocess.Popen(
            command.split(), env=kit.environment(ATTND_SOCKET=str(cls.daemon.socket), **kit.STRICT, **cls.env),
            stdout=cls.log, stderr=cls.log, start_new_session=True,
        )  # fmt: skip
        cls.addClassCleanup(cls.end)
        until = time.monotonic() + kit.PATIENCE
        while not cls.is_up():
            if cls.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(cls.text()[-4000:])
            time.sleep(0.2)

    @classmethod
    def is_up(cls):
        try:
            return requests.get(cls.base_url + "/health", timeout=20).status_code == 200
        except requests.RequestException:
            return False

    @classmethod
    def text(cls):
        return Path(cls.log.name).read_text()

    @classmethod
    def tearDownClass(cls):
        """It still serves, attnd did it, and no request's sequence is left; SGLang's books were right at every step."""
        last = {"input_ids": [3, 4], "sampling_params": {"max_new_tokens": 2, "ignore_eos": True}}
        requests.post(cls.base_url + "/generate", json=last, timeout=kit.PATIENCE).raise_for_status()
        counters = cls.daemon.ctl("status")["counters"]
        left = cls.daemon.held()
        wrong = [line for line in cls.text().splitlines() if any(w in line for w in WRONG)]
        assert counters["decode_jobs"] and counters["extend_jobs"] and not counters["failed_jobs"], counters
        assert left == (1, 0, 0), left
        assert not wrong, wrong
        print(f"# {cls.__name__}: {counters['decode_jobs']} decode and {counters['extend_jobs']} extend jobs of attnd")

    @classmethod
    def terminated(cls, *_):
        """Late, says `timeout`: server and daemon end with the test."""
        cls.doClassCleanups()
        unittest.doModuleCleanups()
        os._exit(1)

    @classmethod
    def end(cls):
        os.killpg(cls.process.pid, signal.SIGKILL)
        cls.process.wait()
