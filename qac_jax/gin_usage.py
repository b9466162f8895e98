"""What a file or a binding of the command line sets must be used: misspelt names change nothing.

Gin takes any macro and any scope. So after everything is built, what was set is compared with what
gin was asked for: macros by the references to them, parameters by gin's operative configuration.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping

import gin

from qac_jax.errors import nearest


MACRO = "gin.macro"


@dataclasses.dataclass(frozen=True)
class Bound:
    """One parameter that was given a value, in a scope; a macro's scope is its name."""

    scope: str
    selector: str
    parameter: str

    @property
    def is_macro(self) -> bool:
        return self.selector == MACRO

    def __str__(self) -> str:
        scope = f"{self.scope}/" if self.scope else ""
        return self.scope if self.is_macro else f"{scope}{_short(self.selector)}.{self.parameter}"


@contextlib.contextmanager
def noted(into: list[Bound]) -> Iterator[None]:
    """Adds to the list what gin reads inside the block, whether it had a value before or not."""
    config = gin.config._CONFIG
    before = {key: dict(values) for key, values in config.items()}
    config.clear()
    try:
        yield
    finally:
        read = {key: dict(values) for key, values in config.items()}
        config.clear()
        config.update(before)
        for (scope, selector), values in read.items():
            config.setdefault((scope, selector), {}).update(values)
            into += [Bound(scope, selector, name) for name in values]


@dataclasses.dataclass(frozen=True)
class Used:
    """What has been asked for since the configuration was read."""

    macros: frozenset[str]
    parameters: Mapping[str, Mapping[str, frozenset[str]]]  # selector -> scope -> names

    @classmethod
    def now(cls, known: Iterable[str] = ()) -> Used:
        """The present state; `known` are macros that are valid although nothing asks for them."""
        references = gin.config.iterate_references(gin.config._CONFIG)
        referred = {ref.config_key[0] for ref in references if ref.config_key[1] == MACRO}
        parameters: dict[str, dict[str, frozenset[str]]] = {}
        for (scope, selector), values in gin.config._OPERATIVE_CONFIG.items():
            for above in _and_above(scope):
                scopes = parameters.setdefault(selector, {})
                scopes[above] = scopes.get(above, frozenset()) | frozenset(values)
        return cls(frozenset(known) | frozenset(referred), parameters)

    def lacks(self, bound: Bound) -> str:
        """Why a setting has no effect; "" where it has one."""
        if bound.is_macro:
            if bound.scope in self.macros:
                return ""
            return f"nothing uses the macro {bound.scope}; {nearest(bound.scope, self.macros)}"
        name = _short(bound.selector)
        if bound.selector not in self.parameters:
            made = [_short(selector) for selector in self.parameters if selector != MACRO]
            return f"nothing makes a {name}; {nearest(name, made)}"
        scopes = self.parameters[bound.selector]
        if bound.scope not in scopes:
            valid = nearest(bound.scope, filter(None, scopes))
            return f"no {name} is made in the scope {bound.scope!r}; {valid}"
        if bound.parameter not in scopes[bound.scope]:
            return f"whatever makes the {name} sets its {bound.parameter}; leave it out"
        return ""


def _and_above(scope: str) -> list[str]:
    """A scope and those that it lies in: a/b, a, and none."""
    parts = scope.split("/") if scope else []
    return ["/".join(parts[:length]) for length in range(len(parts) + 1)]


def _short(selector: str) -> str:
    """MODULE.CLASS, as gin files call it."""
    return ".".join(selector.split(".")[-2:])
