"""The built-in corpus for question answering: facts that every installation already holds, and questions about them.

The Unicode CLDR, which Babel carries, records what territories, languages and currencies are called in other languages,
and what each territory pays with and since when, what its people speak, its time zone. A context is a shuffled list of
sentences about a few of these subjects; a question asks for one of the facts, and its answer is a span of the context.
Other sentences speak of the same subject, and others of the same kind of fact, so that neither alone finds the answer.

A subject belongs to one split, by the hash of its name: what is measured on validation and test is about things that no
training question and no training context speaks of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Annotated, Any

import numpy as np
from datasets import Dataset, DatasetDict, Features, Value
from datasets import Sequence as ListOf
from pydantic import BaseModel, ConfigDict, Field

from toolkit.cldr_languages import SPLITS, generator, place

#: The option that a ``ValueError`` of :func:`load` is about.
CHECKED_OPTION = "subjects"

ANSWER, SUBJECT = "{answer}", "{subject}"

#: Languages whose names for the subjects are facts, by CLDR code: those of Latin script with the most names.
NAMES_IN = (
    "az", "ca", "cs", "cy", "da", "de", "es", "et", "eu", "fi", "fr", "ga", "hr", "hu", "id",
    "is", "it", "lt", "lv", "nl", "pl", "pt", "ro", "sk", "sl", "sv", "sw", "tr", "vi",
)  # fmt: skip

#: What the names are of.
CATEGORIES = ("territories", "languages", "currencies")

#: Kind of fact -> how a context states it, and how a question asks for it.
PHRASES: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "currency": (
        ("In {subject} one pays with the {answer}.", "The {answer} is the money of {subject}."),
        ("What is the currency of {subject}?", "Which currency does {subject} have?"),
    ),
    "since": (
        ("Its money came to {subject} on {answer}.", "Since {answer} the money of {subject} is the same."),
        ("When was the currency of {subject} introduced?", "Since when does {subject} have its currency?"),
    ),
    "former": (
        ("In the past {subject} used the {answer}.", "The {answer} is no longer used in {subject}."),
        ("What was the former currency of {subject}?", "Which currency did {subject} have before?"),
    ),
    "language": (
        ("Most people of {subject} speak {answer}.", "In {subject}, {answer} is heard most."),
        ("What is the main language of {subject}?", "Which language is the first in {subject}?"),
    ),
    "second_language": (
        ("Some people of {subject} speak {answer}.", "Many in {subject} know {answer} too."),
        ("What is the second language of {subject}?", "Which language comes second in {subject}?"),
    ),
    "zone": (
        ("Clocks in {subject} go as in {answer}.", "{subject} sets its clocks by {answer}."),
        ("What is the time zone of {subject}?", "Which city gives {subject} its time?"),
    ),
    "code": (
        ("For short, {subject} is {answer}.", "The letters {answer} stand for {subject}."),
        ("What is the code of {subject}?", "Which code does {subject} have?"),
    ),
}
#: As :data:`PHRASES`, for the name of a subject in another language; the kind of such a fact is that language.
NAME_PHRASES = (
    ("In {language}, {subject} is {answer}.", "{subject} is {answer} in {language}."),
    ("What is the {language} name of {subject}?", "What is {subject} called in {language}?"),
)

#: Characters; longer names, and those with parentheses, are mostly explanations ("Brazilian Cruzeiro (1990–1993)").
LONGEST_NAME = 28

#: A subject of which fewer facts are known is left out.
FEWEST_FACTS = 8

Count = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class Options(BaseModel):
    """``data.options`` of a recipe with ``dataset: cldr_facts``.

    Attributes:
        train, validation, test: how many questions a split holds.
        min_facts, max_facts: a context has so many sentences, drawn evenly between the two.
        subjects: a context is about so many of them.
        unanswerable: the share of questions whose answer is left out of the context; they have no answer.
        seed: draws the contexts and questions; which subjects a split may use does not depend on it.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    train: Count = 8000
    validation: Count = 400
    test: Count = 800
    min_facts: Annotated[int, Field(ge=2)] = 4
    max_facts: Annotated[int, Field(ge=2)] = 8
    subjects: Annotated[int, Field(ge=1, le=20)] = 2
    unanswerable: Fraction = 0.0
    seed: Annotated[int, Field(ge=0)] = 0


def load(options: Options) -> DatasetDict:
    """The corpus in SQuAD's columns (``id``, ``context``, ``question``, ``answers``), in three splits."""
    features = Features(
        {
            "id": Value("string"),
            "context": Value("string"),
            "question": Value("string"),
            "answers": {"text": ListOf(Value("string")), "answer_start": ListOf(Value("int32"))},
        }
    )
    known = facts_by_split()
    corpus = DatasetDict()
    for split in SPLITS:
        rows = [example(known[split], split, index, options) for index in range(getattr(options, split))]
        corpus[split] = Dataset.from_list(rows, features=features)
    return corpus


def facts_by_split() -> dict[str, dict[str, dict[str, str]]]:
    """Split -> English name of a subject -> kind of fact -> answer."""
    from babel import Locale

    locales = {code: Locale.parse(code) for code in ("en", *NAMES_IN)}
    known: dict[str, dict[str, dict[str, str]]] = {split: {} for split in SPLITS}
    for category in CATEGORIES:
        for code, name in sorted(getattr(locales["en"], category).items()):
            subject = str(name)
            facts = _names(category, code, locales)
            if category == "territories":
                facts |= _about_territory(code, locales["en"])
            facts = {kind: answer for kind, answer in facts.items() if _short(answer)}
            if _short(subject) and len(facts) >= FEWEST_FACTS:
                split = next(split for split, places in SPLITS.items() if place(subject) in places)
                known[split].setdefault(subject, facts)
    return known


def example(known: Mapping[str, Mapping[str, str]], split: str, index: int, options: Options) -> dict[str, Any]:
    """One question with its context, drawn by a generator of its own."""
    random = generator(options.seed, "facts", split, index)
    subjects = sorted(known)
    chosen = [subjects[place] for place in random.choice(len(subjects), options.subjects, replace=False)]
    facts = [(subject, kind) for subject in chosen for kind in known[subject]]
    count = int(random.integers(min(options.min_facts, options.max_facts), options.max_facts + 1))
    asked = facts[random.integers(len(known[chosen[0]]))]
    # Half of the other sentences are of the same kind of fact, as far as there are other subjects to speak of.
    rivals = [fact for fact in facts if fact[0] != asked[0] and fact[1] == asked[1]]
    others = [fact for fact in facts if fact != asked and fact not in rivals]
    said = _some(rivals, (count - 1) // 2, random)
    said += _some(others, count - 1 - len(said), random)
    answerable = random.random() >= options.unanswerable
    context, start = "", 0
    for subject, kind in _some([*said, *[asked] * answerable], count, random):
        before, answer, after = sentence(kind, subject, known[subject][kind], random)
        context += " " if context else ""
        start = len(context) + len(before) if (subject, kind) == asked else start
        context += before + answer + after
    answers = {"text": [known[asked[0]][asked[1]]], "answer_start": [start]}
    return {
        "id": f"{split}-{index}",
        "context": context,
        "question": _filled(_phrases(asked[1])[1], asked[1], asked[0], random),
        "answers": answers if answerable else {"text": [], "answer_start": []},
    }


def sentence(kind: str, subject: str, answer: str, random: np.random.Generator) -> tuple[str, str, str]:
    """A sentence that states a fact: what stands before the answer, the answer, what stands behind it."""
    before, _, after = _filled(_phrases(kind)[0], kind, subject, random).partition(ANSWER)
    return before, answer, after


def _phrases(kind: str) -> tuple[Sequence[str], Sequence[str]]:
    return PHRASES.get(kind, NAME_PHRASES)


def _filled(phrases: Sequence[str], kind: str, subject: str, random: np.random.Generator) -> str:
    """One of the phrases, with everything in it but the answer."""
    return phrases[random.integers(len(phrases))].replace("{language}", kind).replace(SUBJECT, subject)


def _some(facts: Sequence[tuple[str, str]], count: int, random: np.random.Generator) -> list[tuple[str, str]]:
    """At most ``count`` of the facts, in random order."""
    return [facts[index] for index in random.permutation(len(facts))[:count]]


def _short(name: str) -> bool:
    return len(name) <= LONGEST_NAME and "(" not in name


def _names(category: str, code: str, locales: Mapping[str, Any]) -> dict[str, str]:
    """English name of a language -> what the subject is called in it, where that is not its English name."""
    english = locales["en"]
    found = {str(english.languages[language]): getattr(locales[language], category).get(code) for language in NAMES_IN}
    subject = str(getattr(english, category)[code])
    return {language: str(name) for language, name in found.items() if name and str(name) != subject}


def _about_territory(code: str, english: Any) -> dict[str, str]:
    """Kind of fact (:data:`PHRASES`) -> answer, for one territory, as far as CLDR knows them."""
    from babel.core import get_global

    facts = {"code": code} if len(code) == 2 else {}
    tender = [entry for entry in get_global("territory_currencies").get(code, []) if entry[3]]
    now = [entry for entry in tender if entry[2] is None and entry[1]]
    past = [entry for entry in tender if entry[2] is not None]
    if now:
        facts["currency"] = str(english.currencies[now[0][0]])
        facts["since"] = _written(date(*now[0][1]))
    if past and past[-1][0] in english.currencies:
        facts["former"] = str(english.currencies[past[-1][0]])
    spoken = get_global("territory_languages").get(code, {})
    ranked = sorted(spoken, key=lambda language: -spoken[language]["population_percent"])
    named = [str(english.languages[language]) for language in ranked if language in english.languages]
    facts |= dict(zip(("language", "second_language"), named, strict=False))
    if len(zones := get_global("territory_zones").get(code, [])) == 1:
        facts["zone"] = zones[0].rpartition("/")[2].replace("_", " ")
    return facts


def _written(day: date) -> str:
    from babel.dates import format_date

    return format_date(day, "d MMMM y", locale="en")
