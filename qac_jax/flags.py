"""Flags of the command line: a parser with kind complaints, and a flag for every simple field."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import typing
from collections.abc import Sequence
from typing import Any, NoReturn

from qac_jax.errors import UserError
from qac_jax.pipeline import fields


class Parser(argparse.ArgumentParser):
    """argparse whose complaints are one sentence with the nearest valid flag."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; `{self.prog} --help` lists the flags")

    def parse_all(self, arguments: list[str]) -> argparse.Namespace:
        known, unknown = self.parse_known_args(arguments)
        if unknown:
            flags = [o for action in self._actions for o in action.option_strings]
            close = difflib.get_close_matches(unknown[0].split("=")[0], flags, n=1)
            remedy = (
                f"did you mean {close[0]}?" if close else f"`{self.prog} --help` lists the flags"
            )
            raise UserError(f"unknown argument {unknown[0]!r}; {remedy}")
        return known


def parser(verb: str, description: str, example: str = "") -> Parser:
    return Parser(
        prog=f"qac {verb}",
        description=description,
        epilog=f"example: {example}" if example else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="DIR", help="folder to write to")
    parser.add_argument(
        "--gin_file", metavar="F", action="append", nargs="+", default=[], help="gin files"
    )
    parser.add_argument(
        "--gin_search_paths",
        metavar="P",
        action="append",
        nargs="+",
        default=[],
        help="where gin files are looked for",
    )
    parser.add_argument("--dry_run", action="store_true", help="say what would be done")
    parser.add_argument("--json", action="store_true", help="say it as JSON")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace an artefact made otherwise"
    )


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
            bindings.append(f"{word.removeprefix('--gin.')}={next(words, '')}")
    return rest, bindings


def flat(groups: Sequence[Sequence[str]]) -> list[str]:
    return [item for group in groups for item in group]


def add_field_flags(parser: argparse.ArgumentParser, cls: type) -> None:
    """A flag for every field of a dataclass that a word can express."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        convert = fields.converter(hints[field.name])
        if convert is None:
            continue  # objectives, models: gin builds them
        text = field.metadata.get("help", "").replace("%", "%%")
        if choices := [str(c) for c in field.metadata.get("choices", ()) if c != ""]:
            text += f": {', '.join(choices)}".replace("%", "%%")
        default = field.default if field.default is not dataclasses.MISSING else None
        if default not in (None, "", (), fields.REQUIRED):
            text += f" (default {default})"
        names = [f"--{fields.flag(field)}"]
        if fields.is_flag(hints[field.name]):
            parser.add_argument(
                *names,
                dest=field.name,
                action=argparse.BooleanOptionalAction,
                default=None,
                help=text,
            )
            continue
        parser.add_argument(
            *names,
            dest=field.name,
            type=convert,
            default=None,
            metavar=fields.flag(field).upper(),
            help=text,
        )


def field_flags(options: argparse.Namespace, cls: type) -> dict[str, Any]:
    """The fields that were given as flags."""
    names = [field.name for field in dataclasses.fields(cls)]
    return {n: getattr(options, n) for n in names if getattr(options, n, None) is not None}
