"""The verbs about recipes: `qac run`, `qac plan`, `qac recipes`.

Heavy imports happen inside the functions, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qac_jax import flags, progress, recipes
from qac_jax.errors import UserError


if TYPE_CHECKING:
    from qac_jax import config

SUMMARIES = {
    "run": "a recipe (or grid) → its artefacts; finished stages are skipped",
    "plan": "a recipe → its cost: steps, tokens, FLOPs, memory, hours",
    "recipes": "the recipes that come with the package, and what each needs",
}
_LINE, _WIDE = 100, 160


def _config(
    options: argparse.Namespace, bindings: Sequence[str] = (), **settings: Any
) -> config.Config:
    """The gin text of a recipe or grid, with bindings of the command line."""
    from qac_jax import config

    given = {
        "recipe": options.recipe,
        "search_paths": flags.flat(options.gin_search_paths),
        "modules": flags.flat(options.gin_modules),
        "values": {} if options.seed is None else {"seed": options.seed},
        **settings,
    }
    return config.Config(config.Settings(bindings=bindings, **given))


def _build_recipe(options: argparse.Namespace, bindings: list[str]) -> tuple[Any, str]:
    """The recipe that the command line describes, and its bindings as gin text."""
    given = _config(options, bindings, overlays=flags.flat(options.gin_file))
    built = given.recipe()
    refuse(given.unused())
    return dataclasses.replace(built, data_dir=options.data_dir or built.data_dir), given.text()


def _build_grid(options: argparse.Namespace, bindings: list[str]) -> tuple[Any, list[Any]]:
    """The grid that is named, and its cells; (None, []) if it is a recipe.

    Bindings of the grid itself go to it, all others to every cell.
    """
    from qac_jax.pipeline import grid

    own = [binding for binding in bindings if binding.startswith(("grid.Grid.", "Grid."))]
    given = _config(options, own, values={})
    if not given.is_grid():
        if options.systems:
            raise UserError(f"{options.recipe} is a recipe; --systems is for grids, leave it out")
        return None, []
    described = given.recipe()
    rest = [binding for binding in bindings if binding not in own]
    unused: list[dict[str, str]] = []

    def build(system: grid.System, seed: int) -> Any:
        overlays, values = (
            list(system.get("gin", ())),
            {k: v for k, v in system.items() if k != "gin"},
        )
        cell = _config(
            options,
            rest,
            recipe=described.recipe,
            files=overlays,
            overlays=flags.flat(options.gin_file),
            values={**values, "seed": seed},
        )
        built = dataclasses.replace(cell.recipe(), data_dir=options.data_dir or "")
        unused.append(cell.unused())
        return built

    if options.seed is not None:
        described = dataclasses.replace(described, seeds=(options.seed,))
    if options.systems:
        described = dataclasses.replace(described, only=tuple(options.systems.split(",")))
    cells = grid.cells(described, build)
    # What one system has no use for, another may have.
    in_all = set.intersection(*map(set, unused))
    refuse({label: why for label, why in unused[0].items() if label in in_all})
    return described, cells


def refuse(unused: Mapping[str, str]) -> None:
    """Raises for the first setting that changed nothing."""
    if unused:
        raise UserError(next(iter(unused.values())))


def _recipe_parser(verb: str, description: str = "") -> flags.Parser:
    parser = flags.parser(
        verb,
        description or SUMMARIES[verb],
        f"qac {verb} demo" + (" --out out/demo" if verb == "run" else ""),
    )
    parser.add_argument("recipe", metavar="RECIPE", help="recipe or grid: its name, or a gin file")
    flags.add_common(parser)
    parser.add_argument(
        "--data_dir", metavar="D", help="data folder, in which the recipe's data: lies"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="seed of the recipe")
    parser.add_argument(
        "--systems", metavar="A,B", default="", help="grids: only these of their systems"
    )
    return parser


def _recipe_options(
    parser: flags.Parser, arguments: list[str], bindings: list[str]
) -> argparse.Namespace:
    """The options of a recipe; a flag that is one of its macros (--start X) becomes a binding."""
    options, unknown = parser.parse_known_args(arguments)
    if not unknown:
        return options
    given = _config(options, overlays=flags.flat(options.gin_file))
    if given.is_grid():
        given = _config(options, recipe=given.recipe().recipe)
    names = given.parameters()
    arguments, more = flags.split_macros(arguments, names)
    bindings += more
    return parser.parse_all(arguments, [name.lower() for name in names])


def run(arguments: list[str]) -> int:
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
    parser.add_argument(
        "--share",
        metavar="I/N",
        default="",
        help="grids: only cells I, I + N, …, counted from 0; the same without it writes the table",
    )
    _add_sizes(parser)
    options = _recipe_options(parser, arguments, bindings)
    from qac_jax.pipeline import costs, recipe

    described, cells = _build_grid(options, bindings)
    if described is None and options.share:
        raise UserError(f"{options.recipe} is a recipe; --share is for grids, leave it out")
    if described is not None:
        return _run_grid(described, cells, options, recipe.command_line(whole))
    built, text = _build_recipe(options, bindings)
    if options.dry_run:
        show_plan(recipe.plan(built, costs.sizes_of(options.sizes)), options.json)
        return 0
    if not options.out:
        raise UserError("run needs a folder to write to; pass --out DIR")
    finished = recipe.run(
        built,
        options.out,
        start=options.start,
        only=options.only,
        documentation=text,
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
        return _show_grid(described, cells, options)
    if not options.out:
        raise UserError("run needs a folder to write to; pass --out DIR")
    if options.start or options.only:
        raise UserError(
            "--from and --only are for recipes; remove the folder of a grid's stage to redo it"
        )
    if options.share:
        grid.run_share(grid.shared(cells, options.share), options.out, command=command)
        return 0
    summary = grid.run(described, cells, options.out, command=command)
    print(json.dumps(summary) if options.json else grids.markdown(summary, described.title), end="")
    return 0


def _show_grid(described: Any, cells: list[Any], options: argparse.Namespace) -> int:
    from qac_jax.pipeline import costs, grid

    planned = grid.plan(cells, costs.sizes_of(options.sizes))
    if options.json:
        print(json.dumps(planned, indent=1))
        return 0
    print(f"{described.title or 'grid'}: {len(cells)} cells, {planned['distinct_stages']} stages\n")
    for row in planned["cells"]:
        new = ", ".join(row["new"]) or "nothing new"
        print(f"{row['cell']:<32} {_short(new)}")
    print("\nthe first cell:")
    show_plan(planned["first_cell"], False)
    return 0


def plan(arguments: list[str]) -> int:
    arguments, bindings = flags.split_gin(arguments)
    parser = _recipe_parser("plan")
    _add_sizes(parser)
    parser.add_argument(
        "--here",
        action="store_true",
        help="try each kind of work on this machine for some seconds: how long will the stages "
        "take here?",
    )
    options = _recipe_options(parser, arguments, bindings)
    from qac_jax.pipeline import costs, recipe

    described, cells = _build_grid(options, bindings)
    if described is not None:
        if options.here:
            raise UserError(f"{options.recipe} is a grid; --here is for recipes, such as its own")
        return _show_grid(described, cells, options)
    built, text = _build_recipe(options, bindings)
    sizes = costs.sizes_of(options.sizes)
    if not options.here:
        show_plan(recipe.plan(built, sizes), options.json)
        return 0
    stages = recipe.ordered(built)
    counted = costs.counted(stages, built.data_dir)
    plans = recipe.plan(built, {**{name: count for name, (count, _) in counted.items()}, **sizes})
    costs.add_seconds(stages, plans, counted)
    show_plan(plans, options.json)
    return 0


def _add_sizes(parser: flags.Parser) -> None:
    parser.add_argument(
        "--sizes",
        metavar="NAME=N,…",
        default="",
        help="items of stages, and of files by the input that takes them, for the hours of all "
        "stages: passages=8841823,queries=502939",
    )


def list_all(arguments: list[str]) -> int:
    """`qac recipes`: a line for each recipe, or all that the header of one says."""
    parser = flags.parser("recipes", SUMMARIES["recipes"], "qac recipes own_corpus")
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help="show all about this one")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_all(arguments)
    headers = [recipes.header(options.recipe)] if options.recipe else [*recipes.headers().values()]
    if options.json:
        shown = ("name", "summary", "needs", "overridden", "grid", "text")
        print(json.dumps([{n: getattr(h, n) for n in shown} for h in headers], indent=1))
        return 0
    if options.recipe:
        print(headers[0].text)
        return 0
    for header in headers:
        print(f"{header.name:<24} {_title(header.summary)}" + (" [grid]" if header.grid else ""))
        print(f"{'':<24} needs {_short(header.needs or 'nothing')}")
    print("\nqac recipes NAME shows all about one, qac plan NAME its cost; qac run NAME runs it")
    return 0


def _title(summary: str) -> str:
    """What stands before the colon of a long sentence."""
    title, colon, _ = summary.partition(": ")
    whole = title.count("(") == title.count(")") and len(title) > _LINE // 4
    return title if colon and len(summary) > _LINE and whole else summary


def show_plan(plans: list[dict[str, Any]], as_json: bool, *, recipe: bool = True) -> None:
    """Prints the plans of a recipe's stages, or that of a single stage, which has no --sizes."""
    from qac_jax.pipeline import costs

    if as_json:
        print(json.dumps({"stages": plans, "totals": costs.totals(plans)}, indent=1))
        return
    for one in plans:
        origin = ", ".join(one["inputs"].values())
        print(
            f"{one['stage']} ({one['verb']} -> {one['kind']})"
            + (f"  from {origin}" if origin else "")
        )
        for name in one["set"]:
            print(f"    {name} = {_short(json.dumps(one['fields'][name], ensure_ascii=False))}")
        for reason in one.get("missing", ()):
            print(f"  ! {reason}")
        for name, value in one["plan"].items():
            if name == "seconds_here":
                print(f"  * on this machine: {progress.human_seconds(value)}")
            elif value is not None:
                print(f"  * {name}: {readable(value)}")
    totals = costs.totals(plans)
    if lines := costs.shown(totals) if recipe else costs.shown(totals, ""):
        print("\n" + "\n".join(lines))
    if absent := sum(len(one.get("missing", ())) for one in plans):
        inputs = "1 input is" if absent == 1 else f"{absent} inputs are"
        print(f"\nit would not start: {inputs} not there (marked with !)")


def _short(text: str) -> str:
    return text if len(text) <= _WIDE else text[: _WIDE - 1] + "…"


def readable(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return progress.human(value) if abs(value) >= 10_000 else f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {readable(part)}" for name, part in value.items())
    return json.dumps(value) if isinstance(value, dict | list) else str(value)
