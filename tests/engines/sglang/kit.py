# SPDX-License-Identifier: Apache-2.0
"""What the tests of SGLang share: a daemon, engines that they command, the tiny model, its tokens.

In: BUILD, SRC. Out: `Daemon`, `Engine`, `tap`. Next: serve.py in a process of its own.
"""

import contextlib
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
import tap  # noqa: E402

HERE = Path(__file__).resolve().parent
MODEL = tap.SRC / "client/examples/model"
PLUGIN = Path(os.environ.get("PLUGIN") or tap.BUILD / "engines/sglang")  # where the package is installed
EVENT = "\x1e"
PATIENCE = 400  # seconds for what takes some on a machine that is busy

# Every scheduler checks its books at each step.
STRICT = {"SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1"}
RETRACT = {"SGLANG_TEST_RETRACT": "1"}


def environment(**more):
    """Of an engine: this tree's package and library, the stubs, cores shared with the daemon."""
    env = dict(os.environ)
    env["PYTHONPATH"] = os.pathsep.join([str(HERE / "stubs"), str(PLUGIN)])
    env.update(SGLANG_USE_CPU_ENGINE="1", HF_HUB_OFFLINE="1", ATTND_LIBRARY=str(tap.BUILD / "libattnd.so.0"))
    env.setdefault("ATTND_TWIN_WAIT", "600")  # a loaded machine is no twin that hangs
    env.update(more)
    return env


def without_gpu_packages():
    """Lets this process import SGLang, as engines' do."""
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    sys.path.insert(0, str(HERE / "stubs"))
    import sitecustomize

    if not any(type(f).__name__ == "_Finder" for f in sys.meta_path):
        sys.meta_path.append(sitecustomize._Finder())


class Daemon:
    """A daemon with a socket in a directory of its own."""

    def __init__(self, pool="256M", *flags):
        self.dir = Path(tempfile.mkdtemp(prefix="attnd-engines-"))
        self.socket = self.dir / "attnd.sock"
        self.flags = ["--pool-size", pool, *flags]
        self.process = None
        self.start()

    def start(self):
        env = {k: v for k, v in os.environ.items() if not k.startswith("ATTND_")}
        self.log = open(self.dir / "log", "a")
        self.process = subprocess.Popen(
            [os.environ["ATTND_DAEMON"], "--socket", str(self.socket), *self.flags],
            env=env,
            stderr=self.log,
            stdout=self.log,
        )
        until = time.monotonic() + PATIENCE
        while self.ctl("status", patience=0) is None:
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError((self.dir / "log").read_text())
            time.sleep(0.05)

    def stop(self, with_signal=signal.SIGTERM):
        self.process.send_signal(with_signal)
        self.process.wait()
        self.log.close()

    def ctl(self, *words, patience=60):
        """attnctl's answer, or None."""
        command = [str(tap.BUILD / "attnctl"), "--socket", str(self.socket), "--json", *words]
        until = time.monotonic() + patience
        while (r := subprocess.run(command, capture_output=True, text=True)).returncode:
            if time.monotonic() > until:  # until then it may be late on a machine that is busy
                return None
        return json.loads(r.stdout)

    def held(self):
        """(sessions, sequences, bytes referenced); of the last, what ends with an answer's last token ends soon after it."""
        until = time.monotonic() + 60
        while True:
            s = self.ctl("status")
            held = s["counters"]["sequences"], s["pool"]["bytes_referenced"]
            if not any(held) or time.monotonic() > until:
                return s["sessions"], *held
            time.sleep(0.01)

    def close(self):
        self.stop()
        shutil.rmtree(self.dir)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def arguments(**more):
    return {
        "model_path": str(MODEL),
        "skip_tokenizer_init": True,
        "device": "cpu",
        "dtype": "float32",
        "attention_backend": "attnd",
        "max_running_requests": 8,
        "max_total_tokens": 900,
        "mem_fraction_static": 0.3,
        "random_seed": 1,
        "skip_server_warmup": True,
        "sleep_on_idle": True,
        "log_level": "info",
        **more,
    }


class Engine:
    """An engine in its own process. `generate` returns a ticket at once, `wait` its result."""

    def __init__(self, daemon=None, env=None, **more):
        self.log = tempfile.NamedTemporaryFile("w+", prefix="sglang-", suffix=".log", delete=False)
        extra = {**({"ATTND_SOCKET": str(daemon.socket)} if daemon else {}), **(env or {})}
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "serve.py"), json.dumps(arguments(**more))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env=environment(**extra), start_new_session=True,
        )  # fmt: skip
        self.events = {}
        self.lock = threading.Lock()
        self.ready = threading.Event()
        self.next = 0
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _queue(self, id):
        with self.lock:
            return self.events.setdefault(id, queue.Queue())

    def _read(self):
        for line in self.process.stdout:
            if line.startswith(EVENT):
                event = json.loads(line[1:])
                if event["event"] == "ready":
                    self.ready.set()
                else:
                    self._queue(event["id"]).put(event)
        with self.lock:
            waiting = list(self.events.values())
        for q in waiting:
            q.put({"event": "failed", "error": "the engine has ended"})

    def up(self):
        """Wait until it serves."""
        until = time.monotonic() + PATIENCE
        while not self.ready.wait(0.2):
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the engine did not start:\n{self.text()[-4000:]}")
        return self

    def text(self):
        self.log.flush()
        return Path(self.log.name).read_text()

    def command(self, do, **arguments):
        self.next += 1
        self.process.stdin.write(json.dumps({"id": self.next, "do": do, **arguments}) + "\n")
        self.process.stdin.flush()
        return self.next

    def generate(self, prompt, n, **more):
        return self.command("generate", prompt=list(prompt), n=n, **more)

    def first(self, ticket):
        """Until its first token: how many tokens were cached."""
        return self._event(ticket, "first")["cached"]

    def wait(self, ticket):
        return self._event(ticket, "done")["result"]

    def _event(self, ticket, kind):
        while True:
            event = self._queue(ticket).get(timeout=PATIENCE)
            if event["event"] == "failed":
                raise RuntimeError(f"{event['error']}\n{self.text()[-6000:]}")
            if event["event"] == kind:
                return event

    def do(self, what, **arguments):
        return self.wait(self.command(what, **arguments))

    def batch(self, prompts, lengths):
        """All at once: their results."""
        tickets = [self.generate(p, n) for p, n in zip(prompts, lengths, strict=True)]
        return [self.wait(t) for t in tickets]

    def kill(self):
        """With its children, as the kernel would in want of memory."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            pass
        self.kill()
        self.reader.join()
        self.log.close()
        os.unlink(self.log.name)

    def __enter__(self):
        return self.up()

    def __exit__(self, *_):
        self.close()


def tokens(results):
    return [r["tokens"] for r in results]


def cases(seed=3, n=12, longest=60):
    """Prompts that share beginnings of all lengths, and how many tokens each is continued by."""
    rnd = random.Random(seed)
    base = [rnd.randrange(250) for _ in range(longest)]
    made = [
        base[: rnd.randrange(longest // 3, longest)]
        + [rnd.randrange(250) for _ in range(rnd.randrange(1, longest // 2))]
        for _ in range(n)
    ]
    return made, [24 + i % 5 for i in range(n)]
