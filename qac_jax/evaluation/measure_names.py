"""Names of measures as ir_measures (MacAvaney et al. 2022) writes them, and ours.

Examples:
    >>> ours("nDCG@10"), ours("AP(rel=2)@100", level=2), ours("mrr@10")
    ('ndcg@10', 'map@100', 'mrr@10')
    >>> theirs("ndcg@10"), theirs("recall@100", level=2), theirs("capped_recall@100")
    ('nDCG@10', 'R(rel=2)@100', 'capped_recall@100')

The measures themselves are the same: both take trec_eval's. In ir_measures every measure has a
lowest relevant grade of its own, here one evaluation has one (`level`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from qac_jax.errors import UserError


# Theirs -> ours, of a whole ranking and of its top k.
_WHOLE = {
    "nDCG": "ndcg",
    "RR": "recip_rank",
    "AP": "map",
    "Rprec": "Rprec",
    "Bpref": "bpref",
    "NumRet": "num_ret",
    "NumRel": "num_rel",
}
_CUT = {
    "nDCG": "ndcg",
    "RR": "mrr",
    "R": "recall",
    "AP": "map",
    "P": "precision",
    "Success": "hit",
}
_GRADED = ("nDCG", "NumRet")  # which have no lowest grade
_OUR_WHOLE = {own: name for name, own in _WHOLE.items()}
_OUR_CUT = {own: name for name, own in _CUT.items()} | {
    own: name for own, name in (("ndcg_cut", "nDCG"), ("map_cut", "AP"), ("success", "Success"))
}
_THEIRS = re.compile(r"([A-Za-z]+)(?:\(rel=(\d+)\))?(?:@([1-9]\d*))?")
_OURS = re.compile(r"([A-Za-z_]+?)[@_]([1-9]\d*)")


def is_theirs(measure: str) -> bool:
    """Whether only ir_measures calls a measure so."""
    found = _THEIRS.fullmatch(measure)
    if found is None:
        return False
    known = _CUT if found[3] else _WHOLE
    return found[1] in known and known[found[1]] != measure


def ours(measure: str, level: int = 1) -> str:
    """The name here; what is not a name of ir_measures stays as it is."""
    found = _THEIRS.fullmatch(measure)
    if found is None or not is_theirs(measure):
        return measure
    name, grade, cut = found.groups()
    if name == "NumRet" and grade:
        own = "num_rel_ret"
    else:
        own = f"{_CUT[name]}@{cut}" if cut else _WHOLE[name]
    if name == "nDCG" and grade:
        raise UserError(f"{measure}: nDCG uses all grades; write {name}{f'@{cut}' if cut else ''}")
    if grade and int(grade) != level:
        raise UserError(
            f"{measure} counts grades from {grade} on as relevant, but this evaluation from "
            f"{level} on; pass --level {grade}, or measure it in an evaluation of its own"
        )
    return own


def theirs(measure: str, level: int = 1) -> str:
    """The name in ir_measures; where it has none, ours."""
    if measure == "num_rel_ret":
        return f"NumRet(rel={level})"
    found = _OURS.fullmatch(measure)
    name = _OUR_CUT.get(found[1], "") if found else _OUR_WHOLE.get(measure, "")
    if not name:
        return measure
    grade = f"(rel={level})" if level > 1 and name not in _GRADED else ""
    return f"{name}{grade}{f'@{found[2]}' if found else ''}"


def any_theirs(measures: Iterable[str]) -> bool:
    return any(map(is_theirs, measures))
