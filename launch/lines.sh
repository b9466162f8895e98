#!/usr/bin/env bash
# Prints the size of the house: lines, files, verbs, gin files, words of documentation, tests.
# launch/lines.sh [REVISION]: of another revision, without its verbs and test cases.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
revision="${1:-}"

files() { # PATTERN…: the names of tracked files
    if [ -n "$revision" ]; then git ls-tree -r --name-only "$revision"; else git ls-files; fi | grep -E "$1" || true
}
text() { # reads names, writes the files' contents
    while read -r name; do if [ -n "$revision" ]; then git show "$revision:$name"; else cat "$name"; fi; done
}
row() { printf '%-28s %8s\n' "$1" "$2"; }

row 'lines of qac_jax' "$(files '^qac_jax/.*\.py$' | text | wc -l)"
row 'files of qac_jax' "$(files '^qac_jax/.*\.py$' | wc -l)"
row 'lines of tests' "$(files '^tests/.*\.py$' | text | wc -l)"
row 'gin files' "$(files '\.gin$' | grep -v '^tests/' | wc -l)"
row 'words of docs and README' "$(files '^(docs/.*|README)\.md$' | text | wc -w)"
if [ -z "$revision" ]; then
    source launch/setup.sh
    row 'verbs' "$(qac help all | grep -cE '^  [a-z]')"
    row 'test cases' "$(python -m pytest --collect-only -q -m '' 2> /dev/null | awk -F': ' '/^tests/ {n += $2} END {print n}')"
    echo
    for room in $(files '^qac_jax/.*\.py$' | xargs -n 1 dirname | sort -u); do
        row "$room" "$(files "^$room/[^/]*\.py$" | text | wc -l) lines, $(files "^$room/[^/]*\.py$" | wc -l) files"
    done
fi
