"""The command line: `qac VERB [flags]` runs a stage, a recipe or a benchmark, or inspects.

Heavy imports happen inside the verbs, so that `--help` answers at once.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence

from qac_jax import __version__, flags, processes, recipe_verbs
from qac_jax.errors import UserError, exit_code, nearest, plain
from qac_jax.verbs import ALIASES, BENCHMARKS, STEPS, VERBS, Verb, of_a_file


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
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview(arguments[1:2] == ["all"]))
        return 0
    verb, rest = ALIASES.get(arguments[0], arguments[0]), arguments[1:]
    if verb == "--version":
        print(f"qac_jax {__version__}")
        return 0
    functions: dict[str, Callable[[list[str]], int]] = {
        "run": recipe_verbs.run,
        "plan": recipe_verbs.plan,
        "recipes": recipe_verbs.list_all,
        "inspect": _inspect,
        "doctor": _doctor,
        "bench": _bench,
        "search": _search,
        "serve": _serve,
        "step": _step,
    }
    if verb in functions:
        return functions[verb](rest)
    if verb == "index" and _has(rest, "--add", "--delete", "--replace", "--compact"):
        return _change_index(rest)
    if verb in VERBS:
        return _stage(VERBS[verb], rest)
    if verb in STEPS:
        raise UserError(f"{verb} is a step of recipes; run it by itself as `qac step {verb} …`")
    if (found := of_a_file(verb)) is not None:
        return _stage(found, rest)
    raise UserError(f"unknown verb {verb!r}; {nearest(verb, [*VERBS, *ALIASES])}")


def _overview(everything: bool) -> str:
    lines = [
        "usage: qac VERB [flags]      (qac VERB --help for each)",
        "",
        "Dense retrieval with query-as-context, PAIR, AugTriever: documents to a tested retriever.",
    ]
    for group in ("use", "build", "measure", "look"):
        listed = [v for v in VERBS.values() if v.group == group and (v.front or everything)]
        lines += ["", group, *(f"  {verb.name:<9} {verb.summary}" for verb in listed)]
    more = "" if everything else "all verbs: qac help all\n"
    return (
        "\n".join(lines)
        + f"""

{more}flags of every stage: --out DIR, --seed N, --gin_file F …, --gin_search_paths P …,
--gin.NAME=VALUE, --dry_run [--json], --overwrite. Flags beat --gin.X, which beats files.

example: qac prepare --format python_docs --packages optax --out out/passages"""
    )


def _step(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        lines = [f"  {name:<9} {step.summary}" for name, step in STEPS.items()]
        print("\n".join(["usage: qac step NAME [flags]", "", *lines]))
        return 0
    name = arguments[0]
    if name not in STEPS:
        raise UserError(f"unknown step {name!r}; {nearest(name, STEPS)}")
    return _stage(STEPS[name], arguments[1:], f"step {name}")


def _target(verb: Verb, arguments: Sequence[str]) -> str:
    """The stage that a verb means with these flags."""
    asked = {verb.variants[flag] for flag in verb.variants if _has(arguments, flag)}
    return asked.pop() if asked else verb.target


def _stage(verb: Verb, arguments: list[str], name: str = "") -> int:
    from qac_jax import config
    from qac_jax.pipeline import inputs, readiness, recipe
    from qac_jax.pipeline import stage as stage_lib

    arguments, bindings = flags.split_gin(arguments)
    name, cls = name or verb.name, verb.load(_target(verb, arguments))
    parser = flags.parser(name, flags.about(cls), cls.EXAMPLE)
    flags.add_field_flags(parser, cls)
    flags.add_common(parser)
    options = parser.parse_all(arguments)
    given = config.Config(
        config.Settings(
            files=flags.flat(options.gin_file),
            search_paths=flags.flat(options.gin_search_paths),
            modules=flags.flat(options.gin_modules),
            bindings=bindings,
            flags=flags.bindings_of(flags.field_flags(options, cls), cls),
        )
    )
    stage = given.build(cls)
    recipe_verbs.refuse(given.unused())
    if options.dry_run:
        planned = {"stage": name, "inputs": {}, **recipe.plan_of(stage, {})}
        planned["missing"] = readiness.missing(stage)
        recipe_verbs.show_plan([planned], options.json, recipe=False)
        return 0
    if not options.out:
        raise UserError(f"{name} needs a folder to write to; pass --out DIR")
    stage = inputs.located(stage, {}, "")
    artifact = stage_lib.execute(
        stage, options.out, replace=options.overwrite, documentation=given.text(), verb=name
    )
    if options.json:
        print(
            json.dumps(
                {"kind": artifact.kind, "count": artifact.count, "identity": artifact.identity}
            )
        )
    elif text := stage.summary(artifact):
        print(plain(text))
    return 0


def _has(arguments: Sequence[str], *names: str) -> bool:
    return any(word.split("=")[0] in names for word in arguments)


def _change_index(arguments: list[str]) -> int:
    """Adds to a living index, or deletes from it."""
    from qac_jax.live import command

    parser = flags.parser("index", command.ABOUT, command.EXAMPLE)
    command.add_index_flags(parser)
    return command.change(parser.parse_all(arguments))


def _serve(arguments: list[str]) -> int:
    from qac_jax import extras, fields
    from qac_jax.serving import options as serving

    parser = flags.parser("serve", VERBS["serve"].summary, "qac serve --index out/live")
    given = (serving.Serving, serving.Limits, serving.Traffic)
    for cls in given:
        flags.add_field_flags(parser, cls, flags.about(cls))
    options = parser.parse_all(arguments)
    made = [fields.make(cls, flags.field_flags(options, cls)) for cls in given]
    for each in made:
        fields.check(each)
    for module in ("fastapi", "prometheus_client", "uvicorn"):
        extras.load(module, "serve", "qac serve")
    from qac_jax.serving import app

    return app.run(*made)


def _search(arguments: list[str]) -> int:
    """Answers a question on the screen; with --out it is a stage like the others."""
    from qac_jax.live import command
    from qac_jax.stages import search

    if _has(arguments, "--out", "--dry_run"):
        return _stage(VERBS["search"], arguments)
    parser = flags.parser("search", VERBS["search"].summary, search.Search.EXAMPLE)
    command.add_search_flags(parser)
    flags.add_safety(parser)
    return command.answer(parser.parse_all(arguments))


def _inspect(arguments: list[str]) -> int:
    from qac_jax.data.kinds import KINDS

    parser = flags.parser("inspect", VERBS["inspect"].summary, "qac inspect out/passages")
    parser.add_argument("artifact", metavar="ARTEFACT", help="folder of an artefact")
    flags.add_safety(parser)
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
    parser = flags.parser("doctor", VERBS["doctor"].summary, "qac doctor")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_all(arguments)
    from qac_jax.stages import doctor

    return doctor.run(options.json)


def _bench(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        lines = [f"  {name:<9} {bench.summary}" for name, bench in BENCHMARKS.items()]
        print("\n".join(["usage: qac bench NAME [flags]", "", *lines]))
        print("\nexample: qac bench train --steps 20")
        return 0
    name, rest = arguments[0], arguments[1:]
    if name not in BENCHMARKS:
        raise UserError(f"unknown benchmark {name!r}; {nearest(name, BENCHMARKS)}")
    cls = BENCHMARKS[name].load()
    parser = flags.parser(f"bench {name}", flags.about(cls), getattr(cls, "EXAMPLE", ""))
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    flags.add_field_flags(parser, cls)
    options = parser.parse_all(rest)
    from qac_jax import fields

    benchmark = fields.make(cls, flags.field_flags(options, cls))
    fields.check(benchmark)
    figures = benchmark.run()
    if options.json:
        print(json.dumps(figures))
    elif shown := getattr(benchmark, "shown", None):
        print(shown(figures))
    else:
        print("\n".join(f"{k}: {recipe_verbs.readable(v)}" for k, v in figures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
