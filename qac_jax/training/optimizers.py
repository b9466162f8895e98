"""Optimisers by name: AdamW and LAMB in the variants that the papers used.

    adamw           torch's AdamW; Hugging Face's Trainer today
    adamw_hf        transformers' own AdamW, formerly the Trainer's: epsilon before the
                    bias correction, decay after the update
    lamb            LAMB with bias correction: the paper, and Paddle 2 and later
    lamb_paddle18   Paddle 1.8's, without bias correction (PAIR's and RocketQA's released codes)

Parameters without decay and frozen parameters are chosen by regular expressions, searched in the
parameter's path ("encoder/layers/0/attention/query/kernel"). Where layers are stacked along a
leading axis (a scan), LAMB's norms are per layer, and patterns see no number of a layer.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax import GradientTransformation

from qac_jax.errors import UserError
from qac_jax.fields import Checked, check_value, option
from qac_jax.models.layers import Array
from qac_jax.training.options import OPTIMIZERS, SCHEDULES


Schedule = Callable[[Array | int], Array]
PathTest = Callable[[Any], bool]  # of a leaf's key path

# Epsilon, and the correction of bias (see `scale_by_moments`).
_VARIANTS = {
    "adamw": (1e-8, "torch"),
    "adamw_hf": (1e-8, "transformers"),
    "lamb": (1e-6, "torch"),
    "lamb_paddle18": (1e-6, "none"),
}
STACK = "layers"
# In a subtree "layers" that holds a stack "layers" beside parts of its own (MPNet's), the
# names of these parts begin so.
BESIDE = "stack_"


@dataclasses.dataclass(frozen=True)
class Optimizer(Checked):
    """An optimiser, its schedule, its clipping, and what it does not decay or train."""

    name: str = option("adamw", choices=OPTIMIZERS)
    learning_rate: float = option(1e-4, at_least=0)
    b1: float = option(0.9, at_least=0, below=1)
    b2: float = option(0.999, at_least=0, below=1)
    eps: float | None = None  # None: 1e-8 for AdamW, 1e-6 for LAMB
    weight_decay: float = option(0.01, at_least=0)
    no_decay: tuple[str, ...] = ("bias", "scale$")
    adapt_excluded: bool = False  # LAMB: trust ratio without decay too (Paddle: yes)
    clip_norm: float = option(1.0, at_least=0)  # of the whole gradient; 0: no clipping
    clip_epsilon: float = option(1e-6, at_least=0)  # added to the norm: torch 1e-6, Paddle 0
    schedule_name: str = option("linear", choices=SCHEDULES)
    warmup_ratio: float = option(0.0, at_least=0, at_most=1)
    warmup_steps: int = 0  # takes precedence over the ratio
    frozen: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("no_decay", "frozen"):
            patterns = getattr(self, field)
            check_value(patterns, tuple[str, ...], f"Optimizer.{field}")
            object.__setattr__(self, field, tuple(patterns))
            for pattern in patterns:
                try:
                    re.compile(pattern)
                except re.error as error:
                    raise UserError(
                        f"{field}={pattern!r} is not a regular expression ({error}); correct it"
                    ) from None

    def schedule(self, total_steps: int) -> Schedule:
        """The learning rate of update t = 0, 1, … of `total_steps`."""
        warmup = warmup_steps(self.schedule_name, total_steps, self.warmup_ratio, self.warmup_steps)
        return schedule(self.schedule_name, self.learning_rate, total_steps, warmup)

    def build(self, total_steps: int, params: Any) -> GradientTransformation:
        """The transformation; of `params` (or their shapes) only the paths are used."""
        rate, (eps, correction) = self.schedule(total_steps), _VARIANTS[self.name]
        eps = eps if self.eps is None else self.eps
        parts = []
        if self.clip_norm:
            parts.append(clip_by_global_norm(self.clip_norm, self.clip_epsilon))
        parts.append(scale_by_moments(self.b1, self.b2, eps, correction))
        if self.weight_decay and self.name != "adamw_hf":
            mask = partial(jax.tree_util.tree_map_with_path, lambda path, _: self.decays(path))
            parts.append(optax.add_decayed_weights(self.weight_decay, mask))
        if self.name.startswith("lamb"):
            adapted = (lambda path: True) if self.adapt_excluded else self.decays
            parts.append(scale_by_trust_ratio(adapted))
        parts.append(optax.scale_by_learning_rate(rate))
        if self.weight_decay and self.name == "adamw_hf":
            parts.append(decay_moved(rate, self.weight_decay, self.decays))
        whole = optax.chain(*parts)
        return freeze(whole, self.frozen, params) if self.frozen else whole

    def decays(self, path: Any) -> bool:
        """Whether the parameter with this key path has weight decay."""
        name = path_name(path)
        return not any(re.search(pattern, name) for pattern in self.no_decay)


def path_name(path: Any) -> str:
    """A key path as text: "encoder/layers/0/attention/query/kernel"."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def is_stacked(path: Any) -> bool:
    """Whether the leaf has all layers of a stack along its first axis.

    The models' convention: a stack is the subtree "layers", of numbered layers or of one layer
    whose leaves are stacked.
    """
    names = path_name(path).split("/")
    return any(
        name == STACK and not (inner.isdigit() or inner == STACK or inner.startswith(BESIDE))
        for name, inner in itertools.pairwise(names)
    )


def held(patterns: Sequence[str], params: Any) -> Any:
    """The parameters, of which frozen ones get no gradient."""
    if not patterns:
        return params
    trained = _trained(patterns, params)
    return jax.tree.map(lambda x, own: x if own else jax.lax.stop_gradient(x), params, trained)


def freeze(
    inner: GradientTransformation, patterns: Sequence[str], params: Any
) -> GradientTransformation:
    """`inner` with zero gradients and updates for frozen parameters."""
    trained = _trained(patterns, params)

    def keep(tree: Any) -> Any:
        return jax.tree.map(lambda x, own: x if own else jnp.zeros_like(x), tree, trained)

    def update(grads: Any, state: Any, params: Any = None):
        updates, state = inner.update(keep(grads), state, params)
        return keep(updates), state

    return GradientTransformation(inner.init, update)


def _trained(patterns: Sequence[str], params: Any) -> Any:
    """Which parameters are trained, a bool per leaf."""
    names = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    hits = {pattern: {n for n in names if re.search(pattern, n)} for pattern in patterns}
    if unused := sorted(pattern for pattern, found in hits.items() if not found):
        raise UserError(
            f"frozen={unused[0]!r} matches no parameter; expected a pattern of paths such as "
            f"{names[0]!r} and {names[-1]!r}"
        )
    frozen = set().union(*hits.values())
    if frozen == set(names):
        raise UserError(f"frozen={[*patterns]} matches every parameter; nothing would be trained")
    return jax.tree_util.tree_map_with_path(lambda path, _: path_name(path) not in frozen, params)


# Learning rates.


def warmup_steps(name: str, total: int, ratio: float, steps: int) -> int:
    """Steps of warm-up: `steps` if set, else the ratio of the total.

    Hugging Face rounds the ratio up, RocketQA (whose schedule is `paddle_jump`) down.
    """
    if steps:
        return steps
    return int(total * ratio) if name == "paddle_jump" else math.ceil(total * ratio)


def schedule(name: str, peak: float, total: int, warmup: int) -> Schedule:
    """The learning rate of update t = 0, 1, …

    Warm-up rises from 0, so the first update changes nothing: Hugging Face's and RocketQA's rules
    both start at t / warmup.
    """
    if warmup > total:
        raise UserError(
            f"warm-up of {warmup} steps is longer than the {total} steps of the run; "
            "shorten it or train longer"
        )

    def share(step: Array) -> Array:
        done = jnp.clip((step - warmup) / max(1, total - warmup), 0.0, 1.0)
        if name == "linear":
            return 1.0 - done
        if name == "cosine":
            return 0.5 * (1.0 + jnp.cos(jnp.pi * done))
        if name == "paddle_jump":
            # Decayed from step 0, so the rate jumps where the warm-up ends (Paddle's decay).
            return 1.0 - jnp.minimum(step, total) / total
        return jnp.ones_like(done)

    def rate(step: Array | int) -> Array:
        step = jnp.asarray(step).astype(float)  # fp64 where JAX runs in x64
        return peak * jnp.where(step < warmup, step / max(1, warmup), share(step))

    return rate


# The parts of the optimisers that Optax lacks, or lacks in the variants that the papers used:
# transformers' AdamW (epsilon before the bias correction, decay after the update), the LAMB of
# Paddle 1.8 (no bias correction; a trust ratio for each stacked layer) and torch's clipping.


def scale_by_moments(b1: float, b2: float, eps: float, correction: str) -> GradientTransformation:
    """Adam's direction: mean of gradients over the root of their mean square.

    correction: `torch` m̂ / (√v̂ + ε); `transformers` m̂ / (√v + ε) · √(1 - b2ᵗ); `none` m / (√v + ε).
    """

    def init(params: Any) -> optax.ScaleByAdamState:
        first, second = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
        return optax.ScaleByAdamState(jnp.zeros((), jnp.int32), first, second)

    def update(grads: Any, state: optax.ScaleByAdamState, params: Any = None):
        del params
        count = state.count + 1
        mu = jax.tree.map(lambda g, m: b1 * m + (1 - b1) * g, grads, state.mu)
        nu = jax.tree.map(lambda g, v: b2 * v + (1 - b2) * g * g, grads, state.nu)

        def bias(decay: float) -> Array:
            """1 - decayᵗ by expm1: in fp32 the plain difference loses three digits at 0.999."""
            if decay == 0.0 or correction == "none":
                return jnp.ones(())
            return -jnp.expm1(count.astype(float) * math.log(decay))

        first, second = bias(b1), bias(b2)
        root = jnp.sqrt(second)
        small = eps / root if correction == "transformers" else jnp.full_like(root, eps)

        def one(m: Array, v: Array) -> Array:
            a, b, c = (x.astype(m.dtype) for x in (first, root, small))
            return (m / a) / (jnp.sqrt(v) / b + c)

        direction = jax.tree.map(one, mu, nu)
        return direction, optax.ScaleByAdamState(count, mu, nu)

    return GradientTransformation(init, update)


def scale_by_trust_ratio(adapted: PathTest) -> GradientTransformation:
    """LAMB (You et al., 2020): each parameter's update is scaled by |p| / |update|, where `adapted`
    (path); those of stacked layers each by their own."""

    def update(updates: Any, params: Any) -> Any:
        def one(path: Any, u: Array, p: Array) -> Array:
            if not adapted(path):
                return u
            axes = tuple(range(int(is_stacked(path)), u.ndim))
            size = jnp.sqrt(jnp.sum(p * p, axes, keepdims=True))
            step = jnp.sqrt(jnp.sum(u * u, axes, keepdims=True))
            meaningful = (size > 0) & (step > 0)
            return u * jnp.where(meaningful, size / jnp.where(meaningful, step, 1), 1)

        return jax.tree_util.tree_map_with_path(one, updates, params)

    return optax.stateless(update)


def decay_moved(schedule: Schedule, decay: float, decayed: PathTest) -> GradientTransformation:
    """transformers' AdamW: shrinks parameters *after* the update, p + u, by rate · decay."""

    def update(updates: Any, state: optax.ScaleByScheduleState, params: Any = None):
        shrink = schedule(state.count) * decay

        def one(path: Any, u: Array, p: Array) -> Array:
            return u - shrink.astype(u.dtype) * (p + u) if decayed(path) else u

        updates = jax.tree_util.tree_map_with_path(one, updates, params)
        return updates, optax.ScaleByScheduleState(state.count + 1)

    def init(_: Any) -> optax.ScaleByScheduleState:
        return optax.ScaleByScheduleState(jnp.zeros((), jnp.int32))

    return GradientTransformation(init, update)


def clip_by_global_norm(limit: float, epsilon: float = 0.0) -> GradientTransformation:
    """Gradients times min(1, limit / (norm + ε)); ε is 1e-6 in torch, 0 in Paddle and Optax."""

    def update(grads: Any, _: Any) -> Any:
        norm = optax.tree.norm(grads)
        factor = jnp.minimum(1.0, limit / jnp.maximum(norm + epsilon, jnp.finfo(norm.dtype).tiny))
        return jax.tree.map(lambda g: g * factor.astype(g.dtype), grads)

    return optax.stateless(update)
