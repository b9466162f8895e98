"""What a run starts from and what it keeps: given parameters and their places in an objective.

Loaded parameters decide the shape of the objective's module (`Objective.start_from`); what they
lack (heads) starts anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax

from qac_jax.errors import UserError
from qac_jax.models.backbone import Backbone
from qac_jax.objectives.objective import Objective


PRECISIONS = ("auto", "float32", "bfloat16")

Nested = dict[str, Any]


def precision_here(name: str) -> str:
    """The dtype of matrix products: by default bf16 where there are units for it."""
    if name not in PRECISIONS:
        raise UserError(f"precision={name!r} is not one of {', '.join(PRECISIONS)}; choose one")
    if name != "auto":
        return name
    return "float32" if jax.default_backend() == "cpu" else "bfloat16"


def fuller(objective: Objective, params: Nested, whole: Nested) -> Nested:
    """Of two trees to start from the one that more of the objective's parameters are in.

    An artefact keeps the encoder, and all that was trained with it: the same objective goes on
    with everything, another one takes the encoder.
    """
    wanted = set(_flat(abstract_params(objective)))
    return max((params, whole), key=lambda tree: len(wanted & set(_flat(tree))))


def abstract_params(objective: Objective) -> Any:
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


def exported(objective: Objective, params: Any) -> tuple[nn.Module, Nested]:
    """The module that is kept after training, and its parameters."""
    kept = objective.encoder({"params": params})["params"]
    module = objective.encoder_module
    if isinstance(module, Backbone):  # its optional parts are those whose parameters are kept
        module = module.clone(config=module.config.with_parts(*kept))
    return module, kept


def _flat(tree: Any) -> dict[str, Any]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
