#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# attnd-runner without a daemon: its text against the model's expected one, and every way to
# misuse it. In: $BUILD/attnd-runner. Out: TAP. Next: prove.
set -u
runner=$BUILD/attnd-runner
examples=$SRC/client/examples
model=$examples/model
here=$SRC/tests/runner
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
n=0

result() { # status, text
	n=$((n + 1))
	if [ "$1" = 0 ]; then echo "ok $n - $2"; else echo "not ok $n - $2"; fi
}

# The model's own texts come out.
expected() { # text, options...
	local text=$1 said
	shift
	said=$("$runner" --model "$model" --local --json "$@" --prompts "$model/prompts.jsonl" >"$tmp/got" 2>&1 &&
		"$examples/compare-runs" "$model/expected.jsonl" "$tmp/got" 2>&1)
	result $? "$text"
	[ -z "$said" ] || sed 's/^/# /' <<<"$said"
}

# It exits with `status` and one line that says `words`.
refused() { # status, words, text, options...
	local status=$1 words=$2 text=$3 got
	shift 3
	"$runner" "$@" >"$tmp/out" 2>"$tmp/err"
	got=$?
	[ $got = "$status" ] && grep -q -- "$words" "$tmp/err" && [ "$(wc -l <"$tmp/err")" -eq 1 ] && [ ! -s "$tmp/out" ]
	result $? "$text"
	[ $got = "$status" ] && grep -q -- "$words" "$tmp/err" || sed "s/^/# exit $got: /" "$tmp/err"
}

expected 'greedy text is the expected one'
expected 'in chunks of 100, three at a time' --chunk 100 --batch 3
expected 'with an f16 store' --kv-dtype f16

draw() { "$runner" --model "$model" --local --json --prompt 'The default is ' --temperature 0.9 --seed "$1" | grep -o '"text":.*'; }
[ "$(draw 1 | cut -d, -f1)" = "$(draw 1 | cut -d, -f1)" ]
result $? 'a seed draws the same text again'
[ "$(draw 1 | cut -d, -f1)" != "$(draw 2 | cut -d, -f1)" ]
result $? 'another seed draws another'

"$runner" --model "$model" --local --max-new 5 --prompt 'The default is ' >"$tmp/out" && grep -q 'reused tokens' "$tmp/out" &&
	awk 'END { exit !($2 == 15 && $3 == 0 && $4 == 5) }' "$tmp/out"
result $? 'one prompt: its text, then the table'
"$runner" --model "$model" --local --max-new 50 --json --prompt "$(printf 'x%.0s' {1..1000})" >"$tmp/out" &&
	[ "$(grep -o '"tokens":\[[^]]*' "$tmp/out" | tr -cd , | wc -c)" = 23 ]
result $? 'text ends with the last position'
"$runner" --help | grep -q -- --kv-dtype
result $? '--help'

local_run=(--model "$model" --local)
refused 2 '--model' 'no model' --prompt x
refused 2 'one of --prompt and --prompts' 'no prompt' "${local_run[@]}"
refused 2 'one of --prompt and --prompts' 'two kinds of prompt' "${local_run[@]}" --prompt x --prompts y
refused 2 'exclude' 'a socket for --local' "${local_run[@]}" --prompt x --socket /tmp/x
refused 2 'frobnicate' 'an unknown option' "${local_run[@]}" --prompt x --frobnicate
refused 2 'no arguments but options' 'a stray argument' "${local_run[@]}" --prompt x y
for pair in '--chunk 0' '--chunk -1' '--chunk 1x' '--max-new 99999999999999999999' '--batch 0' '--temperature nan' \
	'--temperature -1' '--kv-dtype int8' '--seed x'; do
	# shellcheck disable=SC2086
	refused 2 "${pair% *}: \"${pair#* }\" is not " "$pair" "${local_run[@]}" --prompt x $pair
done

refused 1 'prompt 1 is empty' 'an empty prompt' "${local_run[@]}" --prompt ''
refused 1 'takes up to 1023' 'too long a prompt' "${local_run[@]}" --prompt "$(printf 'x%.0s' {1..1024})"
refused 1 'No such file' 'no prompts file' "${local_run[@]}" --prompts "$tmp/none"
printf '"good"\n{"prompt": 1}\n' >"$tmp/prompts"
refused 1 'prompts:2: not a JSON string' 'an object among prompts' "${local_run[@]}" --prompts "$tmp/prompts"
printf '"good"\n\n"open\n' >"$tmp/prompts"
refused 1 'prompts:3: not a JSON string' 'a broken line among prompts' "${local_run[@]}" --prompts "$tmp/prompts"
: >"$tmp/prompts"
refused 1 'no prompts' 'an empty prompts file' "${local_run[@]}" --prompts "$tmp/prompts"
refused 1 'no connection to the daemon' 'no daemon' --model "$model" --prompt x --socket "$tmp/none"

refused 1 'no model in' 'no model directory' --local --prompt x --model "$tmp/none"
mkdir "$tmp/bad" && cp "$model/config.json" "$tmp/bad"
refused 1 'model.safetensors: No such file' 'no weights' --local --prompt x --model "$tmp/bad"
broken() { # fault, words
	"$here/break-model" "$1" "$model" "$tmp/$1"
	refused 1 "$2" "weights: $1" --local --prompt x --model "$tmp/$1"
	rm -rf "${tmp:?}/$1"
}
broken missing-tensor 'up_proj.weight is missing'
broken wrong-shape 'must be \[704, 256\]'
broken shape-overflow 'does not fit'
broken negative-shape 'bad shape'
broken offsets-overflow 'truncated'
broken offsets-backwards 'bad data_offsets'
broken offsets-missing 'bad data_offsets'
broken unknown-dtype 'unknown dtype F13'
broken integer-dtype 'has dtype I16'
broken truncated-data 'the file is truncated'
broken truncated-header 'truncated or not safetensors'
broken huge-header 'truncated or not safetensors'
broken bad-json 'bad header'
broken empty 'not a safetensors file'

config() { # sed program, words
	mkdir -p "$tmp/config"
	ln -sf "$model/model.safetensors" "$tmp/config/"
	sed "$1" "$model/config.json" >"$tmp/config/config.json"
	refused 1 "$2" "config: $1" --local --prompt x --model "$tmp/config"
}
config 's/256,/257,/' 'vocab_size'
config 's/"hidden_size": 256/"hidden_size": "x"/' 'hidden_size'
config 's/"llama"/"gpt2"/' 'model_type'
config 's/"silu"/"gelu"/' 'hidden_act'
config 's/"head_dim": 64/"head_dim": 63/' 'head_dim must be even'
config 's/"num_key_value_heads": 2/"num_key_value_heads": 3/' 'multiple'
config 's/10000.0/-1/' 'rope_theta'
config 's/{/[/' 'config.json:'
echo "1..$n"
