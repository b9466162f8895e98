"""Flags of the command line: a flag for every setting, and errors that suggest the right one."""

import argparse
import dataclasses
import difflib
from collections.abc import Sequence
from typing import Any, NoReturn

from qac_jax import fields
from qac_jax.errors import UserError


# Kinds of inputs (pipeline/inputs.py) that may be given by a name.
_NAMES = {
    "model": "a folder, shipped:NAME, or owner/name[@revision] at the Hugging Face Hub",
    "tokenizer": "a vocabulary that ships, or that of a model (folder or name)",
    "file": "a file, folder or pattern; for documents, hf:NAME too",
}


class _Help(argparse.Action):
    """`--help` leaves out the settings of parts, `--help all` lists them too."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        del namespace, option
        print(parser.page(values == "all"))
        parser.exit()


class Parser(argparse.ArgumentParser):
    """argparse whose errors are one sentence with the nearest valid flag."""

    def page(self, everything: bool) -> str:
        """The text of `--help`: required inputs first, flags of every stage last."""
        made = argparse.RawDescriptionHelpFormatter(self.prog, 2, 28, 100)
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
        flags = [o for action in self._actions for o in action.option_strings]
        flags += [f"--{name}" for name in others]

        def suggest(word: str) -> None:
            name = word.split("=")[0]
            if name not in flags and (close := difflib.get_close_matches(name, flags, n=1)):
                raise UserError(f"unknown argument {word!r}; did you mean {close[0]}?")

        for word in arguments:  # before argparse asks for what is required
            if word.startswith("--"):
                suggest(word)
        known, unknown = self.parse_known_args(arguments)
        if unknown:
            suggest(unknown[0])
            self.error(f"unknown argument {unknown[0]!r}")
        return known


def parser(verb: str, description: str, example: str = "") -> Parser:
    epilog = f"example: {example}" if example else None
    made = Parser(f"qac {verb}", None, description, epilog, allow_abbrev=False, add_help=False)
    made.add_argument("-h", "--help", action=_Help, nargs="?", help=argparse.SUPPRESS)
    return made


def add_common(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("flags of every stage")
    group.add_argument("--out", metavar="DIR", help="folder to write to")
    for flag, metavar, text in (
        ("--gin_file", "F", "gin files"),
        ("--gin_search_paths", "P", "folders to search for gin files"),
        ("--gin_modules", "M", "packages that gin files may import, because you trust both"),
    ):
        group.add_argument(flag, metavar=metavar, action="extend", nargs="+", default=[], help=text)
    for flag, text in (
        ("--dry_run", "print the plan without running it"),
        ("--json", "print results as JSON"),
        ("--overwrite", "replace an artefact made with other settings"),
    ):
        group.add_argument(flag, action="store_true", help=text)


def split_gin(arguments: list[str], macros: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """Takes `--gin.NAME=VALUE` (or `--gin.NAME VALUE`) out of the arguments, and `--start X` as
    START=X where START is one of a recipe's macros."""
    known = {f"--{name.lower()}": name for name in macros}
    rest, bindings = [], []
    words = iter(arguments)
    for word in words:
        flag, equals, value = word.partition("=")
        name = known.get(flag, "") or (flag[6:] if flag.startswith("--gin.") else "")
        if not name:
            rest.append(word)
            continue
        if not equals and ((value := next(words, "")) == "" or value.startswith("--")):
            raise UserError(f"{flag} needs a value; write {flag}=VALUE")
        if flag in known:
            value = value or "''"  # a shell's --start ""
        bindings.append(f"{name}={value}")
    return rest, bindings


def add_field_flags(
    parser: argparse.ArgumentParser, cls: type, title: str = "inputs and settings"
) -> None:
    """A flag for every setting of a dataclass and of its parts that a word can express."""
    leaves = fields.flat(cls)
    kinds = {kind for leaf in leaves.values() for kind in leaf.field.metadata.get("kinds", ())}
    named = "\n".join(f"  {kind}: {text}" for kind, text in _NAMES.items() if kind in kinds)
    groups = {"": parser.add_argument_group(title, named or None)}
    bound = []
    for name, leaf in sorted(leaves.items(), key=_place):
        if leaf.part not in groups:
            groups[leaf.part] = parser.add_argument_group(about(leaf.owner))
            groups[leaf.part].of_a_part = True  # type: ignore[attr-defined]
        if fields.is_input(leaf.field) or fields.converter(leaf.hint):
            _add(groups[leaf.part], name, leaf)
        else:
            bound.append(f"  {name}: {leaf.field.metadata.get('help', '')}")
            shown = dict(leaf.field.metadata.get("shown") or {})
            bound += [f"    {of} [{', '.join(names)}]" for of, names in shown.items() if names]
    if bound:
        parser.add_argument_group("bound in gin", "\n".join(bound))


def about(cls: type) -> str:
    """The first line of what a class of settings says about itself."""
    return (cls.__doc__ or cls.__name__).strip().split("\n")[0].rstrip(".")


def _place(item: tuple[str, fields.Leaf]) -> tuple[bool, bool, bool]:
    """Required inputs come first, then the others, settings, and the seed."""
    name, leaf = item
    return leaf.field.default != fields.REQUIRED, not fields.is_input(leaf.field), name == "seed"


def _add(group: Any, name: str, leaf: fields.Leaf) -> None:
    """A setting's flag; where an input takes several, `--name A --name B` means `--name A,B`."""
    field, about_it = leaf.field, leaf.field.metadata
    text = about_it.get("help", "")
    listed = about_it.get("kinds") or fields.choices(field) or about_it.get("shown", ())
    if listed:
        text += f" [{', '.join(str(value) for value in listed if value != '')}]"
    if field.default == fields.REQUIRED and fields.is_input(field):
        text = f"required: {text}"
    elif field.default not in (dataclasses.MISSING, None, "", (), fields.REQUIRED):
        values = field.default if isinstance(field.default, tuple) else (field.default,)
        text += f" (default {','.join(map(str, values))})"
    options: dict[str, Any] = {"dest": name, "default": None, "help": text.replace("%", "%%")}
    if fields.is_input(field):
        options |= {"metavar": "DIR"} | ({"action": "append"} if about_it["many"] else {})
    elif fields.converter(leaf.hint) is bool:
        options["action"] = argparse.BooleanOptionalAction
    else:
        options |= {"type": fields.converter(leaf.hint), "metavar": name.upper()}
    group.add_argument(f"--{name}", **options)


def passed(options: argparse.Namespace, cls: type) -> dict[str, Any]:
    """The settings passed as flags, by their flat names."""
    values = {name: getattr(options, name, None) for name in fields.flat(cls)}
    return {
        name: ",".join(value) if isinstance(value, list) else value
        for name, value in values.items()
        if value is not None
    }


def made(cls: type, options: argparse.Namespace) -> Any:
    instance = fields.make(cls, passed(options, cls))
    fields.check(instance)
    return instance


def bindings(options: argparse.Namespace, cls: type) -> dict[str, Any]:
    """The flags under their gin names: the class or part that declares each."""
    owners = {name: leaf.owner for name, leaf in fields.flat(cls).items()}
    return {
        f"{owners[name].__module__}.{owners[name].__qualname__}.{name}": value
        for name, value in passed(options, cls).items()
    }
