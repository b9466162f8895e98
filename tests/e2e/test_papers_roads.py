"""The papers' recipes from end to end: tiny files in the real layouts, eight virtual devices.

What they compute is other tests' concern; here every stage takes what the one before it wrote.
"""

import bz2
import gzip
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_generation
from hf_encoders import random_variables
from toy_retrieval import sentence, write_collection

from qac_jax import artifacts
from qac_jax.cli import main
from qac_jax.hub import huggingface
from qac_jax.inference import reranker
from qac_jax.models.bert import Bert, BertConfig
from qac_jax.text import tokenizers


def short(*stages: str) -> tuple[str, ...]:
    """One step of eight examples for these stages."""
    parts = ("epochs=0.0", "steps=1", "batch_size=8", "microbatch=0")
    return tuple(f"{stage}/train.Schedule.{part}" for stage in stages for part in parts)


QAC = ("GENERATED=2", "QUERIES=2")
MARCO = (*short("encoder", "retriever_1", "retriever_2"), "N_PASSAGES=2")
DPR = short("dpr")
PAIR = (*DPR, *short("teacher", "pretrained", "pair"), "CANDIDATES=8")
GROUPS = tuple(f"{stage}/pair.Pair.negatives_group=8" for stage in ("pretrained", "pair"))
AUG = ("STEPS=1", "optimizers.Optimizer.warmup_steps=0")
EIGHT = (*AUG, "train.Schedule.batch_size=8")
SCANN = ("index.Index.exact_below=1", "index.Index.leaves=4")
ENCODER = "ENCODER=data:bert-base-uncased"
ROADS: dict[str, tuple[Sequence[str], Sequence[str], Sequence[str]]] = {
    # recipe (and a word for what is run of it) -> overlays, bindings, stages with figures
    "msmarco_qac_cotmae": (["passage_pairs"], (*MARCO, *SCANN), ["metrics", "dl19", "dl20"]),
    "msmarco_qac_cocondenser": ([], (*QAC, *MARCO), ["metrics", "dl19", "dl20"]),
    "msmarco_condenser": ([], MARCO, ["metrics", "dl19"]),
    "msmarco_retromae": (
        [],
        (*MARCO, *short("general"), "blocks/prepare.Cutting.max_tokens=62"),
        ["metrics", "dl20"],
    ),
    "pair_nq": ([], (*PAIR, *GROUPS), ["metrics", "figure_4"]),
    "pair_msmarco": ([], PAIR, ["metrics"]),
    "dpr_nq": ([], DPR, ["metrics"]),
    "dpr_msmarco": ([], DPR, ["metrics"]),
    "augtriever_cc": ([], (*EIGHT, "STRATEGY=hybrid_all"), ["beir", "table"]),
    "augtriever_wiki": ([], (*EIGHT, "STRATEGY=doc_anchor", "LOSS=moco"), ["beir", "table"]),
    "augtriever_adaptation": ([], (*EIGHT, ENCODER), ["figures"]),
    "augtriever_row": (
        [],
        (
            *EIGHT,
            "ON=wiki",
            "STRATEGY=doc_anchor",
            "FINETUNED=True",
            "retriever/train.Schedule.steps=1",
        ),
        ["beir", "table"],
    ),
    "augtriever_row encoder": ([], (ENCODER, "POOLING=mean"), ["beir", "table"]),
    "augtriever_row bm25": ([], ("BM25=anserini",), ["beir", "table"]),
    "msmarco_beir": ([], (ENCODER, AUG[-1], *short("retriever")), ["beir"]),
}
# The others are `long`.
IN_CI = ("msmarco_qac_cotmae", "pair_nq")
# Stages that seqio feeds afterwards, with the same result.
FED = {"msmarco_qac_cotmae": "encoder", "pair_nq": "pair", "augtriever_wiki": "encoder"}


PASSAGES, TRAIN, TEST = 48, 12, 4


def rows(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def records(path: Path, *found: Any) -> None:
    rows(path, *map(json.dumps, found))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny files in the real layouts, tiny models."""
    root = tmp_path_factory.mktemp("papers")
    rng = np.random.default_rng(1)
    texts = [sentence(rng, int(rng.integers(6, 30))) for _ in range(PASSAGES)]
    asked = [" ".join(text.rstrip(".").split()[:3]) for text in texts]
    _models(root)
    _marco(root, texts, asked)
    _wikipedia(root, texts, asked)
    _dump(root, texts)
    _unlabelled(root, asked)
    for folder in ("msmarco", "beir/scifact", "beir/nfcorpus"):
        write_collection(root / folder, 24, 8)
        test = root / folder / "qrels" / "test.tsv"
        for split in ("train", "dev"):
            (test.parent / f"{split}.tsv").write_text(test.read_text())
    _hard_negatives(root)
    pile = [
        {"text": f"{a} {b}", "meta": {"pile_set_name": "Pile-CC"}}
        for a, b in zip(texts, texts[1:], strict=False)
    ]
    records(
        root / "pile" / "00.jsonl", *pile, {"text": "code", "meta": {"pile_set_name": "Github"}}
    )
    rows(root / "wikibook" / "a.txt", *texts)
    return root


def _models(root: Path) -> None:
    bert = Bert(BertConfig(tokenizers.load().vocab_size, 16, 2, 2, 16, 512))
    tokenizer = tokenizers.ASSETS / tokenizers.SHIPPED
    for name in ("bert-base-uncased", "condenser", "ernie-2.0-base-en", "ernie-2.0-large-en"):
        huggingface.save(root / name, bert, random_variables(bert), tokenizer=tokenizer)
    for name in (
        "doc2query-all-with_prefix-t5-base-v1",
        "doc2query-t5-base-msmarco",
        "T0_3B",
        "t5-small-lm-adapt",
    ):
        toy_generation.save_generator(root / name)


def _marco(root: Path, texts: list[str], asked: list[str]) -> None:
    marco, last = root / "marco", range(TRAIN, TRAIN + TEST)
    rows(marco / "para.txt", *(f"{n}\t{text}" for n, text in enumerate(texts)))
    rows(marco / "para.title.txt", *(f"{n}\tTitle {n}" for n in range(0, PASSAGES, 2)))
    rows(marco / "train.query.txt", *(f"{n}\t{asked[n]}" for n in range(TRAIN)))
    rows(marco / "dev.query.txt", *(f"{n}\t{asked[n]}" for n in last))
    rows(marco / "qrels.train.tsv", *(f"{n}\t0\t{n}\t1" for n in range(TRAIN)))
    rows(marco / "qrels.dev.tsv", *(f"{n}\t0\t{n}\t1" for n in last))
    rows(marco / "qrels.train.addition.tsv", "0\t0\t40\t1")
    triples = "".join(
        f"{n}\t{n}\t{(n + k) % PASSAGES}\n" for n in range(TRAIN) for k in range(1, 20)
    )
    for place in (marco, root):
        packed = gzip.compress(triples.encode(), mtime=0)
        (place / "qidpidtriples.train.full.2.tsv.gz").write_bytes(packed)
    for year in (2019, 2020):
        queries = (f"{n}\t{asked[n]}" for n in last)
        rows(root / "trec_dl" / f"msmarco-test{year}-queries.tsv", *queries)
        judged = (f"{n} 0 {n + k} {3 - k}" for n in last for k in range(3))
        rows(root / "trec_dl" / f"{year}qrels-pass.txt", *judged)
    rng = np.random.default_rng(2)
    bodies = [" ".join(sentence(rng, 30) for _ in range(14)) for _ in range(12)]
    docs = (f"D{n}\thttp://d/{n}\tTitle {n}\t{body}" for n, body in enumerate(bodies))
    rows(root / "msmarco-docs.tsv", *docs)


def _wikipedia(root: Path, texts: list[str], asked: list[str]) -> None:
    def passage(n: int) -> dict[str, Any]:
        return {"title": f"Title {n // 3}", "text": texts[n], "passage_id": str(n + 1)}

    lines = (f"{n + 1}\t{text}\tTitle {n // 3}" for n, text in enumerate(texts))
    rows(root / "psgs_w100.tsv", "id\ttext\ttitle", *lines)
    answers = [text.rstrip(".").split()[-1] for text in texts]
    found = [
        {
            "question": asked[n],
            "answers": [answers[n]],
            "positive_ctxs": [passage(n)],
            "negative_ctxs": [],
            "hard_negative_ctxs": [passage((n + 7) % PASSAGES)],
        }
        for n in range(TRAIN)
    ]
    (root / "biencoder-nq-train.json").write_text(json.dumps(found, indent=4))
    last = range(TRAIN, TRAIN + TEST)
    test = [f"{asked[n]}\t['{answers[n]}']" for n in last]
    rows(root / "nq-test.qa.csv", *test)
    rows(root / "nq-dev.qa.csv", f"{asked[30]}\t['{answers[30]}']")
    for name in ("nq", "trivia", "webq", "curatedtrec", "squad1"):
        rows(root / "questions" / f"{name}-test.csv", *test)
    relation = root / "questions" / "entityquestions" / "test" / "P36.test.json"
    relation.parent.mkdir(parents=True)
    relation.write_text(json.dumps([{"question": asked[n], "answers": [answers[n]]} for n in last]))


def _dump(root: Path, texts: list[str]) -> None:
    """A dump of Wikipedia: pages of paragraphs with links and bold phrases."""
    dump = "<mediawiki>\n"
    for n in range(PASSAGES // 4):
        lines = (text.split() for text in texts[4 * n : 4 * n + 4])
        body = "\n".join(f"'''{a}''' [[{b}|{c}]] {' '.join(rest)}" for a, b, c, *rest in lines)
        dump += f"<page><title>Title {n}</title><ns>0</ns><id>{n + 1}</id><revision><text>{body}"
        dump += "</text></revision></page>\n"
    packed = bz2.compress(f"{dump}</mediawiki>".encode())
    (root / "enwiki-pages-articles.xml.bz2").write_bytes(packed)


def _unlabelled(root: Path, asked: list[str]) -> None:
    free = asked[TRAIN + TEST :]
    rows(root / "yahoo_answers.tsv", *(f"{n}\t{text}" for n, text in enumerate(free[:6])))
    for start, name in enumerate(("squad", "triviaqa", "hotpotqa"), 1):
        some = free[6 * start : 6 * start + 6]
        questions = [{"qid": str(n), "question": t, "answers": ["x"]} for n, t in enumerate(some)]
        header = {"header": {"dataset": name}}
        records(root / f"{name}.jsonl", header, {"context": "c", "qas": questions})
    clicks = (f"{n}\t{text}\tD{n}\thttp://d" for n, text in enumerate(free[24:]))
    rows(root / "orcas.tsv", *clicks)


def _hard_negatives(root: Path) -> None:
    """sentence-transformers' for the queries of msmarco/, with a cross-encoder's scores."""
    judged = (root / "msmarco" / "qrels" / "train.tsv").read_text().splitlines()[1:]
    lines = []
    for number, row in enumerate(judged):
        query, passage, _ = row.split("\t")
        others = [{"pid": f"p{(number + k) % 24}", "ce-score": -9.0} for k in (9, 10, 11)]
        found = {"bm25": [other for other in others if other["pid"] != passage]}
        lines.append({"qid": query, "pos": [{"pid": passage, "ce-score": 5.0}], "neg": found})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (root / "msmarco-hard-negatives.jsonl.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in IN_CI else pytest.mark.long) for name in ROADS]
)
def test_every_stage(
    name: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    # A random teacher is sure of nothing: half are positives here and half negatives, so that on no
    # machine a question is left without either because the only one of them holds the answer.
    def sure(odds: np.ndarray) -> np.ndarray:
        return np.where(np.arange(len(odds)) < len(odds) // 2, 0.99, 0.01)

    monkeypatch.setattr(reranker, "probability", sure)
    overlays, bindings, figures = ROADS[name]
    files = [part for overlay in overlays for part in ("--gin_file", f"overlays/{overlay}.gin")]
    given = [f"--gin.{binding}" for binding in bindings]
    where = ["--data_dir", os.fspath(data), "--out", os.fspath(tmp_path / "out")]
    command = ["run", name.split()[0], *where, *files, *given]
    assert main(command) == 0
    if SCANN[0] in bindings:
        said = capsys.readouterr()
        assert re.search(r"mine: mined by approximate search, recall@\d+ [01]\.", said.err)
        lost = r"run_\d_dl20\S*: approximate search, recall@1000 [01]\.\d+ on 4 queries; .*mrr@10 "
        assert len(re.findall(lost, said.out)) == 2, said.out
    if trained := FED.get(name):
        (made,) = (tmp_path / "out").glob(f"**/{trained}/artifact.json")
        parameters = artifacts.load(made.parent).identity
        assert main([*command, "--feed", "seqio", "--from", trained]) == 0
        assert artifacts.load(made.parent).identity == parameters
    for stage in figures:
        (made,) = (tmp_path / "out").glob(f"**/{stage}/artifact.json")
        assert json.loads(made.read_text())["count"], stage
