"""The registry of example kinds: pair function, batch features, and what a record must hold."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qac_jax.data import pairs, ranking
from qac_jax.data.form import CROPS, PAIR_TRUNCATIONS, Form
from qac_jax.errors import UserError, nearest


Settings = Mapping[str, Any]

LENGTH = "length"  # the axis that is padded
RANDOM_CROP = pairs.RANDOM_CROP


@dataclasses.dataclass(frozen=True)
class Feature:
    """One array of a batch: its axes after the batch axis, padded to `length`."""

    axes: tuple[str | int, ...] = (LENGTH,)
    length: int = 0  # the default limit
    dtype: str = "int32"
    like: str = ""  # another feature with the same padding, so no `_length` of its own

    @property
    def padded(self) -> bool:
        return LENGTH in self.axes


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of example. `needs` are the record's features; settings are keyword arguments."""

    name: str
    function: Callable[..., pairs.Example]
    features: Callable[[Settings], dict[str, Feature]]
    needs: Callable[[Settings], tuple[str, ...]]
    crop: str = "random"
    check: Callable[[Settings], None] = lambda settings: None

    def __reduce__(self) -> tuple[Callable[[str], Kind], tuple[str]]:
        """Travels to worker processes by its name."""
        return _by_name, (self.name,)

    @property
    def defaults(self) -> dict[str, Any]:
        """Settings and their default values; `...` marks one that must be given."""
        parameters = inspect.signature(self.function).parameters.values()
        return {
            p.name: ... if p.default is p.empty else p.default
            for p in parameters
            if p.kind is p.KEYWORD_ONLY and p.name not in ("form", "lengths")
        }


def _by_name(name: str) -> Kind:
    return KINDS[name]


def _two_texts(passage: int, context: int) -> Callable[[Settings], dict[str, Feature]]:
    features = {"passage": Feature(length=passage), "context": Feature(length=context)}
    return lambda settings: dict(features)


def _triples(settings: Settings) -> dict[str, Feature]:
    count = settings["n_passages"]
    features = {
        "query": Feature(length=32),
        "passages": Feature(axes=(count, LENGTH), length=144),
    }
    if settings["title_types"]:
        features["passages_types"] = Feature(axes=(count, LENGTH), like="passages")
    if settings["teacher"]:
        features["scores"] = Feature(axes=(count,), dtype="float32")
    return features


def _group(settings: Settings) -> dict[str, Feature]:
    axes = (settings["n_passages"], LENGTH)
    return {
        "pairs": Feature(axes=axes, length=160),
        "pairs_types": Feature(axes=axes, like="pairs"),
    }


def _judged(settings: Settings) -> tuple[str, ...]:
    names = ("query", "positives", "negatives")
    return names + ("positives_scores", "negatives_scores") * bool(settings.get("teacher"))


def _mixed_needs(settings: Settings) -> tuple[str, ...]:
    sorts = [s for s, weight in settings["probabilities"].items() if weight > 0]
    return ("passage", *(pairs.CONTEXTS[sort] for sort in sorts))


def _strategy_needs(settings: Settings) -> tuple[str, ...]:
    drawn = (RANDOM_CROP, pairs.QEXT_SELF)
    names = [s for s, w in settings["strategies"].items() if w > 0 and s not in drawn]
    return ("text", "words", *names)


def _pseudo_queries(settings: Settings) -> dict[str, Feature]:
    features = {"passage": Feature(length=256), "context": Feature(length=128)}
    if settings["strategies"].get(pairs.QEXT_SELF):
        features["spans"] = Feature(axes=(settings["spans"], LENGTH), length=32)
        features["extract"] = Feature(axes=())
    return features


def _check_sorts(settings: Settings) -> None:
    pairs.check_weights("sorts", dict.fromkeys(settings["sorts"], 1.0), pairs.PASSAGES)


def _check_mixed(settings: Settings) -> None:
    pairs.check_weights("probabilities", settings["probabilities"], list(pairs.CONTEXTS))


def _check_strategies(settings: Settings) -> None:
    names = list(settings["strategies"])
    pairs.check_weights("strategies", settings["strategies"], [RANDOM_CROP, *names])
    share, words = settings["random_crop_share"], settings["span_words"]
    if not 0 <= share <= 1:
        raise UserError(f"random_crop_share={share} is no share; expected 0 to 1")
    if settings["spans"] < 1 or len(words) != 2 or not 1 <= words[0] <= words[1]:
        raise UserError(
            f"spans={settings['spans']} of span_words={tuple(words)} cannot be drawn; expected at "
            "least one, and the fewest and the most words in order"
        )


def _check_passages(settings: Settings) -> None:
    if settings["n_passages"] < 1:
        raise UserError(f"n_passages is {settings['n_passages']}; expected 1 or more")


def _check_truncation(settings: Settings) -> None:
    _one_of("truncation", settings["truncation"], PAIR_TRUNCATIONS)


_TABLE = (
    Kind(
        "passage_query",
        pairs.passage_query,
        _two_texts(144, 32),
        lambda s: ("passage", "contexts"),
    ),
    Kind(
        "passage_passage",
        pairs.passage_passage,
        _two_texts(144, 144),
        lambda s: ("passage", *s["sorts"]),
        check=_check_sorts,
    ),
    Kind("mixed", pairs.mixed, _two_texts(144, 144), _mixed_needs, check=_check_mixed),
    Kind("two_spans", pairs.two_spans, _two_texts(128, 128), lambda s: ("spans",)),
    Kind(
        "augtriever",
        pairs.augtriever,
        _pseudo_queries,
        _strategy_needs,
        check=_check_strategies,
    ),
    Kind(
        "mlm",
        pairs.masked_lm,
        lambda s: {"tokens": Feature(length=128)},
        lambda s: ("passage",),
    ),
    Kind(
        "seq2seq",
        pairs.seq2seq,
        lambda s: {"inputs": Feature(length=192), "targets": Feature(length=64)},
        lambda s: ("inputs", "targets"),
        crop="right",
    ),
    Kind("triples", ranking.triples, _triples, _judged, crop="right", check=_check_passages),
    Kind(
        "cross_encoder",
        ranking.cross_encoder,
        lambda s: {
            "pair": Feature(length=160),
            "pair_types": Feature(like="pair"),
            "label": Feature(axes=()),
        },
        lambda s: ("query", "passage", "label"),
        crop="right",
        check=_check_truncation,
    ),
    Kind(
        "cross_encoder_group",
        ranking.cross_encoder_group,
        _group,
        _judged,
        crop="right",
        check=_check_passages,
    ),
)

KINDS: dict[str, Kind] = {kind.name: kind for kind in _TABLE}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A kind with everything settled: turns records into examples, examples into batches."""

    kind: Kind
    form: Form
    lengths: dict[str, int]
    settings: dict[str, Any]
    features: dict[str, Feature]

    @functools.cached_property
    def example(self) -> Callable[[pairs.Record, np.random.Generator], pairs.Example]:
        """The pair function with everything but record and rng."""
        return functools.partial(
            self.kind.function, form=self.form, lengths=self.lengths, **self.settings
        )

    def spec(self, rows: int) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Shapes and types of a batch of so many rows."""
        found: dict[str, tuple[tuple[int, ...], np.dtype]] = {}
        for name, feature in self.features.items():
            limit = self.lengths.get(feature.like or name, 0)
            axes = [limit if axis == LENGTH else int(axis) for axis in feature.axes]
            found[name] = ((rows, *axes), np.dtype(feature.dtype))
            if feature.padded and not feature.like:
                found[f"{name}_length"] = ((rows, *axes[:-1]), np.dtype(np.int32))
        return found

    def batch(self, examples: Sequence[pairs.Example]) -> dict[str, np.ndarray]:
        """Examples side by side, padded to their lengths."""
        batch: dict[str, np.ndarray] = {}
        for name, feature in self.features.items():
            values = [example[name] for example in examples]
            if not feature.padded:
                batch[name] = np.array(values, feature.dtype)
                continue
            limit = self.lengths[feature.like or name]
            group = tuple(int(axis) for axis in feature.axes[:-1])
            if group:
                values = [part for parts in values for part in parts]
            sizes = np.fromiter(map(len, values), np.int32, len(values))
            padded = np.full((len(values), limit), 0 if feature.like else self.form.pad, np.int32)
            # One copy of everything is much cheaper than a copy for every row.
            padded[np.arange(limit) < sizes[:, None]] = np.concatenate(values)
            batch[name] = padded.reshape(len(examples), *group, limit)
            if not feature.like:
                batch[f"{name}_length"] = sizes.reshape(len(examples), *group)
        return batch


def settle(
    name: str,
    form: Form,
    *,
    lengths: Mapping[str, int] | None = None,
    settings: Settings | None = None,
) -> Recipe:
    """Checks names and values against the kind, and fills in its defaults."""
    if name not in KINDS:
        raise UserError(f"kind {name!r} is not known; {nearest(name, KINDS)}")
    kind, given = KINDS[name], dict(settings or {})
    for key in given:
        if key not in kind.defaults:
            raise UserError(f"kind {name} has no setting {key!r}; {nearest(key, kind.defaults)}")
    complete = {**kind.defaults, **given}
    for key, value in complete.items():
        if value is ...:
            raise UserError(f"kind {name} needs the setting {key!r}; give it")
    _one_of("crop", form.crop, CROPS)
    kind.check(complete)
    features = kind.features(complete)
    padded = {n: f.length for n, f in features.items() if f.padded and not f.like}
    for key, limit in (lengths or {}).items():
        if key not in padded:
            raise UserError(f"kind {name} has no feature {key!r}; {nearest(key, padded)}")
        least = len(form.before) + len(form.between) + len(form.after) + 1
        if limit < least:
            raise UserError(
                f"length of {key!r} is {limit}; expected at least {least}, because special "
                f"tokens need room too"
            )
        padded[key] = int(limit)
    return Recipe(kind, form, padded, complete, features)


def _one_of(what: str, value: str, valid: tuple[str, ...]) -> None:
    if value not in valid:
        raise UserError(f"{what} {value!r} is not known; {nearest(value, valid)}")
