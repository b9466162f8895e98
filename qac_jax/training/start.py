"""What a run starts from and what it keeps: given parameters and their places in an objective.

Loaded parameters decide the shape of the objective's module (`Objective.start_from`); what they
lack (heads) starts anew.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
from etils import epath

from qac_jax.artifacts import Artifact
from qac_jax.errors import UserError
from qac_jax.hub import huggingface, parameters, word_vectors
from qac_jax.models import architecture
from qac_jax.models.backbone import Backbone
from qac_jax.objectives.objective import Objective
from qac_jax.text import tokenizers
from qac_jax.text.tokenizers import Tokenizer
from qac_jax.training.journal import announce


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


def initial(objective: Objective, given: Artifact | epath.Path | None) -> tuple[Any, Any]:
    """The objective in the shape of what it starts from, and the parameters to start from.

    `given` is an artefact of parameters, or a model folder of another library.
    """
    if given is None:
        return objective, None
    runtime = objective.runtime
    if isinstance(given, Artifact) and given.kind == parameters.KIND:
        module, variables = parameters.load(given, runtime)
        objective, params = objective.start_from(module, variables["params"])
        return objective, fuller(objective, params, parameters.load_whole(given, runtime))
    folder = os.fspath(given.path if isinstance(given, Artifact) else given)
    module, variables = huggingface.load(folder, runtime)
    objective, params = objective.start_from(module, variables["params"])
    return objective, {**params, **objective.stored_heads(folder)}


def word_vectors_of(
    folder: epath.Path, objective: Objective, tokenizer: Tokenizer, seed: int
) -> Nested:
    """The one parameter of a new model that does not start at random."""
    config = architecture.of_module(objective.model)
    if config is None:
        raise UserError(
            f"words={str(folder)!r} is for a new encoder or T5, and this is a "
            f"{type(objective.model).__name__}; leave words out"
        )
    embedding = word_vectors.table(
        word_vectors.of_folder(folder),
        tokenizers.load(os.fspath(folder)),
        tokenizer,
        (config.vocab_size, config.embedding_size),
        spread=config.embedding_std,
        seed=seed,
    )
    return config.with_words({}, embedding)


def placed(given: Mapping[str, Any], target: Any, *, report: bool) -> Nested:
    """Given parameters that have a place in the model; `report` says which are not taken over."""
    kept, unused, fresh = matching(given, target)
    for names, what in ((unused, "are not used"), (fresh, "start anew")):
        if names and report:
            shown = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
            announce(f"{len(names)} parameter arrays {what}: {shown}")
    return kept


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
