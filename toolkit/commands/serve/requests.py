"""The requests to a run, checked field by field, and its answers, the same as for the rows of a file."""

from __future__ import annotations

import contextlib
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
from toolkit.errors import UserError
from toolkit.tasks.interface import LabeledRows, Run
from toolkit.tasks.language_modeling.decoding import max_text_length
from toolkit.tasks.language_modeling.task import has_control_codes

#: Maximum number of texts in a request, of new tokens for each text, and of beams.
MAX_TEXTS, MAX_NEW_TOKENS, MAX_BEAMS = 64, 1024, 16
#: Default number of new tokens, if the model has enough positions.
DEFAULT_NEW_TOKENS = 100


@dataclass(frozen=True)
class Service:
    """The service of a run.

    Attributes:
        path: path of the address for requests.
        texts: names of the fields that hold texts.
        request: model of a request with all fields.
        answer: function that computes the answer from the values of the fields and a callback. It calls the callback
            repeatedly with the number of finished texts; an exception of the callback stops it.
        codes: control codes of the run.
    """

    path: str
    texts: tuple[str, ...]
    request: type[BaseModel]
    answer: Callable[[dict[str, Any], AdvanceFn], dict[str, Any]]
    codes: Sequence[str] = ()


def make_service(run: Run) -> Service:
    """Return the service of a run: predictions for texts, or text generation."""
    return _prediction_service(run) if run.task.ROW_COLUMNS else _generation_service(run)


def warm_up(service: Service) -> None:
    """Compute one short answer: the first answer of a process also compiles the loops that its model needs."""
    fields = service.request.model_validate({name: "the" for name in service.texts}).model_dump()
    fields |= {"length": 1} if "length" in fields else {}
    with contextlib.suppress(UserError):  # such as a text that this run does not accept
        service.answer(fields, lambda count: None)


def _not_blank(text: str) -> str:
    """Return a text, and reject one that is empty or has only whitespace."""
    if not text.strip():
        raise PydanticCustomError("blank", "Input should be a text, and is blank")
    return text


#: Type of a field with one text or a list of texts.
Texts = Annotated[
    list[Annotated[str, AfterValidator(_not_blank)]],
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    Field(min_length=1, max_length=MAX_TEXTS),
]


class _Request(BaseModel):
    """Base class of requests. Values are not converted, so a number in quotation marks is a text."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    def model_post_init(self, validation_context: Any) -> None:
        """Check that all lists of the request have the same length."""
        counts = {name: len(value) for name, value in self if isinstance(value, list)}
        if len(set(counts.values())) > 1:
            counts_text = " and ".join(f"{count} of {name}" for name, count in counts.items())
            raise PydanticCustomError("unequal", "Input has {given}; each needs the others", {"given": counts_text})


def describe_errors(validation_error: ValidationError) -> str:
    """Return the first errors in one line, such as ``text[3]: Input should be a valid string``."""
    lines = []
    for error in validation_error.errors(include_url=False)[:3]:
        location = "".join(f"[{part}]" if isinstance(part, int) else str(part) for part in error["loc"])
        lines.append(f"{location}: {error['msg']}" if location else error["msg"])
    return "; ".join(lines)


def options_to_fields(line: str) -> str:
    """Replace options of the command line in a message with the fields of a request: ``--top-k`` -> ``top_k``."""
    return re.sub(r"--([a-z][a-z-]*)", lambda option: option[1].replace("-", "_"), line)


def _notes_of_texts(labeled_rows: LabeledRows) -> dict[str, list[int]]:
    """Return description of a problem -> indices of the texts that have it, counted from 0."""
    return {options_to_fields(problem): indices for problem, indices in labeled_rows.notes.items() if indices}


def _prediction_service(run: Run) -> Service:
    """Return the service that predicts: for each text, the same values as in a row of ``toolkit predict --output``.

    Multiple labels are a list.
    """
    texts, names = tuple(read_columns(run.recipe, run.task)), list(run.task.prediction_columns(run))
    fields: Any = {name: (Texts, ...) for name in texts}

    def answer(fields: dict[str, Any], advance: AdvanceFn) -> dict[str, Any]:
        labels = run.task.label_rows(run, fields, advance)
        rows = [dict(zip(names, row, strict=True)) for row in zip(*labels.columns, strict=True)]
        for row in rows:
            if "predicted_labels" in row:
                row["predicted_labels"] = json.loads(row["predicted_labels"])
        return {"predictions": rows, "notes": _notes_of_texts(labels)}

    return Service("/predict", texts, create_model("Texts", __base__=_Request, **fields), answer)


def _generation_service(run: Run) -> Service:
    """Return the service that generates the text after each prompt.

    As with ``toolkit generate --prompts``, the seed of a prompt is the seed of the previous prompt plus 1.
    """
    control_codes = trained_codes(run) if has_control_codes(run.recipe.model.name) else []
    code_tokens = {code: control_token(run, code) for code in control_codes}
    fields: Any = {
        "prompt": (Texts, [""] if control_codes else ...),
        **({"control": (Literal[tuple(control_codes)], control_codes[0])} if control_codes else {}),
        "length": (int, Field(min(DEFAULT_NEW_TOKENS, max_text_length(run.model) // 2), ge=1, le=MAX_NEW_TOKENS)),
        "temperature": (float | None, Field(None, gt=0)),
        "top_k": (int | None, Field(None, ge=1)),
        "top_p": (float | None, Field(None, gt=0, le=1)),
        "repetition_penalty": (float | None, Field(None, gt=0)),
        "beams": (int, Field(1, ge=1, le=MAX_BEAMS)),
        "stop": (str | None, None),
        "seed": (int, Field(0, ge=0, lt=2**63)),
    }

    def answer(fields: dict[str, Any], advance: AdvanceFn) -> dict[str, Any]:
        prompts, control = fields.pop("prompt"), fields.pop("control", None)
        decoding = make_decoding(run, **fields)
        seeds = [decoding.seed + index for index in range(len(prompts))]
        labels = continue_prompts(run, code_tokens.get(control, []), prompts, seeds, decoding, advance)
        return {"generated_texts": labels.columns[0], "notes": _notes_of_texts(labels)}

    return Service(
        "/generate", ("prompt",), create_model("Prompts", __base__=_Request, **fields), answer, control_codes
    )
