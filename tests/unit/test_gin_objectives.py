"""The gin files of models and of the first objectives build what they say they build; what every
architecture promises."""

import json
import math
from pathlib import Path

import jax
import pytest
from flax import traverse_util

from qac_jax import config
from qac_jax.hub import backbones, parameters
from qac_jax.models import backbone
from qac_jax.models.backbone import Architecture
from qac_jax.models.layers import Runtime
from qac_jax.stages.train import Train


GIN = Path(__file__).parents[2] / "gin_configs"
# The objective and the number of parameters by the layers, widths, heads and pieces of their
# papers (Turc et al. 2019, Devlin et al. 2019, Liu et al. 2019, Sanh et al. 2019, Song et al. 2020,
# Raffel et al. 2020, Warner et al. 2024; the small ones have our 16,384 pieces): encoders with
# their masked-language-model head, but for T5's, which has none. Without the head they are what
# their authors' folders hold, such as 149,014,272 of ModernBERT and 66,362,880 of DistilBERT.
SIZES = {
    "bert_tiny": ("mlm", 2_592_896),
    "bert_mini": ("mlm", 7_568_128),
    "bert_small": ("mlm", 21_542_400),
    "bert_base": ("mlm", 109_514_298),
    "roberta_base": ("mlm", 124_697_433),
    "xlm_roberta_base": ("mlm", 278_295_186),
    "distilbert_base": ("mlm", 66_985_530),
    "electra_base": ("mlm", 109_514_298),
    "mpnet_base": ("mlm", 109_518_527),
    "modernbert_base": ("mlm", 149_655_232),
    "t5_micro": ("seq2seq", 6_713_280),
    "t5_tiny": ("seq2seq", 11_572_992),
    "t5_small": ("seq2seq", 60_506_624),
    "t5_base": ("seq2seq", 222_903_552),
    "t5_encoder_base": ("finetune", 109_628_544),
    "pointer_minilm": ("seq2seq_pointer", 28_352_827),
}


def built(*files: str) -> Train:
    train = config.Config(files=files).build(Train, check=False)
    assert isinstance(train, Train)
    return train


@pytest.mark.slow
def test_every_model_has_its_papers_size() -> None:
    assert SIZES.keys() == {path.stem for path in (GIN / "models").glob("*.gin")}
    for model, (objective, size) in SIZES.items():
        train = built(f"objectives/{objective}.gin", f"models/{model}.gin")
        shapes = jax.eval_shape(train.objective.init, jax.random.key(0))
        assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) == size, model


def test_every_architecture_is_whole() -> None:
    for name, cls in backbone.registered().items():
        made = cls()
        assert cls.__name__ == name and cls.model_types and cls.display_name
        module = made.build(Runtime())
        assert backbone.of_module(module) == made
        raw = json.loads(json.dumps(made.to_hf()))
        assert backbones.architecture_of(raw, Path("x"), Architecture) is cls
        small = cls(num_layers=1)  # type: ignore[call-arg]
        params = backbones.new_parameters(small.build(Runtime()), abstract=True)
        assert traverse_util.flatten_dict(params, sep="/").keys() == small.table().keys()
        record = json.loads(json.dumps(parameters.describe_module(module)))
        assert parameters.build_module(record, Runtime()) == module
