"""Stage fields: types are checked, settings have one form in every process."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from toy_stages import Sized, Sizes

from qac_jax import fields
from qac_jax.errors import UserError
from qac_jax.fields import option


@dataclasses.dataclass(frozen=True)
class Inner:
    rate: float = 0.5
    threads: int = option(1, "how many", affects_result=False)


@dataclasses.dataclass(frozen=True)
class Outer:
    size: int = 1
    rate: float = 0.1
    name: str = "x"
    maybe: int | None = None
    names: tuple[str, ...] = ()
    pair: tuple[int, int] = (1, 2)
    table: Mapping[str, int] = dataclasses.field(default_factory=dict)
    inner: Inner = Inner()
    many: Sequence[Inner] = ()
    workers: int = option(1, "processes", affects_result=False)
    color: str = option("red", "a colour", choices=("red", "green"))


GOOD: dict[str, Any] = {"rate": 1, "maybe": 3, "names": ["a", "b"], "pair": [3, 4]}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"size": True}, r"Outer.size = True is a bool; expected int"),
    ({"rate": "fast"}, r"Outer.rate = 'fast' is a str; expected float"),
    ({"maybe": "3"}, r"expected int or None"),
    ({"names": "abc"}, r"Outer.names = 'abc' is a str"),
    ({"pair": (1, 2, 3)}, r"Outer.pair"),
    ({"many": [Inner(None)]}, r"Outer.many\[0\].rate = None"),  # type: ignore[arg-type]
    ({"color": "gren"}, r"not one of red, green; did you mean 'green'"),
    ({"name": fields.REQUIRED}, r"Outer.name is not set; pass --name or bind Outer.name"),
]


def test_right_types_pass_and_wrong_ones_are_one_sentence():
    fields.check(Outer(**GOOD, table={"a": 1}, many=[Inner(0.1)]))
    for settings, sentence in BAD:
        with pytest.raises(UserError, match=sentence) as caught:
            fields.check(Outer(**settings))
        assert "\n" not in str(caught.value)


def test_the_description_is_about_results_only():
    assert fields.describe(Outer()) == fields.describe(Outer(workers=8, inner=Inner(threads=2)))
    assert fields.describe(Outer()) != fields.describe(Outer(inner=Inner(0.6)))
    assert fields.describe(Outer(names=["a"])) == fields.describe(Outer(names=("a",)))  # type: ignore[arg-type]
    assert fields.describe(Outer(table={"b": 1, "a": 2}))["table"] == {"a": 2, "b": 1}
    one, two = np.arange(4), np.arange(4) + 1
    assert fields.describe(one) == fields.describe(np.arange(4)) != fields.describe(two)


def test_parts_are_flat_where_people_give_them():
    leaves = fields.flat(Sized)
    assert (leaves["width"].owner, leaves["width"].part) == (Sizes, "sizes")
    made = fields.make(Sized, {"name": "y", "width": 5})
    assert made == Sized(name="y", sizes=Sizes(5, 4))
    assert fields.make(Sized, {"sizes": Sizes(7), "depth": 1}).sizes == Sizes(7, 1)
    assert fields.values(made) == {"seed": 0, "name": "y", "width": 5, "depth": 4}
    with pytest.raises(UserError, match="Sized has no setting 'widht'; did you mean 'width'"):
        fields.make(Sized, {"widht": 5})


@dataclasses.dataclass(frozen=True)
class Bounded(fields.Checked):
    share: float = option(0.5, above=0, below=1)


def test_bounds_are_checked_when_made() -> None:
    assert Bounded(0.1).share == 0.1
    with pytest.raises(UserError, match="share = 1.0; expected more than 0 and less than 1"):
        Bounded(1.0)
