"""Initial parameters of a run, and the parameters that it exports.

Loaded parameters decide the shape of the objective's module (`Objective.start_from`); parameters
that they lack (heads) are initialised.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
from etils import epath

from qac_jax import artifacts, hardware
from qac_jax.artifacts import Artifact
from qac_jax.errors import UserError
from qac_jax.hub import huggingface, parameters, word_vectors
from qac_jax.models import architecture
from qac_jax.models.backbone import Backbone
from qac_jax.objectives.objective import Objective
from qac_jax.text import tokenizers
from qac_jax.text.tokenizers import Tokenizer
from qac_jax.training.journal import announce
from qac_jax.training.settings import PRECISIONS


Nested = dict[str, Any]


def precision_here(name: str) -> str:
    """What matrix products are computed in (`Runtime.dtype`)."""
    if name not in PRECISIONS:
        raise UserError(f"precision={name!r} is not one of {', '.join(PRECISIONS)}; choose one")
    return hardware.precision_on(jax.default_backend(), name)


def fuller(objective: Objective, params: Nested, whole: Nested) -> Nested:
    """Of two trees of initial parameters, the one with more of the objective's parameters.

    An artefact has the encoder, and all parameters trained with it: the same objective continues
    with all of them, another one starts from the encoder.
    """
    names = set(_flat(abstract_params(objective)))
    return max((params, whole), key=lambda tree: len(names & set(_flat(tree))))


def abstract_params(objective: Objective) -> Any:
    """Shapes of the objective's parameters."""
    return nn.unbox(jax.eval_shape(objective.init, jax.random.key(0)))["params"]


def matching(params: Mapping[str, Any], target: Any) -> tuple[Nested, list[str], list[str]]:
    """(params that are in the target, names that are not in it, names left to initialise)."""
    expected = _flat(target)
    loaded = _flat(params)
    kept: Nested = {}
    for name in sorted(set(expected) & set(loaded)):
        if loaded[name].shape != expected[name].shape:
            raise UserError(
                f"the parameter {name} to start from has the shape {tuple(loaded[name].shape)}, "
                f"the model's is {tuple(expected[name].shape)}; give a model of the same shape"
            )
        level = kept
        *folders, leaf = name.split("/")
        for folder in folders:
            level = level.setdefault(folder, {})
        level[leaf] = loaded[name]
    if not kept:
        raise UserError(
            f"no parameter to start from belongs to the model ({next(iter(loaded), 'none')} there, "
            f"{next(iter(expected))} here); give another init or objective"
        )
    return kept, sorted(set(loaded) - set(expected)), sorted(set(expected) - set(loaded))


def initial(objective: Objective, source: Artifact | epath.Path | None) -> tuple[Any, Any]:
    """The objective in the shape of its initial model, and the initial parameters.

    `source` is an artefact of parameters, or a model folder of another library.
    """
    if source is None:
        return objective, None
    runtime = objective.runtime
    if isinstance(source, Artifact) and source.kind == parameters.KIND:
        module, variables = parameters.load(source, runtime)
        objective, params = objective.start_from(module, variables["params"])
        return objective, fuller(objective, params, parameters.load_whole(source, runtime))
    folder = os.fspath(source.path if isinstance(source, Artifact) else source)
    module, variables = huggingface.load(folder, runtime)
    objective, params = objective.start_from(module, variables["params"])
    return objective, {**params, **objective.stored_heads(folder)}


def shaped(objective: Objective, folder: str) -> Any:
    """The objective in the shape of the model in a folder; "": as it is."""
    if not folder:
        return objective
    place = epath.Path(folder)
    known = artifacts.peek(place)
    return initial(objective, artifacts.load(place) if known else place)[0]


def word_vectors_of(
    folder: epath.Path, objective: Objective, tokenizer: Tokenizer, seed: int
) -> Nested:
    """Parameters of a new model whose word embeddings come from the word vectors of a folder."""
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


def placed(params: Mapping[str, Any], target: Any, *, report: bool) -> Nested:
    """The parameters that belong to the model; `report` prints which are not loaded."""
    kept, unused, fresh = matching(params, target)
    for names, what in ((unused, "are not used"), (fresh, "are initialised")):
        if names and report:
            shown = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
            announce(f"{len(names)} parameter arrays {what}: {shown}")
    return kept


def exported(objective: Objective, params: Any) -> tuple[nn.Module, Nested]:
    """The module that is exported after training, and its parameters."""
    kept = objective.encoder({"params": params})["params"]
    module = objective.encoder_module
    if isinstance(module, Backbone):  # its optional parts are those that have parameters
        module = module.clone(config=module.config.with_parts(*kept))
    return module, kept


def _flat(tree: Any) -> dict[str, Any]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
