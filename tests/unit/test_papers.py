"""Every table and figure of the three papers has one command."""

import dataclasses
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from toy_process import Qac
from toy_recipes import grid_of, placed, stages

from qac_jax import cli, fields, recipes
from qac_jax.evaluation import benchmarks
from qac_jax.formats.records import Records
from qac_jax.pipeline import costs, recipe
from qac_jax.pipeline.stage import execute
from qac_jax.recipes import augtriever, papers
from qac_jax.stages.embed import Embed
from qac_jax.stages.evaluate import EvaluateBeir
from qac_jax.stages.generate import Generate
from qac_jax.stages.prepare import Prepare
from qac_jax.stages.train import Train


ASKED = {
    papers.QAC: [f"table {n}" for n in range(1, 6)],
    papers.PAIR: [*(f"table {n}" for n in range(1, 6)), "figure 4"],
    papers.AUGTRIEVER: [
        *(f"table {n}" for n in range(1, 7)),
        *(f"figure {n}" for n in range(2, 5)),
    ],
}


@pytest.mark.parametrize(("paper", "name"), [(p, n) for p, of in ASKED.items() for n in of])
def test_a_command_makes_it(paper: str, name: str) -> None:
    rows = [row for row in papers.ROWS if row.paper == paper and name in row.names]
    assert rows
    for row in rows:
        _, verb, *rest = shlex.split(row.command)
        if verb == "run":
            assert recipes.header(rest[0]).needs
        else:
            known = {*fields.flat(cli.VERBS[verb].load(rest)), "gin_file"}
            assert {word[2:] for word in rest if word.startswith("--")} <= known


@pytest.mark.parametrize("row", [row for row in papers.ROWS if "qac run" in row.command])
def test_its_hours_are_of_every_model(row: papers.Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan knows how much each model reads: by the row's sizes, which are all of use, or because
    the data's name says it."""
    monkeypatch.setattr(Train, "plan", lambda *_: {"hours": {"H100": 1.0}})
    name, sizes = row.command.split()[2], costs.sizes_of(row.sizes)
    of = [stages(name)] if not recipes.header(name).grid else []
    if not of:
        found = grid_of(name)
        first, *_, last = found.systems
        of = [dict(c.stages) for c in placed(dataclasses.replace(found, only=(first, last)))]
    for one, given in zip(of, recipe.fitting(sizes, *of), strict=True):
        planned = recipe.plan(recipe.Recipe(one), given)
        known = {p["stage"] for p in planned if p["plan"].get("hours")}
        models = {n for n, s in one.items() if isinstance(s, Embed | Generate | EvaluateBeir)}
        assert known >= {n for n in models if not getattr(one[n], "bm25", "")}


def test_they_are_printed(qac: Qac, monkeypatch: pytest.MonkeyPatch) -> None:
    one = "qac run augtriever_row --encoder data:contriever"
    cheap = papers.Shown(papers.PAIR, ("table 9",), "a row", one, "wikipedia=1e9,beir=0")
    sample = papers.Shown(papers.PAIR, ("table 8",), "some", "qac analyse --sheet True")
    monkeypatch.setattr(papers, "ROWS", [cheap, sample])
    said = qac("recipes", "--paper").out
    tokens = 1e9 * costs.DOCUMENT_TOKENS["dpr"]
    hours = 2 * costs.USUAL_PARAMETERS * tokens / (989e12 * costs.ENCODER_MFU) / 3600
    assert f"{one}\n    one H100 {hours:,.0f} hours, eight {hours / 8:,.0f} (" in said
    assert "qac analyse --sheet True\n    of a sample: minutes" in said


def test_rows_of_augtriever() -> None:
    """Table 6 has 21 rows of Common Crawl and 46 of Wikipedia beside those of others; Table 3
    fine-tunes fifteen of ours, Contriever, SPAR and Spider."""
    systems = grid_of("augtriever_tables").systems
    assert sum(name.startswith("wiki_") for name in systems) == 46
    ours = [name for name in systems if name.startswith("cc_")]
    assert sum(not name.endswith("_finetuned") for name in ours) == 21
    tuned = {name.removesuffix("_finetuned") for name in systems if name.endswith("_finetuned")}
    assert len(tuned) == 18 and {"contriever", "spar", "spider"} < tuned
    assert not any("absum" in name for name in tuned)


def test_adaptation_to_every_set() -> None:
    found = stages("augtriever_adaptations")
    adapted = {name.removeprefix("encoder_") for name in found if name.startswith("encoder_")}
    assert len(adapted) == 1 + 13 + len(benchmarks.FORUMS)
    assert all(found[f"encoder_{name}"].init == "stage:encoder" for name in adapted)


def test_eleven_alphas() -> None:
    systems = grid_of("pair_nq_tables").systems
    alphas = {of.get("alpha", 0.1) for name, of in systems.items() if {*of} <= {"alpha"}}
    assert sorted(alphas) == pytest.approx([n / 10 for n in range(11)])


def imported(folder: Path, documents: dict[str, Any], **given: Any) -> dict[str, list[Any]]:
    """(origin, text) of each passage of a recipe's stages `documents` and `generated`."""
    passages = execute(Prepare.make(cut="none", **documents), folder / "passages")
    made = execute(Generate.make(passages=str(passages.path), **given), folder / "contexts")
    return {
        r["_id"].split("#")[0]: [(c["origin"], c["text"]) for c in r["contexts"]]
        for r in Records(made)
    }


def test_what_augtriever_published(tmp_path: Path) -> None:
    """AugQ: a document a line, with the outputs of T0-3B's prompts and of doc2query."""
    outputs = {f"T03B-{n}": f"{n} of it" for n in ("topic", "title", "absum", "exsum")}
    outputs |= {"D2Q-t2q": "what is it?", "D2Q-a2t": "A title"}
    lines = [
        {"id": f"d{n}", "title": None, "text": f"Text {n}.", "meta": {"pile_set_name": "Pile-CC"}}
        for n in range(2)
    ]
    texts = (json.dumps({**line, "outputs": outputs}) + "\n" for line in lines)
    (tmp_path / "augq.jsonl").write_text("".join(texts))
    file = str(tmp_path / "augq.jsonl")
    found = imported(
        tmp_path, {"documents": file, "format": "jsonl", "options": "source=Pile-CC"}, imported=file
    )
    assert found.keys() == {"d0", "d1"}
    strategies = augtriever.STRATEGIES
    assert {origin for origin, _ in found["d1"]} >= {*strategies["hybrid_tqgen"]} - {"random_crop"}
    assert ("tqgen_topic", "topic of it") in found["d1"] and ("qgen_d2q", "what is it?") in found[
        "d1"
    ]


def test_what_paq_published(tmp_path: Path) -> None:
    """PAQ.metadata.jsonl: a question a line, with the passages that its answers are from."""
    rows = "".join(f'{n}\t"text {n}"\ttitle {n}\n' for n in range(1, 4))
    (tmp_path / "PAQ_passages.tsv").write_text(f"id\ttext\ttitle\n{rows}")
    answers = [{"text": "a", "passage_id": str(n), "offset": "3", "extractor": "L"} for n in (1, 3)]
    known = {"subsets": ["L1"], "answer": ["a"], "passage_score": "-4.2", "answers": answers}
    (tmp_path / "PAQ.jsonl").write_text(json.dumps({"question": "who is it", **known}) + "\n")
    documents = {"documents": str(tmp_path / "PAQ_passages.tsv"), "format": "dpr"}
    found = imported(tmp_path, documents, imported=str(tmp_path / "PAQ.jsonl"), origin="paq")
    assert found == {"1": [("paq", "who is it")], "2": [], "3": [("paq", "who is it")]}
