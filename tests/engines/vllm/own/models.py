# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for the models that vLLM's own tests name: the same architectures, small and random.

In: a folder, a text. Out: in the folder, by the hub's names, weights (fixed seed) and a tokenizer of
bytes and what is frequent in the text. Next: own.sh runs the tests there, for a folder of that name
comes before the hub.
"""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast

SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]
PAD, BOS, EOS, _ = range(4)
VOCAB = 512

NAMES = {
    "facebook/opt-125m": dict(
        model_type="opt", word_embed_proj_dim=256, ffn_dim=512, max_position_embeddings=2048, do_layer_norm_before=True,
        dtype="float16",
    ),
    "JackFram/llama-160m": dict(model_type="llama", max_position_embeddings=2048, dtype="float32"),
    "meta-llama/Llama-3.2-1B-Instruct": dict(
        model_type="llama", num_key_value_heads=2, head_dim=64, max_position_embeddings=8192,
    ),
    "Qwen/Qwen3-0.6B": dict(model_type="qwen3", num_key_value_heads=2, head_dim=64, max_position_embeddings=2048),
    "google/gemma-3-1b-it": dict(
        model_type="gemma3_text", num_key_value_heads=1, head_dim=64, query_pre_attn_scalar=64,
        sliding_window=512, layer_types=["sliding_attention", "full_attention"], max_position_embeddings=16384,
    ),
}  # fmt: skip
COMMON = dict(
    hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4, vocab_size=VOCAB,
    tie_word_embeddings=False, dtype="bfloat16", pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS,
)  # fmt: skip


def tokenizer(text):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    t.train_from_iterator([text], trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=SPECIAL, initial_alphabet=letters))
    pad, bos, eos, unk = SPECIAL
    return PreTrainedTokenizerFast(tokenizer_object=t, pad_token=pad, bos_token=bos, eos_token=eos, unk_token=unk)


GAINS = {"lm_head": 3, "q_proj": 2, "k_proj": 2}  # what comes next depends on what came before


def model(config):
    torch.manual_seed(7)
    m = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, w in m.named_parameters():
            if w.dim() == 2:
                gain = GAINS.get(name.split(".")[-2], 1)
                w.normal_(0, 1 if "embed" in name else gain * w.shape[-1] ** -0.5)
        # What ends a sequence is never the likeliest token, unless nothing else is allowed.
        m.lm_head.weight[EOS] = 0
    return m


def write(folder, config, text):
    config = AutoConfig.for_model(**COMMON | config)
    m = model(config).to(config.dtype)
    m.generation_config = GenerationConfig(pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS)
    m.save_pretrained(folder)
    tokenizer(text).save_pretrained(folder)


if __name__ == "__main__":
    folder, text = map(Path, sys.argv[1:])
    for name, config in NAMES.items():
        write(folder / name, config, text.read_text())
