"""What generators learn from: label-free targets, pairs of questions, prompts that survive."""

from __future__ import annotations

import json

import numpy as np
import pytest

from qac_jax import cli
from qac_jax.artifacts import load
from qac_jax.data.examples import Examples
from qac_jax.errors import UserError
from qac_jax.formats.records import Records
from qac_jax.queries import generator_pairs
from qac_jax.queries import generator_pairs as pairs
from qac_jax.queries.prompts import PROMPTS, Prompt
from qac_jax.text import sentences, tokenizers


LEAD = "The kestrel is a small falcon that hovers over open fields."
BODY = (
    "It hunts mice and voles by day. Kestrels hover with fanned tails over a field where mice "
    "and voles hide. Its nest is a ledge or an old crow nest."
)
PASSAGE = {"_id": "p1", "doc": "d1", "title": "Kestrel", "text": f"{LEAD} {BODY}"}


@pytest.fixture(scope="module")
def splitter():
    return sentences.load("shipped")


@pytest.fixture(scope="module")
def frequencies():
    others = [f"The house number {n} has a door, a field and an open window." for n in range(30)]
    return generator_pairs.Frequencies([PASSAGE["text"], *others])


def test_all_four_prompts_are_answered(splitter, frequencies):
    found = {t.prompt: t for t in generator_pairs.targets_of(PASSAGE, frequencies, splitter)}
    assert set(found) == set(PROMPTS)
    assert found["title"].answer == "Kestrel"
    assert found["absum"].answer == LEAD
    assert found["absum"].text == BODY  # the lead itself is not shown
    assert found["exsum"].answer in PASSAGE["text"]
    assert "mice and voles" in found["exsum"].answer  # shares most words with the others
    assert found["topic"].answer in PASSAGE["text"]


def test_a_key_phrase_is_rare_elsewhere_and_has_no_stop_words(frequencies):
    phrase = generator_pairs.key_phrase(
        "An open window near the grey heron; the grey heron waits.", frequencies
    )
    assert phrase == "grey heron"


def test_anchors_are_the_topic_where_the_text_holds_them(splitter, frequencies):
    passage = {**PASSAGE, "anchors": [["Mouse", "no such words"], ["Vole", "voles"]]}
    found = {t.prompt: t.answer for t in generator_pairs.targets_of(passage, frequencies, splitter)}
    assert found["topic"] == "voles"


def test_short_texts_offer_only_what_they_have(splitter, frequencies):
    passage = {"_id": "x", "doc": "x", "title": "", "text": "Nothing more to say here."}
    prompts = {t.prompt for t in generator_pairs.targets_of(passage, frequencies, splitter)}
    assert prompts <= {"topic"}


def test_the_summary_line_is_a_question_that_the_body_does_not_hold():
    passage = {**PASSAGE, "summary": LEAD}
    (record,) = pairs.questions([passage], {"p1": ["What hovers?"]}, "text2query: ")
    assert record["targets"] == ["What hovers?", LEAD.rstrip(".")]
    assert record["text"] == BODY
    assert record["before"] == "text2query: "


def test_documents_of_unseen_passages_are_kept_apart():
    passages = [{"_id": f"p{n}", "doc": f"d{n // 2}"} for n in range(6)]
    seen, theirs = pairs.documents_apart(passages, {"p3": ["asked"]})
    assert [p["_id"] for p in theirs] == ["p2", "p3"]
    assert [p["_id"] for p in seen] == ["p0", "p1", "p4", "p5"]


def test_prompts_that_lack_one_are_refused():
    with pytest.raises(UserError, match="prompts lack exsum"):
        pairs.check_prompts({n: p for n, p in PROMPTS.items() if n != "exsum"})
    with pytest.raises(UserError, match="max_tokens=0"):
        Prompt(max_tokens=0)


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    folder = tmp_path_factory.mktemp("birds")
    (folder / "qrels").mkdir()
    lines = [{"_id": f"p{n}", "title": f"Bird {n}", "text": f"{BODY} Bird {n}."} for n in range(4)]

    def write(name, rows):
        (folder / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    write("corpus.jsonl", lines)
    write(
        "queries.jsonl", [{"_id": f"q{n}", "text": f"what does bird {n} hunt?"} for n in range(4)]
    )
    head = "query-id\tcorpus-id\tscore\n"
    (folder / "qrels" / "train.tsv").write_text(head + "q0\tp0\t1\nq1\tp1\t1\n")
    (folder / "qrels" / "test.tsv").write_text(head + "q3\tp3\t1\n")
    return folder


@pytest.mark.parametrize(
    "part, expected", [("train", ["bird 0", "bird 1"]), ("held_out", ["bird 3"])]
)
def test_questions_of_test_documents_are_never_learned(collection, tmp_path, part, expected):
    arguments = ["pairs", "--collections", str(collection), "--part", part]
    assert cli.main([*arguments, "--out", str(tmp_path / "out")]) == 0
    records = list(Records(load(tmp_path / "out", kind="pairs")))
    said = sorted(r["targets"][0] for r in records)
    assert said == [f"what does {name} hunt?" for name in expected]


def test_a_prompt_behind_a_long_text_survives_tokenisation(collection, tmp_path):
    arguments = ["pairs", "--collections", str(collection), "--targets", "label_free"]
    assert cli.main([*arguments, "--out", str(tmp_path / "pairs")]) == 0
    arguments = ["tokenize", "--task", "seq2seq", "--pairs", str(tmp_path / "pairs")]
    code = cli.main([*arguments, "--input_tokens", "20", "--out", str(tmp_path / "examples")])
    assert code == 0
    stored = Examples(load(tmp_path / "examples", kind="examples"))
    tokenizer = tokenizers.load()
    ends = {tokenizer.encode(prompt.after)[-1] for prompt in PROMPTS.values()}
    records = stored.read(np.arange(stored.count))
    assert records
    for record in records:
        assert len(record["inputs"]) <= 20
        assert int(record["inputs"][-1]) in ends


def test_pairs_are_refused_for_other_tasks(collection, tmp_path, capsys):
    assert cli.main(["pairs", "--collections", str(collection), "--out", str(tmp_path / "p")]) == 0
    arguments = ["tokenize", "--task", "mlm", "--pairs", str(tmp_path / "p")]
    assert cli.main([*arguments, "--out", str(tmp_path / "e")]) == 2
    assert "--pairs are for --task seq2seq" in capsys.readouterr().err
