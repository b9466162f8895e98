"""What a passage is asked is the same whatever the batch, the bucket, the devices or the order."""

import math
import random
from typing import Any

import jax
import numpy as np
import pytest
from toy_generation import model

from qac_jax.errors import UserError
from qac_jax.inference.generator import Generated, Generator, Request
from qac_jax.inference.settings import Inference
from qac_jax.models.decoding.settings import Decoding
from qac_jax.text import tokenizers


WORDS = "array of numbers sorted by key along the last axis with an optional dtype".split()


def requests() -> list[Request]:
    rng = random.Random(0)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(2, 24))) for _ in range(16)]
    caps = [0, 3, 0, 5]
    return [
        Request(f"p{number}", text, "ask: ", " ?", caps[number % 4])
        for number, text in enumerate(texts)
    ]


def said(
    texts: int, devices: int = 1, order: int = 0, partitions: int = 1, **settings: Any
) -> list[list[Generated]]:
    """Every request's continuations; `order` shuffles the requests on the way."""
    module, params = model()
    given = {"max_tokens": 8, "samples": 2, "top_k": 25, "top_p": 0.95, **settings}
    generator = Generator.of(
        module,
        params,
        tokenizers.load(),
        Decoding(**given),
        Inference(batch_texts=texts),
        devices=jax.devices()[:devices],
        partitions=partitions,
        max_input=32,
    )
    places = list(range(16))
    random.Random(order).shuffle(places)
    asked = requests()
    found = generator.generate([asked[place] for place in places])
    return [found[places.index(place)] for place in range(16)]


def texts_of(found: list[list[Generated]]) -> list[list[str]]:
    return [[one.text for one in each] for each in found]


@pytest.fixture(scope="module")
def expected() -> list[list[Generated]]:
    return said(16)


@pytest.mark.slow
@pytest.mark.parametrize(("texts", "devices", "partitions"), [(3, 1, 1), (2, 8, 1), (3, 4, 2)])
def test_sampling_is_independent(
    expected: list[list[Generated]], texts: int, devices: int, partitions: int
) -> None:
    found = said(texts, devices, order=texts + devices, partitions=partitions)
    assert texts_of(found) == texts_of(expected)
    ours, theirs = ([[one.score for one in each] for each in side] for side in (found, expected))
    np.testing.assert_allclose(ours, theirs, atol=2e-4)


def test_each_device_holds_its_part_of_the_matrices() -> None:
    module, params = model()
    one, four = (
        Generator.of(
            module,
            params,
            tokenizers.load(),
            Decoding(),
            devices=jax.devices()[:count],
            partitions=count,
        )
        for count in (1, 4)
    )
    assert _share(one.runner.params) == 1
    assert 0.25 < _share(four.runner.params) < 0.3  # norms are whole
    assert four.runner.copies == 1
    with pytest.raises(UserError, match="partitions=3 does not divide"):
        Generator.of(module, params, tokenizers.load(), Decoding(), partitions=3)


def _share(params: Any) -> float:
    """The share of the numbers that one device holds."""
    leaves = jax.tree.leaves(params)
    held = sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) for leaf in leaves)
    return held / sum(leaf.size for leaf in leaves)


def test_what_is_said_obeys_the_settings(expected: list[list[Generated]]) -> None:
    tokenizer = tokenizers.load()
    for request, each in zip(requests(), expected, strict=True):
        for one in each:
            assert one.score < 0
            if request.max_tokens:
                assert len(tokenizer.encode(one.text)) <= 2 * request.max_tokens
    flat = [one.text for each in expected for one in each]
    assert len(set(flat)) > len(flat) // 2, "samples do not differ"


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"method": "greedy", "samples": 1},
        {"method": "beam", "beams": 3},
        {"temperature": 0.7, "top_k": 0, "top_p": 0.9},
        {"no_repeat_ngram": 1, "min_tokens": 8},
    ],
    ids=["greedy", "beam", "nucleus", "rules"],
)
def test_other_ways_are_independent(settings: dict[str, Any]) -> None:
    expected = texts_of(said(3, 1, 1, **settings))
    assert texts_of(said(2, 8, 2, **settings)) == expected
    assert texts_of(said(2, 4, 2, partitions=2, **settings)) == expected
