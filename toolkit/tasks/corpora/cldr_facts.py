"""The built-in corpus for question answering: facts about countries that every installation already holds.

The Unicode CLDR, which Babel carries, records each territory's currency and since when it is used, its languages, its
code and its time zone, with these names and dates as many languages write them. A context is a shuffled list of English
sentences about a few territories, with the names of one language in them; a question asks for one of the facts, and its
answer is a span of the context. Other sentences are about the same territory, and others about the same kind of fact,
so that neither alone finds the answer.

The hash of a territory's name puts it in one split for all languages, so that no training question and no training
context is about a country of validation or test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from toolkit.tasks.corpora.cldr_languages import SPLITS, generator, residue_of
from toolkit.tasks.question_answering.questions import squad_features

if TYPE_CHECKING:
    from datasets import DatasetDict

#: The option that a ``ValueError`` of :func:`load` is about.
CHECKED_OPTION = "territories"
#: Keys of a recipe's data section -> their values for this corpus.
COLUMNS = {key: key for key in ("id", "question", "context", "answers")}
#: It has its own splits: nothing is held out of ``train``.
HAS_SPLITS = True

ANSWER, SUBJECT = "{answer}", "{subject}"

#: CLDR codes of the languages whose names and dates the contexts use: Latin script, and nearly all names known.
LANGUAGES = (
    "az", "ca", "cs", "cy", "da", "de", "en", "es", "et", "eu", "fi", "fr", "ga", "hr", "hu",
    "id", "is", "it", "lt", "lv", "nl", "pl", "pt", "ro", "sk", "sl", "sv", "sw", "tr", "vi",
)  # fmt: skip

#: Kind of fact -> how a context states it, and how a question asks for it.
PHRASES: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "currency": (
        ("The currency of {subject} is {answer}.", "{answer} is the currency of {subject}."),
        ("What is the currency of {subject}?", "Which currency does {subject} have?"),
    ),
    "since": (
        ("The money of {subject} was introduced on {answer}.", "On {answer} the money of {subject} was introduced."),
        ("When was the money of {subject} introduced?", "On which day was the money of {subject} introduced?"),
    ),
    "former": (
        ("The former money of {subject} is {answer}.", "{answer} is the former money of {subject}."),
        ("What is the former money of {subject}?", "Which former money did {subject} have?"),
    ),
    "language": (
        ("The main language of {subject} is {answer}.", "{answer} is the main language of {subject}."),
        ("What is the main language of {subject}?", "Which main language does {subject} have?"),
    ),
    "second_language": (
        ("The second language of {subject} is {answer}.", "{answer} is the second language of {subject}."),
        ("What is the second language of {subject}?", "Which second language does {subject} have?"),
    ),
    "zone": (
        ("The time zone of {subject} is {answer}.", "{answer} is the time zone of {subject}."),
        ("What is the time zone of {subject}?", "Which time zone does {subject} have?"),
    ),
    "code": (
        ("The code of {subject} is {answer}.", "{answer} is the code of {subject}."),
        ("What is the code of {subject}?", "Which code does {subject} have?"),
    ),
    "english": (
        ("The English name of {subject} is {answer}.", "{answer} is the English name of {subject}."),
        ("What is the English name of {subject}?", "Which English name does {subject} have?"),
    ),
}

#: Characters; longer names, and those with parentheses, are mostly explanations ("Brazilian Cruzeiro (1990–1993)").
LONGEST_NAME = 28

#: A territory with fewer known facts is left out.
FEWEST_FACTS = 4

Count = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class Options(BaseModel):
    """``data.options`` of a recipe with ``dataset: cldr_facts``.

    Attributes:
        train, validation, test: how many questions a split holds.
        min_facts, max_facts: bounds of a context's number of sentences, drawn uniformly.
        territories: most territories of a context; their number is drawn uniformly from 1.
        unanswerable: the share of questions whose answer is left out of the context; they have no answer.
        seed: draws the contexts and questions; which territories a split may use does not depend on it.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    train: Count = 8000
    validation: Count = 400
    test: Count = 800
    min_facts: Annotated[int, Field(ge=2)] = 4
    max_facts: Annotated[int, Field(ge=2)] = 8
    territories: Annotated[int, Field(ge=1, le=20)] = 2
    unanswerable: Fraction = 0.0
    seed: Annotated[int, Field(ge=0)] = 0


def check(options: Options) -> None:
    """Do nothing: all options are usable."""


def load(options: Options) -> DatasetDict:
    """Return the corpus in SQuAD's columns (``id``, ``context``, ``question``, ``answers``), in three splits."""
    from datasets import Dataset, DatasetDict

    facts = facts_by_split()
    corpus = DatasetDict()
    for split_name in SPLITS:
        rows = [
            draw_example(facts[split_name], split_name, index, options) for index in range(getattr(options, split_name))
        ]
        corpus[split_name] = Dataset.from_list(rows, features=squad_features())
    return corpus


def facts_by_split() -> dict[str, dict[str, dict[str, dict[str, str]]]]:
    """Return the facts: split -> language -> name of a territory in it -> kind of fact -> answer."""
    from babel import Locale

    english = Locale.parse("en")
    facts_of_splits: dict[str, dict[str, dict[str, dict[str, str]]]] = {split_name: {} for split_name in SPLITS}
    for language in LANGUAGES:
        locale: Any = Locale.parse(language)
        for code in sorted(code for code in locale.territories if len(code) == 2 and code in english.territories):
            facts = _territory_facts(code, locale, english)
            subject, name = str(locale.territories[code]), str(english.territories[code])
            if _is_short(subject) and len(facts) >= FEWEST_FACTS:
                split_name = next(split_name for split_name, residues in SPLITS.items() if residue_of(name) in residues)
                facts_of_splits[split_name].setdefault(language, {})[subject] = facts
    return facts_of_splits


def draw_example(
    facts_by_language: Mapping[str, Mapping[str, Mapping[str, str]]], split_name: str, index: int, options: Options
) -> dict[str, Any]:
    """Draw a question with its context, from a generator that is seeded by the index.

    Args:
        facts_by_language: answer by language, subject and kind of fact.
        split_name: name of the split, a part of the seed.
        index: number of the example.
        options: options of the corpus.
    """
    random = generator(options.seed, "facts", split_name, index)
    facts_by_subject = facts_by_language[str(random.choice(sorted(facts_by_language)))]
    subjects = sorted(facts_by_subject)
    num_subjects = int(random.integers(1, options.territories + 1))
    chosen_subjects = [subjects[index] for index in random.choice(len(subjects), num_subjects, replace=False)]
    facts = [(subject, kind) for subject in chosen_subjects for kind in facts_by_subject[subject]]
    num_sentences = int(random.integers(min(options.min_facts, options.max_facts), options.max_facts + 1))
    asked_fact = facts[random.integers(len(facts_by_subject[chosen_subjects[0]]))]
    # All others of the same kind of fact, up to half of the sentences.
    rivals = [fact for fact in facts if fact[0] != asked_fact[0] and fact[1] == asked_fact[1]]
    other_facts = [fact for fact in facts if fact != asked_fact and fact not in rivals]
    stated_facts = _sample_facts(rivals, (num_sentences - 1) // 2, random)
    stated_facts += _sample_facts(other_facts, num_sentences - 1 - len(stated_facts), random)
    answerable = random.random() >= options.unanswerable
    context, start = "", 0
    for subject, kind in _sample_facts([*stated_facts, *[asked_fact] * answerable], num_sentences, random):
        before, answer, after = make_sentence(kind, subject, facts_by_subject[subject][kind], random)
        context += " " if context else ""
        start = len(context) + len(before) if (subject, kind) == asked_fact else start
        context += before + answer + after
    answers = {"text": [facts_by_subject[asked_fact[0]][asked_fact[1]]], "answer_start": [start]}
    return {
        "id": f"{split_name}-{index}",
        "context": context,
        "question": _draw_phrase(PHRASES[asked_fact[1]][1], asked_fact[0], random),
        "answers": answers if answerable else {"text": [], "answer_start": []},
    }


def make_sentence(kind: str, subject: str, answer: str, random: np.random.Generator) -> tuple[str, str, str]:
    """Return a sentence that states a fact: the text before the answer, the answer, the text after it.

    Args:
        kind: kind of fact, a key of :data:`PHRASES`.
        subject: name of the territory.
        answer: answer that the sentence states.
        random: generator that chooses the phrase.
    """
    before, _, after = _draw_phrase(PHRASES[kind][0], subject, random).partition(ANSWER)
    return before, answer, after


def _draw_phrase(phrases: Sequence[str], subject: str, random: np.random.Generator) -> str:
    """Draw one of the phrases, and insert the subject."""
    return phrases[random.integers(len(phrases))].replace(SUBJECT, subject)


def _sample_facts(facts: Sequence[tuple[str, str]], count: int, random: np.random.Generator) -> list[tuple[str, str]]:
    """Return at most ``count`` of the facts, in random order."""
    return [facts[index] for index in random.permutation(len(facts))[:count]]


def _is_short(name: str) -> bool:
    """Return whether a name is short and has no parenthesis, so that it fits a sentence."""
    return len(name) <= LONGEST_NAME and "(" not in name


def _territory_facts(code: str, locale: Any, english: Any) -> dict[str, str]:
    """Return the answer of each kind of fact (:data:`PHRASES`) in CLDR, for one territory in one language.

    Args:
        code: code of the territory, such as ``DE``.
        locale: CLDR data of the language.
        english: CLDR data of English.
    """
    from babel.core import get_global
    from babel.dates import format_date

    facts: dict[str, Any] = {"code": code}
    if english.territories[code] != locale.territories[code]:
        facts["english"] = english.territories[code]
    tender = [entry for entry in get_global("territory_currencies").get(code, []) if entry[3]]
    current_currencies = [entry for entry in tender if entry[2] is None and entry[1]]
    former_currencies = [entry for entry in tender if entry[2] is not None]
    if current_currencies:
        facts["currency"] = locale.currencies.get(current_currencies[0][0])
        facts["since"] = format_date(date(*current_currencies[0][1]), "long", locale=locale)
    if former_currencies:
        facts["former"] = locale.currencies.get(former_currencies[-1][0])
    languages = get_global("territory_languages").get(code, {})
    sorted_languages = sorted(languages, key=lambda language: -languages[language]["population_percent"])
    language_names = [locale.languages[language] for language in sorted_languages if language in locale.languages]
    facts |= dict(zip(("language", "second_language"), language_names, strict=False))
    if len(zones := get_global("territory_zones").get(code, [])) == 1:
        facts["zone"] = zones[0].rpartition("/")[2].replace("_", " ")
    return {kind: str(answer) for kind, answer in facts.items() if answer and _is_short(str(answer))}
