"""What a run is asked, checked field by field, and what it answers: the same as for the rows of a file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model
from pydantic_core import PydanticCustomError

from toolkit.commands.generate import control_token, make_decoding, trained_codes
from toolkit.commands.generate_file import continue_prompts
from toolkit.commands.label_file import AdvanceFn, read_columns
from toolkit.tasks.interface import LabeledRows, Run
from toolkit.tasks.language_modeling.decoding import longest_text
from toolkit.tasks.language_modeling.task import has_control_codes

#: Most texts of a request, new tokens of each, and beams.
TEXTS, TOKENS, BEAMS = 64, 1024, 16
#: New tokens, if a request does not say how many and the model has room.
LENGTH = 100


@dataclass(frozen=True)
class Service:
    """What a run does for a request.

    Attributes:
        path: where it is asked.
        texts: the fields that hold texts.
        request: all fields.
        answer: computes the answer to their values. The function that it is given is called again and again, and may
            stop it.
        codes: control codes.
    """

    path: str
    texts: tuple[str, ...]
    request: type[BaseModel]
    answer: Callable[[dict[str, Any], AdvanceFn], dict[str, Any]]
    codes: Sequence[str] = ()


def service_of(run: Run) -> Service:
    """Return what a run does."""
    return _prediction(run) if run.task.ROW_COLUMNS else _generation(run)


def _not_blank(text: str) -> str:
    if not text.strip():
        raise PydanticCustomError("blank", "Input should be a text, and is blank")
    return text


#: One text, or several.
Texts = Annotated[
    list[Annotated[str, AfterValidator(_not_blank)]],
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    Field(min_length=1, max_length=TEXTS),
]


class _Request(BaseModel):
    """Nothing is converted: a number in quotation marks is a text."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    def model_post_init(self, context: Any) -> None:
        counts = {name: len(value) for name, value in self if isinstance(value, list)}
        if len(set(counts.values())) > 1:
            given = " and ".join(f"{count} of {name}" for name, count in counts.items())
            raise PydanticCustomError("unequal", "Input has {given}; each needs the others", {"given": given})


def errors_of(problem: ValidationError) -> str:
    """The first errors in a line: ``text[3]: Input should be a valid string``."""
    lines = []
    for error in problem.errors(include_url=False)[:3]:
        place = "".join(f"[{part}]" if isinstance(part, int) else str(part) for part in error["loc"])
        lines.append(f"{place}: {error['msg']}" if place else error["msg"])
    return "; ".join(lines)


def in_json(line: str) -> str:
    """Return a message about options in the words of a request, whose fields have the options' names."""
    return re.sub(r"--([a-z][a-z-]*)", lambda option: option[1].replace("-", "_"), line)


def _notes(labelled: LabeledRows) -> dict[str, list[int]]:
    """What is to be known about some of the texts -> their places, from 0."""
    return {in_json(what): places for what, places in labelled.notes.items() if places}


def _prediction(run: Run) -> Service:
    """For each text what a row of ``toolkit predict --output`` has; several labels are a list."""
    texts, names = tuple(read_columns(run.recipe, run.task)), list(run.task.prediction_columns(run))
    fields: Any = {name: (Texts, ...) for name in texts}

    def answer(asked: dict[str, Any], advance: AdvanceFn) -> dict[str, Any]:
        labelled = run.task.label_rows(run, asked, advance)
        rows = [dict(zip(names, row, strict=True)) for row in zip(*labelled.columns, strict=True)]
        for row in rows:
            if "predicted_labels" in row:
                row["predicted_labels"] = json.loads(row["predicted_labels"])
        return {"predictions": rows, "notes": _notes(labelled)}

    return Service("/predict", texts, create_model("Texts", __base__=_Request, **fields), answer)


def _generation(run: Run) -> Service:
    """The new text after each prompt; the second has the next seed, as a row of ``toolkit generate --prompts``."""
    known = trained_codes(run) if has_control_codes(run.recipe.model.name) else []
    codes = {code: control_token(run, code) for code in known}
    fields: Any = {
        "prompt": (Texts, [""] if known else ...),
        **({"control": (Literal[tuple(known)], known[0])} if known else {}),
        "length": (int, Field(min(LENGTH, longest_text(run.model) // 2), ge=1, le=TOKENS)),
        "temperature": (float | None, Field(None, gt=0)),
        "top_k": (int | None, Field(None, ge=1)),
        "top_p": (float | None, Field(None, gt=0, le=1)),
        "repetition_penalty": (float | None, Field(None, gt=0)),
        "beams": (int, Field(1, ge=1, le=BEAMS)),
        "stop": (str | None, None),
        "seed": (int, Field(0, ge=0, lt=2**63)),
    }

    def answer(asked: dict[str, Any], advance: AdvanceFn) -> dict[str, Any]:
        prompts, control = asked.pop("prompt"), asked.pop("control", None)
        decoding = make_decoding(run, **asked)
        seeds = [decoding.seed + place for place in range(len(prompts))]
        labelled = continue_prompts(run, codes.get(control, []), prompts, seeds, decoding, advance)
        return {"generated_texts": labelled.columns[0], "notes": _notes(labelled)}

    return Service("/generate", ("prompt",), create_model("Prompts", __base__=_Request, **fields), answer, known)
