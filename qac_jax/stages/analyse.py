"""`qac analyse`: how related contexts are, votes on their sheets, similarities of encoders."""

import dataclasses
import json
import os

from qac_jax import progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.evaluation import relatedness, results, significance, similarity
from qac_jax.formats import runs
from qac_jax.formats.judgements import by_query, read_judgements
from qac_jax.formats.queries import read_queries
from qac_jax.inference.settings import Inference
from qac_jax.pipeline.stage import FILE, Inputs, Ref, Stage, input, model_input, option, part
from qac_jax.report import plots, tables


SHEET, KEY = "sheet.csv", "key.csv"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Relate(Stage):
    """Measures how related contexts are to their passages, by kind of context (QAC, appendix A), or
    queries to those that were labelled positives and negatives (PAIR, Table 5), and writes a blind
    sheet for human judges; `qac analyse` evaluates their votes."""

    VERB = "analyse"
    KIND = "metrics"
    VERSION = 2
    EXAMPLE = "qac analyse --pairs out/contexts --passages out/passages --out out/related"

    pairs: Ref = input("contexts of the passages, or labels of qac label", "contexts", "negatives")
    passages: Ref = input("passages of the contexts", "passages")
    at_most: int = option(1000, "at most N items of --pairs, drawn at random", at_least=1)
    sheet: bool = option(False, f"also write a blind sheet for human judges, {SHEET} below --out")
    sheet_items: int = option(200, "items per kind of context on the sheet", at_least=1)

    def run(self, inputs: Inputs, out: Writer) -> None:
        passages = inputs.records("passages")
        given = inputs.records("pairs")
        contexts = inputs.artifact("pairs").kind == "contexts"
        draw = relatedness.drawn_pairs if contexts else relatedness.labelled_pairs
        pairs = list(draw(passages, given, self.at_most, self.seed))
        ranks = relatedness.bm25_ranks((r["text"] for r in passages), pairs) if pairs else []
        sorts = relatedness.measured(pairs, ranks, passages)
        compared = significance.compared(sorts, list(sorts[0].mean), seed=self.seed)
        results.store(out, sorts, {"comparisons": [dataclasses.asdict(c) for c in compared]})
        if self.sheet:
            of = pairs, passages, self.sheet_items, self.seed
            with out.open(SHEET) as sheet, out.open(KEY) as key:
                count = relatedness.write_sheet(sheet, key, *of)
            progress.say(f"{count} items to judge: {out.path / SHEET}; what they are: {KEY} beside")

    def summary(self, artifact: Artifact) -> str:
        return tables.evaluation(*results.read(artifact), "context")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Votes(Stage):
    """Evaluates annotated sheets: the share of each kind of context that judges call highly
    related, and their agreement (Fleiss' kappa)."""

    VERB = "analyse"
    KIND = "metrics"
    EXAMPLE = "qac analyse --sheets ann.csv,bob.csv --key out/related/key.csv --out out/votes"

    sheets: Ref = input("annotated sheets, one per judge", FILE, many=True)
    key: Ref = input("key of the sheet: key.csv in the output of qac analyse", FILE)

    def run(self, inputs: Inputs, out: Writer) -> None:
        key = relatedness.read_key(os.fspath(inputs.path("key")))
        judges = [relatedness.read_votes(os.fspath(path), key) for path in inputs.paths("sheets")]
        facts = {"judges": len(judges), "kappa": relatedness.fleiss_kappa(judges)}
        results.store(out, relatedness.counted(key, judges), facts)

    def summary(self, artifact: Artifact) -> str:
        sorts, facts = results.read(artifact)
        table = tables.figures(sorts, "context")
        return f"{table}\n\njudges {facts['judges']}, Fleiss' kappa {facts['kappa']:.3f}"


FIGURES, FIGURE_4, TABLE = "similarities.json", "similarities.svg", "similarities.md"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Similarities(Stage):
    """Compares s(p+, q) with s(p+, p-) over the top passages of each run (PAIR, Figure 4)."""

    VERB = "analyse"
    KIND = "similarities"
    VERSION = 2
    EXAMPLE = "qac analyse --encoders A,B --runs A.trec,B.trec --passages P --queries Q --out out"

    encoders: Ref = model_input("dual encoders", many=True)
    runs: Ref = input("runs of the encoders in order, or one run for all", "run", FILE, many=True)
    passages: Ref = input("passages that were searched", "passages")
    queries: Ref = input("queries of the runs", FILE)
    qrels: Ref = input("their judgements (default: what has an answer)", FILE, default="")
    depth: int = option(100, "top k passages of each ranking to compare with", at_least=1)
    at_most: int = option(1000, "at most N queries (0: all)")
    inference: Inference = part(Inference)

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.inference.encoder import Encoder

        folders = [os.fspath(path) for path in inputs.paths("encoders")]
        files = [next(iter(runs.run_files(path).values())) for path in inputs.paths("runs")]
        if len(files) not in (1, len(folders)):
            raise UserError(
                f"{len(folders)} encoders and {len(files)} runs; give one run each, or one for all"
            )
        files = files * len(folders) if len(files) == 1 else files
        asked = list(read_queries(inputs.text("queries")))
        texts = {query.id: query.text for query in asked}
        judged = by_query(read_judgements(inputs.text("qrels"))) if self.qrels else {}
        passages = inputs.records("passages")
        limits = {"depth": self.depth, "at_most": self.at_most}
        names = [os.path.basename(os.path.normpath(folder)) for folder in folders]
        if len({*names}) < len(names):
            names = folders
        similarities: dict[str, similarity.Similarity] = {}
        for name, folder, file in zip(names, folders, files, strict=True):
            run = runs.read_run(file, self.depth)
            if not self.qrels:
                judged = similarity.by_answers(run, asked, passages, **limits)
            encoder = Encoder.load(folder, inference=self.inference)
            found = similarity.of_run(encoder, run, texts, judged, passages, **limits)
            similarities[name] = found
            progress.say(
                f"{name}: s(p+, q) {found.to_query:.3f}, s(p+, p-) {found.to_negatives:.3f}, "
                f"the query nearer in {found.nearer:.1%}"
            )
        figures = {name: dataclasses.asdict(found) for name, found in similarities.items()}
        out.write_text(FIGURES, json.dumps(figures))
        out.write_text(FIGURE_4, plots.similarity(similarities) or "")
        out.write_text(TABLE, tables.similarities(similarities) + "\n")
        out.count = len(similarities)

    def summary(self, artifact: Artifact) -> str:
        return artifact.file(TABLE).read_text().rstrip()
