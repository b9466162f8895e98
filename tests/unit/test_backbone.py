"""The interface of encoders."""

import json
from pathlib import Path

from flax import traverse_util

from qac_jax.hub import backbones, parameters
from qac_jax.models import backbone
from qac_jax.models.backbone import Architecture
from qac_jax.models.layers import Runtime


def test_every_architecture_is_whole() -> None:
    known = backbone.registered()
    assert {"BertConfig", "T5Config"} <= known.keys()
    for name, cls in known.items():
        config = cls()
        assert cls.__name__ == name and cls.model_types and cls.display_name
        module = config.build(Runtime())
        assert backbone.of_module(module) == config
        raw = json.loads(json.dumps(config.to_hf()))
        assert raw["model_type"] in cls.model_types
        assert backbones.architecture_of(raw, Path("x"), Architecture) is cls
        small = cls(num_layers=1)  # type: ignore[call-arg]
        params = backbones.new_parameters(small.build(Runtime()), abstract=True)
        assert traverse_util.flatten_dict(params, sep="/").keys() == small.table().keys()
        record = json.loads(json.dumps(parameters.describe_module(module)))
        assert parameters.build_module(record, Runtime()) == module
