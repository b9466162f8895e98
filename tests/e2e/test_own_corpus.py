"""own_corpus on folders that nobody prepared by hand."""

import html
import json
import shutil
from pathlib import Path

import pytest
import toy_retrieval as toy
from toy_process import Qac
from toy_verdict import assert_true

from qac_jax import Retriever, artifacts
from qac_jax.formats import records


PARTS = ("training", "validation", "test")
TINY = (  # the tests have eight devices
    "--budget=tiny --fine_steps=2 --n_passages=4 --n_queries=4 --turns=2 --groups=8 "
    "--passage_length=24 --query_length=12 --gin.evaluate.Evaluate.permutations=50 --generator="
)
SCRATCH = "--width=32 --layers=1 --mlm_steps=2 --qac_steps=2"


def documents(folder: Path) -> list[str]:
    """Thirty passages of ten documents, and nothing else but questions made elsewhere, in the
    generator's place; each part takes those of its passages."""
    toy.write_collection(folder / "made", 30, 12)
    passages = list(map(json.loads, (folder / "made" / "corpus.jsonl").read_text().splitlines()))
    (folder / "data").mkdir()
    with (folder / "data" / "documents.jsonl").open("w") as file:
        for n in range(0, 30, 3):
            document = {"_id": f"d{n}", "title": f"About {n}", "passages": passages[n : n + 3]}
            file.write(json.dumps(document) + "\n")
    with (folder / "generated.jsonl").open("w") as file:
        for i in range(30):
            asked = [f"what is the {toy.WORDS[i % 20]} {toy.WORDS[n]} {i}" for n in (1, 2)]
            file.write(json.dumps({"_id": f"p{i}", "queries": asked}) + "\n")
    imported = f"--gin.generate.Generate.imported='{folder / 'generated.jsonl'}'"
    return [f"--data_dir={folder / 'data'}", imported, "--gin.generate.Generate.skip_bad=30"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("start", ["a retriever", "none"])
def test_documents_alone_become_a_retriever(start: str, tmp_path: Path, qac: Qac) -> None:
    """The names that are left in OUT are fixed; what test_questions.py covers is not repeated."""
    out, given = tmp_path / "out", [*TINY.split(), *documents(tmp_path)]
    own = start == "none"  # with questions of one's own
    if own:
        (tmp_path / "mine.tsv").write_text("river stone\tp3\nlamp\td6\nwhere?\tp9\nwho?\tp12\n")
        given += [*SCRATCH.split(), f"--questions={tmp_path / 'mine.tsv'}"]
    else:
        start = str(toy.save_encoder(tmp_path / "start", query_prompt="ask: "))
    printed = qac("run", "own_corpus", f"--start={start}", *given, f"--out={out}").out

    summary = json.loads((out / "summary.json").read_text())
    rows = [row["system"] for row in summary["rows"]]
    runs = ["run_bm25", "run_start", "run_1", "run_2", "fused_start", "fused_1", "fused_2"]
    assert rows == runs + ["run_index"] * own
    assert all({"name", "mrr@10", "hit@1"} <= row.keys() for row in summary["rows"])
    assert set(summary["questions"]) == {"train", "validation", "test"}
    test = summary["questions"]["test"]
    assert test["generated"] != own
    assert test["makers"] == ("people (mine.tsv)" if own else "generated.jsonl")
    assert summary["leaks"]["leaks"] == 0 and summary["leaks"]["passages"] > 0
    assert summary["verdict"][0].startswith("The 4 test" if own else "Caution")
    index = artifacts.load(out / "index").info
    assert_true(
        summary, artifacts.load(out / "stages" / "metrics"), index, "run_index" if own else ""
    )

    parts = {n: set(records.Records(artifacts.load(out / "stages" / n)).ids()) for n in PARTS}
    parts["train"] = parts.pop("training")
    assert not parts["test"] & parts["train"] and not parts["validation"] & parts["train"]
    groups = records.Records(artifacts.load(out / "stages" / "groups_2"))
    asked = {name for group in groups for name in group["query_ids"]}
    assert asked and {name.split("#")[0] for name in asked} <= parts["train"]

    page = (out / "report" / "report.html").read_text()
    shown = [html.escape(sentence).replace("&#x27;", "&#39;") for sentence in summary["verdict"]]
    places = [page.index(sentence.replace("&quot;", "&#34;")) for sentence in shown]
    assert places == sorted(places) and places[-1] < page.index("<h2>F")
    assert all(sentence in printed for sentence in summary["verdict"])
    best = Retriever.load(out / "best")
    if start != "none":
        assert max(best.encoder.limits.values()) == 48  # as the start's
    assert best.encoder.prompts["query"] == ("" if start == "none" else "ask: ")
    found = qac("search", "--index", out / "index", "river stone", "--k=2").out
    assert len(found.splitlines()) >= 2
    assert index["choice"]["questions"] == (4 if own else len(parts["validation"]))
    if own:
        assert not parts["test"] and summary["choice"]["questions"] == 4 + len(parts["validation"])
    # The folder may be moved, and the start be gone.
    moved = out.rename(tmp_path / "moved")
    shutil.rmtree(tmp_path / "start", ignore_errors=True)
    qac("search", "--index", moved / "index", "river stone", "--k=2")
