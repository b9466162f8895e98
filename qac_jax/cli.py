"""The command line: `qac VERB [flags]` runs a stage, a recipe or a benchmark, or inspects.

Heavy imports happen inside the verbs, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
import dataclasses
import errno
import importlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from qac_jax import __version__, flags, processes, progress, verbs
from qac_jax.errors import Interrupted, UserError, nearest


BENCHMARKS = {
    "encode": "qac_jax.bench.encode:Encode",
    "extract": "qac_jax.bench.extract:Extract",
    "generate": "qac_jax.bench.generate:Generate",
    "loader": "qac_jax.bench.loader:Loader",
    "rerank": "qac_jax.bench.rerank:Rerank",
    "search": "qac_jax.bench.search:Search",
    "pretrain": "qac_jax.bench.pretrain:Pretrain",
    "train": "qac_jax.bench.train:Train",
}
# Verbs that are not stages.
_OTHERS = {
    "run": "a recipe (or grid) → its artefacts; finished stages are skipped",
    "plan": "a recipe → its cost: steps, tokens, FLOPs, memory, hours",
    "inspect": "an artefact → its kind, its origin, its first items",
    "doctor": "checks that every part of this installation works",
    "bench": "measures speed against a peer library in the same run",
}
# With one of these flags, `qac evaluate` means another verb.
_OF_EVALUATE = {
    "--beir": "evaluate-beir",
    "--bm25": "evaluate-beir",
    "--suite": "suite",
    "--pairs": "relate",
    "--sheet": "relate",
    "--labels": "relate",
    "--votes": "votes",
}
_WIDE = 160
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
_NO_ACCESS = (errno.EACCES, errno.EPERM, errno.EROFS)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    processes.run_by(arguments)
    try:
        return _dispatch(arguments)
    except UserError as error:
        return _complain(str(error), error.exit_code)
    except Interrupted as stop:
        return _complain(
            f"{stop}; what is finished is kept, and the same command continues", stop.exit_code
        )
    except KeyboardInterrupt:
        return _complain(
            "interrupted; what is finished is kept, and the same command continues", 130
        )
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        where = error.filename or "the output folder"
        if error.errno in _FULL_DISK:
            return _complain(
                f"the disk is full while writing {where}; free space and run the command again",
                2,
            )
        if error.errno in _NO_ACCESS:
            return _complain(
                f"no permission for {where} ({error.strerror}); choose another folder",
                2,
            )
        raise


def _complain(sentence: str, code: int) -> int:
    print(f"qac: {' '.join(sentence.split())}", file=sys.stderr)
    return code


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    verb, rest = arguments[0], arguments[1:]
    if verb == "--version":
        print(f"qac_jax {__version__}")
        return 0
    others: dict[str, Callable[[list[str]], int]] = {
        "run": _run,
        "plan": _plan,
        "inspect": _inspect,
        "doctor": _doctor,
        "bench": _bench,
        "search": _search,
    }
    if verb in others:
        return others[verb](rest)
    if verb == "evaluate":
        verb = _evaluating(rest)
    if verb in verbs.stages():
        return _stage(verb, rest)
    raise UserError(f"unknown verb {verb!r}; {nearest(verb, [*verbs.stages(), *others])}")


def _evaluating(arguments: Sequence[str]) -> str:
    """The verb that `qac evaluate` means with these flags."""
    words = {word.split("=")[0] for word in arguments}
    asked = {verb: flag for flag, verb in _OF_EVALUATE.items() if flag in words}
    if len(asked) > 1:
        verbs_asked = " and ".join(f"{flag} (qac {verb})" for verb, flag in asked.items())
        raise UserError(f"{verbs_asked} exclude each other; give one of them")
    return next(iter(asked), "evaluate")


def _overview() -> str:
    lines = [
        "usage: qac VERB [flags]      (qac VERB --help for each)",
        "",
        "Dense retrieval with query-as-context, PAIR, AugTriever: documents to a tested retriever.",
        "",
    ]
    lines += [f"  {verb.name:<13} {verb.summary}" for verb in verbs.stages().values()]
    lines += [f"  {verb:<13} {text}" for verb, text in _OTHERS.items()]
    lines += [
        "",
        "Flags of every stage: --out DIR, --seed N, --gin_file F …, --gin_search_paths P …,",
        "--gin.NAME=VALUE, --dry_run [--json], --overwrite. Flags beat --gin.X, which beats files.",
        "",
        "example: qac prepare --format python_docs --packages optax --out out/passages",
    ]
    return "\n".join(lines)


def _load(target: str) -> type:
    module, name = target.split(":")
    return getattr(importlib.import_module(module), name)


def _stage(verb: str, arguments: list[str]) -> int:
    from qac_jax import config
    from qac_jax.pipeline import inputs, recipe
    from qac_jax.pipeline import stage as stage_lib

    arguments, bindings = flags.split_gin(arguments)
    cls = verbs.stages()[verb].load()
    parser = flags.parser(verb, verbs.stages()[verb].summary, cls.EXAMPLE)
    flags.add_common(parser)
    flags.add_field_flags(parser, cls)
    options = parser.parse_all(arguments)
    config.register([cls])
    config.apply(
        config.Settings(
            files=flags.flat(options.gin_file),
            search_paths=flags.flat(options.gin_search_paths),
            bindings=bindings,
            flags=flags.bindings_of(flags.field_flags(options, cls), cls),
        )
    )
    stage = config.build(cls)
    if options.dry_run:
        _show_plan([{"stage": verb, "inputs": {}, **recipe.plan_of(stage, {})}], options.json)
        return 0
    if not options.out:
        raise UserError(f"{verb} needs a folder to write to; pass --out DIR")
    stage = inputs.located(stage, {}, "")
    artifact = stage_lib.execute(
        stage,
        options.out,
        replace=options.overwrite,
        documentation=config.text(),
        verb=verb,
    )
    if options.json:
        print(
            json.dumps(
                {"kind": artifact.kind, "count": artifact.count, "identity": artifact.identity}
            )
        )
    elif text := stage.summary(artifact):
        print(text)
    return 0


def _search(arguments: list[str]) -> int:
    """Answers a question on the screen; with --out it is a stage like the others."""
    from qac_jax.stages import search

    if any(word.split("=")[0] in ("--out", "--dry_run") for word in arguments):
        return _stage("search", arguments)
    parser = flags.parser("search", verbs.stages()["search"].summary, search.Search.EXAMPLE)
    search.add_flags(parser)
    return search.answer(parser.parse_all(arguments))


def _apply(options: argparse.Namespace, files: Sequence[str], bindings: list[str]) -> None:
    """Reads the files of a recipe or grid and the command line's bindings into gin."""
    from qac_jax import config
    from qac_jax.pipeline import grid, recipe

    config.register([recipe.Recipe, grid.Grid])
    macros = {"DATA_DIR": options.data_dir} if options.data_dir else {}
    if options.seed is not None:
        macros["SEED"] = options.seed
    search_paths = flags.flat(options.gin_search_paths)
    config.apply(config.Settings(files, search_paths, bindings, macros=macros))


def _build_recipe(
    options: argparse.Namespace, bindings: list[str], files: Sequence[str] = ()
) -> Any:
    """The recipe that the command line describes."""
    from qac_jax import config
    from qac_jax.pipeline import recipe

    files = files or [options.recipe]
    _apply(options, [*files, *flags.flat(options.gin_file)], bindings)
    built = config.build(recipe.Recipe)
    return dataclasses.replace(built, data_dir=options.data_dir or built.data_dir)


def _build_grid(options: argparse.Namespace, bindings: list[str]) -> tuple[Any, list[Any]]:
    """The grid in the file and its cells; (None, []) if the file describes a recipe.

    Bindings of the grid itself go to its file, all others to every cell.
    """
    from qac_jax import config
    from qac_jax.pipeline import grid

    own = [binding for binding in bindings if binding.startswith(("grid.Grid.", "Grid."))]
    _apply(options, [options.recipe], own)
    if not config.binds(grid.Grid):
        return None, []
    described = config.build(grid.Grid)
    rest = [binding for binding in bindings if binding not in own]

    def build(files: Sequence[str], overlays: Sequence[str], seed: int) -> Any:
        cell = argparse.Namespace(**{**vars(options), "seed": seed})
        return _build_recipe(cell, [*overlays, *rest], files)

    if options.seed is not None:
        described = dataclasses.replace(described, seeds=(options.seed,))
    return described, grid.cells(described, build)


def _recipe_parser(verb: str) -> flags.Parser:
    parser = flags.parser(
        verb,
        _OTHERS[verb],
        f"qac {verb} demo" + (" --out out/demo" if verb == "run" else ""),
    )
    parser.add_argument("recipe", metavar="RECIPE", help="recipe or grid: its name, or a gin file")
    flags.add_common(parser)
    parser.add_argument(
        "--data_dir", metavar="D", help="data folder: the recipe's macro %%DATA_DIR"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="seed: the recipe's macro %%SEED")
    return parser


def _recipe_options(
    parser: flags.Parser, arguments: list[str], bindings: list[str]
) -> argparse.Namespace:
    """The options of a recipe; a flag that is one of its macros (--start X) becomes a binding."""
    options, unknown = parser.parse_known_args(arguments)
    if not unknown:
        return options
    from qac_jax import config
    from qac_jax.pipeline import grid, recipe

    config.register([recipe.Recipe, grid.Grid])
    files = [options.recipe, *flags.flat(options.gin_file)]
    macros = config.macros(files, flags.flat(options.gin_search_paths))
    arguments, more = flags.split_macros(arguments, macros)
    bindings += more
    return parser.parse_all(arguments, [name.lower() for name in macros])


def _run(arguments: list[str]) -> int:
    whole = ["run", *arguments]
    arguments, bindings = flags.split_gin(arguments)
    parser = _recipe_parser("run")
    parser.add_argument(
        "--from",
        dest="start",
        metavar="STAGE",
        default="",
        help="run this stage and all that depend on it again",
    )
    parser.add_argument("--only", metavar="STAGE", default="", help="run only this stage again")
    options = _recipe_options(parser, arguments, bindings)
    from qac_jax import config
    from qac_jax.pipeline import recipe

    described, cells = _build_grid(options, bindings)
    if described is not None:
        return _run_grid(described, cells, options, recipe.command_line(whole))
    built = _build_recipe(options, bindings)
    if options.dry_run:
        _show_plan(recipe.plan(built), options.json)
        return 0
    if not options.out:
        raise UserError("run needs a folder to write to; pass --out DIR")
    finished = recipe.run(
        built,
        options.out,
        start=options.start,
        only=options.only,
        documentation=config.text(),
        command=recipe.command_line([w for w in whole]),
    )
    rows: list[dict[str, Any]] = [
        {
            "stage": n,
            "kind": a.kind,
            "count": a.count,
            "identity": a.identity,
            "folder": str(a.path),
        }
        for n, a in finished.items()
    ]
    if options.json:
        print(json.dumps(rows))
    else:
        for row in rows:
            print(
                f"{row['stage']:<16} {row['kind']:<12} {row['count']:>10,}  "
                f"{row['identity'][:12]}  {row['folder']}"
            )
        last = next(reversed(finished))  # its result, such as a table of metrics
        if text := recipe.ordered(built)[last].summary(finished[last]):
            print(f"\n{text}")
    return 0


def _run_grid(described: Any, cells: list[Any], options: argparse.Namespace, command: str) -> int:
    from qac_jax.pipeline import grid
    from qac_jax.report import grids

    if options.dry_run:
        return _show_grid(described, cells, options.json)
    if not options.out:
        raise UserError("run needs a folder to write to; pass --out DIR")
    if options.start or options.only:
        raise UserError(
            "--from and --only are for recipes; remove the folder of a grid's stage to redo it"
        )
    summary = grid.run(described, cells, options.out, command=command)
    print(json.dumps(summary) if options.json else grids.markdown(summary, described.title), end="")
    return 0


def _show_grid(described: Any, cells: list[Any], as_json: bool) -> int:
    from qac_jax.pipeline import grid

    plan = grid.plan(cells)
    if as_json:
        print(json.dumps(plan, indent=1))
        return 0
    print(f"{described.title or 'grid'}: {len(cells)} cells, {plan['distinct_stages']} stages\n")
    for row in plan["cells"]:
        new = ", ".join(row["new"]) or "nothing new"
        print(f"{row['cell']:<32} {_short(new)}")
    print("\nthe first cell:")
    _show_plan(plan["first_cell"], False)
    return 0


def _plan(arguments: list[str]) -> int:
    arguments, bindings = flags.split_gin(arguments)
    options = _recipe_options(_recipe_parser("plan"), arguments, bindings)
    from qac_jax.pipeline import recipe

    described, cells = _build_grid(options, bindings)
    if described is not None:
        return _show_grid(described, cells, options.json)
    _show_plan(recipe.plan(_build_recipe(options, bindings)), options.json)
    return 0


def _show_plan(plans: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"stages": plans}, indent=1))
        return
    for plan in plans:
        origin = ", ".join(plan["inputs"].values())
        print(
            f"{plan['stage']} ({plan['verb']} -> {plan['kind']})"
            + (f"  from {origin}" if origin else "")
        )
        for name in plan["set"]:
            print(f"    {name} = {_short(json.dumps(plan['fields'][name], ensure_ascii=False))}")
        for name, value in plan["plan"].items():
            if name == "devices":
                print("\n".join(f"  * {line}" for line in _device_table(value)))
            elif value is not None and not (name == "hours" and "devices" in plan["plan"]):
                print(f"  * {name}: {_readable(value)}")


def _device_table(devices: dict[str, Any]) -> list[str]:
    """Hours and memory of training on known devices."""
    from qac_jax.training import estimate

    return estimate.table(devices)


def _short(text: str) -> str:
    return text if len(text) <= _WIDE else text[: _WIDE - 1] + "…"


def _readable(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return progress.human(value) if abs(value) >= 10_000 else f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_readable(part)}" for name, part in value.items())
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def _inspect(arguments: list[str]) -> int:
    from qac_jax.data.kinds import KINDS

    parser = flags.parser("inspect", _OTHERS["inspect"], "qac inspect out/passages")
    parser.add_argument("artifact", metavar="ARTEFACT", help="folder of an artefact")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--verify", action="store_true", help="read every byte and compare the hashes"
    )
    parser.add_argument(
        "--task",
        metavar="NAME",
        default="",
        help=f"show examples of this task as text [{', '.join(KINDS)}]",
    )
    parser.add_argument(
        "--items", type=int, default=3, metavar="N", help="show the first N items (default 3)"
    )
    parser.add_argument(
        "--spans", action="store_true", help="show contexts ranked by score (as qac extract writes)"
    )
    options = parser.parse_all(arguments)
    from qac_jax.stages import inspect

    return inspect.show(
        options.artifact, options.items, options.json, options.verify, options.task, options.spans
    )


def _doctor(arguments: list[str]) -> int:
    parser = flags.parser("doctor", _OTHERS["doctor"], "qac doctor")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_all(arguments)
    from qac_jax.stages import doctor

    return doctor.run(options.json)


def _bench(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: qac bench NAME [flags]\n\n  " + "\n  ".join(BENCHMARKS))
        print("\nexample: qac bench train --steps 20")
        return 0
    name, rest = arguments[0], arguments[1:]
    if name not in BENCHMARKS:
        raise UserError(f"unknown benchmark {name!r}; {nearest(name, BENCHMARKS)}")
    cls = _load(BENCHMARKS[name])
    parser = flags.parser(
        f"bench {name}", (cls.__doc__ or "").split("\n")[0], getattr(cls, "EXAMPLE", "")
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    flags.add_field_flags(parser, cls)
    options = parser.parse_all(rest)
    from qac_jax import fields

    benchmark = fields.make(cls, flags.field_flags(options, cls))
    fields.check(benchmark)
    figures = benchmark.run()
    print(
        json.dumps(figures)
        if options.json
        else "\n".join(f"{k}: {_readable(v)}" for k, v in figures.items())
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
