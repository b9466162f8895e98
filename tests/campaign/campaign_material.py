"""What a campaign attacks: forty made-up passages, and commands that turn them into a search."""

from __future__ import annotations

import json
import random
from pathlib import Path


PLACES = "mill harbour library station orchard bridge tower market garden quarry".split()
THINGS = "barley lanterns letters coal apples stones bells cloth roses slate".split()
NAMES = "Ada Bela Cora Dina Edda Fina Gita Hana Ines Jana".split()

_JUDGED = "--queries mine/queries.jsonl --qrels mine/qrels/train.tsv"
_STEPS = "--steps 4 --batch_size 8 --microbatch 0 --save_every 2 --log_every 2"
_TINY = "--gin_file models/bert_tiny.gin --gin.bert.BertConfig.num_layers=1"

# Name -> the command, whose inputs are below ref/. The order is that of their dependencies.
COMMANDS = {
    "passages": "prepare --format beir --documents mine",
    "vocabulary": "prepare --format beir --documents mine --train_vocab 200",
    "contexts": "extract --passages ref/passages --method bm25 --keep 3",
    "words": "tokenize --passages ref/passages --task mlm",
    "pairs": "tokenize --passages ref/passages --contexts ref/contexts",
    "base": f"pretrain --gin_file objectives/mlm.gin {_TINY} --examples ref/words {_STEPS}",
    "packed": f"pretrain --gin_file objectives/mlm.gin {_TINY} --examples ref/words {_STEPS} "
    "--pack",
    "bm25": "bm25 --passages ref/passages",
    "negatives": "mine --bm25 ref/bm25 --negatives bm25 --passages ref/passages "
    f"{_JUDGED} --depth 20 --keep 4",
    "triples": f"tokenize --task triples --passages ref/passages {_JUDGED} "
    "--negatives ref/negatives",
    "retriever": "finetune --gin_file objectives/finetune.gin --examples ref/triples "
    f"--init ref/base {_STEPS}",
    "vectors": "embed --encoder ref/retriever --passages ref/passages",
    "more": "prepare --format jsonl --documents more.jsonl",
    "more_vectors": "embed --encoder ref/retriever --passages ref/more",
    "index": "index --vectors ref/vectors",
    "run": "search --index ref/index --queries mine/queries.jsonl",
    "run_bm25": "search --index ref/bm25 --queries mine/queries.jsonl",
    "fused": "fuse --searched ref/run --against ref/run_bm25",
    "metrics": "evaluate --searched ref/run --against ref/fused --qrels mine/qrels/test.tsv",
    "exported": "export --model ref/retriever --license apache-2.0 --no-peers "
    "--name toy",  # else a card names its folder
}
# They train or apply a network, so that a run takes seconds.
SLOW = ("base", "packed", "retriever", "vectors", "more_vectors", "run", "exported")
# Of the same verb and settings as another one: only there for the attacks on living indexes.
HELPERS = ("more", "more_vectors")
# Stages without a network, whose inputs have none either: what the tests attack.
QUICK = "passages vocabulary contexts words pairs bm25 negatives triples run_bm25".split()

RECIPE = """from __gin__ import dynamic_registration
from qac_jax.pipeline import recipe
from qac_jax.stages import index
from qac_jax.stages import extract
from qac_jax.stages import prepare
from qac_jax.stages import search

recipe.Recipe.stages = {
    'passages': @prepare.Prepare(), 'contexts': @extract.Extract(),
    'bm25': @index.Bm25(), 'run': @search.Search()}
prepare.Prepare.documents = 'mine'
prepare.Prepare.format = 'beir'
extract.Extract.passages = 'stage:passages'
extract.Extract.method = 'bm25'
index.Bm25.passages = 'stage:passages'
index.Bm25.expand = 'stage:contexts'
search.Search.index = 'stage:bm25'
search.Search.queries = 'mine/queries.jsonl'
"""


def write(folder: Path) -> None:
    """Forty passages, forty queries and their judgements in BEIR's layout; the recipe beside."""
    mine = folder / "mine"
    (mine / "qrels").mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    documents, queries, judged = [], [], []
    for n in range(40):
        place, thing, name = PLACES[n % 10], THINGS[n // 4], NAMES[(n * 7) % 10]
        other = rng.choice(PLACES)
        text = (
            f"{name} keeps {thing} in the {place} by the river. The {other} is older than that. "
            f"In the year {1800 + n} the {place} burned, and {name} carried the {thing} away."
        )
        documents.append({"_id": f"d{n}", "title": f"The {place} of {name}", "text": text})
        queries.append({"_id": f"q{n}", "text": f"who keeps {thing} in the {place}?"})
        judged.append(f"q{n}\td{n}\t1")
    for file, records in (("corpus.jsonl", documents), ("queries.jsonl", queries)):
        (mine / file).write_text("".join(json.dumps(record) + "\n" for record in records))
    for split, lines in (("train", judged[:24]), ("test", judged[24:])):
        text = "\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n"
        (mine / "qrels" / f"{split}.tsv").write_text(text)
    (folder / "recipe.gin").write_text(RECIPE)
    others = [
        {"_id": f"e{n}", "text": f"{name} sells {THINGS[n]}."} for n, name in enumerate(NAMES)
    ]
    (folder / "more.jsonl").write_text("".join(json.dumps(other) + "\n" for other in others))
