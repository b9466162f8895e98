"""The command line: `qac VERB [flags]` runs a stage, a recipe or a benchmark, or inspects.

The tables name the module and class of every stage; nothing is imported before it is asked for, so
that `--help` answers at once.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qac_jax import __version__, flags, processes, progress, recipes
from qac_jax.errors import UserError, exit_code, nearest, plain, short


if TYPE_CHECKING:
    from qac_jax import config


_LINE = 160  # characters of a value or list in one line


@dataclasses.dataclass(frozen=True)
class Verb:
    """A name, the stage behind it (MODULE:CLASS; "": a function below) and a line about it."""

    name: str
    target: str
    summary: str

    def load(self, arguments: Sequence[str] = ()) -> Any:
        variants = VARIANTS.get(self.name, {})
        asked = [target for flag, target in variants.items() if _has(arguments, flag)]
        module, _, name = [*asked, self.target][0].partition(":")
        return getattr(importlib.import_module(module), name)


def _table(room: str, rows: Mapping[str, tuple[str, str]]) -> dict[str, Verb]:
    def place(target: str) -> str:
        return f"qac_jax.{target}" if "." in target else target and f"qac_jax.{room}.{target}"

    return {name: Verb(name, place(target), summary) for name, (target, summary) in rows.items()}


USE = {
    "index": ("index:Index", "FOLDER --add DOCS → an index; vectors → a ScaNN, FAISS or exact one"),
    "search": ("search:Search", "a question → its hits; queries and an index → a TREC run"),
    "serve": ("", "an index → an endpoint and a page that answer queries"),
    "run": ("", "a recipe (or grid) → its artefacts; finished stages are skipped"),
    "report": ("report:Report", "a folder of results → an HTML page and tables"),
}
BUILD = {
    "prepare": ("prepare:Prepare", "documents in any format → passages with their documents' ids"),
    "generate": ("generate:Generate", "passages → queries for each, by a T5 or from a file"),
    "extract": ("extract:Extract", "passages → pseudo-queries: their spans, titles, anchors"),
    "tokenize": ("tokenize:Tokenize", "passages with contexts, or judged queries → examples"),
    "train": ("train:Train", "training examples and an objective → model parameters"),
    "embed": ("embed:Embed", "passages or queries → vectors of a dual encoder"),
    "bm25": ("index:Bm25", "passages → a BM25 index, expanded by queries if asked (docT5query)"),
    "fuse": ("search:Fuse", "runs → one run; --index with --bm25 → one index of both"),
    "mine": ("mine:Mine", "queries and an index → hard negatives for each query"),
    "label": ("mine:Label", "candidates and a cross-encoder → positives and negatives"),
    "export": (
        "exporting.export:Export",
        "parameters → a folder for Hugging Face; --faiss, --parquet, --lance, --rows",
    ),
}
MEASURE = {
    "evaluate": ("evaluate:Evaluate", "runs, judgements (or --beir folders, an encoder) → metrics"),
    "analyse": ("analyse:Relate", "contexts → how related they are; --sheets, --encoders"),
    "bench": ("", "speed beside a peer library in the same run"),
}
LOOK = {
    "recipes": ("", "the recipes that come with the package, and what each needs"),
    "plan": ("", "a recipe → its cost: steps, tokens, FLOPs, memory, hours"),
    "inspect": ("", "an artefact → its kind, its origin, its first items"),
    "doctor": ("", "whether every part of this installation works"),
    "step": ("", "a step that only recipes need, by its name"),
}
GROUPS = {"use": USE, "build": BUILD, "measure": MEASURE, "look": LOOK}
VERBS = _table("stages", {**USE, **BUILD, **MEASURE, **LOOK})
# Listed by `qac --help`; the others by `qac help all`.
FRONT = (*USE, "prepare", "generate", "train", "evaluate", "bench", "recipes", "doctor")
ALIASES = {"pretrain": "train", "finetune": "train"}
# With one of these flags a verb is another stage.
VARIANTS = {
    "fuse": dict.fromkeys(("--index", "--bm25"), "qac_jax.stages.index:Hybrid"),
    "export": {
        "--faiss": "qac_jax.exporting.export:ExportFaiss",
        "--parquet": "qac_jax.exporting.tables:ExportParquet",
        "--lance": "qac_jax.exporting.tables:ExportLance",
        "--rows": "qac_jax.exporting.databases:ExportRows",
    },
    "evaluate": {"--beir": "qac_jax.stages.evaluate:EvaluateBeir"},
    "analyse": {
        "--sheets": "qac_jax.stages.analyse:Votes",
        "--encoders": "qac_jax.stages.analyse:Similarities",
    },
}
_STEPS = {
    "ask": ("questions:Ask", "questions of your own with the files that answer them → a test"),
    "average": ("choose:Average", "a model and the one it started from → their weighted mean"),
    "choose": ("choose:Choose", "models and their runs on validation questions → one of them"),
    "collect": ("questions:Collect", "a collection → training and test queries with judgements"),
    "conclude": ("choose:Conclude", "metrics, a choice, origins of questions → a verdict in words"),
    "group": ("mine:Group", "passages, queries, a hybrid index → groups with a teacher's scores"),
    "hybrid": ("index:Hybrid", "a dense index and a BM25 index → one index that fuses both"),
    "judge": ("questions:Judge", "questions with the titles that answer them → judgements"),
    "leaks": ("questions:Leaks", "refuses training data that contain test questions"),
    "pairs": ("generate:Pairs", "collections → texts that train a query generator"),
    "sample": ("questions:Sample", "queries of several files → a random part of them"),
    "split": ("questions:Split", "passages → those for training, validation or the test"),
    "suite": ("evaluate:Suite", "metrics of many collections → the papers' averages"),
    "unite": ("questions:Unite", "judged collections → one, with some judgements withheld"),
}
STEPS = _table("stages", _STEPS)
_BENCHMARKS = {
    "bm25": ("bm25:Bm25", "questions/s of BM25, beside bm25s with numba"),
    "all": ("everything:All", "every benchmark with a peer, in one table"),
    "encode": ("encode:Encode", "passages to vectors, beside sentence-transformers"),
    "generate": ("generate:Generate", "new tokens a second of a T5, beside transformers"),
    "search": ("search:Search", "ScaNN and exact search, beside FAISS"),
    "serve": ("serve:Serve", "a server under load, with batches and without"),
    "train": ("train:Train", "steps of MLM, CoT-MAE or coCondenser, beside PyTorch"),
}
BENCHMARKS = _table("bench", _BENCHMARKS)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    # By default JAX takes three quarters of a GPU's memory; trainings are planned for all of it.
    # Benchmarks may share the GPU with a peer (bench/peer.py).
    if arguments[:1] != ["bench"]:
        os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.92")
    processes.run_by(arguments)
    with processes.interruptible():
        return exit_code(lambda: _dispatch(arguments), own_process=argv is None)


def _dispatch(arguments: list[str]) -> int:
    try:
        os.getcwd()
        "".join(arguments).encode()
    except FileNotFoundError:
        raise UserError("the working folder was removed; change to one that exists") from None
    except UnicodeEncodeError as error:
        wrong = f"byte 0x{ord(error.object[error.start]) & 0xFF:02x}"
        raise UserError(f"the command line is not UTF-8 ({wrong}); write it in UTF-8") from None
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview(arguments[1:2] == ["all"]))
        return 0
    name, rest = ALIASES.get(arguments[0], arguments[0]), arguments[1:]
    if name == "--version":
        print(f"qac_jax {__version__}")
        return 0
    functions: dict[str, Callable[[list[str]], int]] = {
        "run": functools.partial(_recipe, "run"),
        "plan": functools.partial(_recipe, "plan"),
        "recipes": _recipes,
        "inspect": _inspect,
        "doctor": _doctor,
        "bench": _bench,
        "search": _search,
        "serve": _serve,
        "step": _step,
    }
    if name in functions:
        return functions[name](rest)
    if name == "index" and _has(rest, "--add", "--delete", "--replace", "--compact"):
        return _change_index(rest)
    if name in STEPS:
        raise UserError(f"{name} is a step of recipes; run it by itself as `qac step {name} …`")
    if (verb := VERBS.get(name) or _of_a_file(name)) is None:
        raise UserError(f"unknown verb {name!r}; {nearest(name, [*VERBS, *ALIASES])}")
    return _stage(verb, rest)


def _of_a_file(name: str) -> Verb | None:
    """The verb of a stage in `stages/NAME.py`, which needs no row in the tables."""
    module = f"qac_jax.stages.{name}"
    if not name.isidentifier() or importlib.util.find_spec(module) is None:
        return None
    for value in vars(importlib.import_module(module)).values():
        if getattr(value, "VERB", "") == name:
            return Verb(name, f"{module}:{value.__name__}", "")
    return None


def _overview(everything: bool) -> str:
    listed = []
    for group, rows in GROUPS.items():
        names = [name for name in rows if name in FRONT or everything]
        listed += [group, *(f"  {name:<9} {VERBS[name].summary}" for name in names), ""]
    verbs = "\n".join(listed)
    more = "" if everything else "all verbs: qac help all\n"
    return f"""usage: qac VERB [flags]      (qac VERB --help for each)

Search a folder of documents by meaning, and train the retriever on them.

{verbs}
{more}flags of every stage: --out DIR, --seed N, --gin_file F …, --gin_search_paths P …,
--gin.NAME=VALUE, --dry_run [--json], --overwrite. Flags beat --gin.X, which beats files.

example: qac index out/live --add DOCUMENTS; qac search --index out/live"""


def _named(table: Mapping[str, Verb], what: str, usage: str, arguments: list[str]) -> Verb | None:
    """The row of a table that the first argument names; None if it asks for the list."""
    if not arguments or arguments[0] in ("-h", "--help"):
        rows = (f"  {name:<9} {verb.summary}" for name, verb in table.items())
        print("\n".join([f"usage: qac {usage} NAME [flags]", "", *rows]))
        return None
    if arguments[0] not in table:
        raise UserError(f"unknown {what} {arguments[0]!r}; {nearest(arguments[0], table)}")
    return table[arguments[0]]


def _has(arguments: Sequence[str], *names: str) -> bool:
    return any(word.split("=")[0] in names for word in arguments)


def _step(arguments: list[str]) -> int:
    step = _named(STEPS, "step", "step", arguments)
    return 0 if step is None else _stage(step, arguments[1:], f"step {step.name}")


def _stage(verb: Verb, arguments: list[str], name: str = "") -> int:
    from qac_jax import config
    from qac_jax.pipeline import engines, inputs, readiness, recipe
    from qac_jax.pipeline import stage as stage_lib

    arguments, bindings = flags.split_gin(arguments)
    name, cls = name or verb.name, verb.load(arguments)
    parser = flags.parser(name, flags.about(cls), cls.EXAMPLE)
    flags.add_field_flags(parser, cls)
    if cls.DIVIDED:
        flags.add_field_flags(parser, engines.Engine, flags.about(engines.Engine))
    flags.add_common(parser)
    options = parser.parse_all(arguments)
    given = config.Config(
        files=options.gin_file,
        bindings=bindings,
        flags=flags.bindings(options, cls),
        search_paths=options.gin_search_paths,
        modules=options.gin_modules,
    )
    stage = given.build(cls)
    _refuse(given.unused())
    if options.dry_run:
        planned = {"stage": name, "inputs": {}, **recipe.plan_of(stage, {})}
        planned["missing"] = readiness.missing(stage)
        _show_plan([planned], options)
        return 0
    if not options.out:
        raise UserError(f"{name} needs a folder to write to; pass --out DIR")
    stage = inputs.located(stage, {}, "")
    with engines.use(flags.made(engines.Engine, options)):
        artifact = stage_lib.execute(
            stage, options.out, replace=options.overwrite, documentation=given.text(), verb=name
        )
    if options.json:
        print(json.dumps(_facts(artifact)))
    elif text := stage.summary(artifact):
        print(plain(text))
    return 0


def _facts(artifact: Any) -> dict[str, Any]:
    return {"kind": artifact.kind, "count": artifact.count, "identity": artifact.identity}


def _change_index(arguments: list[str]) -> int:
    from qac_jax.live import command

    parser = flags.parser("index", command.ABOUT, command.EXAMPLE)
    command.add_index_flags(parser)
    return command.change(parser.parse_all(arguments))


def _search(arguments: list[str]) -> int:
    """Answers a question on the screen; with --out it is a stage like the others."""
    from qac_jax.live import command
    from qac_jax.stages import search

    if _has(arguments, "--out", "--dry_run"):
        return _stage(VERBS["search"], arguments)
    parser = flags.parser("search", VERBS["search"].summary, search.Search.EXAMPLE)
    command.add_search_flags(parser)
    return command.answer(parser.parse_all(arguments))


def _serve(arguments: list[str]) -> int:
    from qac_jax.serving import options as serving

    parser = flags.parser("serve", VERBS["serve"].summary, "qac serve --index out/live")
    classes = (serving.Serving, serving.Traffic)
    for cls in classes:
        flags.add_field_flags(parser, cls, flags.about(cls))
    options = parser.parse_all(arguments)
    made = [flags.made(cls, options) for cls in classes]
    from qac_jax.serving import app

    return app.run(*made)


def _inspect(arguments: list[str]) -> int:
    from qac_jax.data.kinds import KINDS

    parser = flags.parser("inspect", VERBS["inspect"].summary, "qac inspect out/passages")
    add = parser.add_argument
    add("artifact", metavar="ARTEFACT", help="folder of an artefact")
    add("--verify", action="store_true", help="read every byte and compare the hashes")
    task = f"show examples of this task as text [{', '.join(KINDS)}]"
    add("--task", metavar="NAME", default="", help=task)
    add("--items", type=int, default=3, metavar="N", help="show the first N items (default 3)")
    options = parser.parse_all(arguments)
    from qac_jax.stages import look

    return look.inspect(options.artifact, options.items, options.verify, options.task)


def _doctor(arguments: list[str]) -> int:
    parser = flags.parser("doctor", VERBS["doctor"].summary, "qac doctor")
    parser.parse_all(arguments)
    from qac_jax.stages import look

    return look.doctor()


def _bench(arguments: list[str]) -> int:
    bench = _named(BENCHMARKS, "benchmark", "bench", arguments)
    if bench is None:
        return 0
    cls = bench.load()
    parser = flags.parser(f"bench {bench.name}", flags.about(cls), cls.EXAMPLE)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    flags.add_field_flags(parser, cls)
    options = parser.parse_all(arguments[1:])
    benchmark = flags.made(cls, options)
    figures = benchmark.run()
    lines = "\n".join(f"{k}: {_readable(v)}" for k, v in figures.items())
    shown = getattr(benchmark, "shown", lambda _: lines)
    print(json.dumps(figures) if options.json else shown(figures))
    return 0


# Recipes and grids.


def _recipes(arguments: list[str]) -> int:
    """A line for each recipe, or all that the header of one says."""
    parser = flags.parser("recipes", VERBS["recipes"].summary, "qac recipes own_corpus")
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help="show all about this one")
    parser.add_argument("--json", action="store_true", help="print JSON")
    tables = "the command of every table and figure of the papers, with its hours (a minute)"
    parser.add_argument("--paper", action="store_true", help=tables)
    options = parser.parse_all(arguments)
    if options.paper:
        return _papers()
    headers = [recipes.header(options.recipe)] if options.recipe else [*recipes.headers().values()]
    if options.json:
        shown = ("name", "summary", "needs", "grid", "text")
        print(json.dumps([{n: getattr(h, n) for n in shown} for h in headers], indent=1))
    elif name := options.recipe:
        print(f"{headers[0].text}\n\n    qac run {name} --data_dir DATA --out out/{name}")
    else:
        for one in headers:
            print(f"{one.name:<24} {short(one.summary, 100)}{' [grid]' if one.grid else ''}")
            print(f"{'':<24} needs {short(one.needs or 'nothing', _LINE)}")
        print("\nqac recipes NAME shows all of one, qac plan NAME its cost; qac run NAME runs it")
    return 0


def _papers() -> int:
    from qac_jax.pipeline import costs, grid, recipe
    from qac_jax.recipes import papers

    for row in papers.ROWS:
        print(f"{row.paper}, {', '.join(row.names)}: {row.what}\n    {row.command}", flush=True)
        given = ["--sizes", row.sizes] if row.sizes else []
        if not row.command.startswith("qac run"):
            print("    of a sample: minutes")
            continue
        options, bindings = _recipe_options("plan", [*row.command.split()[2:], *given])
        cells, sizes = _build_grid(options, bindings)[1], costs.sizes_of(row.sizes)
        if cells:
            found = grid.plan(cells, sizes)["totals"]
        else:
            found = costs.totals(recipe.plan(_config(options, bindings).recipe(), sizes))
        hours = found["hours"]["H100"]
        with_sizes = f" (with --sizes {row.sizes})" if row.sizes else ""
        print(f"    one H100 {hours:,.0f} hours, eight {hours / 8:,.0f}{with_sizes}")
    return 0


def _recipe(verb: str, arguments: list[str]) -> int:
    options, bindings = _recipe_options(verb, arguments)
    from qac_jax.pipeline import costs, engines, recipe

    planned = verb == "plan" or options.dry_run
    if not planned and not options.out:
        raise UserError("run needs a folder to write to; pass --out DIR")
    described, cells = _build_grid(options, bindings)
    if described is not None:
        return (_show_grid if planned else _run_grid)(described, cells, options)
    if options.systems:
        raise UserError(f"{options.recipe} is a recipe; --systems is for grids, leave it out")
    given = _config(options, bindings, overlays=options.gin_file)
    built = given.recipe()
    _refuse(given.unused())
    built = dataclasses.replace(built, data_dir=options.data_dir or built.data_dir)
    stages = recipe.ordered(built)
    if planned:
        plans = recipe.plan(built, costs.sizes_of(options.sizes), here=options.here)
        _show_plan(plans, options, given.parameters())
        return 0
    with engines.use(flags.made(engines.Engine, options)):
        finished = recipe.run(
            built,
            options.out,
            start=options.start,
            keep=options.keep,
            documentation=given.text(),
            command=processes.command(),
        )
    if options.json:
        rows = [{"stage": name, **_facts(a), "folder": str(a.path)} for name, a in finished.items()]
        print(json.dumps(rows))
        return 0
    for name in recipe.results(stages):
        a = finished[name]
        print(f"{name:<16} {a.kind:<12} {a.count:>10,}  {a.identity[:12]}  {a.path}")
    last = next(reversed(finished))  # its result, such as a table of metrics
    if text := stages[last].summary(finished[last]):
        print(f"\n{text}")
    return 0


def _recipe_options(verb: str, arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options, and gin's bindings: a flag that is one of the recipe's macros (--start X) is
    one of these."""
    from qac_jax.pipeline import engines

    arguments, bindings = flags.split_gin(arguments)
    example = f"qac {verb} demo" + (" --out out/demo" if verb == "run" else "")
    parser = flags.parser(verb, VERBS[verb].summary, example)
    add = parser.add_argument
    add("recipe", metavar="RECIPE", help="recipe or grid: its name, or a gin file")
    flags.add_common(parser)
    add("--data_dir", metavar="D", help="data folder, in which the recipe's data: lies")
    add("--seed", type=int, metavar="N", help="seed of the recipe")
    systems = "grids: only these of their systems"
    add("--systems", metavar="A,B", default="", help=systems)
    sizes = "items of stages and of inputs, for the hours of all: passages=8841823,queries=502939"
    add("--sizes", metavar="NAME=N,…", default="", help=sizes)
    add("--verbose", action="store_true", help="plans: every stage with its settings and cost")
    add("--feed", choices=("grain", "seqio"), help="what makes the batches of training")
    parser.set_defaults(start="", keep="", here=False)
    if verb == "run":
        again = "run this stage again, and those that depend on it where its result changes"
        add("--from", dest="start", metavar="STAGE", default="", help=again)
        kept = "none: remove at the end what no result needs; all: make it again"
        add("--keep", choices=("none", "all"), default="", help=kept)
        flags.add_field_flags(parser, engines.Engine, flags.about(engines.Engine))
    else:
        here = "try each kind of work on this machine for some seconds: how long will stages take?"
        add("--here", action="store_true", help=here)
    options, unknown = parser.parse_known_args(arguments)
    if options.feed == "seqio":
        bindings.append("train.Reading.feed='seqio'")
    if not unknown:
        return options, bindings
    given = _config(options, overlays=options.gin_file)
    if given.is_grid():
        given = _config(options, recipe=given.recipe().recipe)
    names = [name for name in given.parameters() if name != "SEED"]  # --seed chooses a grid's cells
    arguments, more = flags.split_gin(arguments, names)
    return parser.parse_all(arguments, [name.lower() for name in names]), bindings + more


def _config(
    options: argparse.Namespace, bindings: Sequence[str] = (), **settings: Any
) -> config.Config:
    """The gin text of a recipe or grid, with bindings of the command line."""
    from qac_jax import config

    given = {
        "recipe": options.recipe,
        "search_paths": options.gin_search_paths,
        "modules": options.gin_modules,
        "values": {} if options.seed is None else {"seed": options.seed},
        **settings,
    }
    return config.Config(bindings=bindings, **given)


def _build_grid(options: argparse.Namespace, bindings: list[str]) -> tuple[Any, list[Any]]:
    """The grid that is named, and its cells; (None, []) if it is a recipe.

    Bindings of the grid itself go to it, all others to every cell.
    """
    from qac_jax.pipeline import grid

    own = [binding for binding in bindings if binding.startswith(("grid.Grid.", "Grid."))]
    given = _config(options, own, values={})
    if not given.is_grid():
        return None, []
    described = given.recipe()
    rest = [binding for binding in bindings if binding not in own]
    unused: list[dict[str, str]] = []

    def build(system: grid.System, seed: int) -> Any:
        values = {**system, "seed": seed}
        cell = _config(
            options,
            rest,
            recipe=described.recipe,
            files=list(values.pop("gin", ())),
            overlays=options.gin_file,
            values=values,
        )
        built = dataclasses.replace(cell.recipe(), data_dir=options.data_dir or "")
        unused.append(cell.unused())
        return built

    seeds = described.seeds if options.seed is None else (options.seed,)
    only = tuple(options.systems.split(",")) if options.systems else described.only
    described = dataclasses.replace(described, seeds=seeds, only=only)
    cells = grid.cells(described, build)
    # What one system has no use for, another may have.
    in_all = set.intersection(*map(set, unused))
    _refuse({label: why for label, why in unused[0].items() if label in in_all})
    return described, cells


def _refuse(unused: Mapping[str, str]) -> None:
    if unused:
        raise UserError(next(iter(unused.values())))


def _run_grid(described: Any, cells: list[Any], options: argparse.Namespace) -> int:
    from qac_jax.pipeline import engines, grid
    from qac_jax.report import grids

    for flag, given in (("from", options.start), ("keep", options.keep)):
        if given:
            raise UserError(f"--{flag} is for recipes; remove a grid's stages yourself")
    command = processes.command()
    with engines.use(flags.made(engines.Engine, options)):
        summary = grid.run(described, cells, options.out, command=command)
    print(json.dumps(summary) if options.json else grids.markdown(summary, described.title), end="")
    return 0


def _show_grid(described: Any, cells: list[Any], options: argparse.Namespace) -> int:
    from qac_jax.pipeline import costs, grid

    if options.here:
        one = f"qac plan {described.recipe} … --here"
        raise UserError(f"{options.recipe} is a grid; plan a cell of it: {one}")
    planned = grid.plan(cells, costs.sizes_of(options.sizes))
    if options.json:
        print(json.dumps(planned, indent=1))
        return 0
    print(f"{described.title or 'grid'}: {len(cells)} cells, {planned['distinct_stages']} stages\n")
    for row in planned["cells"]:
        print(f"{row['cell']:<32} {short(', '.join(row['new']) or 'nothing new', _LINE)}")
    print("\nthe first cell:")
    _show_plan(planned["first_cell"], options, ("budget", "systems"))
    print("\n".join(["\nall cells:", *costs.shown(planned["totals"])]))
    return 0


def _show_plan(
    plans: list[dict[str, Any]], options: argparse.Namespace, parameters: Sequence[str] = ()
) -> None:
    """Prints what a recipe costs, with --verbose stage by stage; or the plan of a single stage."""
    from qac_jax.pipeline import costs

    recipe = "verbose" in options
    if options.json:
        print(json.dumps({"stages": plans, "totals": costs.totals(plans)}, indent=1))
        return
    for one in plans if not recipe or options.verbose else ():
        came = f"  from {', '.join(one['inputs'].values())}" if one["inputs"] else ""
        print(f"{one['stage']} ({one['verb']} -> {one['kind']}){came}")
        for name in one["set"]:
            value = json.dumps(one["fields"][name], ensure_ascii=False)
            print(plain(f"    {name} = {short(value, _LINE)}"))
        for name, value in one["plan"].items():
            if name == "seconds_here":
                print(f"  * on this machine: {progress.human_seconds(value)}")
            elif value is not None:
                print(f"  * {name}: {_readable(value)}")
    if recipe:
        print("\n".join(costs.shown(costs.totals(plans), plans, parameters)))
    absent = [reason for one in plans for reason in one.get("missing", ())]
    for reason in absent:
        print(plain(f"  ! {reason}"))
    if absent:
        print(f"it would not start: inputs that are not there: {len(absent)} (marked with !)")


def _readable(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return progress.human(value) if abs(value) >= 10_000 else f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_readable(part)}" for name, part in value.items())
    return json.dumps(value) if isinstance(value, list) else str(value)


if __name__ == "__main__":
    sys.exit(main())
