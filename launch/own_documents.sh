#!/usr/bin/env bash
# Is a retriever of own_corpus better than its start, on questions that people asked?
#   launch/own_documents.sh OUT COLLECTION... [-- flags of qac run]
# A COLLECTION is a folder in BEIR's layout with qrels/test.tsv. The run sees its corpus.jsonl alone;
# its judged test questions then measure BM25, the start, the retriever and their fusions. Seeds 0, 1
# and 2 (or those in SEEDS); what is finished is not done again, and what no seed changes (BM25, the
# start's vectors) is done once for all of them. The table: OUT/own_documents.md.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
[ "$#" -ge 2 ] || _fail "usage: launch/own_documents.sh OUT COLLECTION... [-- flags of qac run]"
out=$1
shift
collections=()
while [ "$#" -gt 0 ] && [ "$1" != "--" ]; do
    [ -f "$1/corpus.jsonl" ] && [ -f "$1/qrels/test.tsv" ] ||
        _fail "$1 is not a folder in BEIR's layout with qrels/test.tsv"
    collections+=("$(cd "$1" && pwd)")
    shift
done
[ "$#" -eq 0 ] || shift
for seed in ${SEEDS:-0 1 2}; do
    for collection in "${collections[@]}"; do
        name=$(basename "$collection")
        alone=$out/$name/alone
        run=$out/$name/seed_$seed
        mkdir -p "$alone" "$run"
        ln -sfn "$collection/corpus.jsonl" "$alone/corpus.jsonl"
        asked=$out/$name/questions.jsonl
        [ -f "$asked" ] || python "$QAC_ROOT/launch/own_documents.py" questions "$collection" "$asked"
        for stage in bm25 vectors_start index_start; do
            for known in "$out/$name"/seed_*/$stage; do
                [ -f "$known/artifact.json" ] && [ ! -e "$run/$stage" ] || continue
                rm -rf "$run/$stage.part"
                cp -a "$known" "$run/$stage.part" && mv "$run/$stage.part" "$run/$stage"
            done
        done
        qac run own_corpus --data_dir "$alone" --out "$run" --budget small --gin.SEED="$seed" "$@"
        for system in bm25 index_start hybrid_start index_1 hybrid_1 index; do
            [ ! -f "$run/judged/$system.trec" ] || continue
            mkdir -p "$run/judged"
            qac search --index "$run/$system" --queries "$asked" --k 100 --out "$run/searched/$system"
            cp "$run/searched/$system/run.trec" "$run/judged/$system.trec"
        done
    done
    python "$QAC_ROOT/launch/own_documents.py" table "$out" "${collections[@]}"
done
