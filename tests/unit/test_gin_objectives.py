"""The gin files of models and of the first objectives build what they say they build."""

from __future__ import annotations

import math
from pathlib import Path

import gin
import jax
import pytest

from qac_jax import config
from qac_jax.objectives.cocondenser import CoCondenser
from qac_jax.objectives.condenser import Condenser
from qac_jax.objectives.cotmae import CotMae
from qac_jax.objectives.mlm import Mlm
from qac_jax.objectives.retromae import RetroMae
from qac_jax.objectives.seq2seq import Seq2Seq
from qac_jax.objectives.span_corruption import SpanCorruption
from qac_jax.stages.train import Train
from qac_jax.training.optimizers import Optimizer


GIN = Path(__file__).parents[2] / "gin_configs"
MODELS = sorted(path.stem for path in (GIN / "models").glob("*.gin"))
# In millions, with the output head of pre-training; from the papers and the model cards.
PARAMETERS = {"bert_base": 109.5, "t5_small": 60.5, "t5_base": 222.9}


def built(*files: str) -> Train:
    config.register([Train])
    config.apply(config.Settings(files=files))
    try:
        train = gin.get_configurable("qac_jax.stages.train.Train")()
        assert isinstance(train, Train)
        return train
    finally:
        gin.clear_config()


def millions(objective: object) -> float:
    shapes = jax.eval_shape(objective.init, jax.random.key(0))  # type: ignore[attr-defined]
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) / 1e6


@pytest.mark.parametrize("model", MODELS)
def test_every_model_builds(model: str) -> None:
    objective = "mlm" if model.startswith("bert") else "span_corruption"
    train = built(f"objectives/{objective}.gin", f"models/{model}.gin")
    assert millions(train.objective) == pytest.approx(
        PARAMETERS.get(model, millions(train.objective)), abs=0.5
    )


def test_sizes_differ() -> None:
    berts = [built("objectives/mlm.gin", f"models/{m}.gin") for m in MODELS if "bert" in m]
    assert len({train.objective.model.config.hidden_size for train in berts}) == len(berts) >= 4


@pytest.mark.parametrize(
    ("name", "objective", "kind"),
    [
        ("mlm", Mlm, "mlm"),
        ("condenser", Condenser, "mlm"),
        ("cocondenser", CoCondenser, "passage_query"),
        ("cotmae", CotMae, "passage_query"),
        ("retromae", RetroMae, "mlm"),
        ("seq2seq", Seq2Seq, "seq2seq"),
        ("span_corruption", SpanCorruption, "mlm"),
    ],
)
def test_every_objective_builds_by_itself(name: str, objective: type, kind: str) -> None:
    train = built(f"objectives/{name}.gin")
    assert type(train.objective) is objective and train.kind == kind
    assert type(train.optimizer) is Optimizer and train.optimizer.warmup_ratio > 0


@pytest.mark.parametrize("path", sorted(GIN.glob("**/*.gin")), ids=lambda path: path.stem)
def test_headers_say_what_to_set(path: Path) -> None:
    header = path.read_text().split("from __gin__")[0]
    assert "# Set:" in header and "# Commonly overridden:" in header
