"""`qac index FOLDER --add … --delete …` and `qac compact FOLDER`, which change a living index."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qac_jax import artifacts, progress
from qac_jax.errors import UserError


if TYPE_CHECKING:
    from qac_jax.artifacts import Artifact
    from qac_jax.live.index import LiveIndex
    from qac_jax.retrieval.corpus import Hit


ABOUT = "a folder → a living index with passages added, replaced or deleted"
EXAMPLE = "qac index out/live --add corpus.jsonl --encoder out/retriever"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `qac index FOLDER --add`."""
    parser.add_argument("folder", metavar="FOLDER", help="living index; made where there is none")
    parser.add_argument(
        "--add",
        metavar="DOCS",
        nargs="+",
        default=[],
        help="add the passages of these: a corpus, an artefact of passages, vectors, or an index",
    )
    parser.add_argument(
        "--replace",
        metavar="DOCS",
        nargs="+",
        default=[],
        help="the same; passages with these ids are replaced",
    )
    parser.add_argument(
        "--delete",
        metavar="ID",
        nargs="+",
        default=[],
        help="delete passages by their ids (@FILE: those in a file, one a line)",
    )
    parser.add_argument("--format", metavar="NAME", default="auto", help="format of a corpus")
    parser.add_argument(
        *("--encoder", "--model"),
        metavar="M",
        default="",
        help="encoder of a new index, or where the encoder is if it was moved",
    )
    parser.add_argument(
        "--weight",
        type=float,
        metavar="W",
        help="of a new index: weight of BM25's score (default: 0.3, or that of an index added)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def change(options: argparse.Namespace) -> int:
    """Runs `qac index FOLDER --add …`; returns the exit code."""
    from qac_jax.live import convert

    names = _names(options.delete)
    sources = [_source(place) for place in (*options.add, *options.replace)]
    new = artifacts.peek(options.folder) is None
    live = _opened(options, sources)
    count = 0
    try:
        for number, source in enumerate(sources):
            replace = number >= len(options.add)
            count += convert.add(live, source, format=options.format, replace=replace)
    except BaseException:
        if new and not len(live):  # its settings may be part of what was wrong
            artifacts.remove(options.folder)
        raise
    deleted = live.delete(names) if names else []
    _say(live, options.json, added=count, deleted=len(deleted))
    return 0


def compact(folder: str, full: bool, as_json: bool) -> int:
    """Runs `qac compact`; returns the exit code."""
    from qac_jax.live.index import LiveIndex

    live = LiveIndex(folder)
    before = len(live.snapshot.segments)
    live.compact(full=full)
    _say(live, as_json, segments_before=before)
    return 0


def add_search_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `qac search` that only living indexes know."""
    parser.add_argument(
        "--where",
        metavar="JSON",
        default="",
        help='of a living index: filter by metadata, such as {"lang": "en", "year": {">=": 2020}}',
    )
    parser.add_argument(
        "--hybrid", type=float, metavar="W", help="of a living index: weight of BM25's score"
    )


def hits(options: argparse.Namespace, question: str, k: int) -> tuple[list[Hit], list[str]]:
    """Those of `qac search` in an index of any kind, and places where texts are missing."""
    from qac_jax.live import runs

    index = runs.opened_index(options.index, options.encoder, options.where, options.hybrid)
    found = index.ask([question], k)[0]
    return found, [] if isinstance(index, runs.LiveSearch) else index.texts.missing


def why_nothing(place: str, where: str) -> str:
    """What is odd about a filter that finds nothing, "" where nothing is."""
    from qac_jax.live import filters, runs
    from qac_jax.live.index import LiveIndex

    segments = [segment.metadata for segment in LiveIndex(place).snapshot.segments]
    return filters.why_nothing_fits(filters.parsed(runs.parsed(where)), segments)


def _say(live: LiveIndex, as_json: bool, **done: int) -> None:
    state = {**done, "passages": len(live), "segments": len(live.snapshot.segments)}
    if as_json:
        print(json.dumps({**state, "version": live.snapshot.version}))
    else:
        shown = ", ".join(f"{name.replace('_', ' ')} {n:,}" for name, n in state.items())
        print(f"{live.folder}: {shown}")


def _names(words: Sequence[str]) -> list[str]:
    found = []
    for word in words:
        if word.startswith("@"):
            if not os.path.isfile(word[1:]):
                raise UserError(f"there is no file {word[1:]}; give ids, or @FILE with one a line")
            try:
                with open(word[1:], encoding="utf-8") as file:
                    found += [line for line in file.read().split("\n") if line]
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{word[1:]} is not UTF-8 at byte {error.start}; give a file with one id a line"
                ) from error
        else:
            found.append(word)
    return found


def _source(place: str) -> Artifact | str:
    return artifacts.load(place) if artifacts.peek(place) is not None else place


def _opened(options: argparse.Namespace, sources: Sequence[Artifact | str]) -> LiveIndex:
    from qac_jax.live.index import LiveIndex
    from qac_jax.live.manifest import KIND

    known = artifacts.peek(options.folder)
    if known is not None:
        if known["kind"] != KIND:
            raise UserError(
                f"{options.folder} is of kind {known['kind']!r}, which does not change; make a "
                f"living index of it: qac index NEW_FOLDER --add {options.folder}"
            )
        if options.weight is not None:
            raise UserError("--weight is for a new index; leave it out, or give it to a search")
        return LiveIndex(options.folder, encoder=options.encoder)
    if not sources:
        raise UserError(f"there is no living index at {options.folder}; make one with --add DOCS")
    progress.say(f"index: {options.folder} is new")
    settings, encoder = _settings(options, sources)
    if options.weight is not None:
        fusion = dataclasses.replace(settings.fusion, weight=options.weight)
        settings = dataclasses.replace(settings, fusion=fusion)
    return LiveIndex.create(options.folder, settings, encoder=encoder)


def _settings(options: argparse.Namespace, sources: Sequence[Artifact | str]) -> Any:
    """Those of the first index or vectors that are added; else those of --encoder."""
    from qac_jax.hub import names
    from qac_jax.inference.encoder import Encoder
    from qac_jax.live import convert

    for source in sources:
        if not isinstance(source, str) and source.kind in convert.KINDS:
            place = convert.place_of(source, options.encoder)
            encoder = Encoder.remembered(source.info["encoder"], place)
            return convert.settings_of(source, encoder, place), encoder
    if not options.encoder:
        raise UserError(f"{options.folder} is new; say which encoder it has: --encoder M")
    folder = names.folder(options.encoder)
    encoder = Encoder.load(folder)
    return convert.settings_for(folder, encoder), encoder
