#!/usr/bin/env bash
# Is a retriever of own_corpus better than its start, on questions that people asked?
#   launch/own_documents.sh OUT COLLECTION... [-- flags of qac run]
# A COLLECTION is a folder in BEIR's layout with qrels/test.tsv, which measures BM25, the start, the
# retriever, their fusions and the index, and neither trains nor chooses. Seeds 0, 1 and 2; what is
# finished is not done again. The tables: OUT/COLLECTION/summary.md.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
[ "$#" -ge 2 ] || _fail "usage: launch/own_documents.sh OUT COLLECTION... [-- flags of qac run]"
out=$1
shift
collections=()
while [ "$#" -gt 0 ] && [ "$1" != "--" ]; do
    collections+=("$1")
    shift
done
[ "$#" -eq 0 ] || shift
for collection in "${collections[@]}"; do
    qac run own_corpus_grid --data_dir "$collection" --questions "$collection" \
        --out "$out/$(basename "$collection")" --budget small "$@"
done
