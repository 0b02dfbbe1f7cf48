#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Tests of vLLM's own suite: with the plug-in installed and not chosen, then with it chosen. In: vLLM's
# environment, where the package is installed; the source distribution, which is fetched once. Out:
# pytest's. They need no weights from elsewhere.
set -eu

venv=$1 plugin=$(realpath "$2") own=$venv-own
vllm=0.32.0

if [ ! -e "$own/done-$vllm" ]; then
	rm -rf "$own"
	mkdir -p "$own/tmp"
	"$venv/bin/pip" install -q --no-deps --target "$own/pytest" pytest pluggy iniconfig pytest-asyncio pytest-timeout tblib
	# Its build is not wanted and may fail: what was fetched for it is.
	TMPDIR="$own/tmp" VLLM_TARGET_DEVICE=empty "$venv/bin/pip" download -q --no-clean --no-deps --no-binary vllm \
		--no-build-isolation "vllm==$vllm" -d "$own/tmp" >"$own/pip.log" 2>&1 || true
	tree=$(find "$own/tmp" -mindepth 2 -maxdepth 2 -type d -name 'vllm_*')
	[ -d "$tree/tests" ] || { cat "$own/pip.log" && exit 1; }
	mkdir -p "$own/vllm-$vllm"
	mv "$tree/tests" "$tree/pyproject.toml" "$own/vllm-$vllm"
	rm -rf "$own/tmp"
	touch "$own/done-$vllm"
fi

here=$PWD/tests/engines/vllm
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_CPU_OMP_THREADS_BIND=nobind OMP_WAIT_POLICY=passive
py_test() {
	"$venv/bin/python" -m pytest -q -p no:cacheprovider --timeout 1500 "$@"
}
status=0

# Not chosen.
cd "$own/vllm-$vllm"
# They read this model's configuration, no more of it: a folder here comes before the hub.
mkdir -p facebook/opt-125m
cat >facebook/opt-125m/config.json <<-'END'
	{"architectures": ["OPTForCausalLM"], "model_type": "opt", "torch_dtype": "float16", "vocab_size": 50272,
	 "hidden_size": 768, "word_embed_proj_dim": 768, "ffn_dim": 3072, "num_hidden_layers": 12,
	 "num_attention_heads": 12, "max_position_embeddings": 2048, "do_layer_norm_before": true}
	END
t=tests unit=tests/v1/kv_connector/unit
PYTHONPATH="$plugin:$own/pytest" py_test \
	$t/test_attention_backend_registry.py $t/v1/test_kv_cache_spec_registry.py $t/v1/engine/test_kv_transfer_rejection.py \
	$unit/test_output_aggregator.py $unit/test_kv_connector_lifecycle.py $unit/test_kv_load_failure_recovery.py \
	$unit/test_hma_auto_config.py $unit/test_scheduler_kv_connector_override.py $unit/test_invalid_blocks_correctness.py \
	$t/v1/attention/test_group_sliding_window.py $t/v1/attention/test_group_head_counts.py \
	$t/v1/attention/test_backend_per_kind.py $t/v1/attention/test_batch_reordering.py || status=1

# Chosen, with small random models in the place of those that they name. Left out:
# - test_v2_speculator_smoke: EAGLE, MTP and draft models are refused;
# - test_sliding_window_retrieval: the model must know the answers;
# - v1/engine/test_abort_final_step.py: it brings a KV connector of its own, which is refused, and is for
#   CUDA; test_tokens.py has the same with attnd's.
rm -rf "$own/models"
"$venv/bin/python" "$here/own/models.py" "$own/models" $t/prompts/example.txt >"$own/models.log" 2>&1 ||
	{ cat "$own/models.log" && exit 1; }
cd "$own/models"
t=$own/vllm-$vllm/tests
chosen() {
	PYTHONPATH="$plugin:$own/pytest:$here:$here/own" VLLM_ENABLE_V1_MULTIPROCESSING=1 py_test -p chosen -p cpu_attn "$@"
}
chosen "$t/kernels/attention/test_cpu_attn.py" "$t/v1/e2e/general/test_correctness_sliding_window.py" \
	"$t/v1/e2e/general/test_context_length.py" "$t/v1/e2e/general/test_min_tokens.py" \
	"$t/v1/engine/test_llm_engine.py" "$t/v1/engine/test_parallel_sampling.py" \
	-k "not test_sliding_window_retrieval" || status=1
# Alone: it sets VLLM_CPU_KVCACHE_SPACE, which goes before what others ask for.
chosen "$t/v1/e2e/test_cpu_spec_decode.py" -k "not test_v2_speculator_smoke" || status=1
exit $status
