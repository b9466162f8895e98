"""`qac clean`: languages and near-duplicates."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from qac_jax import artifacts
from qac_jax.errors import UserError
from qac_jax.formats.records import Records
from qac_jax.pipeline.stage import execute
from qac_jax.stages.clean import Clean
from qac_jax.stages.prepare import Prepare
from qac_jax.text import languages, near_duplicates


SENTENCES = {
    "en": "The mill was driven by the rise and fall of the sea, and it ran until the last war.",
    "de": "Die Mühle wurde von der Flut getrieben und war bis zum letzten Krieg in Betrieb.",
    "fr": "Le moulin était mû par la marée et il a tourné jusqu'à la dernière guerre.",
    "es": "El molino era movido por la marea y funcionó hasta la última de las guerras.",
    "it": "Il mulino era mosso dalla marea e rimase in funzione fino alla guerra.",
    "pt": "O moinho era movido pela maré e funcionou até à última guerra, mas já não existe.",
    "nl": "De molen werd door het getij aangedreven en was tot de laatste oorlog in gebruik.",
    "sv": "Kvarnen drevs av tidvattnet och var i bruk till det sista kriget, men inte efter det.",
    "pl": "Młyn był napędzany przez pływy i działał do ostatniej wojny, ale nie jest już czynny.",
    "ru": "Мельница приводилась в движение приливом и работала до последней войны.",
    "uk": "Млин приводився в рух припливом і працював до останньої війни, але вже не працює.",
    "fi": "Mylly toimi vuoroveden voimalla, ja se oli käytössä sotaan asti, mutta ei sen jälkeen.",
    "tr": "Değirmen gelgit ile çalıştı ve son savaşa kadar bu şekilde için için döndü.",
    "ja": "その水車は潮の満ち引きで動き、最後の戦争まで使われていた。",
    "zh": "磨坊由潮汐驱动，一直运行到最后一场战争。",
    "ko": "그 방앗간은 조수로 움직였고 마지막 전쟁까지 사용되었다.",
    "el": "Ο μύλος κινούνταν από την παλίρροια μέχρι τον τελευταίο πόλεμο.",
    "ar": "كانت الطاحونة تعمل بالمد والجزر حتى الحرب الأخيرة.",
}


@pytest.mark.parametrize("code", SENTENCES)
def test_languages(code):
    assert languages.language(SENTENCES[code]) == code


@pytest.mark.parametrize(
    "text", ["", "123 456", "x = f(y) + g[z]", "Tarski, Gödel, Church, Turing"]
)
def test_texts_of_no_language(text):
    assert languages.language(text) == languages.UNKNOWN


def _text(rng: random.Random, words: int = 120) -> list[str]:
    return [f"w{rng.randrange(5000)}" for _ in range(words)]


def test_sketches_estimate_similarity():
    rng = random.Random(0)
    for changed in (0, 1, 4, 40):
        a = _text(rng, 200)
        b = list(a)
        for place in rng.sample(range(200), changed):
            b[place] = "other"
        one, two = ({tuple(t[i : i + 5]) for i in range(196)} for t in (a, b))
        exact = len(one & two) / len(one | two)
        first, second = (near_duplicates.sketch(" ".join(t)) for t in (a, b))
        # The estimate's standard deviation is at most .045.
        assert abs(near_duplicates.similarity(first, second) - exact) < 0.14


def test_sketches_are_the_same_everywhere():
    assert near_duplicates.sketch("a b c d e f").tolist()[:3] == PINNED
    assert not near_duplicates.sketch("…").any()


PINNED = [320022803, 886412814, 2935024742]


def test_bands_catch_similar_pairs_and_compare_few():
    rows = near_duplicates.rows_of_band(0.8)
    assert [near_duplicates.rows_of_band(t) for t in (0.3, 0.5, 0.8, 1.0)] == [2, 4, 8, 64]
    rng = random.Random(1)
    texts = [_text(rng) for _ in range(60)]
    texts += [[*text[:60], "new", *text[61:]] for text in texts[:20]] + [[]]
    sketches = np.stack([near_duplicates.sketch(" ".join(text)) for text in texts])
    found = [near_duplicates.pairs(band) for band in near_duplicates.bands(sketches, rows)]
    both = np.unique(np.concatenate(found), axis=0)
    assert {(n, 60 + n) for n in range(20)} <= set(map(tuple, both.tolist()))
    assert len(both) < 30


def test_groups_are_linked_by_pairs():
    alike = np.array([[3, 5], [1, 3], [0, 2], [1, 3]])
    assert near_duplicates.copies(6, alike).tolist() == [0, 1, 0, 1, 4, 1]


@pytest.fixture(scope="module")
def passages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clean")
    rng = random.Random(2)
    english = ["the", "of", "and", "to", "in", "is"]
    texts = [" ".join(rng.choice(english) + f" x{w}" for w in _text(rng, 60)) for _ in range(6)]
    texts += [texts[1] + " more.", SENTENCES["de"], texts[1], "Gödel Tarski Church Turing Kleene"]
    with open(folder / "corpus.jsonl", "w") as file:
        for n, text in enumerate(texts):
            file.write(json.dumps({"_id": f"d{n}", "title": "", "text": text}) + "\n")
    prepare = Prepare.make(documents=str(folder), shards=3, workers=1, max_tokens=32)
    execute(prepare, folder / "passages")
    return folder / "passages"


@pytest.mark.parametrize("unit", ["document", "passage"])
def test_near_duplicates_and_foreign_texts_go(passages, tmp_path, unit):
    made = Clean.make(passages=str(passages), languages="en", unit=unit, workers=1)
    cleaned = execute(made, tmp_path / "clean")
    left = Records(cleaned)
    assert {r["doc"] for r in left} == {f"d{n}" for n in range(6)} or unit == "passage"
    lines = (tmp_path / "clean/removed.tsv").read_text().splitlines()
    removed = dict(line.split("\t") for line in lines)
    whole = Records(artifacts.load(passages))
    kept = [
        record for record in whole if record["doc" if unit == "document" else "_id"] not in removed
    ]
    assert list(left) == kept and cleaned.count == len(kept)
    if unit == "document":
        assert removed == {
            "d6": "repeats d1", "d7": "language de", "d8": "repeats d1",
            "d9": "language not recognised",
        }  # fmt: skip
        assert cleaned.info["cleaned"] == {"units": 10, "repeated": 2, "foreign": 2, "kept": 6}


def test_what_is_not_recognised_may_stay(passages, tmp_path):
    made = Clean.make(
        passages=str(passages), languages="en,de", unknown=True, near_duplicates=0.0, workers=1
    )
    assert execute(made, tmp_path / "clean").info["removed"] == 0


@pytest.mark.slow
def test_beam_and_processes_write_the_same(passages, tmp_path):
    pytest.importorskip("apache_beam")
    given = {"passages": str(passages), "languages": "en"}
    ends = [
        execute(Clean.make(**given, **by), tmp_path / name)
        for name, by in (
            ("one", {"workers": 1}),
            ("pool", {"workers": 2}),
            ("beam", {"runner": "DirectRunner"}),
        )
    ]
    assert len({end.identity for end in ends}) == 1


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"near_duplicates": 0.0}, "nothing would be left out"),
        ({"near_duplicates": 1.5}, "not a similarity"),
        ({"languages": "en,xx"}, "language 'xx' is not known"),
        ({"unknown": True}, "goes with --languages"),
    ],
)
def test_wrong_settings(settings, said):
    with pytest.raises(UserError, match=said):
        Clean.make(passages="x", **settings).check()
