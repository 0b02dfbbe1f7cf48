# SPDX-License-Identifier: Apache-2.0
"""A model that knows by heart what SGLang's kits ask: a small Llama and its tokenizer, made in seconds.

In: the questions in the kits. Out: a checkpoint. Next: servers.py.

The kits want a trained model's answers. These come from weights that were fitted to nothing else: a
key of another row or a block that is lost gives other answers.
"""

import json

import kit

kit.without_gpu_packages()

import torch  # noqa: E402
from sglang.test.kits import matched_stop_kit as stop  # noqa: E402
from sglang.test.kits.basic_api_contract_kit import BasicAPIContractMixin as Contract  # noqa: E402
from sglang.test.kits.basic_decode_correctness_kit import BasicDecodeCorrectnessMixin as Decode  # noqa: E402
from sglang.test.kits.basic_scheduler_stress_kit import _CONCURRENT_PREFIX, _CONCURRENT_QA  # noqa: E402
from sglang.test.kits.ebnf_constrained_kit import EBNFConstrainedMixin as Ebnf  # noqa: E402
from sglang.test.kits.json_constrained_kit import JSONConstrainedMixin as Json  # noqa: E402
from sglang.test.kits.json_mode_kit import JSONModeMixin as JsonMode  # noqa: E402
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: E402

VOCABULARY = 32000  # the kits draw tokens from so many; the tokenizer has fewer
CONTEXT = 20480
SPECIAL = ["<pad>", "<s>", "</s>"]
END = 2  # one of those that the kits know
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
STORY = " Far in the north, above the fords of a river, a tower kept what others had read.\nIts lamps burned low.\n"
KNOWN = 0.01  # loss on the answers' tokens below which they are


def texts(test):
    """Those in a test of theirs, after its description."""
    return [c for c in test.__code__.co_consts[1:] if isinstance(c, str)]


def asked(test):
    """Its question, behind the grammars."""
    return next(t for t in texts(test) if t.endswith(":") and "\n" not in t)


def chat(system, user):
    return f"system: {system}\nuser: {user}\nassistant:"


def lessons():
    """(question, answer)."""
    for test, answer in (
        (Decode.test_capital_france, " Paris, on the river Seine.\n"),
        (Decode.test_basic_math, " 391\n"),
        (Decode.test_color_completion, " yellow\n"),
        (Decode.test_ascii_ratio, " Children ran over warm grass while kites stood high in the wind.\n"),
        (Decode.test_no_repetition_blowup, " It pulls every mass toward the others, and moons to their planets.\n"),
        (Decode.test_determinism_temp_zero, " Paris\n"),
        (Decode.test_max_token_one, " Paris\n"),
    ):
        yield texts(test)[0], answer
    yield next(t for t in texts(Contract.test_openai_completion) if t.endswith(" is")), " Paris\n"
    for question, answer in _CONCURRENT_QA:
        yield _CONCURRENT_PREFIX + question, f" {answer.title()}\n"

    ends = texts(stop.MatchedStopMixin.test_finish_stop_eos)
    helpful = next(t for t in texts(Json.test_json_openai) if t.startswith("You are"))
    yield stop.MANY_NEW_TOKENS_PROMPT, STORY
    yield chat(helpful, stop.MANY_NEW_TOKENS_PROMPT), STORY
    yield ends[0], " 4"
    yield chat(helpful, ends[-1]), " 4"

    schema, city = json.dumps(Json.json_schema), '{"name": "Paris", "population": 2100000}'
    question = next(t for t in texts(Json.test_json_openai) if t.endswith(": ")) + schema
    yield question, city
    yield chat(helpful, question), city
    brief, question = (t for t in texts(JsonMode.test_json_mode_response) if t.endswith((".", "?")) and t[0] in "YW")
    yield chat(brief, question), '{"capital": "Sofia"}'
    yield asked(Ebnf.test_ebnf_generate_complex_json), '{"name": "Ada", "age": 36, "city": "London"}'
    yield (
        asked(Ebnf.test_ebnf_generate_custom_log_format),
        "[2024-01-01T12:00:00Z] INFO: System.process - Operation ended successfully",
    )


def make_tokenizer(folder, pairs):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    fill = "the quick brown fox jumps over the lazy dog."  # the long prompt's
    trainer = trainers.BpeTrainer(
        vocab_size=2000, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    t.train_from_iterator([*(text for pair in pairs for text in pair), *[fill] * 9], trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=t, bos_token=SPECIAL[1], eos_token=SPECIAL[END])
    made.chat_template = TEMPLATE
    made.save_pretrained(folder)
    return made


def make(folder):
    """A checkpoint in `folder`."""
    pairs = list(lessons())
    tokenizer = make_tokenizer(folder, pairs)
    rows = [(tokenizer.encode(q), [*tokenizer.encode(a), END]) for q, a in pairs]
    longest = max(len(q) + len(a) for q, a in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    answers, whole = torch.full_like(ids, -100), torch.full_like(ids, -100)
    for i, (q, a) in enumerate(rows):
        n = len(q) + len(a)
        ids[i, :n] = whole[i, :n] = torch.tensor(q + a)
        answers[i, len(q) : n] = torch.tensor(a)

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=END,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config)
    steps = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0)
    for _ in range(400):
        logits = model(ids).logits[:, :-1].flatten(0, 1)
        loss, other = (torch.nn.functional.cross_entropy(logits, t[:, 1:].flatten()) for t in (answers, whole))
        if loss < KNOWN:
            break
        steps.zero_grad()
        (loss + 0.2 * other).backward()  # of questions, too, so that nothing but an answer ends
        steps.step()
    else:
        raise RuntimeError(f"it did not learn: {loss}")

    # Tokens that the tokenizer lacks may be asked about, but are no answers.
    inside, outside = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    large = torch.nn.Embedding(VOCABULARY, config.hidden_size)
    head = torch.nn.Linear(config.hidden_size, VOCABULARY, bias=False)
    with torch.no_grad():
        large.weight.normal_(std=float(inside.std()))
        large.weight[: len(inside)] = inside
        head.weight.zero_()
        head.weight[: len(outside)] = outside
    model.set_input_embeddings(large)
    model.set_output_embeddings(head)
    config.vocab_size = VOCABULARY
    model.save_pretrained(folder)
