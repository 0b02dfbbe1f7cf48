# SPDX-License-Identifier: Apache-2.0
"""What vLLM's tests and bench share: a daemon to kill, small random models, engines in this process.

In: BUILD and SRC. Out: tokens, and what the daemon holds. Next: the test files.

Import it before vllm: it sets the environment.
"""

import atexit
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SRC = Path(os.environ.get("SRC") or Path(__file__).resolve().parents[3])
BUILD = Path(os.environ.get("BUILD") or SRC / "build")
sys.path.insert(0, str(SRC / "tests/python"))
_installed = os.environ.get("PYTHONPATH", "")
import tap  # noqa: E402, F401

os.environ["PYTHONPATH"] = _installed  # the package with its entry points; tap wants the tree's

_INHERITED = "KIT_WORK" in os.environ
WORK = Path(os.environ.get("KIT_WORK") or tempfile.mkdtemp(prefix="attnd-vllm-"))
MODELS = BUILD / "engines/models"  # kept: they are always the same
TINY = SRC / "client/examples/model"

os.environ.setdefault("ATTND_TWIN_WAIT", "600")  # a loaded machine is no twin that hangs
os.environ.setdefault("ATTND_LIBRARY", str(BUILD / "libattnd.so.0"))
os.environ["ATTND_SOCKET"] = str(WORK / "attnd.sock")
for name, value in {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "2",
    "OMP_WAIT_POLICY": "passive",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_CACHE_ROOT": str(BUILD / "engines/cache"),
    "VLLM_CONFIG_ROOT": str(WORK / "config"),
}.items():
    os.environ.setdefault(name, value)


os.environ["KIT_WORK"] = str(WORK)  # of programs that tests start
_PARENT = os.getpid()


@atexit.register
def _clean_up():
    if os.getpid() == _PARENT and not _INHERITED:
        shutil.rmtree(WORK, ignore_errors=True)


class Daemon:
    """The daemon that the engines find by ATTND_SOCKET."""

    def __init__(self, *flags):
        self.flags = flags
        self.process = None
        self.log = open(WORK / "daemon.log", "ab")  # noqa: SIM115

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self):
        env = {k: v for k, v in os.environ.items() if not k.startswith("ATTND_") and k != "LD_PRELOAD"}
        self.process = subprocess.Popen(
            [BUILD / "attnd", "--socket", os.environ["ATTND_SOCKET"], *self.flags], env=env, stdout=self.log, stderr=self.log
        )
        until = time.monotonic() + 200  # a large pool, a machine that is busy
        while self.ask("status", patience=0) is None:
            assert self.process.poll() is None and time.monotonic() < until, (WORK / "daemon.log").read_text()
            time.sleep(0.05)

    def stop(self, how=signal.SIGTERM):
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(30)
            self.process = None

    def restart(self):
        self.stop(signal.SIGKILL)
        self.start()

    def ask(self, command, patience=60):
        """attnctl's answer, or None."""
        words = [BUILD / "attnctl", "--socket", os.environ["ATTND_SOCKET"], "--json", command]
        until = time.monotonic() + patience
        while (got := subprocess.run(words, capture_output=True, text=True)).returncode:
            if time.monotonic() > until:  # until then it may be late on a machine that is busy
                return None
        return json.loads(got.stdout)


# ---- Models ----

LAYERS, HEADS, KV_HEADS, DIM, HIDDEN, VOCAB, FF = 4, 4, 2, 64, 256, 256, 512


def llama(name="llama", seed=7, **config):
    """A random Llama, or what `config` makes of it; its directory."""
    base = dict(
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        hidden_size=HIDDEN,
        intermediate_size=FF,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=DIM,
        vocab_size=VOCAB,
        max_position_embeddings=16384,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        hidden_act="silu",
        tie_word_embeddings=False,
        torch_dtype="float32",
        bos_token_id=1,
        eos_token_id=2,
    )
    return _write(name, base | config, seed)


def _write(name, config, seed):
    import torch
    from safetensors.torch import save_file

    folder = MODELS / name
    if (folder / "config.json").exists():
        return str(folder)
    folder.mkdir(parents=True, exist_ok=True)
    g = torch.Generator().manual_seed(seed)

    def r(*shape, k=1.0):
        return torch.randn(*shape, generator=g) * k / shape[-1] ** 0.5

    hidden, ff, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    gemma = config["model_type"] == "gemma2"
    w = {"model.embed_tokens.weight": torch.randn(VOCAB, hidden, generator=g), "model.norm.weight": torch.ones(hidden)}
    if not config["tie_word_embeddings"]:
        w["lm_head.weight"] = r(VOCAB, hidden, k=3)
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        w |= {
            p + "self_attn.q_proj.weight": r(heads * dim, hidden, k=2),
            p + "self_attn.k_proj.weight": r(kv * dim, hidden, k=2),
            p + "self_attn.v_proj.weight": r(kv * dim, hidden),
            p + "self_attn.o_proj.weight": r(hidden, heads * dim),
            p + "mlp.gate_proj.weight": r(ff, hidden),
            p + "mlp.up_proj.weight": r(ff, hidden),
            p + "mlp.down_proj.weight": r(hidden, ff),
            p + "input_layernorm.weight": torch.ones(hidden),
            p + "post_attention_layernorm.weight": torch.ones(hidden),
        }
        if gemma:
            w |= {p + f"{x}_feedforward_layernorm.weight": torch.ones(hidden) for x in ("pre", "post")}
    kind = getattr(torch, config["torch_dtype"])
    save_file({k: t.to(kind) for k, t in w.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def mistral():
    return llama("mistral", architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=32)


def gemma2():
    """Windows in every second layer, capped scores."""
    return llama(
        "gemma2", architectures=["Gemma2ForCausalLM"], model_type="gemma2", sliding_window=24, attn_logit_softcapping=2.0,
        final_logit_softcapping=None, query_pre_attn_scalar=DIM, hidden_activation="gelu_pytorch_tanh",
        tie_word_embeddings=True, layer_types=["sliding_attention", "full_attention"] * (LAYERS // 2),
    )  # fmt: skip


def bloom(seed=3):
    """Slopes by head."""
    import torch
    from safetensors.torch import save_file

    folder = MODELS / "bloom"
    if (folder / "config.json").exists():
        return str(folder)
    folder.mkdir(parents=True, exist_ok=True)
    g = torch.Generator().manual_seed(seed)

    def r(*shape, k=1.0):
        return torch.randn(*shape, generator=g) * k / shape[-1] ** 0.5

    def norm(p):
        return {p + "weight": torch.ones(HIDDEN), p + "bias": torch.zeros(HIDDEN)}

    w = {"word_embeddings.weight": torch.randn(VOCAB, HIDDEN, generator=g)}
    w |= norm("word_embeddings_layernorm.") | norm("ln_f.")
    for i in range(LAYERS):
        p = f"h.{i}."
        w |= norm(p + "input_layernorm.") | norm(p + "post_attention_layernorm.")
        for name, shape in {
            "self_attention.query_key_value": (3 * HIDDEN, HIDDEN),
            "self_attention.dense": (HIDDEN, HIDDEN),
            "mlp.dense_h_to_4h": (4 * HIDDEN, HIDDEN),
            "mlp.dense_4h_to_h": (HIDDEN, 4 * HIDDEN),
        }.items():
            w |= {p + name + ".weight": r(*shape, k=2), p + name + ".bias": torch.zeros(shape[0])}
    config = dict(
        architectures=["BloomForCausalLM"], model_type="bloom", hidden_size=HIDDEN, n_layer=LAYERS, n_head=HEADS,
        vocab_size=VOCAB, layer_norm_epsilon=1e-5, torch_dtype="float32", bos_token_id=1, eos_token_id=2, seq_length=2048,
    )  # fmt: skip
    save_file(w, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def adapter(name, seed):
    """A LoRA for `llama()`."""
    import torch
    from safetensors.torch import save_file

    folder = MODELS / name
    folder.mkdir(parents=True, exist_ok=True)
    g = torch.Generator().manual_seed(seed)
    w = {}
    for i in range(LAYERS):
        for m, rows in (("q_proj", HEADS * DIM), ("v_proj", KV_HEADS * DIM)):
            p = f"base_model.model.model.layers.{i}.self_attn.{m}."
            w[p + "lora_A.weight"] = torch.randn(8, HIDDEN, generator=g) / 16
            w[p + "lora_B.weight"] = torch.randn(rows, 8, generator=g) / 4
    save_file(w, folder / "adapter_model.safetensors")
    config = dict(peft_type="LORA", r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], bias="none", task_type="CAUSAL_LM")
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return str(folder)


# ---- Engines ----


def arguments(model, backend=None, **more):
    args = dict(
        model=model, skip_tokenizer_init=True, enforce_eager=True, dtype="float32", max_model_len=512, max_num_seqs=8,
        max_num_batched_tokens=128, seed=0, kv_cache_memory_bytes=64 << 20, disable_log_stats=False,
    )  # fmt: skip
    if backend:
        args["attention_backend"] = backend
    return args | more


class Engine:
    """An LLMEngine stepped by hand."""

    def __init__(self, model, backend="ATTND", core=True, **more):
        from vllm import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        self.llm = LLMEngine.from_engine_args(EngineArgs(**arguments(model, backend, **more)))
        self.core = self.llm.engine_core.engine_core if core else None  # in this process
        self.scheduler = self.core.scheduler if core else None
        self.tokens, self.cached = {}, {}
        self.steps = 0

    def add(self, name, prompt, n=16, salt=None, lora=None, **sampling):
        from vllm import SamplingParams

        p = dict(prompt_token_ids=list(prompt))
        if salt:
            p["cache_salt"] = salt
        s = SamplingParams(**{"temperature": 0, "max_tokens": n, "ignore_eos": True, "detokenize": False} | sampling)
        self.llm.add_request(name, p, s, lora_request=lora)

    def step(self):
        self.steps += 1
        outputs = self.llm.step()
        for o in outputs:
            self.tokens[o.request_id] = list(o.outputs[0].token_ids)
            self.cached[o.request_id] = o.num_cached_tokens
        return outputs

    def run(self, limit=10000):
        while self.llm.has_unfinished_requests():
            self.step()
            limit -= 1
            assert limit, "requests do not end"

    def generate(self, prompts, n=16, **more):
        """Tokens of each, and how many of each prompt were cached."""
        names = [f"{self.steps}.{i}" for i in range(len(prompts))]
        for name, p in zip(names, prompts, strict=True):
            self.add(name, p, n, **more)
        self.run()
        return [self.tokens[x] for x in names], [self.cached[x] for x in names]

    def close(self):
        import gc

        from vllm.distributed import cleanup_dist_env_and_memory
        from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown
        from vllm.platforms import current_platform

        # Once is enough, and the second time it stumbles over numba's modules.
        type(current_platform).register_triton_kernel_overrides = classmethod(lambda cls: None)
        self.llm.engine_core.shutdown()
        ensure_kv_transfer_shutdown()
        self.llm = self.core = self.scheduler = None
        gc.collect()
        cleanup_dist_env_and_memory()


@contextlib.contextmanager
def engine(*args, **kw):
    e = Engine(*args, **kw)
    try:
        yield e
    finally:
        e.close()


_PLAIN = {}


def plain(model, prompts, n=16, **kw):
    """Tokens of vLLM's own CPU attention."""
    key = json.dumps([model, prompts, n, kw], default=str)
    if key not in _PLAIN:
        with engine(model, None, **kw) as e:
            _PLAIN[key] = e.generate(prompts, n)[0]
    return _PLAIN[key]


PRE = [(i * 37 + 11) % 253 + 3 for i in range(150)]
MIX = [PRE + [5, 6, 7], PRE[:100] + [9] * 5, [8, 9, 10], PRE + [5, 6, 7, *range(20, 60)]]
MANY = [PRE[: 40 + 13 * i] + [3 + i] * 5 for i in range(8)]
