"""Names of labels and the order of their ids: as in the data, or as ``data.label_names`` says."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from toolkit.recipe.recipe import Recipe

#: Prefix of the column of a label's probability in a predictions file; the label follows.
PROBABILITY_OF = "probability_"

KEY = "data.label_names"
#: A label that is a whole number, written as text or not.
WHOLE = re.compile(r"-?[0-9]{1,18}")


def named(recipe: Recipe, values: Collection[int | str]) -> dict[int | str, str]:
    """Return stored label -> its name, in the order of the ids.

    Args:
        values: the labels of the training split.

    Raises:
        UserError: a label that ``data.label_names`` does not name.
    """
    given, numbered = recipe.data.label_names, _are_whole(values)
    if given is None:
        return {value: str(value) for value in sorted(values, key=_in_order(numbered))}
    if isinstance(given, list):
        names = {str(index): name for index, name in enumerate(given)} if numbered else {name: name for name in given}
    else:
        names = {label.strip(): name for label, name in given.items()}
    as_text = {str(value): value for value in values}
    _refuse_unnamed(recipe, as_text, names)
    integers = all(isinstance(value, int) for value in values)
    found: dict[int | str, str] = {}
    for text, name in names.items():
        if text not in as_text:
            if integers and not WHOLE.fullmatch(text):
                message = f"the data has no label {text}, its labels are whole numbers: {listed(sorted(as_text))}"
                raise recipe.error((*KEY.split("."), text), message)
            recipe.found.note(f"no row of the train split has the label {text}{f' ({name})' if name != text else ''}")
        found[as_text.get(text, int(text) if integers else text)] = name
    if isinstance(given, list):
        return found
    return {value: found[value] for value in sorted(found, key=_in_order(_are_whole(found)))}


def renamed(recipe: Recipe, own: dict[int | str, str]) -> dict[int | str, str]:
    """Return id -> name for data whose labels have names; ``data.label_names`` may rename them.

    Raises:
        UserError: it does not name exactly these labels.
    """
    given = recipe.data.label_names
    if given is None:
        return own
    if isinstance(given, list):
        if len(given) != len(own):
            message = f"{len(given)} names; the data has {len(own)} labels: {listed(own.values())}"
            raise recipe.error(KEY, message)
        given = dict(zip(own.values(), given, strict=True))
    _refuse_unnamed(recipe, own.values(), given)
    if strange := [text for text in given if text not in own.values()]:
        message = f"the data has no label of this name; it has {listed(own.values())}"
        raise recipe.error((*KEY.split("."), strange[0]), message)
    return {index: given[name] for index, name in own.items()}


def ids_by_name(names: Mapping[int | str, str]) -> tuple[dict[int | str, int], list[str]]:
    """Return stored label -> its id, and the names in the order of the ids; labels of one name share an id."""
    unique = list(dict.fromkeys(names.values()))
    positions = {name: index for index, name in enumerate(unique)}
    return {value: positions[name] for value, name in names.items()}, unique


def note_similar(recipe: Recipe, names: Sequence[str]) -> None:
    """Note the labels that differ only by capitals, blanks or the encoding of a letter, and the key that joins them."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(" ".join(unicodedata.normalize("NFKC", name).casefold().split()), []).append(name)
    if similar := [group for group in groups.values() if len(group) > 1]:
        more = "; ..." * (len(similar) > 3)
        examples = "; ".join(", ".join(map(repr, group[:4])) for group in similar[:3]) + more
        how = f"to join them, give them one name in {KEY} ({{{similar[0][0]}: NAME, {similar[0][1]}: NAME, ...}})"
        recipe.found.note(f"labels that differ only by capitals or blanks are different labels: {examples}; {how}")


def listed(names: Iterable[str], most: int = 12) -> str:
    """Join the first names, and say how many more there are."""
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _refuse_unnamed(recipe: Recipe, labels: Iterable[str], names: Mapping[str, str]) -> None:
    unnamed = sorted(label for label in labels if label not in names)
    if unnamed:
        more = f" (nor {listed(unnamed[1:])})" if unnamed[1:] else ""
        message = f"does not name the label {unnamed[0]}{more}, which the data has; named: {listed(names)}"
        raise recipe.error(KEY, message)


def _are_whole(values: Iterable[int | str]) -> bool:
    return all(isinstance(value, int) or WHOLE.fullmatch(value) for value in values)


def _in_order(numbered: bool) -> Any:
    """Sort key of labels: by number where all are whole numbers, else by letter."""
    return (lambda value: (int(value), str(value))) if numbered else None
