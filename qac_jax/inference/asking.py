"""What a language model is asked: queries about a passage, or its grade for a query."""

import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qac_jax.fields import Checked, option
from qac_jax.inference.endpoint import Choice, Endpoint, Report


Record = dict[str, Any]

KINDS = {
    "question": "a question as somebody types or says it who has the problem, not the answer",
    "keywords": "two to five words as typed into a search box",
    "claim": "a short statement or a title of which the passage is evidence",
    "about": "a sentence about what somebody is looking for: subject, purpose, limits",
}
# Tokens of an answer for each query: usually, and at most.
USUAL, _MOST = 20, 64
_AROUND = " \t*_`#\"'“”„«»-•"
_GRADES = ("0", "1", "2", "3")
_GRADE = re.compile(r"\b[0-3]\b")


@dataclasses.dataclass(frozen=True)
class Asking(Checked):
    """The instruction by which a language model (openai:BASE_URL#MODEL) writes queries."""

    kinds: Mapping[str, Any] | None = option(
        None, f"kind of query -> what it is (default: {', '.join(KINDS)})"
    )
    instruction: str = option(
        "People search a collection of texts, one of which stands below. Write queries that it "
        "answers, as people write them who have never seen it: about what it says in particular, "
        "in everyday words instead of its own, and understandable without it.\nWrite {each} of "
        "each of these kinds:\n{kinds}\nAnswer in the text's language with one query a line and "
        "nothing else. Each line begins with its kind, as named here, and a colon.",
        "before a passage",
    )

    def named(self) -> Mapping[str, str]:
        return self.kinds or KINDS

    def prompt(self, each: int) -> str:
        kinds = "\n".join(f"{name}: {text}" for name, text in self.named().items())
        return self.instruction.replace("{each}", str(each)).replace("{kinds}", kinds)


@dataclasses.dataclass(frozen=True)
class Asked:
    """The source of a shard's texts: a call for each passage."""

    endpoint: Endpoint
    asking: Asking
    each: int
    longest: int  # characters of a passage
    origin: str  # before each kind

    def texts(
        self, passages: Sequence[Record], start: int, report: Report
    ) -> tuple[list[list[Record]], dict[str, int]]:
        del start
        before, kinds, each = self.asking.prompt(self.each), self.asking.named(), self.each
        texts = [f"{p.get('title') or ''}\n{p['text']}".strip()[: self.longest] for p in passages]
        asked = [f"{before}\n\n{text}" for text in texts if text]  # not about empty passages
        most = _MOST * each * len(kinds)
        found = self.endpoint.ask(asked, lambda c: queries(c, kinds, each) or None, most, report)
        answers = iter(found)
        return [
            [
                {"text": query, "origin": f"{self.origin}{kind}", "score": None}
                for kind, query in ((next(answers) or ()) if text else ())
            ]
            for text in texts
        ], {}


def queries(choice: Choice, kinds: Mapping[str, str], each: int) -> list[tuple[str, str]]:
    """(kind, query) of each line of an answer, or of its JSON; at most `each` of a kind."""
    text = re.sub(r"```\w*", "", choice["message"]["content"].rpartition("</think>")[2]).strip()
    try:
        pairs = _of_json(json.loads(text))
    except (ValueError, RecursionError):
        lines = text.splitlines()[: -1 if choice.get("finish_reason") == "length" else None]
        parts = (re.sub(r"^\s*\(?\d+[.):]\s", "", line).partition(":") for line in lines)
        pairs = [(kind, query) if colon else ("", kind) for kind, colon, query in parts]
    found: dict[str, list[str]] = {kind.casefold(): [] for kind in kinds}
    for name, query in pairs:
        kind = name.strip(f"{_AROUND}0123456789").casefold()
        if kind not in found and len(kinds) == 1:
            kind, query = next(iter(found)), f"{name}: {query}" if name and query.strip() else query
        query = " ".join(query.strip(_AROUND).split())
        if query and kind in found and len(found[kind]) < each:
            found[kind].append(query)
    return [(kind, q) for kind, of in zip(kinds, found.values(), strict=True) for q in of]


def _of_json(value: Any, kind: str = "") -> list[tuple[str, str]]:
    """The texts of lists and objects; a kind is a key, or stands beside a text."""
    if isinstance(value, str):
        return [(kind, value)]
    parts = [(kind, part) for part in value] if isinstance(value, list) else []
    if isinstance(value, dict):
        beside = value.pop("kind", "")
        parts = [(str(beside or key), part) for key, part in value.items()]
    return [pair for name, part in parts for pair in _of_json(part, name)]


@dataclasses.dataclass(frozen=True)
class Judging(Checked):
    """The instruction by which a language model grades passages from 0 to 3."""

    instruction: str = option(
        "How well does the passage answer the query?\n3: it answers it exactly\n2: it answers it "
        "in part, or among other things\n1: it has the same subject, and does not answer it\n0: it "
        "has nothing to do with it\nAnswer with the number alone.",
        "before query and passage",
    )


@dataclasses.dataclass(frozen=True)
class Judge:
    """Scores as `Reranker` does, in log-odds: 3 is a probability of .99, 0 of .01, as no grade is
    certain."""

    endpoint: Endpoint
    judging: Judging
    longest: int  # characters of a passage

    def score(self, queries: Sequence[str], passages: Sequence[str]) -> np.ndarray:
        """Log-odds (float32) of pairs of texts; 0 where an answer holds no grade."""
        prompts = [
            f"{self.judging.instruction}\n\nQuery: {query}\n\nPassage: {passage[: self.longest]}"
            for query, passage in zip(queries, passages, strict=True)
        ]
        found = self.endpoint.ask(prompts, grade, 8, lambda pairs, tokens: None)
        share = np.clip([0.5 if one is None else one / 3 for one in found], 0.01, 0.99)
        return np.log(share / (1 - share)).astype(np.float32)


def grade(choice: Choice) -> float:
    """The mean grade by the probabilities of the token that is one, else that of the text."""
    for token in (choice.get("logprobs") or {}).get("content") or ():
        if token["token"].strip() in _GRADES:
            likely = [
                (float(one["token"]), math.exp(one["logprob"]))
                for one in token.get("top_logprobs") or [token]
                if one["token"].strip() in _GRADES
            ]
            total = math.fsum(share for _, share in likely)
            return math.fsum(number * share for number, share in likely) / total
    return float(_GRADE.findall(choice["message"]["content"].rpartition("</think>")[2])[0])
