"""`qac index`: vectors into an index, exact or ScaNN's, tuned to a promised recall."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from etils import epath

from qac_jax import artifacts, fields, progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.pipeline.stage import Inputs, Stage, artifact_input, option, source


if TYPE_CHECKING:
    from qac_jax.retrieval.scann_index import Preset
    from qac_jax.retrieval.vectors import Vectors


# From how many vectors on `auto` builds ScaNN's.
_MANY = 20_000
_WORK = ".scann"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Index(Stage):
    """Makes vectors searchable; with --base, adds them to an index that there is."""

    VERB: ClassVar[str] = "index"
    KIND: ClassVar[str] = "index"
    VERSION: ClassVar[int] = 2  # twice as many leaves by themselves
    EXAMPLE: ClassVar[str] = "qac index --vectors out/vectors --target_recall 0.99 --out out/index"

    vectors: str = artifact_input("what is searched", kind="vectors")
    base: str = artifact_input("an index to add them to", kind="index", default="")
    method: str = option(
        "auto",
        "auto: exact below 20,000 vectors, ScaNN's above, or as --base",
        choices=("auto", "exact", "scann"),
    )
    target_recall: float = option(0.0, "ScaNN: search as hard as this recall needs (0: a preset)")
    recall_at: int = option(100, "recall of so many passages")
    queries: str = source("queries to measure it on: a file, or vectors of queries", "")
    sample: int = option(1000, "how many of them (or of the vectors, where no queries are given)")
    leaves: int = option(
        -1, "ScaNN's tree (-1: about twice the root of the number of vectors; 0: none)"
    )
    dims_per_block: int = option(2, "dimensions that ScaNN hashes together")
    reordering: str = option(
        "float32",
        "exact scores are computed from these",
        choices=("float32", "bfloat16", "int8"),
    )
    soar: float = option(0.0, "SOAR's lambda: each vector in a second leaf too (0: no)")

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        count = inputs.get("vectors", {}).get("count")
        return {"vectors": count, "method": self._method(count, None) if count else self.method}

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.retrieval import ids, index
        from qac_jax.retrieval.vectors import Vectors

        self._check_sample()
        added = _artifact(inputs, "vectors")
        base = index.Index(_artifact(inputs, "base")) if "base" in inputs else None
        if added.info["side"] != "passage":
            raise UserError(f"{added.path} holds vectors of queries; an index is made of passages'")
        vectors = Vectors.of(added)
        if base is not None:
            _check_alike(base, added, vectors)
        method = self._method(len(vectors), base)
        parts = dict(base.description["parts"]) if base is not None else {}
        if base is not None:
            _link_parts(base.artifact, parts, out)
        name = f"part-{len(parts):05d}"
        parts[name] = {"rows": len(vectors)}
        if method == index.EXACT:
            _link_vectors(added, name, out)
        else:
            preset = self._preset(len(vectors))
            parts[name]["preset"] = dataclasses.asdict(preset)
            _build(vectors, preset, added.identity, name, out)
        with out.open(index.DESCRIPTION) as file:
            description = {"method": method, "dimension": vectors.width, "parts": parts}
            json.dump(description, file, indent=1)
        if ids.OFFSETS not in out.done:
            ids.write(out, itertools.chain(base.ids if base else (), ids.Ids(added)))
        out.count = sum(part["rows"] for part in parts.values())
        texts = _texts([{**added.info["texts"], "rows": len(vectors)}], added.path, out)
        if base is not None:
            texts = _texts(base.artifact.info["texts"], base.artifact.path, out) + texts
            out.info["effort"] = base.artifact.info.get("effort")
        out.info.update(
            method=method, dimension=vectors.width, encoder=_encoder(added), texts=texts
        )
        if method == index.SCANN and self.target_recall:
            self._tune(inputs, out, vectors, name, preset)
        shutil.rmtree(out.path / _WORK, ignore_errors=True)

    def _check_sample(self) -> None:
        if not 0 <= self.target_recall < 1:
            raise UserError(
                f"target_recall={self.target_recall}; expected at least 0 and less than 1"
            )
        if self.target_recall and (self.base or self.sample < 2 or self.recall_at < 1):
            raise UserError(
                "target_recall is measured on all vectors, with two queries or more: it cannot "
                "go with --base (which keeps its own effort), --sample below 2 or --recall_at "
                "below 1; change that or leave it out"
            )

    def _method(self, count: int, base: Any) -> str:
        found = base.description["method"] if base is not None else ""
        if found and self.method not in ("auto", found):
            raise UserError(
                f"method={self.method!r}, but the index to add to is of the method {found!r}; "
                "give that or auto"
            )
        if found or self.method != "auto":
            return found or self.method
        return "exact" if count < _MANY else "scann"

    def _preset(self, count: int) -> Preset:
        from qac_jax.retrieval.scann_index import preset_for

        changes: dict[str, Any] = {} if self.leaves < 0 else {"leaves": self.leaves}
        return preset_for(
            count,
            dims_per_block=self.dims_per_block,
            reordering=self.reordering,
            soar=self.soar,
            **changes,
        )

    def _tune(
        self, inputs: Inputs, out: Writer, vectors: Vectors, part: str, preset: Preset
    ) -> None:
        """Measures on a sample how hard to search."""
        from qac_jax.retrieval import tuning
        from qac_jax.retrieval.exact import Exact
        from qac_jax.retrieval.scann_index import Scann

        queries, own = self._sample(inputs, vectors)
        k = min(self.recall_at, len(vectors) - 1)
        progress.say(f"index: exact search of {len(queries):,} queries, to measure recall on")
        _, truth = Exact(vectors).search(queries, k + 1)
        truth = truth[:, :k] if own is None else tuning.without(truth, own)
        searcher = Scann([out.path / part], [len(vectors)], vectors.width, [preset])
        tuned = tuning.tune(searcher, queries, truth, self.target_recall, own)
        found = dataclasses.asdict(tuned)
        out.info.update(effort=dataclasses.asdict(tuned.effort), tuning=found)
        told = (
            f"recall@{k} {tuned.chosen.recall:.4f} (on other queries {tuned.held_out_recall:.4f}) "
            f"with {tuned.chosen.leaves} leaves and {tuned.chosen.reorder} candidates"
        )
        if tuned.chosen.recall < self.target_recall:
            told += f": {self.target_recall} is out of reach; raise --leaves or --dims_per_block 1"
        if own is not None:
            told += "; measured with vectors of the index, give --queries for what users will see"
        progress.say(f"index: {told}")

    def _sample(self, inputs: Inputs, vectors: Vectors) -> tuple[np.ndarray, np.ndarray | None]:
        """(queries, None), or vectors of the index and which rows they are."""
        rng = np.random.default_rng(self.seed)
        if "queries" not in inputs:
            own = rng.permutation(len(vectors))[: self.sample]
            return vectors.take(own).astype(np.float32), own
        found = _query_vectors(inputs)
        if len(found) < 2:
            raise UserError(f"{self.queries} holds {len(found)} queries; tuning needs two or more")
        return found[rng.permutation(len(found))[: self.sample]], None


def _query_vectors(inputs: Inputs) -> np.ndarray:
    """Queries as vectors, encoded here where they are texts."""
    from qac_jax.formats.queries import read_queries
    from qac_jax.inference.encoder import Encoder, Settings
    from qac_jax.retrieval.vectors import KIND, Vectors

    place = _folder(inputs, "queries")
    if (place / artifacts.COMMIT).exists():
        given = Vectors.of(artifacts.load(place, KIND))
        return given.read(0, len(given)).astype(np.float32)
    known = _artifact(inputs, "vectors").info["encoder"]
    encoder = Encoder.load(known["path"], Settings(**known["settings"]))
    return encoder.encode([query.text for query in read_queries(place)], "query")


def _build(vectors: Vectors, preset: Preset, identity: str, name: str, out: Writer) -> None:
    """A part of ScaNN's, which is built once even if the rest is interrupted."""
    from qac_jax.retrieval import scann_index

    built = out.path / _WORK / name
    if not built.exists():
        unfinished = out.path / _WORK / "unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        progress.say(f"index: building ScaNN's index of {len(vectors):,} vectors")
        whole = vectors.read(0, len(vectors))
        scann_index.build(whole, preset, unfinished)
        os.rename(unfinished, built)
    shutil.rmtree(out.path / name, ignore_errors=True)
    shutil.copytree(built, out.path / name, copy_function=_link)
    # Threads make k-means differ in the last bits: the same input counts as the same index.
    decisive = [identity, dataclasses.asdict(preset), scann_index.version()]
    out.adopt(name, identity=fields.digest(decisive))


def _link_vectors(given: Artifact, name: str, out: Writer) -> None:
    """The files of vectors under a part's name: linked where that is possible, else copied."""
    from qac_jax.retrieval.vectors import shard_names

    _link_files(given, {f"{name}/{file}": file for file in shard_names(given)}, out)


def _link_parts(base: Artifact, parts: Iterable[str], out: Writer) -> None:
    for part in parts:
        files = [file for file in base.files if file.startswith(f"{part}/")]
        if identity := base.record["contents"].get(part):
            shutil.rmtree(out.path / part, ignore_errors=True)
            for file in files:
                (out.path / file).parent.mkdir(exist_ok=True)
                _link(base.path / file, out.path / file)
            out.adopt(part, identity=identity)
        else:
            _link_files(base, {file: file for file in files}, out)


def _link_files(given: Artifact, names: Mapping[str, str], out: Writer) -> None:
    for name, theirs in names.items():
        if name not in out.done:
            part = out.part(name)
            part.unlink(missing_ok=True)
            _link(given.path / theirs, part)
            out.keep(name, sha256=given.files[theirs]["sha256"])


def _link(source: os.PathLike[str] | str, target: os.PathLike[str] | str) -> None:
    """The same bytes under another name; nothing here ever changes a file in place."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _check_alike(base: Any, added: Artifact, vectors: Vectors) -> None:
    from qac_jax.formats.identities import IdSet
    from qac_jax.retrieval.ids import Ids

    if base.description["dimension"] != vectors.width or (
        base.artifact.info["encoder"]["identity"] != _encoder(added)["identity"]
    ):
        raise UserError(
            f"{added.path} was made with another encoder than {base.artifact.path}; "
            "embed the new passages with the same one"
        )
    known = IdSet(base.ids)
    for name in Ids(added):
        if name in known:
            raise UserError(
                f"passage {name!r} of {added.path} is in {base.artifact.path} already; "
                "leave it out of the new passages"
            )


def _encoder(added: Artifact) -> dict[str, Any]:
    identity = added.inputs.get("encoder") or added.inputs.get("model")
    return {**added.info["encoder"], "identity": identity}


def _texts(
    known: Iterable[Mapping[str, Any]], seen_from: epath.Path, out: Writer
) -> list[dict[str, Any]]:
    """Where texts are, seen from the new folder."""
    from qac_jax.retrieval import texts

    return [
        {**entry, **(texts.location(found, out.path) if found else {})}
        for entry in known
        for found in [texts.find(entry, seen_from)]
    ]


def _artifact(inputs: Inputs, name: str) -> Artifact:
    found = inputs[name]
    assert isinstance(found, Artifact)
    return found


def _folder(inputs: Inputs, name: str) -> epath.Path:
    found = inputs[name]
    return found.path if isinstance(found, Artifact) else found
