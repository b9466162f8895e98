"""`qac clean`: passages → those in the wanted languages, each near-duplicate once"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from qac_jax import progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError, nearest
from qac_jax.pipeline import costs
from qac_jax.pipeline.sharding import ShardFile, Workers, pooled
from qac_jax.pipeline.stage import Inputs, Ref, Stage, input, option, part
from qac_jax.text.languages import LANGUAGES


if TYPE_CHECKING:
    from qac_jax.formats.records import Records


REMOVED = "removed.tsv"
_UNITS = ("document", "passage")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clean(Stage):
    """Leaves out documents that are nearly copies of others (MinHash over five words in a row), and
    those in other languages (by script and function words: a heuristic); removed.tsv lists them.

    Of texts that are alike the first stays. Not for judged collections: what is judged may go.
    """

    VERB: ClassVar[str] = "clean"
    KIND: ClassVar[str] = "passages"
    EXAMPLE: ClassVar[str] = (
        "qac clean --passages out/crawl --languages en --near_duplicates 0.8 --out out/passages"
    )

    passages: Ref = input("passages of qac prepare", kinds=("passages",))
    near_duplicates: float = option(
        0.8, "Jaccard similarity from which a text repeats another (0: keep near-duplicates)"
    )
    languages: str = option("", "languages to keep, such as en,de (empty: all)", shown=LANGUAGES)
    unknown: bool = option(
        False, "with --languages: keep texts whose language is not recognised, too"
    )
    unit: str = option("document", "what is kept or left out as a whole", choices=_UNITS)
    pool: Workers = part(Workers)

    def check(self) -> None:
        super().check()
        if not 0 <= self.near_duplicates <= 1:
            raise UserError(
                f"near_duplicates={self.near_duplicates} is not a similarity; expected 0 to 1"
            )
        for name in self._languages():
            if name not in LANGUAGES:
                raise UserError(f"language {name!r} is not known; {nearest(name, LANGUAGES)}")
        if not self.near_duplicates and not self.languages:
            raise UserError(
                "nothing would be left out; give --near_duplicates 0.8, --languages en, or both"
            )
        if self.unknown and not self.languages:
            raise UserError("--unknown goes with --languages; give these, or leave it out")

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        # At most: what is left out is known afterwards.
        count = costs.count_of(inputs, "passages")
        return {"reads": count, "count": count, **costs.on_cores("clean", count)}

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.artifacts import arrays
        from qac_jax.formats.records import Records, write_offsets
        from qac_jax.text import cleaning

        source = inputs.artifact("passages")
        records = Records(source)
        sketches, bands = self._sketched(records, out)
        alike = self._compared(sketches, bands, out) if self.near_duplicates else []
        each = cleaning.fates(sketches, alike, self._languages(), self.unknown)
        scratch, count = os.path.abspath(out.scratch("fates")), len(each)
        jobs = []
        for i, (found, (start, stop)) in enumerate(zip(each, records.shards(), strict=True)):
            path = os.path.join(scratch, f"{i:05d}")
            arrays.save(f"{path}.npy", found)
            name = _shard_name(i, count)
            target = os.path.abspath(out.part(name))
            work = cleaning.KeepJob(
                records, start, stop, self.unit, sketches[i], f"{path}.npy", target, f"{path}.tsv"
            )
            jobs.append(ShardFile(name, stop - start, work))

        def is_done(shard: ShardFile) -> bool:
            return os.path.exists(shard.job.removed)

        with progress.Bar("clean", total=len(records), unit="passages") as bar:
            facts = pooled(out, jobs, cleaning.keep_shard, self.pool, bar, is_done=is_done)
        with out.open(REMOVED) as file:
            for job in jobs:
                with open(job.job.removed, encoding="utf-8", newline="\n") as lines:
                    file.writelines(lines)
        write_offsets(out, "passages", count)
        self._tell(source, facts, out)

    def summary(self, artifact: Artifact) -> str:
        return "\n".join(f"{n:<16} {c:>12,}" for n, c in artifact.info["cleaned"].items())

    def _languages(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.languages.split(",") if name.strip())

    def _sketched(self, records: Records, out: Writer) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The files of sketches and of their bands, one of each for each file of passages."""
        from qac_jax.text import cleaning, near_duplicates

        rows = near_duplicates.rows_of_band(self.near_duplicates) if self.near_duplicates else 0
        inner, scratch = out.inner("sketches"), os.path.abspath(out.scratch("bands"))
        shards = []
        for i, (start, stop) in enumerate(records.shards()):
            name, bands = f"sketches-{i:05d}.npy", os.path.join(scratch, f"{i:05d}.npy")
            target = os.path.abspath(inner.part(name))
            work = cleaning.SketchJob(
                records, start, stop, self.unit, rows, bool(self.languages), target, bands
            )
            shards.append(ShardFile(name, stop - start, work))

        def is_done(shard: ShardFile) -> bool:
            return not rows or os.path.exists(shard.job.bands)

        with progress.Bar("clean: sketches", total=len(records), unit="passages") as bar:
            pooled(inner, shards, cleaning.sketch_shard, self.pool, bar, is_done=is_done)
        paths = [os.path.abspath(inner.path / shard.name) for shard in shards]
        return tuple(paths), tuple(shard.job.bands for shard in shards)

    def _compared(
        self, sketches: tuple[str, ...], bands: tuple[str, ...], out: Writer
    ) -> list[str]:
        """The files of similar pairs, one for each band."""
        from qac_jax.text import cleaning, near_duplicates

        inner = out.inner("pairs")
        count = near_duplicates.HASHES // near_duplicates.rows_of_band(self.near_duplicates)
        shards = []
        for band in range(count):
            name = f"pairs-{band:05d}.npy"
            target = os.path.abspath(inner.part(name))
            work = cleaning.BandJob(band, self.near_duplicates, sketches, bands, target)
            shards.append(ShardFile(name, 1, work))
        with progress.Bar("clean: near-duplicates", total=count, unit="bands") as bar:
            pooled(inner, shards, cleaning.compare_band, self.pool, bar)
        return [os.path.abspath(inner.path / shard.name) for shard in shards]

    def _tell(self, source: Artifact, facts: Sequence[Mapping[str, Any]], out: Writer) -> None:
        total = {name: sum(of[name] for of in facts) for name in ("units", "repeated", "foreign")}
        kept = total["units"] - total["repeated"] - total["foreign"]
        info = {name: source.info[name] for name in _CARRIED if name in source.info}
        out.info.update(info, cleaned={**total, "kept": kept}, removed=total["units"] - kept)
        progress.say(
            f"clean: {kept:,} of {total['units']:,} {self.unit}s stay; {total['repeated']:,} "
            f"nearly repeat others, {total['foreign']:,} are in other languages ({REMOVED})"
        )
        if not out.count:
            raise UserError(
                f"nothing is left of {source.path}; raise --near_duplicates, give other "
                "--languages, or keep what is not recognised (--unknown)"
            )


# What passages say of how they were made.
_CARRIED = ("format", "max_tokens", "vocabulary", "vocabulary_identity", "splitter")


def _shard_name(index: int, count: int) -> str:
    from qac_jax.formats.records import shard_name

    return shard_name("passages", index, count)
