"""The interface of encoders: what it refuses, what it stores, which architectures it knows."""

import dataclasses
import json
from pathlib import Path
from typing import ClassVar

import pytest
from flax import traverse_util

from qac_jax.errors import UserError
from qac_jax.hub import backbones, huggingface, parameters
from qac_jax.models import backbone
from qac_jax.models.backbone import Architecture
from qac_jax.models.bert import Bert, BertConfig
from qac_jax.models.encoders import DualEncoder, DualEncoderConfig
from qac_jax.models.layers import Runtime


CONFIG = BertConfig(20, 8, 1, 2, 12, 6)


@dataclasses.dataclass(frozen=True)
class Other(BertConfig):
    """An encoder that has no token types, no positions and no MLM head."""

    display_name: ClassVar = "Other"
    model_types: ClassVar = ("other",)
    hf_names: ClassVar = {p: n for p, n in BertConfig.hf_names.items() if "mlm" not in p}
    position_free: ClassVar = True
    token_types: ClassVar = 0


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


def test_parts_that_an_architecture_lacks(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(backbone._REGISTERED, "Other", Other)
    other = Other(**{f.name: getattr(CONFIG, f.name) for f in dataclasses.fields(CONFIG)})
    module = other.build(Runtime())
    huggingface.save(tmp_path / "m", module, {"params": backbones.new_parameters(module)})
    with pytest.raises(UserError, match="Other has no mlm_head; leave mlm_head=True out"):
        huggingface.load(tmp_path / "m", options=backbones.Options(mlm_head=True))
    with pytest.raises(UserError, match="title=.segments. .* Other has none"):
        DualEncoderConfig(other, title="segments")


def test_what_is_stored_is_checked() -> None:
    record = parameters.describe_module(DualEncoder(DualEncoderConfig(CONFIG)))
    assert parameters.build_module(record, Runtime()).config.backbone == CONFIG
    record["config"]["backbone"]["class"] = "BertConfg"
    with pytest.raises(UserError, match="'BertConfg'.*did you mean 'BertConfig'"):
        parameters.build_module(record, Runtime())
    with pytest.raises(UserError, match="a BertEmbeddings cannot be stored"):
        parameters.describe_module(Bert(CONFIG).bind({}).embeddings)
