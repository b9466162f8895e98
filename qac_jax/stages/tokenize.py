"""`qac tokenize`: passages, contexts and judged queries into token examples."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from qac_jax import progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.formats.registry import TRAINING
from qac_jax.pipeline.stage import Inputs, Stage, artifact_input, option, source


if TYPE_CHECKING:
    from qac_jax.data.encoding import Building
    from qac_jax.data.judged import Judged
    from qac_jax.formats.bad_lines import BadLines
    from qac_jax.formats.records import Records


TASKS = (
    "passage_query",
    "passage_passage",
    "mixed",
    "two_spans",
    "augtriever",
    "mlm",
    "seq2seq",
    "triples",
    "cross_encoder",
    "cross_encoder_group",
)
# How a title joins its passage where --title is auto: as the reference does for each task.
_TITLES = {"triples": "separate", "cross_encoder": "space", "cross_encoder_group": "space"}

# The stage's own folder in an unfinished artefact: what workers told, sizes of documents.
_STATE = ".tokenize"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokenize(Stage):
    """Makes the examples of one kind; how they are paired and cropped is drawn in training."""

    VERB: ClassVar[str] = "tokenize"
    KIND: ClassVar[str] = "examples"
    VERSION: ClassVar[int] = 1
    EXAMPLE: ClassVar[str] = (
        "qac tokenize --passages out/passages --contexts out/contexts --task passage_query "
        "--out out/examples"
    )

    passages: str = artifact_input("passages of documents", kind="passages", default="")
    contexts: str = artifact_input("generated or extracted contexts", kind="contexts", default="")
    queries: str = source("queries of the judgements", "")
    qrels: str = source("judgements: which passages answer which query", "")
    negatives: str = source("negatives: MS MARCO triples, hard negatives, a run, an artefact", "")
    pairs: str = artifact_input("seq2seq: pairs of a generator", kind="pairs", default="")
    training: str = source("a training file that holds its texts", "")
    training_format: str = option("tevatron", "form of the training file", choices=TRAINING.names())
    task: str = option("passage_query", "what to make", choices=TASKS)
    part: str = option(
        "all",
        "which passages: all, those that prepare marked as held out, or the others",
        choices=("all", "train", "held_out"),
    )
    tokenizer: str = option("wordpiece-16k", "a shipped vocabulary or a Hugging Face folder")
    title: str = option(
        "auto", "a passage's title before its text", choices=("auto", "none", "separate", "space")
    )
    prefix: str = option("", "seq2seq: text before every input, such as 'text2query: '")
    query_prompt: str = option("", "judged queries: text before each, such as 'query: '")
    passage_prompt: str = option("", "and before each of their passages")
    sorts: tuple[str, ...] = option(
        ("random", "nearby", "overlap"), "sibling passages to store for passage pairs"
    )
    siblings: int = option(1, "how many of each sort; 1 as in the released code")
    overlap_tokens: int = option(144, "least length of an overlapping sibling")
    splitter: str = option("auto", "sentences by auto, punkt_tab, shipped, or a learned file")
    input_tokens: int = option(
        0, "seq2seq: cut texts of pairs so that prompt and text are so many tokens (0: not)"
    )
    origins: tuple[str, ...] = option((), "take only contexts of these origins")
    strategies: tuple[str, ...] = option((), "augtriever: texts to store; default: all there are")
    depth: int = option(200, "negatives are taken from so many first places of a run")
    keep: int = option(128, "negatives stored for a query")
    random_negatives: int = option(0, "uniformly random passages added to a query's negatives")
    negatives_per_query: int = option(4, "cross_encoder: negatives for a query")
    teacher: bool = option(False, "store the scores that the negatives' artefact holds")
    scores: bool = option(
        False, "cross_encoder: each query begins with its passage's share of --negatives' scores"
    )
    skip_bad: int = option(0, "leave out and list up to this many bad records")
    shards: int = option(0, "files to write; 0: by the number of records")
    workers: int = option(0, "processes; 0: one a core", affects_result=False)
    runner: str = option(
        "local", "local, or an Apache Beam runner such as DirectRunner", affects_result=False
    )
    runner_options: str = option("", "flags of the Beam runner", affects_result=False)

    def environment(self) -> dict[str, str]:
        """What the result depends on beside fields and inputs."""
        from qac_jax.text import tokenizers

        return {"tokenizer": tokenizers.load(self.tokenizer).identity}

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        self._check(inputs)
        # Only where every passage gives one example is their number known beforehand.
        each = self.task not in (*_TITLES, "two_spans")
        given = "pairs" if self.pairs else "passages"
        count = inputs.get(given, {}).get("count") if each else None
        return {"task": self.task, "vocabulary": self.tokenizer, "count": count}

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.data import encoding as building
        from qac_jax.data import store
        from qac_jax.formats.bad_lines import BadLines
        from qac_jax.text import tokenizers

        self._check(inputs)
        tokenizer = tokenizers.load(self.tokenizer)
        (out.path / _STATE).mkdir(parents=True, exist_ok=True)
        bad = BadLines(self.skip_bad)
        settings = self._building(inputs)
        schema = settings.schema(tokenizer.vocab_size)
        if self.task in building.RANKING_TASKS:
            counts = self._ranking(inputs, out, settings, schema, bad)
        elif self.pairs:
            counts = self._pairs(inputs, out, settings, schema, bad)
        else:
            counts = self._documents(inputs, out, settings, schema, bad)
        if not any(counts):
            raise UserError(
                f"task {self.task} got no examples out of its inputs ({bad.summary()}); check them"
            )
        out.count = sum(counts)
        store.describe(out.path, schema, counts)
        for name in store.FILES:
            out.adopt(name)
        if not any(name.startswith("tokenizer/") for name in out.done):
            tokenizer.save(os.fspath(out.path / "tokenizer"))
            out.adopt("tokenizer")
        stored: dict[str, Any] = {}
        if self.task == "augtriever":
            stored["separator"] = building.separator_ids(tokenizer)
        if self.task == "mixed":
            siblings = dict.fromkeys(self.sorts, 0.5 / max(len(self.sorts), 1))
            stored["probabilities"] = {"query": 0.5, **siblings}
        if self.task == "passage_passage":
            stored["sorts"] = list(self.sorts)
        if self.task in building.RANKING_TASKS:
            out.info["reading"] = {
                name: getattr(settings, name)
                for name in ("title", "query_prompt", "passage_prompt")
            }
        if self.scores:
            out.info["reading"]["scores"] = True
        out.info.update(
            task=self.task,
            schema=schema,
            form=form_of(tokenizer),
            vocab_size=tokenizer.vocab_size,
            tokenizer=tokenizer.identity,
            shards=counts,
            settings=stored,
            left_out=dict(sorted(bad.left_out.items())),
            skipped=len(bad),
        )
        if bad.items:
            with open(os.fspath(out.part("skipped.tsv")), "w", encoding="utf-8") as file:
                file.write(bad.listing())
            out.keep("skipped.tsv", volatile=True)
        if summary := bad.summary():
            progress.say(f"tokenize: {summary}")
        (out.path / _STATE).rmtree()

    def _check(self, inputs: Mapping[str, Any]) -> None:
        del inputs
        if self.pairs:
            self._check_pairs()
            return
        from_documents = self.task not in _TITLES
        if not self.passages and (from_documents or not self.training):
            raise UserError(
                f"--task {self.task} needs --passages; give the folder that prepare made"
            )
        if self.queries and self.contexts and from_documents:
            raise UserError("--queries and --contexts both give contexts; leave one of them out")
        asked = self.contexts or self.queries
        if self.task in ("passage_query", "mixed", "seq2seq") and not asked:
            raise UserError(
                f"--task {self.task} needs queries; give --contexts, or --queries and --qrels"
            )
        if not from_documents and not (asked or self.training or self.negatives):
            raise UserError(
                f"--task {self.task} needs queries; give --queries and --qrels, --contexts, "
                f"--training, or an artefact of negatives that holds them"
            )
        if self.queries and not self.qrels and (from_documents or not self.negatives):
            raise UserError("--queries does not say what answers them; give --qrels too")
        if self.part != "all" and not from_documents:
            raise UserError(f"--part {self.part} is for tasks made of passages, not {self.task}")
        if self.scores and (self.task != "cross_encoder" or not self.negatives):
            raise UserError(
                f"--scores are for --task cross_encoder with --negatives that have some (a run); "
                f"this is {self.task} {'with' if self.negatives else 'without'} negatives"
            )
        if self.scores and self.random_negatives:
            raise UserError("random negatives have no score; leave them or --scores out")
        for sort in self.sorts:
            if sort not in ("random", "nearby", "overlap"):
                raise UserError(
                    f"sorts: {sort!r} is not known; expected some of random, nearby, overlap"
                )
        if self.siblings < 1:
            raise UserError(f"siblings={self.siblings} is too few; expected 1 or more")

    def _check_pairs(self) -> None:
        if self.task != "seq2seq":
            raise UserError(f"--pairs are for --task seq2seq, not for {self.task}; change one")
        if self.passages or self.contexts or self.queries:
            raise UserError("--pairs hold texts and targets; leave passages and queries out")

    def _building(self, inputs: Inputs) -> Building:
        from qac_jax.data.encoding import Building

        strategies = self.strategies
        if self.task == "augtriever" and not strategies:
            strategies = _strategies(_artifact(inputs, "contexts"))
        title = _TITLES.get(self.task, "none") if self.title == "auto" else self.title
        return Building(
            task=self.task,
            tokenizer=self.tokenizer,
            title=title,
            prefix=self.prefix,
            query_prompt=self.query_prompt,
            passage_prompt=self.passage_prompt,
            sorts=tuple(self.sorts),
            siblings=self.siblings,
            overlap_tokens=self.overlap_tokens,
            splitter=self.splitter,
            origins=tuple(self.origins),
            strategies=tuple(strategies),
            teacher=self.teacher,
            scores=self.scores,
            part=self.part,
            input_tokens=self.input_tokens,
            seed=self.seed,
        )

    def _pairs(
        self,
        inputs: Inputs,
        out: Writer,
        building: Building,
        schema: Mapping[str, str],
        bad: BadLines,
    ) -> list[int]:
        """Examples of a generator."""
        from qac_jax.data import shards
        from qac_jax.formats.records import Records

        artifact = _artifact(inputs, "pairs")
        assert artifact is not None
        pairs = Records(artifact)
        count = self.shards or _default_shards(len(pairs))
        names = _names(count)
        edges = [len(pairs) * number // count for number in range(count + 1)]
        jobs = [
            shards.PairJob(
                pairs=pairs,
                start=edges[number],
                stop=edges[number + 1],
                building=building,
                schema=schema,
                target=os.path.abspath(out.part(names[number])),
            )
            for number in range(count)
        ]
        return self._mapped(shards.write_pairs, jobs, names, [], out, bad)

    def _documents(
        self,
        inputs: Inputs,
        out: Writer,
        building: Building,
        schema: Mapping[str, str],
        bad: BadLines,
    ) -> list[int]:
        """Examples made of the passages of documents, shard by shard."""
        import numpy as np

        from qac_jax.data import judged, shards
        from qac_jax.data.examples import DOCUMENTS
        from qac_jax.formats.records import Records

        artifact = _artifact(inputs, "passages")
        assert artifact is not None
        passages = Records(artifact)
        state = os.path.abspath(out.path / _STATE)
        given = _artifact(inputs, "contexts")
        contexts = None if given is None else Records(given)
        if self.queries:
            folder = os.path.join(state, "queries")
            contexts = judged.as_contexts(passages, self.queries, self.qrels, folder, bad)
        places = ""
        if contexts is not None and not _aligned(passages, contexts):
            places = os.path.join(state, "places.npy")
            found = contexts.positions(passages.ids())
            np.save(places, np.array([-1 if p is None else p for p in found], np.int64))
        count = self.shards or _default_shards(len(passages))
        names = _names(count)
        edges = [len(passages) * number // count for number in range(count + 1)]
        sizes = [os.path.join(state, f"sizes-{number:05d}.npy") for number in range(count)]
        jobs = [
            shards.DocumentJob(
                passages=passages,
                contexts=contexts,
                places=places,
                start=edges[number],
                stop=edges[number + 1],
                building=building,
                schema=schema,
                target=os.path.abspath(out.part(names[number])),
                sizes=sizes[number],
            )
            for number in range(count)
        ]
        counts = self._mapped(shards.write_documents, jobs, names, sizes, out, bad)
        each = np.concatenate([np.load(path) for path in sizes])
        with out.temporary(DOCUMENTS) as path:
            np.save(os.fspath(path), np.repeat(np.arange(len(each), dtype=np.int32), each))
        out.info["documents"] = len(each)
        return counts

    def _ranking(
        self,
        inputs: Inputs,
        out: Writer,
        building: Building,
        schema: Mapping[str, str],
        bad: BadLines,
    ) -> list[int]:
        """Examples made of queries with judged passages."""
        from qac_jax.data import shards
        from qac_jax.formats.records import Records

        artifact = _artifact(inputs, "passages")
        passages = None if artifact is None else Records(artifact)
        queries = tuple(self._judged(inputs, passages, bad))
        count = self.shards or _default_shards(len(queries) * 8)
        names = _names(count)
        edges = [len(queries) * number // count for number in range(count + 1)]
        jobs = [
            shards.RankingJob(
                passages=passages,
                queries=queries[edges[number] : edges[number + 1]],
                building=building,
                schema=schema,
                target=os.path.abspath(out.part(names[number])),
                negatives_per_query=self.negatives_per_query,
            )
            for number in range(count)
        ]
        return self._mapped(shards.write_ranking, jobs, names, [], out, bad)

    def _judged(self, inputs: Inputs, passages: Records | None, bad: BadLines) -> Iterator[Judged]:
        from qac_jax.data import judged
        from qac_jax.formats.records import Records

        if self.training:
            yield from judged.from_training_lines(self.training, self.training_format, bad)
            return
        assert passages is not None
        choice = judged.Choice(
            self.depth, self.keep, self.random_negatives, self.seed, scored=self.scores
        )
        contexts = _artifact(inputs, "contexts")
        if contexts is not None and not self.queries:
            yield from judged.from_generated(
                passages, Records(contexts), self.negatives, choice, bad
            )
        else:
            yield from judged.from_queries(
                passages, self.queries, self.qrels, self.negatives, choice, bad
            )

    def _mapped(
        self,
        function: Callable[[Any], dict[str, Any]],
        jobs: Sequence[Any],
        names: Sequence[str],
        sides: Sequence[str],
        out: Writer,
        bad: BadLines,
    ) -> list[int]:
        """Runs the jobs whose shards an interrupted run had not finished; records in each."""
        from qac_jax.pipeline import engine

        done = [
            name in out.done and (not sides or os.path.exists(sides[number]))
            for number, name in enumerate(names)
        ]
        left = [number for number, is_done in enumerate(done) if not is_done]
        told = {n: out.facts(names[n]) for n in range(len(jobs)) if done[n]}
        with progress.Bar("tokenize", total=len(jobs), unit="shards") as bar:
            bar.skip(len(told))
            answers = engine.run(
                function,
                [jobs[n] for n in left],
                workers=self.workers,
                runner=self.runner,
                runner_options=self.runner_options,
                scratch=os.path.abspath(out.path / _STATE),
            )
            for number, answer in zip(left, answers, strict=True):
                out.keep(names[number], facts=answer)
                told[number] = answer
                bar.advance(examples=sum(answer["records"] for answer in told.values()))
        for answer in told.values():
            for what, count in answer["left_out"].items():
                bad.leave_out(what, count)
        return [told[number]["records"] for number in range(len(jobs))]


def _artifact(inputs: Inputs, name: str) -> Artifact | None:
    found = inputs.get(name)
    assert found is None or isinstance(found, Artifact)
    return found


def _names(count: int) -> list[str]:
    from qac_jax.data.store import shard_name

    return [shard_name(number, count) for number in range(count)]


def _default_shards(records: int) -> int:
    """Enough for all cores of a usual machine, and files of some 50 MB for large corpora."""
    return max(1, min(8, records // 500), -(-records // 100_000))


def _aligned(passages: Records, contexts: Records) -> bool:
    """Whether both hold the same ids in the same order."""
    if len(passages) != len(contexts):
        return False
    return all(a == b for a, b in zip(passages.ids(), contexts.ids(), strict=True))


def _strategies(contexts: Artifact | None) -> tuple[str, ...]:
    """What passages tell themselves, and every origin of the contexts."""
    from qac_jax.formats.records import Records

    origins: dict[str, None] = dict.fromkeys(("anchor", "phrase", "title"))
    if contexts is not None:
        for record in Records(contexts):
            origins.update(dict.fromkeys(c["origin"] for c in record["contexts"]))
    return tuple(sorted(origins))
