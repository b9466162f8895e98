#!/usr/bin/env bash
# Measures training steps, encoding and generation on this machine's GPU, each beside a peer on the
# same GPU, and prints one table; figures of each row as JSON go to out/bench_gpu (SMALL=1:
# out/bench_gpu_small). The limits of all rows are 15 minutes together; a call ends within ten, and
# the next one measures the rows that are missing. Needs no network and no TensorFlow: an environment
# with JAX for the GPU, Flax, Optax, Orbax, tokenizers and safetensors, for the peers PyTorch,
# transformers and sentence-transformers, and small packages (gin-config, bm25s, PyStemmer,
# zstandard) that may be unpacked in a folder:
#   launch/bench_gpu.sh                       # BERT-base, 2,048 pairs of 144/32 tokens a step
#   PACKAGES=wheels/unpacked launch/bench_gpu.sh
#   ROWS="1 3" launch/bench_gpu.sh            # some rows
#   FRESH=1 launch/bench_gpu.sh               # all rows again
#   SMALL=1 launch/bench_gpu.sh               # tiny shapes, to try the script on a CPU
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PYTHONPATH="$PWD${PACKAGES:+:$PACKAGES}" TF_CPP_MIN_LOG_LEVEL=3
export JAX_COMPILATION_CACHE_DIR="${JAX_COMPILATION_CACHE_DIR:-$PWD/out/bench_gpu/compiled}"
out=out/bench_gpu${SMALL:+_small}
mkdir -p "$out"
rm -f "$out"/*.failed
[ -z "${FRESH:-}" ] || rm -f "$out"/*.json
end=$((SECONDS + ${LIMIT:-580}))

shape=(--layers 12 --hidden 768 --batch 2048)
some=256 many=1024 chunk=128
texts=(--passages 8192 --shape base)
passages=128
if [ -n "${SMALL:-}" ]; then
    shape=(--layers 1 --hidden 64 --vocabulary 512 --batch 16)
    some=4 many=8 chunk=4
    texts=(--passages 16 --shape minilm --corpus gin)
    passages=4
fi

# measure NAME SECONDS BENCHMARK FLAGS…: a row, as long as there is time for it
measure() {
    local name=$1 limit=$2 left=$((end - SECONDS))
    shift 2
    [[ " ${ROWS:-${name%%_*}} " == *" ${name%%_*} "* ]] || return
    [ ! -s "$out/$name.json" ] || return
    if [ "$left" -lt 20 ]; then
        echo "no time left" >"$out/$name.failed"
        return
    fi
    timeout "$((limit < left ? limit : left))" python -m qac_jax.cli bench "$@" --json \
        >"$out/$name.log" 2>"$out/$name.err" && tail -n 1 "$out/$name.log" >"$out/$name.json" ||
        tail -n 1 "$out/$name.err" >"$out/$name.failed"
}

train=(train "${shape[@]}" --lengths msmarco --repetitions 3)
measure 1_cotmae 120 "${train[@]}" --pack --objective cotmae --microbatch "$some"
measure 2_cocondenser 140 "${train[@]}" --pack --objective cocondenser --microbatch "$chunk"
measure 3_encode 80 encode "${texts[@]}" --repetitions 3
measure 4_generate 90 generate --passages "$passages" --repetitions 1
measure 5_cotmae_without_dropout 60 "${train[@]}" --pack --objective cotmae --microbatch "$many" \
    --dropout 0 --no-peer
measure 6_cotmae_padded 60 "${train[@]}" --objective cotmae --microbatch "$some" --no-peer
measure 7_encode_unpadded_peer 80 encode "${texts[@]}" --repetitions 3 --peer flash
measure 8_cocondenser_without_dropout 140 "${train[@]}" --pack --objective cocondenser \
    --microbatch "$chunk" --dropout 0 --no-peer
measure 9_generate_ctranslate2 90 generate --passages "$passages" --repetitions 1 \
    --peer ctranslate2

python - "$out" <<'PYTHON'
import json, pathlib, sys

print("| row | ours, a second | peer | ratio | step | TFLOP/s | MFU | memory | compile |")
print("|---|---|---|---|---|---|---|---|---|")
folder = pathlib.Path(sys.argv[1])
names = sorted({p.stem for p in folder.iterdir() if p.suffix in (".json", ".failed")})
for name in names:
    path = folder / f"{name}.json"
    if not path.is_file():
        failed = (folder / f"{name}.failed").read_text().strip() or "no message"
        print(f"| {name} | not measured: {failed} | | | | | | | |")
        continue
    figures = json.loads(path.read_text())
    rates = [f"{v:,.0f}" for k, v in figures.items() if k.endswith("_per_second")]
    cells = [*rates, ""][:2] + [f"{figures['ratio']:.2f}" if "ratio" in figures else ""]
    if "step_ms" in figures:
        mfu = figures["mfu"]
        cells += [f"{figures['step_ms']:,.0f} ms", f"{figures['tflops']:,.1f}",
                  "" if mfu is None else f"{mfu:.1%}",
                  f"{figures['memory_bytes'] / 2**30:.1f} GiB",
                  f"{figures['compile_seconds']:.0f} s"]
    print(f"| {name} | " + " | ".join(cells + [""] * (8 - len(cells))) + " |")
PYTHON
