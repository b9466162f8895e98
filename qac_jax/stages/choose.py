"""Steps that choose a model: the mean with its start, the choice, and the verdict in words."""

import dataclasses
import json
import os
import shutil
from collections.abc import Mapping
from typing import Any

from qac_jax import progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.evaluation import benchmarks, results, significance
from qac_jax.evaluation.benchmarks import Judging
from qac_jax.evaluation.significance import Comparison
from qac_jax.formats import runs
from qac_jax.formats.queries import read_queries
from qac_jax.hub import names
from qac_jax.pipeline.stage import FILE, Inputs, Plan, Plans, Ref, Stage, input, model_input, option
from qac_jax.report import verdict


CHOICE, CHOSEN, INDEX = "choice.json", "model", "index"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choose(Stage):
    """Keeps the model that is expected to be best on people's questions.

    That is one that was trained, unless the validation questions speak against it. In the artefact
    `model` is a copy of the one that is chosen, `index` its index.
    """

    VERB = "choose"
    KIND = "choice"
    VERSION = 3
    EXAMPLE = "qac step choose --start s --models m --runs run_s,run_m --qrels dev.tsv --out choice"

    start: Ref = model_input("model that the others were trained from")
    models: Ref = model_input("the others", many=True)
    runs: Ref = input(
        "their runs on the validation questions, the start's first", "run", FILE, many=True
    )
    indexes: Ref = input("their dense indexes, to keep the best", "index", default="", many=True)
    questions: Ref = input(
        "questions of qac step collect, which say who asked them (default: generated)",
        "questions",
        default="",
    )
    qrels: Ref = input("relevance judgements of the validation questions", FILE)
    measure: str = option(
        "mrr@10", "the measure to choose by", choices=("mrr@10", "ndcg@10", "hit@1", "recall@100")
    )

    def check(self) -> None:
        super().check()
        counts = [len(value.split(",")) for value in (self.runs, self.indexes) if value]
        if {*counts} != {1 + len(self.models.split(","))}:
            raise UserError("--runs and --indexes are one for each model, the start's first")

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.retrieval import index

        rules = Judging(measures=(self.measure,)).resolved()
        judge = benchmarks.by_judgements(inputs.text("qrels"), rules)
        paths = runs.run_files(inputs.text("runs"))
        results = [judge(name, runs.read_run(path)) for name, path in paths.items()]
        asked = verdict.provenance(inputs.artifact("questions").info) if self.questions else {}
        people = {
            query.id
            for part in ("validation", "test")
            if part in asked and not asked[part]["generated"]
            for query in read_queries(inputs.artifact("questions").file(f"{part}_queries.jsonl"))
        }
        found = significance.choose(results, rules.measures[0], people=people, seed=self.seed)
        models = [inputs.path("start"), *inputs.paths("models")]
        model = names.folder(models[found.place])
        if self.indexes:
            index.link_whole(inputs["indexes"][found.place], INDEX, out)
        shutil.copytree(model, out.begin(CHOSEN))
        out.adopt(CHOSEN)
        out.write_json(CHOICE, dataclasses.asdict(found))
        out.info["choice"] = dataclasses.asdict(found)
        out.count = len(results)
        means = ", ".join(
            f"{c.name} {c.mean:.3f} (expected {c.expected:+.3f}, better with probability "
            f"{c.probability:.2f})"
            for c in found.candidates[1:]
        )
        progress.say(
            f"choose: {found.chosen}; {results[0].name} {found.candidates[0].mean:.3f}, {means}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Average(Stage):
    """Averages the weights of a retriever with those of the model that it was trained from.

    Pooling, prompts, titles, limits in tokens and the tokenizer are those of the start.
    """

    VERB = "average"
    KIND = "parameters"
    EXAMPLE = "qac step average --model out/retriever --start models/start --out out/mean"

    model: Ref = model_input("retriever")
    start: Ref = model_input("model of the same shape (default: nothing is averaged)", default="")
    share: float = option(0.5, "weight of the retriever, of 1 in all", at_least=0, at_most=1)

    def plan(self, inputs: Plans) -> Plan:
        model = inputs.get("model", {})
        passed = ("parameters", "parameters_of_layers", "started from")
        return {name: model[name] for name in passed if name in model}

    def run(self, inputs: Inputs, out: Writer) -> None:
        import jax

        from qac_jax.hub import huggingface, parameters
        from qac_jax.training.checkpoints import averaged

        places = [names.folder(inputs.path(name)) for name in ("start", "model") if name in inputs]
        loaded = [huggingface.as_dual_encoder(huggingface.load(place), place) for place in places]
        weights = (1.0 - self.share, self.share) if self.start else (1.0,)
        params = averaged([variables["params"] for _, variables in loaded], weights)
        folder = out.begin(parameters.EXPORTED)
        out.adopt(parameters.EXPORTED, identity=parameters.save(folder, params))
        module = _reading(loaded[0][0], places[0])
        out.write_json(parameters.MODULE, parameters.describe_module(module))
        names.tokenizer_of(places[0]).save(str(out.begin(parameters.TOKENIZER)))
        out.adopt(parameters.TOKENIZER)
        out.count = sum(leaf.size for leaf in jax.tree.leaves(params))


def _reading(module: Any, place: Any) -> Any:
    """The module with the limit in tokens that its folder says beside it."""
    from qac_jax.hub import sentence_transformers

    config = module.config
    limit = min(sentence_transformers.max_length(place) or 0, config.backbone.max_length)
    limits = {name: getattr(config, name) or limit for name in ("query_length", "passage_length")}
    return module.clone(config=dataclasses.replace(config, **limits))


SUMMARY = "summary.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conclude(Stage):
    """Writes summary.json: rows with figures, provenance of the questions, which system to use.

    Which retriever, and whether with BM25, was decided by the validation questions; the test
    questions only measure it.
    """

    VERB = "conclude"
    KIND = "summary"
    VERSION = 4
    EXAMPLE = (
        "qac step conclude --metrics metrics --choice choice --validation validation "
        "--questions questions --alone run_start,run_1 --out summary"
    )

    metrics: Ref = input("metrics of all systems on the test questions", "metrics")
    validation: Ref = input("metrics of them on the validation questions", "metrics")
    choice: Ref = input("the model that was chosen", "choice")
    questions: Ref = input("questions of qac step collect", "questions")
    index: Ref = input("index of the chosen model and of BM25", "hybrid", default="")
    leaks: Ref = input("the comparison of qac step leaks", "leaks", default="")
    asked: Ref = input("test questions of qac step ask", "questions", default="")
    bm25: str = option("run_bm25", "BM25's run among the metrics")
    alone: tuple[str, ...] = option((), "runs of the models, in the order of the choice")
    fused: tuple[str, ...] = option((), "the same fused with BM25's (default: none)")
    own: str = option("", "the index's run, where the test questions chose it too")
    names: Mapping[str, str] | None = option(None, "names of the runs to show")

    def check(self) -> None:
        super().check()
        if not self.alone or self.fused and len(self.fused) != len(self.alone):
            raise UserError("give --alone RUNS, and --fused for each of them or for none")

    def run(self, inputs: Inputs, out: Writer) -> None:
        rows, facts = results.read(inputs.artifact("metrics"))
        choice = inputs.artifact("choice").info["choice"]
        searched = inputs.artifact("index").info if "index" in inputs else {}
        systems = verdict.Systems(
            self.bm25,
            self.alone,
            self.fused,
            self.names or {},
            weight=float(searched.get("weight", 0.0)),
            windows=float(searched.get("windows", 0.0)),
            weighed=searched.get("choice", {}).get("questions", 0),
            index=inputs.text("index"),
            own=self.own,
        )
        questions = verdict.provenance(inputs.artifact("questions").info)
        if "asked" in inputs:
            source = os.path.basename(inputs.artifact("asked").fields["questions"].rstrip("/"))
            questions["test"] |= {"source": source, "makers": f"people ({source})"}
        comparisons = [Comparison(**c) for c in facts["comparisons"]]
        use, called = systems.like(choice["place"]), systems.called
        summary = {
            "verdict": verdict.verdict(rows, comparisons, choice, systems, questions["test"]),
            "use": {
                "system": use,
                "name": called(use),
                "weight of BM25": systems.weight,
                "share of the best window": systems.windows,
                "trained": choice["place"] > 0,
            },
            "rows": [{"system": r.name, "name": called(r.name), **r.mean} for r in rows],
            "validation": {
                called(r.name): r.mean for r in results.read(inputs.artifact("validation"))[0]
            },
            "choice": choice,
            "questions": questions,
            "leaks": inputs.artifact("leaks").json("leaks.json") if "leaks" in inputs else None,
        }
        text = json.dumps(summary, indent=1, ensure_ascii=False, default=str)
        out.write_text(SUMMARY, f"{text}\n")
        out.count = len(rows)

    def summary(self, artifact: Artifact) -> str:
        return "\n".join(artifact.json(SUMMARY)["verdict"])
