"""`qac report`: a recipe's output folder → an HTML page and a Markdown table of results."""

import dataclasses
import os
from collections.abc import Mapping

from etils import epath

from qac_jax import fields
from qac_jax.artifacts import STAGES, Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.pipeline.inputs import STAGE
from qac_jax.pipeline.stage import FILE, Inputs, Ref, Stage, input, option
from qac_jax.report import gathering


PAGE, TABLE = "report.html", "report.md"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report(Stage):
    """Shows metrics, training curves, generated queries, settings and times of a run's folder."""

    VERB = "report"
    KIND = "report"
    EXAMPLE = "qac report --folder out/demo --out out/demo/report"

    folder: str = option("", "the --out of qac run (default: the folder of --metrics)")
    metrics: Ref = input("metrics (default: all in --folder)", "metrics", default="", many=True)
    verdict: Ref = input("a verdict (of qac step conclude), shown first", "summary", default="")
    after: Ref = input("stages that must finish first (recipes)", FILE, default="", many=True)
    title: str = option("", "title of the page (default: the folder's name)")
    names: Mapping[str, str] | None = option(None, "names to show for metrics and systems")

    def environment(self) -> dict[str, str]:
        """The identities of the folder's artefacts, which are read without being inputs."""
        if not (self.folder or self.metrics) or STAGE in self.metrics:
            return {}
        artifacts = gathering.artifacts_in(self._folder())
        return {"artefacts": fields.digest({name: a.identity for name, a in artifacts.items()})}

    def reads(self) -> list[epath.Path]:
        return [a.path for a in gathering.artifacts_in(self._folder()).values()]

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.report import render

        folder = self._folder()
        artifacts = gathering.artifacts_in(folder)
        named = {artifact.path.name: artifact for artifact in inputs.get("metrics", ())}
        metrics = named or {n: a for n, a in artifacts.items() if a.kind == "metrics"}
        if not artifacts and not metrics:
            raise UserError(f"{folder} holds no finished artefact; give the --out of a run")
        gathered = gathering.Gathering({**artifacts, **metrics}, self.names or {})
        title = self.title or os.path.basename(os.path.abspath(folder))
        content = gathered.content(title, metrics)
        if "verdict" in inputs:
            summary = inputs.artifact("verdict").json("summary.json")
            content = dataclasses.replace(content, conclusion=summary)
        out.write_text(PAGE, render.html(content))
        out.write_text(TABLE, render.markdown(content))
        out.count = len(content.evaluations)

    def summary(self, artifact: Artifact) -> str:
        text = artifact.file(TABLE).read_text().rstrip()
        return f"{text}\n\n{artifact.file(PAGE)}"

    def check(self) -> None:
        super().check()
        if not (self.folder or self.metrics):
            raise UserError("report needs --folder DIR (the --out of a run), or --metrics DIR")

    def _folder(self) -> str:
        around = os.path.dirname(os.path.abspath(self.metrics.split(",")[0].strip()))
        if os.path.basename(around) == STAGES:
            around = os.path.dirname(around)
        return self.folder or around
