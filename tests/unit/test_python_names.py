"""Public names, found in source alone: every way a package shows what its private modules hold."""

from __future__ import annotations

from qac_jax.formats.python.python_names import Definition, Names, is_public
from qac_jax.formats.python.python_source import parse


def names_of(sources: dict[str, str], packages: tuple[str, ...] = ("p",)) -> dict[str, list[str]]:
    """Definition as "module:name" -> its public names."""
    modules = {name: parse(text.encode(), name, name in packages) for name, text in sources.items()}
    public = Names(modules).public_names()
    return {f"{module}:{name}": found for (module, name), found in public.items()}


def test_reexports_from_a_private_module():
    found = names_of(
        {
            "p": "from ._a import one, two as second\nfrom ._a import three as three",
            "p._a": "def one(): pass\ndef two(): pass\ndef three(): pass\ndef four(): pass",
        }
    )
    assert found == {"p._a:one": ["p.one"], "p._a:two": ["p.second"], "p._a:three": ["p.three"]}


def test_star_imports_follow_all():
    found = names_of(
        {
            "p": "from ._a import *\nfrom ._b import *",
            "p._a": "__all__ = ['shown']\ndef shown(): pass\ndef unlisted(): pass",
            "p._b": "def seen(): pass\ndef _hidden(): pass",
        }
    )
    assert found == {"p._a:shown": ["p.shown"], "p._b:seen": ["p.seen"]}


def test_all_in_its_many_forms():
    sources = {
        "p": "from . import _a, _b\nfrom ._a import *\nfrom ._b import *\n"
        "__all__ = ['x'] + _a.__all__\n__all__ += _b.__all__\n__all__.extend(['y'])\n"
        "def x(): pass\ndef y(): pass\ndef z(): pass",
        "p._a": "__all__ = list({'one'} | {'two'})\ndef one(): pass\ndef two(): pass",
        "p._b": "__all__ = [n for n in dir() if not n.startswith('_')]\ndef three(): pass",
    }
    shown = {name for found in names_of(sources).values() for name in found}
    assert shown == {"p.x", "p.y", "p.one", "p.two", "p.three"}


def test_a_package_that_lists_a_name_is_its_home():
    found = names_of(
        {
            "p": "from p.sub import *",
            "p.sub": "from .impl import Thing\ndef helper(): pass",
            "p.sub.impl": "class Thing: pass",
        },
        ("p", "p.sub"),
    )
    assert found["p.sub:helper"] == ["p.sub.helper", "p.helper"]
    assert found["p.sub.impl:Thing"] == ["p.sub.Thing", "p.Thing", "p.sub.impl.Thing"]


def test_set_module_and_dispatchers_name_the_home():
    found = names_of(
        {
            "p": "from ._core import a, b",
            "p._core": "@set_module('p.extra')\ndef a(): pass\n"
            "@dispatch(None, module='p')\ndef b(): pass",
        }
    )
    assert found["p._core:a"] == ["p.extra.a", "p.a"]
    assert found["p._core:b"] == ["p.b"]


def test_assigned_aliases_and_modules_under_other_names():
    found = names_of(
        {
            "p": "from . import _impl as impl\nrun = impl.start\nstop = run",
            "p._impl": "def start(): pass",
        }
    )
    assert found["p._impl:start"] == ["p.run", "p.stop"]


def test_the_only_instance_of_a_class_lends_it_its_name():
    found = names_of(
        {
            "p": "from ._d import *",
            "p._d": "class norm_gen: pass\nnorm = norm_gen()\n"
            "class Pair: pass\none = Pair()\ntwo = Pair()\n"
            "class Random:\n    def shuffle(self): pass\n_inst = Random()\nshuffle = _inst.shuffle",
        }
    )
    assert found["p._d:norm_gen"] == ["p.norm", "p.norm_gen"]
    assert found["p._d:Pair"] == ["p.Pair"]
    assert found["p._d:Random.shuffle"] == ["p.shuffle"]


def test_a_module_shown_under_another_name():
    found = names_of(
        {
            "osx": "__all__ = ['path']\nif True:\n    import posixx as path\n"
            "else:\n    import ntx as path",
            "posixx": "__all__ = ['join']\ndef join(): pass",
            "ntx": "__all__ = ['join']\ndef join(): pass",
        },
        (),
    )
    assert found["posixx:join"] == ["osx.path.join", "posixx.join"]
    assert found["ntx:join"] == ["ntx.join"]


def test_names_of_other_top_level_modules_come_last():
    found = names_of(
        {"time": "__all__ = ['Stamp']\nclass Stamp: pass", "base": "from time import Stamp"},
        ("base",),
    )
    assert found["time:Stamp"] == ["time.Stamp", "base.Stamp"]


def test_circular_imports_end_and_what_is_compiled_is_told():
    init = b"from ._a import x\nfrom ._c import fast\n__all__ = ['x', 'fast', 'N']\nN = 1"
    again = b"from p import x"
    names = Names({"p": parse(init, "p", True), "p._a": parse(again, "p._a", False)})
    assert names.resolve("p", "x") is None
    assert names.undocumented() == ["p.fast", "p.x"]
    assert names.resolve("p", "N") == Definition("p", "N")


def test_relative_imports_of_all_levels():
    found = names_of(
        {
            "p": "from .sub import deep",
            "p.sub": "from ._x import deep",
            "p.sub._x": "from .._y import deep",
            "p._y": "def deep(): pass",
        },
        ("p", "p.sub"),
    )
    assert found["p._y:deep"] == ["p.deep", "p.sub.deep"]


def test_what_is_public():
    assert is_public("numpy.linalg.norm") and is_public("numpy.testing.assert_equal")
    assert not is_public("numpy._core.x") and not is_public("p.tests.test_x")
    assert not is_public("_private")


def test_definitions_in_branches_and_overloads():
    module = parse(
        b"try:\n    import x\nexcept ImportError:\n    def f():\n        'The documented one.'\n"
        b"if True:\n    class C:\n        if True:\n            def m(self): 'Method.'\n"
        b"def f(): pass\n",
        "m",
        False,
    )
    assert module.members["f"].doc == "The documented one."
    assert module.members["C"].methods["m"].doc == "Method."
