#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two OpenAI servers on one node: what the first computed, the second loads. Ctrl-C ends both.
#   ./two_engines.sh MODEL [vLLM's own flags ...]      # a model without a tokenizer: --skip-tokenizer-init
set -euo pipefail
model=$1
shift
share='{"kv_connector": "CisternConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"memory": "1GiB"}}'
trap 'kill $(jobs -p) 2>/dev/null' EXIT
for port in 8001 8002; do
  python -m vllm.entrypoints.openai.api_server --model "$model" --served-model-name m --port "$port" \
    --kv-transfer-config "$share" "$@" &
done
for port in 8001 8002; do
  curl --silent --retry 300 --retry-delay 1 --retry-connrefused "http://127.0.0.1:$port/health"
done
ask() {
  curl --silent "http://127.0.0.1:$1/v1/completions" -H 'Content-Type: application/json' -d "{\"model\": \"m\",
    \"prompt\": [$(seq -s, 3 900)], \"max_tokens\": 4, \"temperature\": 0}" |
    python3 -c 'import json, sys; a = json.load(sys.stdin); print(a.get("kv_transfer_params"), a["usage"])'
}
echo "the first engine computes:"
ask 8001
echo "the second loads:"
ask 8002
echo "both serve on; chat.py can talk to them"
wait
