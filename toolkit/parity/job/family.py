"""The gate's knowledge about model families, and about any pair of a port and a reference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from models.families import part
from toolkit.machine.memory import count_parameters
from toolkit.parity.job.family_part import family_part

#: Models with more parameters than this are large: some are compared stage by stage, since whole they would take each
#: worker about 60 bytes per parameter; of others less is compared (:attr:`.job.Job.brief`).
LARGE_ABOVE = 10**8


class Defaults(NamedTuple):
    """Default configuration of a comparison, which the command line can override.

    Attributes:
        batch_size: an odd number, so that B * T is not a multiple of 128, the number of rows that
            :mod:`models.operations.ops` sums at a time.
    """

    head: str
    layers: int
    length: int
    batch_size: int


class BenchSettings(NamedTuple):
    """Settings of `toolkit bench` for a family.

    Attributes:
        defaults: default configuration, which the command line can override.
        lengths, depths: text lengths and numbers of layers of ``--all``.
        tokenizer: the kind that is trained, of the family's ``TRAINERS``, and its pieces.
        overrides: that make a gate as small as the other measurements.
        paddlenlp: classes of PaddleNLP's configuration and model, and the keys that it takes; empty if it cannot
            train.
    """

    defaults: Defaults
    lengths: list[int]
    depths: list[int]
    tokenizer: tuple[str, int]
    overrides: Mapping[str, Any] = {}
    paddlenlp: tuple[str, ...] = ()


class TokenizerKind(NamedTuple):
    """A kind of tokenizer that a Hugging Face folder may hold.

    Attributes:
        kind: of :class:`.job.TokenizerJob`.
        name: the port's class, of ``models/FAMILY/tokenizer.py``.
        reader: its method that reads the files.
        files: names of the files that identify the tokenizer and define its output.
        holds: function that returns whether a folder holds the tokenizer without these files.
        offsets: whether the reference gives each token's characters.
    """

    kind: str
    name: str
    reader: str = "from_folder"
    files: tuple[str, ...] = ()
    holds: Callable[[Path], bool] | None = None
    offsets: bool = False

    def is_in(self, folder: Path) -> bool:
        """Return whether a folder holds it."""
        if self.holds is not None:
            return self.holds(folder)
        return all((folder / name).is_file() for name in self.files)


class Family:
    """Knowledge about any pair, which a family overrides.

    Attributes:
        recomputed: description of the parts that the port recomputes in its backward; empty if it keeps everything.
        pads_left: whether its tokenizers pad on the left, too.
    """

    recomputed = ""
    pads_left = False

    def __init__(self, name: str) -> None:
        self.name = name

    def keys(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the configuration that both workers get."""
        return dict(config)

    def pad_token_id(self, config: Mapping[str, Any]) -> int | None:
        """Return the padding token."""
        return None

    def is_large(self, config: Mapping[str, Any], head: str) -> bool:
        """Return whether it has more than :data:`LARGE_ABOVE` parameters."""
        return False

    def goes_by_stages(self, config: Mapping[str, Any], head: str) -> bool:
        """Return whether it is compared stage by stage by default."""
        return False

    def is_shown(self, name: str) -> bool:
        """Return whether the distance of the two sides over the depth is shown by this tensor."""
        return False


class PortedFamily(Family):
    """A family of this project: ``models/NAME`` has its schema and its weights.

    Attributes:
        defaults: of the command line.
        tokenizers: kinds of its tokenizers, in the order of their search in a folder.
        attentions: by the names that ``--attention`` takes, kinds of attention that alternate over the layers; by
            default the first.
        smaller: of overrides that make a model small.
        last_maps: endings of the path of each block's last linear map.
        short_names: path prefix -> displayed short name.
        bench: settings of `toolkit bench`; None if it is not measured.
        own_backward: whether the reference has its own backward besides plain autograd.
        example: of an override of its configuration.
    """

    defaults: Defaults
    tokenizers: tuple[TokenizerKind, ...] = ()
    attentions: Mapping[str, list[str]] = {}
    bench: BenchSettings | None = None
    own_backward = False
    example = ""
    smaller = ""
    last_maps: tuple[str, ...] = ()
    short_names: Mapping[str, str] = {}

    def resolve_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the configuration with its defaults. Raises ConfigError if it cannot be."""
        return part(self.name, "schema").resolve(config)

    def keys(self, config: Mapping[str, Any]) -> dict[str, Any]:
        keys = self.resolve_config(config)
        for key in ("label2id", "id2label"):  # they follow from num_labels
            keys.pop(key, None)
        return keys

    def pad_token_id(self, config: Mapping[str, Any]) -> int | None:
        return self.resolve_config(config)["pad_token_id"]

    def is_large(self, config: Mapping[str, Any], head: str) -> bool:
        return count_parameters(self.name, self.resolve_config(config), head) > LARGE_ABOVE

    def chunk_length(self, config: Mapping[str, Any]) -> int:
        """Tokens that its attention takes together."""
        return 1

    def made_up(self, head: str, attention: str, layers: int, length: int) -> dict[str, Any]:
        """A configuration of its usual layout, without the keys that follow from the length. ``attention`` is one of
        :attr:`attentions`."""
        raise NotImplementedError

    def bench_config(self, layers: int, length: int) -> dict[str, Any]:
        """Return the configuration that `toolkit bench` measures, without the keys that follow from the length."""
        raise NotImplementedError

    def keys_of_length(self, length: int) -> dict[str, Any]:
        """Return the keys of a synthetic configuration that follow from the length."""
        return {}

    def with_head(self, config: Mapping[str, Any], head: str) -> dict[str, Any]:
        """Return the configuration as a model with this head has it."""
        return dict(config)

    # -- stage by stage ---------------------------------------------------------------------------------------------

    def depth(self, config: Mapping[str, Any]) -> int:
        """Return the number of layers."""
        raise NotImplementedError

    def weights_of(self, stage: str, names: Iterable[str]) -> list[str]:
        """Which parameters belong to a forward stage of :mod:`.stages`."""
        raise NotImplementedError

    def stage_elements(self, config: Mapping[str, Any]) -> tuple[int, int]:
        """Parameters of the embedding, and of a layer."""
        raise NotImplementedError


def family(model: str) -> Family:
    """Return the knowledge about a model, by its name in a job."""
    return family_part(model, "family").FAMILY


def ported(model: str) -> PortedFamily:
    """Return the knowledge about a family of ``models.families.FAMILIES``."""
    model_family = family(model)
    assert isinstance(model_family, PortedFamily), model
    return model_family
