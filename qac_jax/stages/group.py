"""`qac group`: passages, their queries and a hybrid index → groups with a teacher's scores."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from qac_jax import progress
from qac_jax.artifacts import Writer
from qac_jax.errors import UserError
from qac_jax.pipeline.stage import FILE, Inputs, Ref, Stage, input, one_of, option, together


if TYPE_CHECKING:
    from qac_jax.formats.queries import Query
    from qac_jax.retrieval.hybrid import Hybrid


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group(Stage):
    """Groups similar passages with their queries; a hybrid index scores each query's group.

    A retriever learns these scores with the objective of objectives/listwise.gin.
    """

    VERB: ClassVar[str] = "group"
    KIND: ClassVar[str] = "groups"
    EXAMPLE: ClassVar[str] = (
        "qac group --passages out/passages --contexts out/contexts --teacher out/hybrid "
        "--out out/groups"
    )

    GROUPS = (one_of("contexts", "queries"), together("queries", "qrels"))

    passages: Ref = input("indexed passages", kinds=("passages",))
    contexts: Ref = input("queries of the passages", kinds=("contexts",), many=True, default="")
    queries: Ref = input("or queries with judgements", kinds=(FILE,), default="")
    qrels: Ref = input(
        "relevance judgements of --queries; a query without any goes to the teacher's first "
        "passage",
        kinds=(FILE,),
        default="",
    )
    teacher: Ref = input("hybrid index whose scores are learned", kinds=("hybrid",))
    size: int = option(32, "passages of a group")
    per_passage: int = option(8, "queries of a passage, drawn for each group that it is in")
    turns: int = option(1, "how often the passages are grouped, each time in another way")

    def check(self) -> None:
        super().check()
        for name, least in (("size", 2), ("per_passage", 1), ("turns", 1)):
            if (value := getattr(self, name)) < least:
                raise UserError(f"{name}={value} is too few; expected {least} or more")

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        count = inputs.get("passages", {}).get("count")
        return {"groups": None if count is None else self.turns * -(-count // self.size)}

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.formats.records import Records, write_records
        from qac_jax.retrieval.hybrid import Hybrid
        from qac_jax.retrieval.mining import Grouper

        teacher = Hybrid(inputs.artifact("teacher"))
        grouper = Grouper(
            teacher,
            Records(inputs.artifact("passages")),
            self._queries(inputs, teacher),
            self.size,
            self.per_passage,
            self.seed,
        )
        asked = 0
        with progress.Bar("group", total=self.plan(self._counts(inputs))["groups"]) as bar:

            def made() -> Iterator[dict[str, Any]]:
                nonlocal asked
                for turn in range(self.turns):
                    for group in grouper.groups(turn):
                        asked += len(group["queries"])
                        bar.advance(1)
                        yield group

            write_records(out, made(), "groups")
        if not out.count:
            raise UserError("no passage of the index has a query; check --contexts or --queries")
        out.info.update(queries=asked, weight=grouper.teacher.settings.weight, size=self.size)
        progress.say(f"group: {asked:,} queries in {out.count:,} groups")

    def _queries(self, inputs: Inputs, teacher: Hybrid) -> dict[str, list[Query]]:
        """The queries of each passage."""
        from qac_jax.formats.judgements import by_query, read_judgements
        from qac_jax.formats.queries import read_queries
        from qac_jax.formats.records import Records
        from qac_jax.retrieval import mining

        if self.contexts:
            return mining.of_contexts([Records(artifact) for artifact in inputs["contexts"]])
        queries = list(read_queries(inputs.text("queries")))
        judged = by_query(read_judgements(inputs.text("qrels")))
        return mining.by_passage(queries, judged, teacher)

    def _counts(self, inputs: Inputs) -> Mapping[str, Mapping[str, Any]]:
        return {"passages": {"count": inputs.artifact("passages").count}}
