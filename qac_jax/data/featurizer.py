"""Records into examples, and examples into padded batches, for a kind of example."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qac_jax.data.examples import Source
from qac_jax.data.form import CROPS, Form, check_name
from qac_jax.data.kind import LENGTH, Example, Feature, Kind, Record, Settings
from qac_jax.data.kinds import KINDS
from qac_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Featurizer:
    """A kind with its settings and lengths: records into examples, examples into batches."""

    kind: Kind
    form: Form
    lengths: dict[str, int]
    settings: dict[str, Any]
    features: dict[str, Feature]

    @functools.cached_property
    def example(self) -> Callable[[Record, np.random.Generator], Example]:
        """The pair function with everything but record and rng."""
        return functools.partial(
            self.kind.function, form=self.form, lengths=self.lengths, **self.settings
        )

    def spec(self, rows: int) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        spec: dict[str, tuple[tuple[int, ...], np.dtype]] = {}
        for name, feature in self.features.items():
            limit = self.lengths.get(feature.like or name, 0)
            axes = [limit if axis == LENGTH else int(axis) for axis in feature.axes]
            spec[name] = ((rows, *axes), np.dtype(feature.dtype))
            if feature.padded and not feature.like:
                spec[f"{name}_length"] = ((rows, *axes[:-1]), np.dtype(np.int32))
        return spec

    def batch(self, examples: Sequence[Example]) -> dict[str, np.ndarray]:
        """Examples stacked and padded to the limits of their features."""
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
            # One copy of all rows is much cheaper than a copy for every row.
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
) -> Featurizer:
    """Checks names and values against the kind, and fills in its defaults."""
    check_name("kind", name, tuple(KINDS))
    kind = KINDS[name]
    for key in settings or {}:
        check_name(f"kind {name}: setting", key, tuple(kind.defaults))
    complete = {**kind.defaults, **(settings or {})}
    for key, value in complete.items():
        if value is ...:
            raise UserError(f"kind {name} needs the setting {key!r}; give it")
    check_name("crop", form.crop, CROPS)
    kind.check(complete)
    features = kind.features(complete)
    padded = {n: f.length for n, f in features.items() if f.padded and not f.like}
    for key, limit in (lengths or {}).items():
        check_name(f"kind {name}: feature", key, tuple(padded))
        least = len(form.before) + len(form.between) + len(form.after) + 1
        if limit < least:
            raise UserError(f"length of {key!r} is {limit}; expected {least} or more")
        padded[key] = int(limit)
    return Featurizer(kind, form, padded, complete, features)


def make_featurizer(
    source: Source,
    kind: str = "",
    settings: Mapping[str, Any] | None = None,
    lengths: Mapping[str, int] | None = None,
    crop: str = "",
) -> Featurizer:
    """The featurizer that makes examples of a kind from the records of a source."""
    kind = kind or source.info["task"]
    check_name("kind", kind, tuple(KINDS))
    form = Form(**source.info["form"], crop=crop or KINDS[kind].crop)
    stored = source.info.get("settings", {})
    known = {k: v for k, v in stored.items() if k in KINDS[kind].defaults}
    featurizer = settle(kind, form, lengths=lengths, settings={**known, **(settings or {})})
    schema = source.info["schema"]
    for name in featurizer.kind.needs(featurizer.settings):
        if name not in schema:
            raise UserError(
                f"examples made for {source.info['task']!r} hold no {name!r}, which kind {kind!r} "
                "needs; tokenize again for it, or choose another kind"
            )
    return featurizer
