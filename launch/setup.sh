# Sourced by the launch scripts: makes .venv if absent, installs exactly launch/constraints-3.11.txt, or
# with a newer Python constraints-3.12.txt, and puts its programs on PATH. A second call finds the stamp and does nothing. QAC_WITH_DEV=1 adds
# what the tests use, QAC_WITH_BENCH=1 what .ci/run adds: peers of benchmarks, mkdocs.
set -euo pipefail

QAC_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
QAC_VENV="$QAC_ROOT/.venv"

_say() { printf '%s\n' "$*" >&2; }
_fail() { _say "launch: $*"; exit 2; }

_find_python() {
    local candidate
    for candidate in "${QAC_PYTHON:-}" python3.11 python3.12 python3.13 python3 python; do
        [ -n "$candidate" ] || continue
        if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
            >/dev/null 2>&1; then
            printf '%s' "$candidate"
            return
        fi
    done
    return 1
}

_make_venv() {
    local python
    python="$(_find_python)" ||
        _fail "no Python 3.11, 3.12 or 3.13 on this machine; install one, or name it in QAC_PYTHON"
    "$python" -c 'import ensurepip, venv' >/dev/null 2>&1 ||
        _fail "$python has no venv or pip; install them (Debian: apt-get install python3-venv)"
    _say "making .venv with $("$python" --version)"
    "$python" -m venv "$QAC_VENV"
}

# What is installed: the pins, the project's metadata and the sets asked for.
_stamp() {
    cat "$QAC_ROOT/pyproject.toml" "$QAC_ROOT"/launch/constraints*.txt | cksum
}

_pip() {
    "$QAC_VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "$@"
}

# _install NAME CONSTRAINTS: one set of pins, unless its stamp is there already.
_install() {
    local stamp="$QAC_VENV/.installed-$1"
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(_stamp)" ] && return
    case "$(uname -s)-$(uname -m)" in
        Linux-x86_64 | Linux-aarch64 | Darwin-arm64) ;;
        *) _fail "$(uname -s) on $(uname -m) is not supported; JAX has wheels for Linux (x86-64, aarch64) and macOS (arm64)" ;;
    esac
    _say "installing $(grep -c == "$2") packages of $(basename "$2") (a few minutes, once)"
    # What packages that come as their source are built with goes first.
    _pip --require-hashes -r <(grep -hE '^(setuptools|wheel|packaging)==' "$QAC_PINS.txt") &&
        _pip --require-hashes -r "$2" ||
        _fail "the packages could not be installed; check the network and run this again"
    if [ "$1" = base ]; then
        _pip --no-build-isolation --editable "$QAC_ROOT" ||
            _fail "the project itself could not be installed; see the lines above"
    fi
    _stamp >"$stamp"
}

[ -x "$QAC_VENV/bin/python" ] || _make_venv
QAC_PINS="$QAC_ROOT/launch/constraints-3.12"
! "$QAC_VENV/bin/python" -c 'import sys; sys.exit(sys.version_info >= (3, 12))' || QAC_PINS="$QAC_ROOT/launch/constraints-3.11"
_install base "$QAC_PINS.txt"
if [ "${QAC_WITH_DEV:-}" = 1 ]; then
    _install dev "$QAC_PINS-dev.txt"
fi
if [ "${QAC_WITH_BENCH:-}" = 1 ]; then
    _install bench "$QAC_PINS-bench.txt"
fi
export PATH="$QAC_VENV/bin:$PATH"
