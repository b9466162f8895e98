"""Answer matching as DPR does it: a hand-made table of hard cases, and whole evaluations."""

from __future__ import annotations

import importlib
import unicodedata

import numpy as np
import pytest

from qac_jax.errors import UserError
from qac_jax.evaluation import answers
from qac_jax.formats.queries import Query
from qac_jax.formats.runs import ranked


# (answer, passage, whether the passage holds the answer, why)
HARD = [
    # Accents and scripts
    ("Röntgen", "Wilhelm Conrad RÖNTGEN won it", True, "case does not matter, accents stay"),
    ("Rontgen", "Wilhelm Conrad Röntgen", False, "an accent is not dropped"),
    ("Röntgen", "Conrad Ro\u0308ntgen", True, "one character or letter and mark are the same"),
    ("Ro\u0308ntgen", "Conrad Röntgen", True, "and so the other way round"),
    ("Pokémon", "the Pokemon film", False, "an accent is not invented"),
    ("Ångström", "measured in \u212bngström", True, "the ångström sign is the letter Å"),
    ("straße", "in der STRASSE", False, "lower case only: ß is not folded to ss"),
    ("İstanbul", "capital i̇stanbul", True, "the dotted capital I is I and a mark"),
    ("Istanbul", "visit İstanbul now", False, "so it is not a plain I"),
    ("ΟΔΟΣ", "στην οδος", True, "a capital sigma at the end becomes a final one"),
    ("ΟΔΟΣ", "στην οδοσ", False, "and no other"),
    ("ﬁlm", "the film", False, "NFD keeps ligatures: only compatibility forms split them"),
    ("５", "chapter 5", False, "full-width digits stay full-width"),
    ("日本", "日本に行く", False, "runs of letters are one token, and Japanese has no blanks"),
    ("日本", "日本。それは", True, "a full stop ends the token"),
    ("한국", "한국 전쟁", True, "Hangul falls into its parts alike in both"),
    ("हिन्दी", "वह हिन्दी बोलता है", True, "vowel signs belong to the word"),
    # Whole tokens
    ("cat", "the category", False, "no part of a token"),
    ("cat", "cat", True, "the whole text"),
    ("cat", "(cat)", True, "brackets are tokens of their own"),
    ("42", "it was 1942", False, "no part of a number"),
    ("4", "4th of July", False, "digits and letters make one token"),
    ("B2B", "a b2b deal", True, "letters and digits in one token"),
    ("snake_case", "snake case", False, "the underscore is a token"),
    ("snake_case", "snake _ case", True, "blanks between tokens do not matter"),
    # Punctuation
    ("U.S.", "in the U . S . army", True, "each full stop is a token"),
    ("U.S.", "in the US army", False, "and must be there"),
    ("US", "the U.S. army", False, "and may not be there"),
    ("581 ( second edition )", "has 581 (second edition) pages", True, "blanks at brackets"),
    ("rock'n'roll", "rock 'n' roll", True, "apostrophes are tokens"),
    ("don't", "don’t", False, "the two apostrophes are different characters"),
    ("AC/DC", "ac / dc", True, "slash"),
    ("$1,000", "paid $ 1,000 for it", True, "currency sign and comma"),
    ("1,000", "1000", False, "a number with and without comma"),
    ("3.14", "3.14159", False, "the digits behind the point are one token"),
    ("C++", "written in C++.", True, "plus signs are tokens"),
    ("🚁", "a 🚁 landed", True, "a symbol is a token"),
    # Several tokens
    ("New York City", "in New\nYork\u00a0City", True, "any blank, any line end"),
    ("New York City", "New York is a City", False, "no gaps"),
    ("York New", "New York", False, "no other order"),
    ("a b a c", "a b a b a c", True, "a false start does not hide the answer"),
    ("soft\u00adware", "software", False, "an invisible hyphen ends a token"),
    ("\u200b", "anything", False, "an answer without tokens matches nothing"),
    ("", "anything", False, "and so does an empty one"),
]

# CuratedTREC: (pattern, passage, whether it is found, why)
PATTERNS = [
    (r"20,?237\s*f(oo|ee)?t", "at 20237 feet", True, "alternatives"),
    (r"20,?237\s*f(oo|ee)?t", "at 20,237\nFT high", True, "blank space and capitals"),
    (r"^Mars$", "Venus\nmars\nSaturn", True, "line by line, whatever the case"),
    (r"Mar", "MARCH", True, "parts of words count, unlike with texts"),
    (r"Röntgen", "Ro\u0308ntgen", True, "patterns are brought to NFD as well"),
    (r"a.b", "a\nb", False, "the point is no line end"),
    (r"6\,194 m", "6,194 m", True, "needless backslashes"),
    (r"(unclosed", "(unclosed", False, "what is no pattern matches nothing"),
]


def test_there_are_forty_cases():
    assert len(HARD) >= 40
    assert {holds for _, _, holds, _ in HARD} == {True, False}


@pytest.mark.parametrize(("answer", "passage", "holds", "why"), HARD)
def test_texts(answer, passage, holds, why):
    assert answers.matcher([answer])(passage) is holds, why
    assert answers.matcher(["nowhere to be found", answer])(passage) is holds, why


@pytest.mark.parametrize(("pattern", "passage", "holds", "why"), PATTERNS)
def test_patterns(pattern, passage, holds, why):
    assert answers.matcher([pattern], "regex")(passage) is holds, why


def test_tokens_are_those_of_dprs_expression():
    """On every character that this Python knows, between letters, blanks and marks."""
    regex = importlib.import_module("regex")  # NLTK brings it
    expression = regex.compile(r"([\p{L}\p{N}\p{M}]+)|([^\p{Z}\p{C}])")
    known = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]
    for start in range(0, len(known), 4096):
        text = "a".join(known[start : start + 4096])
        nfd = unicodedata.normalize("NFD", text)
        assert answers.tokens(text) == [m.group().lower() for m in expression.finditer(nfd)]


def test_tokens_of_random_texts():
    rng = np.random.default_rng(0)
    pieces = [*"aBé1,. \n_ß日Σσ", "e\u0301", "\u00ad"]
    for _ in range(3000):
        text = "".join(rng.choice(pieces, rng.integers(0, 12)))
        answer = "".join(rng.choice(pieces, rng.integers(0, 4)))
        here, wanted = answers.tokens(text), answers.tokens(answer)
        places = range(len(here) - len(wanted) + 1)
        slow = bool(wanted) and any(here[i : i + len(wanted)] == wanted for i in places)
        assert answers.matcher([answer])(text) is slow, (text, answer)


PASSAGES = {f"p{i}": f"nothing at all {i}" for i in range(8)} | {"hit": "It was Mars."}


def texts(ids):
    return [PASSAGES[i] for i in ids]


def place(rank: int, depth: int = 6):
    """A ranking with the answer at `rank` (0: nowhere)."""
    ids = [f"p{i}" for i in range(depth)]
    if rank:
        ids.insert(rank - 1, "hit")
    return ranked(ids, -np.arange(len(ids)))


def test_hit_rates_count_every_question():
    questions = [Query(str(i), "which planet?", ("Mars",)) for i in range(4)]
    run = {"0": place(1), "1": place(5), "2": place(6), "unasked": place(1)}
    scores = answers.evaluate(run, questions, texts, measures=("hit@1", "hit@5", "hit@6"))
    assert scores.means() == {"hit@1": 0.25, "hit@5": 0.5, "hit@6": 0.75}
    assert scores.missing == ["3"] and scores.unjudged == 1


def test_patterns_by_the_whole_way():
    questions = [Query("0", "which planet?", ("m[ae]rs",))]
    run = {"0": place(2)}
    assert answers.evaluate(run, questions, texts, form="regex").mean("hit@5") == 1
    assert answers.evaluate(run, questions, texts).mean("hit@5") == 0


def test_entityquestions_average_over_relations():
    questions = [
        *(Query(f"P1-{i}", "?", ("Mars",), {"relation": "P1"}) for i in range(3)),
        Query("P2-0", "?", ("Mars",), {"relation": "P2"}),
    ]
    run = {"P1-0": place(1), "P2-0": place(1)}
    scores = answers.evaluate(run, questions, texts, measures=("hit@5",))
    assert scores.mean("hit@5") == 2 / 4
    macro = answers.macro_means(scores, answers.relations_of(questions))
    assert macro == {"hit@5": pytest.approx((1 / 3 + 1) / 2)}
    assert answers.relations_of([Query("0", "?")]) == {}


def test_mistakes_are_told():
    question = Query("0", "?", ("Mars",))
    with pytest.raises(UserError, match="'1' has no answers"):
        answers.evaluate({"1": place(1)}, [Query("1", "?")], texts)
    with pytest.raises(UserError, match="none of the 1 questions"):
        answers.evaluate({"1": place(1)}, [question], texts)
    with pytest.raises(UserError, match="no questions"):
        answers.evaluate({"1": place(1)}, [], texts)
    with pytest.raises(UserError, match="name hit@k"):
        answers.evaluate({"0": place(1)}, [question], texts, measures=("ndcg@10",))
    with pytest.raises(UserError, match="did you mean 'regex'"):
        answers.matcher(["a"], "regexp")
