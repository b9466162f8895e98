"""Extras are read from the installed package's metadata, and what is missing names its extra."""

from __future__ import annotations

from importlib import metadata

import pytest

from qac_jax import extras
from qac_jax.errors import UserError


REQUIRES = {
    "qac_jax": [
        "numpy<3,>=2.4",
        'apache-beam<3,>=2.77; extra == "beam"',
        'jax[cuda12]; extra == "cuda"',
        'qac_jax[beam,cuda]; extra == "all"',
    ],
    "jax": ["jaxlib", 'jax-cuda12-plugin[with-cuda]==0.10.2; extra == "cuda12"'],
}
VERSIONS = {"apache-beam": "2.77.0", "jax": "0.10.2"}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name not in VERSIONS:
            raise metadata.PackageNotFoundError(name)
        return VERSIONS[name]

    class Described:
        def get_all(self, name: str) -> list[str]:
            assert name == "Provides-Extra"
            return ["cuda", "beam", "all"]

    monkeypatch.setattr(metadata, "metadata", lambda name: Described())
    monkeypatch.setattr(metadata, "requires", REQUIRES.get)
    monkeypatch.setattr(metadata, "version", version)


def test_every_extra_with_what_it_brings(installed: None) -> None:
    beam = extras.Brought("apache-beam", "<3,>=2.77", "2.77.0")
    cuda = [
        extras.Brought("jax", "", "0.10.2"),
        extras.Brought("jax-cuda12-plugin", "==0.10.2", ""),
    ]
    assert extras.listed() == {"all": [beam, *cuda], "beam": [beam], "cuda": cuda}


def test_a_missing_module_names_its_extra() -> None:
    assert extras.load("json", "beam", "reading").dumps({}) == "{}"
    with pytest.raises(UserError, match=r"reading needs nowhere.*pip install 'qac_jax\[beam\]'"):
        extras.load("nowhere", "beam", "reading")
