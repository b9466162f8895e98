"""The Python interface: an encoder and the passages that it searches, in a few lines.

    from qac_jax import Retriever

    retriever = Retriever.load("out/retriever")
    retriever.index(["Bees make honey.", "Granite is a hard stone."])
    retriever.search("Who makes honey?", k=1)

It runs the stages `embed`, `index`, `search` and `export`. From the first `add`, `delete` or filter
on, its index is a living one (`live/index.py`). Progress is shown on a terminal.
"""

import contextlib
import dataclasses
import os
import shutil
import sys
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, overload

import numpy as np

from qac_jax import artifacts, progress
from qac_jax.errors import UserError, shown
from qac_jax.exporting import export
from qac_jax.formats.records import Records
from qac_jax.hub import huggingface, names
from qac_jax.inference.encoder import Encoder
from qac_jax.inference.reranker import Reranker
from qac_jax.inference.settings import AS_IN_FOLDER, BY_DEVICE, EncoderOptions, Inference
from qac_jax.live import convert, filters, store
from qac_jax.live.index import LiveIndex, Passage, check_several, record_of, records_of
from qac_jax.models.encoders import DualEncoder
from qac_jax.pipeline.stage import execute
from qac_jax.retrieval import corpus as text_files
from qac_jax.retrieval import hybrid, search
from qac_jax.retrieval import index as index_files
from qac_jax.retrieval.corpus import Hit, Hits
from qac_jax.stages import embed, index


__all__ = ["Hit", "Passage", "Retriever"]

Place = str | os.PathLike[str]

# Hits that a cross-encoder reads for a question.
_RERANKED = 100

# The parts of a folder that `save` writes.
_MODEL, _TEXTS, _VECTORS, _INDEX = "model", "texts", "vectors", "index"


@contextlib.contextmanager
def _on_a_terminal() -> Iterator[None]:
    """Progress is shown there only."""
    with contextlib.nullcontext() if sys.stderr.isatty() else progress.silence():
        yield


class Retriever:
    """Encodes texts and retrieves the top passages for a query.

    Examples:
        >>> from qac_jax import Retriever
        >>> retriever = Retriever.load(folder)
        >>> retriever.encode(["Bees make honey.", "Granite is a hard stone."]).shape
        (2, 32)
        >>> retriever = retriever.index(["Bees make honey.", "Granite is a hard stone."])
        >>> hit = retriever.search("Bees make honey.", k=1)[0]
        >>> hit.id, hit.text
        ('0', 'Bees make honey.')
        >>> retriever.save(out)
        >>> [hit.id for hit in Retriever.load(out).search("Granite is a hard stone.", k=2)]
        ['1', '0']
    """

    def __init__(
        self,
        encoder: Encoder,
        place: Path = Path(),
        searched: index_files.Index | hybrid.Hybrid | LiveIndex | None = None,
    ):
        """Use `load`. `place` is the encoder's folder, `searched` its index."""
        if not isinstance(encoder, Encoder):
            raise UserError(f"encoder={shown(encoder)}; write Retriever.load({shown(encoder)})")
        self.encoder = encoder
        self._place = place
        self._index = searched
        self._remove: weakref.finalize | None = None  # deletes its temporary index

    @classmethod
    @_on_a_terminal()
    def load(
        cls,
        folder: Place,
        *,
        model: Place = "",
        pooling: str = "",
        max_length: int = 0,
        precision: str = "auto",
    ) -> Self:
        """From an artefact of ours, a Hugging Face or sentence-transformers folder, "shipped:NAME",
        a name at the Hub ("owner/name@revision"), an index (dense, hybrid or living), what `save`
        wrote, or the folder of a recipe that made an index. What is added to a living index, or
        deleted from it, changes its folder.

        model: where the encoder of an index is, if it was moved. pooling ("cls", "mean" …) and
        max_length (tokens) replace the folder's settings. precision: as of `qac embed` ("int8").
        """
        options = EncoderOptions(pooling=pooling, max_length=max_length)
        inference = Inference(precision)
        place = Path(folder)
        if (place / _INDEX / artifacts.COMMIT).exists():
            saved = (place / _MODEL).is_dir()  # else the folder of a recipe such as own_corpus
            model, place = model or (place / _MODEL if saved else ""), place / _INDEX
        record = artifacts.peek(place)
        if record is None or record["kind"] not in (index_files.KIND, hybrid.KIND, store.KIND):
            place = names.folder(place)
            return cls(Encoder.load(place, options, inference), place)
        if options != AS_IN_FOLDER or inference != BY_DEVICE:
            raise UserError(
                f"{place} is an index, whose encoder is used as it was for its vectors; leave out "
                "pooling, max_length and precision"
            )
        moved, living = os.fspath(model), record["kind"] == store.KIND
        loaded: Any = LiveIndex(place, encoder=moved) if living else search.open_index(place, moved)
        known = index_files.place_of_encoder(artifacts.load(place), moved)
        return cls(loaded.encoder, Path(known), loaded)

    def __repr__(self) -> str:
        return f"Retriever({self._place}, {self.encoder.width} dimensions, {len(self):,} passages)"

    def __len__(self) -> int:
        """How many passages it searches."""
        return 0 if self._index is None else len(self._index)

    def __bool__(self) -> bool:
        return True

    @_on_a_terminal()
    def encode(self, texts: Passage | Iterable[Passage], *, side: str = "passage") -> np.ndarray:
        """Vectors: float32 [texts, width], of a single text [width]. side: "query" for questions.

        The dot product of a question's vector and a passage's is its score.
        """
        if isinstance(texts, str | Mapping):
            return self.encode([texts], side=side)[0]
        read = self.encoder.passage_text
        check_several(texts, "texts")
        try:
            rows = [text if isinstance(text, str) else read(text) for text in texts]
        except (AttributeError, KeyError, TypeError) as error:
            raise UserError(
                f"{shown(texts)} are not all texts or records with a 'text'; leave the others out"
            ) from error
        with progress.Bar("encode", total=len(rows), unit="texts") as bar:
            return self.encoder.encode(rows, side, advance=bar.advance)

    @_on_a_terminal()
    def index(self, passages: Place | Iterable[Passage], *, method: str = "auto") -> Self:
        """Indexes passages for `search`; returns the retriever itself.

        passages: texts, records with "text" and, where there are any, "_id" and "title" (without
        an id: their number), or an artefact of passages (method: as of `qac index`); or a folder
        or file of documents, cut and searched with BM25 beside the encoder as of `qac index --add`.
        """
        place = passages if isinstance(passages, str | os.PathLike) else None
        if place is not None and not os.path.exists(place):
            raise UserError(
                f"there is no file or folder {place}; give its path, or a list of texts"
            )
        with self._temporary() as root:
            if place is not None and artifacts.peek(place) is None:
                made = self._empty(root)
                convert.add_documents(made, os.fspath(place), convert.Changes())
                self._index = made
                return self
            text_files.store(root / _TEXTS, _records(passages))
            self._write_model(root / _MODEL)
            vectors = embed.Embed(
                encoder=str(root / _MODEL),
                passages=str(root / _TEXTS),
                inference=self.encoder.runner.inference,
            )
            execute(vectors, root / _VECTORS)
            execute(index.Index(vectors=str(root / _VECTORS), method=method), root / _INDEX)
            built = index_files.Index.load(root / _INDEX)
            # The same encoder as ours: it need not be read again.
            built.__dict__["encoder"] = self.encoder
            self._index = built
        return self

    @contextlib.contextmanager
    def _temporary(self) -> Iterator[Path]:
        """A folder for a new index, which lives as long as this object or until the next one."""
        root = Path(tempfile.mkdtemp(prefix="qac_jax-"))
        remove = weakref.finalize(self, shutil.rmtree, root, ignore_errors=True)
        yield root
        if self._remove is not None:
            self._remove()
        self._remove = remove

    @overload
    def search(self, question: str, k: int = ..., **how: Any) -> Hits: ...
    @overload
    def search(self, question: Sequence[str], k: int = ..., **how: Any) -> list[Hits]: ...
    @_on_a_terminal()  # type: ignore[misc]  # `how` stands for the keywords
    def search(
        self,
        question: str | Sequence[str],
        k: int = 10,
        *,
        where: filters.Where | None = None,
        hybrid: float | None = None,
        rerank: str | Reranker = "",
    ) -> Hits | list[Hits]:
        """The best k passages for a question, best first; for several questions, a list of each.

        where: a filter of metadata, such as {"lang": "en", "year": (">=", 2020)}. hybrid: the
        weight of BM25's score, 0 to 1 (None: that of the index). rerank: a cross-encoder, or its
        folder or name, that reranks the top 100.
        """
        if self._index is None:
            raise UserError("there are no passages to search; give it some with .index(texts)")
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
            raise UserError(f"k={shown(k)}; expected a whole number of 1 or more")
        if isinstance(hybrid, bool) or not isinstance(hybrid, int | float | None):
            raise UserError(f"hybrid={shown(hybrid)}; expected a weight of BM25's score, 0 to 1")
        several = question if isinstance(question, Iterable) else [question]
        questions: list[Any] = [question] if isinstance(question, str) else list(several)
        if not all(isinstance(each, str) for each in questions):
            raise UserError(f"question={shown(question)}; expected a text, or a list of texts")
        if not questions:
            return []
        first = max(k, _RERANKED) if rerank else k
        answers: Sequence[list[Hit]]
        if where is not None or hybrid is not None or isinstance(self._index, LiveIndex):
            answers = self._living().search(questions, first, where=where, hybrid=hybrid)
        else:
            answers = self._index.ask(questions, first)
        if rerank:
            pairs = zip(questions, answers, strict=True)
            answers = [search.reranked_hits(text, hits, rerank)[:k] for text, hits in pairs]
        found = [each if isinstance(each, Hits) else Hits(each) for each in answers]
        return found[0] if isinstance(question, str) else found

    @_on_a_terminal()
    def add(self, passages: Iterable[Passage], *, replace: bool = False) -> list[str]:
        """Adds passages, as of `index`; returns their ids. Ids that are there already are refused,
        or with `replace` these passages are replaced."""
        return self._living().add(passages, replace=replace)

    @_on_a_terminal()
    def update(self, passages: Iterable[Passage]) -> list[str]:
        """Replaces the passages with these ids, which must be there."""
        live, records = self._living(), records_of(passages)
        live.rows_of([str(record.get("_id", "")) for record in records])
        return live.add(records, replace=True)

    @_on_a_terminal()
    def delete(self, ids: Iterable[str]) -> list[str]:
        """Deletes passages by their ids, which must be there."""
        return self._living().delete(ids)

    def _empty(self, root: Path, weight: float | None = None) -> LiveIndex:
        self._write_model(root / _MODEL)
        place, model = root / _INDEX, root / _MODEL
        return convert.create(place, place=model, encoder=self.encoder, weight=weight)

    def _living(self) -> LiveIndex:
        """The index as one that can change: a copy in a temporary folder, until it is saved."""
        if isinstance(self._index, LiveIndex):
            return self._index
        with self._temporary() as root:
            if self._index is None:
                made = self._empty(root, weight=0.0)
            else:
                source, moved = self._index.artifact, str(self._place)
                made = convert.living(source, root / _INDEX, encoder=self.encoder, moved=moved)
            self._index = made
        return made

    @_on_a_terminal()
    def save(
        self, folder: Place, *, name: str = "", license: str = "", overwrite: bool = False
    ) -> None:
        """Writes a folder that `load` takes: the model alone as a sentence-transformers folder
        with its card, or with the passages beside it. overwrite: in place of one of these."""
        target = Path(folder)
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            saved = [target / part for part in (_MODEL, _TEXTS, _INDEX)]
            saved = [target] if artifacts.peek(target) else list(filter(Path.exists, saved))
            if not overwrite or (saved != [target] and {*target.iterdir()} != {*saved}):
                raise UserError(
                    f"{target} exists and is not empty; choose another folder, or overwrite=True "
                    "where .save has written it"
                )
            # The new one is whole before the old one goes, which may be what is saved.
            new = target.with_name(f".{target.name}.new")
            self.save(new, name=name or target.name, license=license)
            for part in saved:
                artifacts.remove(part)
            if target.exists():
                target.rmdir()
            new.rename(target)
            return
        if self._index is None:
            self._export(target, name, license)
            return
        target.mkdir(parents=True, exist_ok=True)
        part = target / f".{_INDEX}.part"
        self._export(target / _MODEL, name or target.name, license)
        if isinstance(self._index, LiveIndex):
            source, moved = artifacts.load(self._index.folder), str(target / _MODEL)
            convert.living(source, part, encoder=self.encoder, moved=moved)
        else:
            searched, known = self._index.artifact, self._index.artifact.info["texts"]
            texts = text_files.find(known[0], searched.path) if len(known) == 1 else None
            if texts is None:
                raise UserError("the passages' texts are not in one place that is still there")
            shutil.copytree(texts.path, target / _TEXTS)
            shutil.copytree(searched.path, part)
        # Last, so that a folder with an index is complete.
        part.rename(target / _INDEX)

    def _write_model(self, folder: Path) -> None:
        """The encoder as it is used here, whatever its own folder says."""
        encoder = self.encoder
        used: dict[str, Any] = {f"{side}_prompt": text for side, text in encoder.prompts.items()}
        used |= {f"{side}_length": limit for side, limit in encoder.limits.items()}
        config = dataclasses.replace(encoder.module.config, **used)
        huggingface.save(
            folder,
            DualEncoder(config, encoder.module.runtime),
            {"params": encoder.runner.params},
            tokenizer=names.tokenizer_folder(self._place),
            max_length=max(encoder.limits.values()),
        )
        assert names.tokenizer_of(folder).identity == encoder.tokenizer.identity

    def _export(self, folder: Path, name: str, license: str) -> None:
        with tempfile.TemporaryDirectory(prefix="qac_jax-") as work:
            self._write_model(Path(work) / _MODEL)
            stage = export.Export(
                model=str(Path(work) / _MODEL), name=name or folder.name, license=license
            )
            execute(stage, folder)


def _records(passages: Place | Iterable[Passage]) -> Iterator[dict[str, Any]]:
    if not isinstance(passages, str | os.PathLike):
        check_several(passages, "passages")
        for number, passage in enumerate(passages):
            yield {"_id": str(number), **record_of(passage, number)}
    else:
        yield from Records(artifacts.load(passages, text_files.PASSAGES))
