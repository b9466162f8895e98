"""What a run starts from: an objective fitted to given parameters, at a given precision.

An objective holds its module in the field `model`. Loaded parameters decide the module's shape;
what they lack (heads) starts anew. An objective that has parts around its encoder says how they
fit by a method `start_from(module, params) -> (objective, params)`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax

from qac_jax.errors import UserError
from qac_jax.models.bert import Bert
from qac_jax.models.encoders import CrossEncoder, DualEncoder
from qac_jax.models.layers import Runtime


PRECISIONS = ("auto", "float32", "bfloat16")

Nested = dict[str, Any]


def precision_here(name: str) -> str:
    """The dtype of matrix products: by default bf16 where there are units for it."""
    if name not in PRECISIONS:
        raise UserError(f"precision={name!r} is not one of {', '.join(PRECISIONS)}; choose one")
    if name != "auto":
        return name
    return "float32" if jax.default_backend() == "cpu" else "bfloat16"


def with_precision(objective: Any, dtype: str) -> Any:
    """The objective with all its modules computing in `dtype`."""
    changed = {}
    for field in dataclasses.fields(objective):
        value = getattr(objective, field.name)
        if isinstance(value, nn.Module) and isinstance(getattr(value, "runtime", None), Runtime):
            runtime = dataclasses.replace(value.runtime, dtype=dtype)
            changed[field.name] = value.clone(runtime=runtime)
    return dataclasses.replace(objective, **changed) if changed else objective


def runtime_of(objective: Any) -> Runtime:
    """The run-time options of the objective's model."""
    found = getattr(getattr(objective, "model", None), "runtime", None)
    return found if isinstance(found, Runtime) else Runtime()


def fitted(objective: Any, module: nn.Module, params: Nested) -> tuple[Any, Nested]:
    """The objective with the shape of the loaded module, and its parameters from it."""
    if hasattr(objective, "start_from"):
        return objective.start_from(module, params)
    model = getattr(objective, "model", None)
    if isinstance(model, Bert) and isinstance(module, DualEncoder) and module.config.tied:
        # Pre-training goes on from a retriever: its tower's BERT, whatever pooled its states.
        module, params = Bert(module.config.bert, module.runtime), params["encoder"]["bert"]
    if type(model) is not type(module):
        raise UserError(
            f"{type(objective).__name__} trains a {type(model).__name__}, but the parameters to "
            f"start from are those of a {type(module).__name__}; give another init or objective"
        )
    return dataclasses.replace(objective, model=module), params


def fuller(objective: Any, params: Nested, whole: Nested) -> Nested:
    """Of two trees to start from the one that more of the objective's parameters are in.

    An artefact keeps the encoder, and all that was trained with it: the same objective goes on
    with everything, another one takes the encoder.
    """
    wanted = set(_flat(abstract_params(objective)))
    return max((params, whole), key=lambda tree: len(wanted & set(_flat(tree))))


def with_reading(
    objective: Any,
    lengths: Mapping[str, int],
    reading: Mapping[str, Any],
    settings: Mapping[str, Any] | None = None,
) -> Any:
    """A model that knows how its queries and passages were read: whoever uses it later reads texts
    in the same way (titles, prompts, limits; a cross-encoder: scores)."""
    model = getattr(objective, "model", None)
    if isinstance(model, CrossEncoder):
        told = model.clone(reads_scores=bool(reading.get("scores")))
        return dataclasses.replace(objective, model=told)
    if not isinstance(model, DualEncoder) or not {"query", "passages"} <= lengths.keys():
        return objective
    said: dict[str, Any] = {
        **reading,
        "query_length": lengths["query"],
        "passage_length": lengths["passages"],
    }
    if (settings or {}).get("title_types"):
        said["title"] = "segments"
    config = dataclasses.replace(model.config, **said)
    return dataclasses.replace(objective, model=model.clone(config=config))


def abstract_params(objective: Any) -> Any:
    """Shapes of the objective's parameters."""
    return nn.unbox(jax.eval_shape(objective.init, jax.random.key(0)))["params"]


def matching(given: Mapping[str, Any], target: Any) -> tuple[Nested, list[str], list[str]]:
    """(given parameters that have a place, names without a place, names left to start anew)."""
    places = _flat(target)
    found = _flat(given)
    kept: Nested = {}
    for name in sorted(set(places) & set(found)):
        if found[name].shape != places[name].shape:
            raise UserError(
                f"the parameter {name} to start from has the shape {tuple(found[name].shape)}, "
                f"the model's is {tuple(places[name].shape)}; give a model of the same shape"
            )
        level = kept
        *folders, leaf = name.split("/")
        for folder in folders:
            level = level.setdefault(folder, {})
        level[leaf] = found[name]
    if not kept:
        raise UserError(
            f"no parameter to start from has a place in the model ({next(iter(found), 'none')} "
            f"there, {next(iter(places))} here); give another init or objective"
        )
    return kept, sorted(set(found) - set(places)), sorted(set(places) - set(found))


def exported(objective: Any, params: Any) -> tuple[nn.Module, Nested]:
    """The module that is kept after training, and its parameters."""
    kept = objective.encoder({"params": params})["params"]
    module = getattr(objective, "encoder_module", None) or getattr(objective, "model", None)
    if not isinstance(module, nn.Module):
        raise UserError(
            f"{type(objective).__name__} does not say which module it trains (a field `model` or "
            "a property `encoder_module`); it cannot be stored"
        )
    config = getattr(module, "config", None)
    parts = {name: name in kept for name in ("pooler", "mlm_head") if hasattr(config, name)}
    if parts:  # a BERT's optional parts are those whose parameters are kept
        module = module.clone(config=dataclasses.replace(config, **parts))  # type: ignore[type-var]
    return module, kept


def _flat(tree: Any) -> dict[str, Any]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
