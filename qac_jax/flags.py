"""Flags of the command line: a flag for every setting, and errors that suggest the right one."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import difflib
import os
from collections.abc import Sequence
from typing import Any, NoReturn

from qac_jax import fields
from qac_jax.artifacts import disk, reading
from qac_jax.errors import UserError


# Kinds of inputs (pipeline/inputs.py) that may be given by a name.
_NAMES = {
    "model": "a folder, shipped:NAME, or owner/name[@revision] at the Hugging Face Hub",
    "tokenizer": "a vocabulary that ships, or that of a model (folder or name)",
    "file": "a file, folder or pattern; for some, ir_datasets:NAME, tfds:NAME, hf:NAME",
}


_GENERIC = "flags of every stage"
_WIDTH = 100


class _Help(argparse.Action):
    """`--help` leaves out the settings of parts, `--help all` lists them too."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        del namespace, option
        print(parser.page(values == "all"))
        parser.exit()


class Parser(argparse.ArgumentParser):
    """argparse whose errors are one sentence with the nearest valid flag."""

    def page(self, everything: bool = True) -> str:
        """What `--help` prints: required inputs first, flags of every stage last."""
        made = argparse.RawDescriptionHelpFormatter(self.prog, 2, 28, _WIDTH)
        made.add_usage(f"{self.prog} [flags]", self._actions, [])
        made.add_text(self.description)
        more = []
        for group in self._action_groups:
            if getattr(group, "of_a_part", False) and not everything:
                more.append(str(group.title))
                continue
            made.start_section(group.title)
            made.add_text(group.description)
            made.add_arguments(group._group_actions)
            made.end_section()
        if more:
            made.add_text("\n  ".join([f"more, by `{self.prog} --help all`:", *more]))
        made.add_text(self.epilog)
        return made.format_help().rstrip()

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; `{self.prog} --help` lists the flags")

    def parse_all(self, arguments: list[str], others: Sequence[str] = ()) -> argparse.Namespace:
        """The parsed arguments; `others` are flags that were understood elsewhere."""
        known, unknown = self.parse_known_args(arguments)
        if unknown:
            flags = [o for action in self._actions for o in action.option_strings]
            flags += [f"--{name}" for name in others]
            close = difflib.get_close_matches(unknown[0].split("=")[0], flags, n=1)
            remedy = (
                f"did you mean {close[0]}?" if close else f"`{self.prog} --help` lists the flags"
            )
            raise UserError(f"unknown argument {unknown[0]!r}; {remedy}")
        return known


def parser(verb: str, description: str, example: str = "") -> Parser:
    made = Parser(
        prog=f"qac {verb}",
        description=description,
        epilog=f"example: {example}" if example else None,
        allow_abbrev=False,
        add_help=False,
    )
    made.add_argument("-h", "--help", action=_Help, nargs="?", help=argparse.SUPPRESS)
    return made


def add_common(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(_GENERIC)
    group.add_argument("--out", metavar="DIR", help="folder to write to")
    group.add_argument(
        "--gin_file", metavar="F", action="append", nargs="+", default=[], help="gin files"
    )
    group.add_argument(
        "--gin_search_paths",
        metavar="P",
        action="append",
        nargs="+",
        default=[],
        help="folders to search for gin files",
    )
    group.add_argument(
        "--gin_modules",
        metavar="M",
        action="append",
        nargs="+",
        default=[],
        help="packages beside qac_jax that gin files may import, because you trust both",
    )
    add_safety(group)
    group.add_argument("--dry_run", action="store_true", help="print the plan without running it")
    group.add_argument("--json", action="store_true", help="print results as JSON")
    group.add_argument(
        "--overwrite", action="store_true", help="replace an artefact made with other settings"
    )


class _Without(argparse.Action):
    """Sets a variable of the environment to 0, for this process and its workers."""

    def __init__(self, option_strings: Sequence[str], dest: str, const: str, help: str):
        super().__init__(option_strings, dest, nargs=0, const=const, help=help)

    def __call__(self, *_: Any) -> None:
        os.environ[self.const] = "0"


def add_safety(parser: Any) -> None:
    """Flags that trade safety against time."""
    for flag, variable, text in (
        ("--no_verify", reading.VERIFY, "do not compare inputs with their hashes at first use"),
        ("--no_fsync", disk.VARIABLE, "do not wait for the disk: a power cut may lose results"),
    ):
        parser.add_argument(flag, action=_Without, dest=flag[2:], const=variable, help=text)


def split_gin(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Takes `--gin.NAME=VALUE` (or `--gin.NAME VALUE`) out of the arguments."""
    rest, bindings = [], []
    words = iter(arguments)
    for word in words:
        if not word.startswith("--gin."):
            rest.append(word)
        elif "=" in word:
            bindings.append(word.removeprefix("--gin."))
        else:
            value = next(words, "")
            if value.startswith("--"):
                raise UserError(f"{word} needs a value; write {word}=VALUE")
            bindings.append(f"{word.removeprefix('--gin.')}={value}")
    return rest, bindings


def split_macros(arguments: list[str], macros: Sequence[str]) -> tuple[list[str], list[str]]:
    """Takes `--start X` out of the arguments, as the binding START=X of a recipe's macro."""
    rest, bindings = [], []
    known = {f"--{name.lower()}": name for name in macros}
    words = iter(arguments)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag not in known:
            rest.append(word)
            continue
        if not equals and ((value := next(words, "")) == "" or value.startswith("--")):
            raise UserError(f"{flag} needs a value; write {flag} VALUE")
        bindings.append(f"{known[flag]}={_literal(value)}")
    return rest, bindings


def _literal(value: str) -> str:
    """A word of the command line as gin reads it: words and paths become texts."""
    if value.startswith(("@", "%")):
        return value
    try:
        ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return repr(value)
    return value


def flat(groups: Sequence[Sequence[str]]) -> list[str]:
    return [item for group in groups for item in group]


def add_field_flags(
    parser: argparse.ArgumentParser, cls: type, title: str = "inputs and settings"
) -> None:
    """A flag for every setting of a dataclass and of its parts that a word can express."""
    groups = {"": parser.add_argument_group(title, _about_names(cls))}
    bound = []
    for name, leaf in sorted(fields.flat(cls).items(), key=_place):
        if leaf.part not in groups:
            groups[leaf.part] = parser.add_argument_group(about(leaf.owner))
            groups[leaf.part].of_a_part = True  # type: ignore[attr-defined]
        if fields.role(leaf.field) == "input":
            _add_input(groups[leaf.part], name, leaf.field)
        elif (convert := fields.converter(leaf.hint)) is not None:
            _add_setting(groups[leaf.part], name, leaf, convert)
        else:
            bound += [f"  {line}" for line in _bound_in_gin(name, leaf.field)]
    if bound:
        parser.add_argument_group("bound in gin", "\n".join(bound))


def about(cls: type) -> str:
    """The first line of what a class of settings says about itself."""
    return (cls.__doc__ or cls.__name__).strip().split("\n")[0].rstrip(".")


def _about_names(cls: type) -> str | None:
    """What inputs may be beside paths, by the kinds of those that the class has."""
    leaves = [leaf.field for leaf in fields.flat(cls).values()]
    kinds = {kind for field in leaves for kind in field.metadata.get("kinds", ())}
    return "\n".join(f"  {kind}: {text}" for kind, text in _NAMES.items() if kind in kinds) or None


def _place(item: tuple[str, fields.Leaf]) -> tuple[bool, bool, bool]:
    """Required inputs come first, then the others, settings, and the seed."""
    name, leaf = item
    required = leaf.field.default == fields.REQUIRED
    return not required, fields.role(leaf.field) != "input", name == "seed"


def _add_input(group: Any, name: str, field: dataclasses.Field[Any]) -> None:
    """An input's flag; where it takes several, `--name A --name B` means `--name A,B`."""
    kinds = field.metadata["kinds"]
    text = f"{field.metadata['help']} [{', '.join(kinds)}]".replace("%", "%%")
    if field.default == fields.REQUIRED:
        text = f"required: {text}"
    elif field.default not in (None, ""):
        text += f" (default {field.default})"
    several = field.metadata["many"]
    options: dict[str, Any] = {"action": "append"} if several else {}
    group.add_argument(f"--{name}", dest=name, default=None, metavar="DIR", help=text, **options)


def _bound_in_gin(name: str, field: dataclasses.Field[Any]) -> list[str]:
    """What `--help` says about a setting that no word can express (an objective, a model)."""
    lines = [f"{name}: {field.metadata.get('help', '')}"]
    shown = dict(field.metadata.get("shown") or {})
    return lines + [f"  {of} [{', '.join(names)}]" for of, names in shown.items() if names]


def _add_setting(group: Any, name: str, leaf: fields.Leaf, convert: Any) -> None:
    text = leaf.field.metadata.get("help", "")
    if listed := fields.choices(leaf.field) or leaf.field.metadata.get("shown", ()):
        text += f" [{', '.join(str(value) for value in listed if value != '')}]"
    default = leaf.field.default if leaf.field.default is not dataclasses.MISSING else None
    if default not in (None, "", (), fields.REQUIRED):
        values = default if isinstance(default, tuple) else (default,)
        text += f" (default {','.join(map(str, values))})"
    text = text.replace("%", "%%")
    if fields.is_flag(leaf.hint):
        action = argparse.BooleanOptionalAction
        group.add_argument(f"--{name}", dest=name, action=action, default=None, help=text)
        return
    flag = leaf.field.metadata.get("flag") or name
    group.add_argument(
        f"--{flag}", dest=name, type=convert, default=None, metavar=flag.upper(), help=text
    )


def field_flags(options: argparse.Namespace, cls: type) -> dict[str, Any]:
    """The settings passed as flags, by their flat names."""
    settings = {}
    for name in fields.flat(cls):
        value = getattr(options, name, None)
        if value is not None:
            settings[name] = ",".join(value) if _is_list_of_inputs(cls, name, value) else value
    return settings


def bindings_of(settings: dict[str, Any], cls: type) -> dict[str, Any]:
    """The same settings under their gin names: the class or part that declares each."""
    owners = {name: leaf.owner for name, leaf in fields.flat(cls).items()}
    return {f"{owners[n].__module__}.{owners[n].__qualname__}.{n}": v for n, v in settings.items()}


def _is_list_of_inputs(cls: type, name: str, value: Any) -> bool:
    return fields.role(fields.flat(cls)[name].field) == "input" and isinstance(value, list)
