#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the small golden vectors of data/: inputs by a fixed seed, outputs in float64.

Straight from the formula of attention (see client/attnd.h's words and README.md for the files),
key by key, and on purpose without any code of attnd. Usage: generate.py DIR
"""
import json
import math
import os
import random
import struct
import sys

TOLERANCE = {"f32": (8e-6, 1e-4), "f16": (2.0**-9, 0.02), "bf16": (2.0**-6, 0.02)}


def round_to(x, dtype):
    """The nearest value of dtype (ties to even) as a float."""
    if dtype == "f16":
        return struct.unpack("<e", struct.pack("<e", x))[0]
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    if dtype == "bf16":
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def stored(x, case, scale):
    """What the pool keeps of x under a static int8 scale; other dtypes keep it as it is."""
    if case["kv_dtype"] != "int8":
        return x
    quotient = struct.unpack("<f", struct.pack("<f", x / scale))[0]
    return max(-127, min(127, round(quotient))) * scale


def visible(case, mask, i, j, keys, new):
    position = i + keys - new
    if case["causal"] and j > position:
        return False
    if case["sliding_window"] and j <= position - case["sliding_window"]:
        return False
    return mask is None or mask[i][j]


def attend(case, q, head, keys, values, seen, sink):
    """One row and head: out, bound, lse."""
    scores = {}
    for j in seen:
        s = case["sm_scale"] * math.fsum(a * b for a, b in zip(q, keys[j]))
        if case["logit_cap"] > 0:
            s = case["logit_cap"] * math.tanh(s / case["logit_cap"])
        scores[j] = s
    top = max(list(scores.values()) + ([sink] if sink is not None else []), default=-math.inf)
    if top == -math.inf:
        return [0.0] * case["head_dim_v"], [0.0] * case["head_dim_v"], top
    weights = {j: math.exp(s - top) for j, s in scores.items()}
    total = math.fsum(weights.values()) + (math.exp(sink - top) if sink is not None else 0)
    out = [math.fsum(w * values[j][d] for j, w in weights.items()) / total for d in range(case["head_dim_v"])]
    bound = [math.fsum(w * abs(values[j][d]) for j, w in weights.items()) / total for d in range(case["head_dim_v"])]
    return out, bound, top + math.log(total)


def tree_mask(rng, keys, new):
    """Each draft token sees the prefix, itself and the way up to a random parent."""
    rows = []
    for i in range(new):
        row = [True] * (keys - new) + [False] * new
        if i:
            parent = rng.randrange(i)
            row[keys - new:] = rows[parent][keys - new:]
        row[keys - new + i] = True
        rows.append(row)
    return rows


def write_floats(directory, name, values):
    with open(os.path.join(directory, name), "wb") as f:
        f.write(struct.pack(f"<{len(values)}f", *values))


def make(root, name, op, seq_lens, new_lens, **settings):
    case = {
        "name": name, "op": op, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "head_dim_v": 16,
        "sm_scale": 0.25, "logit_cap": 0.0, "sliding_window": 0, "causal": True, "q_dtype": "f32",
        "kv_dtype": "f32", "int8_mode": "none", "k_scale": 0.0, "v_scale": 0.0, "block_size": 16,
        "seq_lens": seq_lens, "extend_seq_lens": new_lens,
    }
    with_sinks, with_mask = settings.pop("sinks", False), settings.pop("mask", False)
    case.update(settings)
    case["tolerance"], case["lse_tolerance"] = TOLERANCE[case["q_dtype"]]
    rng = random.Random(name)
    heads, kv_heads, dim, dim_v = (case[x] for x in ("num_heads", "num_kv_heads", "head_dim", "head_dim_v"))
    group = heads // kv_heads

    def draw(count):
        return [round_to(rng.gauss(0, 1), case["q_dtype"]) for _ in range(count)]

    sinks = [round_to(rng.gauss(0, 1), "f32") for _ in range(heads)] if with_sinks else None
    files = {"q": [], "k": [], "v": [], "out": [], "bound": [], "lse": []}
    mask_bytes = bytearray()
    for keys, new in zip(seq_lens, new_lens):
        k = [[draw(dim) for _ in range(kv_heads)] for _ in range(keys)]
        v = [[draw(dim_v) for _ in range(kv_heads)] for _ in range(keys)]
        q = [[draw(dim) for _ in range(heads)] for _ in range(new)]
        mask = tree_mask(rng, keys, new) if with_mask else None
        for row in mask or []:
            mask_bytes.extend(row)
        files["k"] += [x for token in k for head in token for x in head]
        files["v"] += [x for token in v for head in token for x in head]
        files["q"] += [x for token in q for head in token for x in head]
        for i in range(new):
            seen = [j for j in range(keys) if visible(case, mask, i, j, keys, new)]
            for h in range(heads):
                kh = [[stored(x, case, case["k_scale"]) for x in token[h // group]] for token in k]
                vh = [[stored(x, case, case["v_scale"]) for x in token[h // group]] for token in v]
                out, bound, lse = attend(case, q[i][h], h, kh, vh, seen, sinks[h] if sinks else None)
                files["out"] += out
                files["bound"] += bound
                files["lse"].append(lse)

    directory = os.path.join(root, name)
    os.makedirs(directory, exist_ok=True)
    for file, values in files.items():
        write_floats(directory, file + ".f32", values)
    if sinks:
        write_floats(directory, "sinks.f32", sinks)
    if with_mask:
        with open(os.path.join(directory, "mask.u8"), "wb") as f:
            f.write(mask_bytes)
    with open(os.path.join(directory, "case.json"), "w", encoding="utf-8") as f:
        json.dump(case, f, indent=1)
        f.write("\n")


def main(root):
    half = {"q_dtype": "f16", "kv_dtype": "f16"}
    bf16 = {"q_dtype": "bf16", "kv_dtype": "bf16"}
    make(root, "decode-f32", "decode", [1, 17, 40], [1, 1, 1])
    make(root, "decode-f16-dim20", "decode", [33, 16], [1, 1], head_dim=20, head_dim_v=12, **half)
    make(root, "decode-bf16-window-sinks", "decode", [50, 3], [1, 1], sliding_window=9, sinks=True, **bf16)
    make(root, "decode-int8-static", "decode", [37], [1], kv_dtype="int8", int8_mode="static", k_scale=0.03125,
         v_scale=0.03125)
    make(root, "extend-f32-softcap", "extend", [35, 9], [18, 9], logit_cap=2.0, num_kv_heads=4)
    make(root, "extend-f16-window", "extend", [30, 20], [13, 20], sliding_window=5, **half)
    make(root, "extend-bf16-tree-mask", "extend", [40, 20], [12, 7], causal=False, mask=True, **bf16)
    make(root, "extend-f32-cross", "extend", [25, 12], [6, 12], causal=False)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
