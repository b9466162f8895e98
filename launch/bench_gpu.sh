#!/usr/bin/env bash
# Measures training steps, generation and encoding on this machine's accelerator in under ten minutes
# and prints one table; figures of each row as JSON go to out/bench_gpu. Needs no network and no
# TensorFlow: an environment with JAX for the accelerator, Flax, Optax, Orbax, numpy, tokenizers and
# safetensors, and small pure packages (gin-config, etils …) that may be unpacked in a folder:
#   launch/bench_gpu.sh                       # BERT-base, 2,048 pairs of 144/32 tokens a step
#   PACKAGES=wheels/unpacked launch/bench_gpu.sh
#   SMALL=1 launch/bench_gpu.sh               # tiny shapes, to try the script on a CPU
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PYTHONPATH="$PWD${PACKAGES:+:$PACKAGES}" TF_CPP_MIN_LOG_LEVEL=3
export JAX_COMPILATION_CACHE_DIR="${JAX_COMPILATION_CACHE_DIR:-$PWD/out/bench_gpu/compiled}"
out=out/bench_gpu
mkdir -p "$out"
rm -f "$out"/*.json
end=$((SECONDS + ${LIMIT:-580}))

shape=(--layers 12 --hidden 768 --pairs 2048 --microbatch 256)
passages=512
if [ -n "${SMALL:-}" ]; then
    shape=(--layers 1 --hidden 64 --vocabulary 512 --pairs 16 --microbatch 8)
    passages=4
fi

# measure NAME SECONDS BENCHMARK FLAGS…: a row, as long as there is time for it
measure() {
    local name=$1 limit=$2 left=$((end - SECONDS))
    shift 2
    if [ "$left" -lt 20 ]; then
        echo "not measured: no time left" >"$out/$name.failed"
        return
    fi
    rm -f "$out/$name.failed"
    timeout "$((limit < left ? limit : left))" python -m qac_jax.cli bench "$@" --json \
        >"$out/$name.log" 2>"$out/$name.err" && tail -n 1 "$out/$name.log" >"$out/$name.json" ||
        tail -n 1 "$out/$name.err" >"$out/$name.failed"
}

train=(pretrain "${shape[@]}" --scan --no-peer --contexts query --repetitions 3)
measure 1_cotmae_cudnn 150 "${train[@]}" --objective cotmae --dropout 0
measure 2_cotmae_cudnn_packed 150 "${train[@]}" --objective cotmae --dropout 0 --pack
measure 3_cotmae_dropout_packed 150 "${train[@]}" --objective cotmae --pack
measure 4_cocondenser_cudnn_packed 150 "${train[@]}" --objective cocondenser --dropout 0 --pack
measure 5_cocondenser_cudnn 150 "${train[@]}" --objective cocondenser --dropout 0
measure 6_generate_small 90 generate --peer none --passages "$passages" --repetitions 2
measure 7_encode 90 encode --passages "$((passages * 4))" --repetitions 2

python - "$out" <<'PYTHON'
import json, pathlib, sys

print("| row | step | pairs/s | TFLOP/s | MFU | memory |\n|---|---|---|---|---|---|")
folder = pathlib.Path(sys.argv[1])
names = sorted({p.stem for p in folder.iterdir() if p.suffix in (".json", ".failed")})
for name in names:
    path = folder / f"{name}.json"
    if not path.is_file():
        failed = (folder / f"{name}.failed").read_text().strip() or "no message"
        print(f"| {name} | not measured: {failed} | | | | |")
        continue
    figures = json.loads(path.read_text())
    found = next((v["passage_query"] for v in figures.values() if isinstance(v, dict)
                  and "passage_query" in v), None)
    if found is None:
        rates = {k: v for k, v in figures.items() if k.endswith("_per_second")}
        print(f"| {name} | " + ", ".join(f"{k}: {v:,.0f}" for k, v in rates.items()) + " | | | | |")
        continue
    cells = (f"{found['fastest_ms']:,.0f} ms", f"{found['examples_per_second']:,.0f}",
             f"{found['tflops']:,.1f}", f"{found.get('mfu', float('nan')):.1%}",
             f"{found.get('memory_bytes', 0) / 2**30:.1f} GiB")
    print(f"| {name} | " + " | ".join(cells) + " |")
PYTHON
