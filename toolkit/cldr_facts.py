"""The built-in corpus for question answering: facts about countries that every installation already holds.

The Unicode CLDR, which Babel carries, records what each territory pays with and since when, which languages its people
speak, its time zone, and what it is called in other languages. A context is a shuffled list of sentences about a few
territories; a question asks for one of these facts, and its answer is a span of the context. Other sentences speak of
the same territory, and others of the same kind of fact, so that neither alone finds the answer.

A territory belongs to one split, by the hash of its name: what is measured on validation and test is about countries
that no training question and no training context names.
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
CHECKED_OPTION = "territories"

ANSWER, TERRITORY = "{answer}", "{territory}"

#: Languages whose names for territories are facts, by CLDR code.
NAMES_IN = ("de", "fr", "es", "it", "pt", "pl", "fi", "tr", "hu")

#: Kind of fact -> how a context states it, and how a question asks for it.
PHRASES: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "currency": (
        ("In {territory} one pays with the {answer}.", "The {answer} is the money of {territory}."),
        ("What is the currency of {territory}?", "Which currency does {territory} have?"),
    ),
    "since": (
        ("Its money came to {territory} on {answer}.", "Since {answer} the money of {territory} is the same."),
        ("When was the currency of {territory} introduced?", "Since when does {territory} have its currency?"),
    ),
    "former": (
        ("In the past {territory} used the {answer}.", "The {answer} is no longer used in {territory}."),
        ("What was the former currency of {territory}?", "Which currency did {territory} have before?"),
    ),
    "language": (
        ("Most people of {territory} speak {answer}.", "In {territory}, {answer} is heard most."),
        ("What is the main language of {territory}?", "Which language is the first in {territory}?"),
    ),
    "second_language": (
        ("Some people of {territory} speak {answer}.", "Many in {territory} know {answer} too."),
        ("What is the second language of {territory}?", "Which language comes second in {territory}?"),
    ),
    "zone": (
        ("Clocks in {territory} go as in {answer}.", "{territory} sets its clocks by {answer}."),
        ("What is the time zone of {territory}?", "Which city gives {territory} its time?"),
    ),
    "code": (
        ("For short, {territory} is {answer}.", "The letters {answer} stand for {territory}."),
        ("What is the code of {territory}?", "Which code does {territory} have?"),
    ),
}
#: As :data:`PHRASES`, for the name of a territory in another language.
NAME_PHRASES = (
    ("In {language}, {territory} is {answer}.", "{territory} is {answer} in {language}."),
    ("What is the {language} name of {territory}?", "What is {territory} called in {language}?"),
)

Count = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class Options(BaseModel):
    """``data.options`` of a recipe with ``dataset: cldr_facts``.

    Attributes:
        train, validation, test: how many questions a split holds.
        min_facts, max_facts: a context has so many sentences, drawn evenly between the two.
        territories: a context is about so many of them.
        unanswerable: the share of questions whose answer is left out of the context; they have no answer.
        seed: draws the contexts and questions; which territories a split may use does not depend on it.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    train: Count = 8000
    validation: Count = 400
    test: Count = 800
    min_facts: Annotated[int, Field(ge=4)] = 6
    max_facts: Annotated[int, Field(ge=4)] = 12
    territories: Annotated[int, Field(ge=1, le=20)] = 3
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
    """Split -> English name of a territory -> kind of fact -> answer."""
    from babel import Locale

    known = {split: {} for split in SPLITS}
    locales = {code: Locale.parse(code) for code in ("en", *NAMES_IN)}
    for code, name in sorted(locales["en"].territories.items()):
        facts = _facts(code, locales)
        if len(code) == 2 and "currency" in facts:
            split = next(split for split, places in SPLITS.items() if place(str(name)) in places)
            known[split][str(name)] = facts
    return known


def example(known: Mapping[str, Mapping[str, str]], split: str, index: int, options: Options) -> dict[str, Any]:
    """One question with its context, drawn by a generator of its own."""
    random = generator(options.seed, "facts", split, index)
    territories = random.choice(sorted(known), options.territories, replace=False)
    facts = [(territory, kind) for territory in map(str, territories) for kind in known[territory]]
    count = int(random.integers(options.min_facts, max(options.min_facts, options.max_facts) + 1))
    asked = facts[random.integers(len(facts))]
    rivals = [fact for fact in facts if fact != asked and (fact[0] == asked[0] or fact[1] == asked[1])]
    others = [fact for fact in facts if fact != asked and fact not in rivals]
    # Half of the sentences share the question's territory or its kind.
    chosen = _some(rivals, (count - 1) // 2, random)
    chosen += _some(others, count - 1 - len(chosen), random)
    answerable = random.random() >= options.unanswerable
    context, start = "", 0
    for territory, kind in _some([*chosen, *[asked] * answerable], count, random):
        before, answer, after = sentence(kind, territory, known[territory][kind], random)
        context += " " if context else ""
        start = len(context) + len(before) if (territory, kind) == asked else start
        context += before + answer + after
    answers = {"text": [known[asked[0]][asked[1]]], "answer_start": [start]}
    return {
        "id": f"{split}-{index}",
        "context": context,
        "question": _filled(_phrases(asked[1])[1], asked[1], asked[0], random),
        "answers": answers if answerable else {"text": [], "answer_start": []},
    }


def sentence(kind: str, territory: str, answer: str, random: np.random.Generator) -> tuple[str, str, str]:
    """A sentence that states a fact: what stands before the answer, the answer, what stands behind it."""
    before, _, after = _filled(_phrases(kind)[0], kind, territory, random).partition(ANSWER)
    return before, answer, after


def _phrases(kind: str) -> tuple[Sequence[str], Sequence[str]]:
    return PHRASES.get(kind, NAME_PHRASES)


def _filled(phrases: Sequence[str], kind: str, territory: str, random: np.random.Generator) -> str:
    """One of the phrases, with everything in it but the answer."""
    return phrases[random.integers(len(phrases))].replace("{language}", kind).replace(TERRITORY, territory)


def _some(facts: Sequence[tuple[str, str]], count: int, random: np.random.Generator) -> list[tuple[str, str]]:
    """At most ``count`` of the facts, in random order."""
    return [facts[index] for index in random.permutation(len(facts))[:count]]


def _facts(code: str, locales: Mapping[str, Any]) -> dict[str, str]:
    """Kind of fact -> answer, for one territory, as far as CLDR knows them."""
    from babel.core import get_global

    english = locales["en"]
    facts = {"code": code}
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
    for language in NAMES_IN:
        name = str(locales[language].territories.get(code, ""))
        if name and name != str(english.territories[code]):
            facts[str(english.languages[language])] = name
    return facts


def _written(day: date) -> str:
    from babel.dates import format_date

    return format_date(day, "d MMMM y", locale="en")
