#!/usr/bin/env bash
# A grid on a machine that is lent for minutes, with an accelerator and little software:
#   launch/evidence.sh bundle out/claim.qac claim_qac --data_dir DATA        here: one file
#   launch/evidence.sh run out/claim.qac --out out/slices --minutes 9        there, again and again
#   launch/evidence.sh merge out/claim.qac out/slices --out out/claim_table  here: the grid's table
# `bundle` does what needs no trained model, takes the arguments of `qac run`, and refuses more than
# 40 MiB (--most). `run` needs Python 3.11 or later with JAX, Flax, Optax, Orbax, tokenizers and
# safetensors, and no network; it uses the code in the bundle, stops in time, and leaves files of at
# most 16 MiB in --out, from which the next slice goes on (also elsewhere: --after DIR). Several
# machines share the cells by --share 0/2, --share 1/2; merge takes all of their folders.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

if [ "${1:-}" != run ]; then
    source "$here/setup.sh"
    exec python -m qac_jax.evidence "$@"
fi
shift
[ $# -gt 0 ] || { echo "evidence.sh: run needs a bundle; run BUNDLE --out RESULTS --minutes 9" >&2; exit 2; }
python="${QAC_PYTHON:-$(command -v python3 || command -v python)}"
code="$(mktemp -d)"
trap 'rm -rf "$code"' EXIT
"$python" - "$1" "$code" <<'PYTHON'
import os, sys, tarfile

try:
    with tarfile.open(sys.argv[1]) as tar:
        for member in tar:
            if member.isreg() and member.name.startswith("code/") and ".." not in member.name:
                path = os.path.join(sys.argv[2], member.name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "wb") as file:
                    file.write(tar.extractfile(member).read())
except (OSError, tarfile.TarError) as error:
    sys.exit(f"evidence.sh: {sys.argv[1]} cannot be read as a bundle ({error}); copy it again")
PYTHON
PYTHONPATH="$code/code${PYTHONPATH:+:$PYTHONPATH}" TF_CPP_MIN_LOG_LEVEL=3 \
    "$python" -m qac_jax.evidence run "$@"
