"""The language of a text, by its script and its function words: a heuristic without a model.

Scripts that one language of the list uses decide alone. In others the language is that whose
commonest words make up the largest share of the text, a word that k languages have counting 1/k.
Texts of a few words, names and tables are of no language by this rule (""), and close relatives
(Danish and Norwegian, Czech and Slovak) are often taken for one another.
"""

from __future__ import annotations

import functools
import re
from collections import Counter


UNKNOWN = ""

# Words that are looked at, at the beginning of a text, and the fewest that decide.
_MOST, _FEWEST = 400, 5
# The share of a text that function words make up, at least; half of running text are.
_LEAST = 0.08
# The share of letters in a script that decides.
_SHARE = 0.3

_WORDS = {
    "en": "the of and to in is was that for it with as on be at by this are from or his her he she "
    "not but have had which you were their has been its they we an will would there who what "
    "when all can more one if about out so up into than them only other some could these do "
    "my your",
    "de": "der die und das den von zu mit sich des auf für ist im dem nicht ein eine als auch es "
    "an "
    "werden aus er hat dass sie nach wird bei einer um am sind noch wie einem über einen so "
    "zum war haben nur oder aber vor zur bis mehr durch man sein wurde wenn ich kann wir ihr "
    "uns",
    "fr": "de la le et les des en un du une que est pour qui dans par plus pas au sur ne se ce il "
    "sont avec son sa ses ou aux cette mais comme elle ont été ces leur nous vous ils je tout "
    "même était fait sans être entre deux dont où si peut après ans encore",
    "es": "de la que el en y los se del las un por con no una su para es al lo como más pero sus "
    "le "
    "ha me o fue este ya sí porque esta entre cuando muy sin sobre ser también hasta hay "
    "donde han quien desde todo nos durante uno ni contra otros ese eso había ante ellos "
    "estos era está",
    "it": "di e il la che in un per è una del non con da sono le si dei della nel alla al i gli "
    "più "
    "come anche ma lo ha delle dal se su o suo questo era dalla ai nella stato essere tra "
    "quando sua fu loro due prima degli ancora dopo ci cui negli quale hanno ad sul",
    "pt": "de a o que e do da em um para é com não uma os no se na por mais as dos como mas foi ao "
    "ele das tem à seu sua ou ser quando muito há nos já está eu também só pelo pela até isso "
    "ela entre era depois sem mesmo aos ter seus quem nas me esse eles são foram",
    "nl": "de van het een en in is dat op te zijn met voor niet aan er die was als ook om bij uit "
    "door hij naar werd maar over tot nog wordt of ze dan hebben heeft deze meer kan zich hun "
    "dit geen wel haar onder werden kunnen zo we ik je had toen waren veel moet",
    "sv": "och i att det som en på är av för med till den har de inte om ett han men var sig från "
    "vi så kan när år säger hon under också efter eller nu sin där vid mot ska skulle kommer "
    "ut får finns vara hade alla andra mycket än här då sedan över bara blir jag",
    "da": "og i at det er en til af på med for den der de som har ikke et han om var fra men vi "
    "sig "
    "også så kan efter havde eller over nu hvor når blev ved være skal ud alle mod hun hvad "
    "mere hans end bliver to under deres meget kun jeg op siger vil sin noget",
    "no": "og i det er på til som en av for at med den har de ikke et han om var fra men vi seg "
    "også så kan etter hadde eller over nå hvor når ble ved være skal ut alle mot hun hva mer "
    "hans enn blir under deres mye bare jeg opp sier vil sin noe ifølge ei",
    "fi": "ja on oli että hän ei se myös kun mutta ovat joka sen mukaan tai jo kuin voi ole vain "
    "hänen ollut sekä olla jälkeen nyt niin tämä mitä jos siitä vielä kanssa eli kuitenkin "
    "oman he minä sitä tämän jossa jotka joita hyvin kaikki koko",
    "pl": "w i z na do się nie to że jest o jak po od przez za co ale dla tym przy jego są był już "
    "a tylko tak jej być może czy które który oraz która było ich bardzo jako także lub te ze "
    "we przed będzie jednak go mnie nawet pod więc lat tego ma",
    "cs": "a se v na je že s z do o i to k ve pro za by jsou ale po si jako od jeho při tak který "
    "které která nebo však bylo také byl byla ze než až jen už co jak mezi může být roku již "
    "před této tím pouze pod další není jsem kde kdy má když",
    "ro": "de și în a la cu pe din o că un care nu pentru este mai sa se au fost prin al ca sau "
    "ale "
    "dar după lui ei când lor între fi unui această acest sunt fiind până era unde cel ar "
    "avea cum foarte fără doar iar despre astfel cele",
    "hu": "a az és hogy nem is egy volt meg de ez csak már még el mint van azt ha vagy ki be után "
    "ami lehet akkor sem két mert pedig ezt kell minden volna való olyan úgy között első aki "
    "lett által több nagyon most itt őket",
    "tr": "ve bir bu da de için ile olarak olan daha çok en kadar sonra gibi o ne ise var ancak "
    "her "
    "ya ama değil ki mi tarafından göre olduğu iki bunu kendi şey diye yok büyük ilk yeni "
    "onun hem hiç bazı nasıl oldu şu ben sen",
    "id": "yang dan di dari untuk dengan pada ini itu dalam tidak adalah ke akan oleh sebagai juga "
    "atau ada bisa telah karena lebih tersebut dapat mereka kami saya kita sudah hanya "
    "seperti antara saat bahwa masih setelah tahun dia menjadi",
    "vi": "và của là có trong được cho các một không với những người này để khi đã từ đến cũng như "
    "về ở ra năm vào lại nhưng nhiều sau thì phải hay trên bị sẽ tại theo",
    "ru": "и в не на что с он по как это но из за у к о от же для так его или был бы было все она "
    "до мы при быть их только также были то я ещё чтобы уже когда года со может если после "
    "который которые которая была нет лет во вы",
    "uk": "і в не на що з та до у за як від це про для його але був із або є були по й вона так "
    "також її може які який при під було роки року щоб ще вже лише якщо після бути цього між "
    "ми вони то де над",
    "bg": "на и в да се е за от с по не са че като при до това или който бе беше има към след но "
    "го "
    "му която които си ще той тя те през между както още само много година във със бъде ли",
}
# Letters that no other language of the list has: a word with one counts half.
_LETTERS = {
    "de": "ß", "es": "ñ", "pt": "ãõ", "pl": "łżśń", "cs": "řěů", "ro": "țș", "hu": "őű",
    "tr": "ğı", "vi": "ơưạảấầậếềệốộớợ", "ru": "ыэё", "uk": "їєґі",
}  # fmt: skip
# Scripts that stand for one language here; kana come before Han, which Japanese uses too.
_SCRIPTS = (
    ("ja", "\u3040-\u30ff"),
    ("ko", "\uac00-\ud7af\u1100-\u11ff"),
    ("zh", "\u3400-\u4dbf\u4e00-\u9fff"),
    ("ar", "\u0600-\u06ff\u0750-\u077f"),
    ("he", "\u0590-\u05ff"),
    ("el", "\u0370-\u03ff"),
    ("th", "\u0e00-\u0e7f"),
    ("hi", "\u0900-\u097f"),
)
LANGUAGES = tuple(sorted({*_WORDS, *(name for name, _ in _SCRIPTS)}))

_TOKEN = re.compile(r"[^\W\d_]+")
_IN_SCRIPT = tuple((name, re.compile(f"[{letters}]")) for name, letters in _SCRIPTS)
_HEAD = 4000  # characters
# Japanese mixes kana with Han; this share of kana decides.
_KANA = 0.1


def _weights() -> dict[str, dict[str, float]]:
    """word -> language -> 1 / the number of languages that have it."""
    holders: dict[str, list[str]] = {}
    for language, words in _WORDS.items():
        for word in dict.fromkeys(words.split()):
            holders.setdefault(word, []).append(language)
    return {word: dict.fromkeys(of, 1.0 / len(of)) for word, of in holders.items()}


_WEIGHTS = _weights()


def language(text: str) -> str:
    """One of LANGUAGES, or UNKNOWN."""
    head = text[:_HEAD]
    letters = sum(map(str.isalpha, head))
    if not letters:
        return UNKNOWN
    for name, pattern in _IN_SCRIPT:
        count = len(pattern.findall(head))
        if count > (_KANA if name == "ja" else _SHARE) * letters:
            return name
    words = [match[0].lower() for match in _TOKEN.finditer(head)][:_MOST]
    if len(words) < _FEWEST:
        return UNKNOWN
    shares: Counter[str] = Counter()
    for word in words:
        shares.update(_weights_of(word))
    best = min(shares, key=lambda name: (-shares[name], name), default=UNKNOWN)
    known = {word for word in words if best in _weights_of(word)}
    enough = len(known) > 1 and shares[best] >= _LEAST * len(words)
    return best if enough else UNKNOWN


@functools.lru_cache(maxsize=1 << 14)
def _weights_of(word: str) -> dict[str, float]:
    """What a word says for each language."""
    weights = dict(_WEIGHTS.get(word, {}))
    for name, letters in _LETTERS.items():
        if any(letter in word for letter in letters):
            weights[name] = weights.get(name, 0.0) + 0.5
    return weights
