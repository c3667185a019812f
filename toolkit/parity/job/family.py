"""The gate's knowledge about each model family, and about pairs of a port and a reference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from models.families import part
from toolkit.machine.model_memory import MAX_PARAMETERS, count_parameters
from toolkit.parity.job.family_part import family_part


class Defaults(NamedTuple):
    """Default configuration of a family's comparison, which the command line can override.

    Attributes:
        head: head of the model.
        layers: number of layers.
        length: number of tokens T of each text.
        batch_size: number of texts B. It is odd, so that B * T is not a multiple of 128, the number of rows that
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
        lengths: text lengths in tokens that ``--all`` measures.
        depths: numbers of layers that ``--all`` measures.
        tokenizer: kind of the tokenizer that is trained, a key of the family's ``TRAINERS``, and its number of pieces.
        overrides: configuration keys that make the measured gate as small as the other measurements.
        paddlenlp: names of PaddleNLP's configuration class and model class, then the configuration keys that they
            accept; empty if PaddleNLP cannot train the family.
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
        kind: name of the kind in :class:`.job.TokenizerJob`.
        name: name of the port's class in ``models/FAMILY/tokenizer.py``.
        reader: name of the class's method that reads the files.
        files: names of the files that identify the tokenizer and define its output.
        holds: function that returns whether a folder holds a tokenizer that has no such files; None to look for
            ``files``.
        offsets: whether the reference returns the characters that each token stands for.
    """

    kind: str
    name: str
    reader: str = "from_folder"
    files: tuple[str, ...] = ()
    holds: Callable[[Path], bool] | None = None
    offsets: bool = False

    def is_in(self, folder: Path) -> bool:
        """Return whether a folder holds a tokenizer of this kind."""
        if self.holds is not None:
            return self.holds(folder)
        return all((folder / name).is_file() for name in self.files)


class Family:
    """Knowledge about any pair of a port and a reference, which the toolkit's families override.

    Args:
        name: name of the family, or :data:`.pair.PAIR`.

    Attributes:
        recomputed_parts: description of the parts that the port recomputes in its backward; empty for no parts.
        pads_left: whether the family's tokenizers can pad on the left, too.
    """

    recomputed_parts = ""
    pads_left = False

    def __init__(self, name: str) -> None:
        self.name = name

    def keys(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the configuration keys and values that both workers get.

        Args:
            config: configuration of the request.
        """
        return dict(config)

    def pad_token_id(self, config: Mapping[str, Any]) -> int | None:
        """Return the id of the padding token in a configuration; None without such a token."""
        return None

    def is_large(self, config: Mapping[str, Any], head: str) -> bool:
        """Return whether a model with this configuration and head has more than :data:`MAX_PARAMETERS`."""
        return False

    def is_compared_by_stages(self, config: Mapping[str, Any], head: str) -> bool:
        """Return whether a model with this configuration and head is compared stage by stage by default."""
        return False

    def is_shown(self, name: str) -> bool:
        """Return whether the report's figure of errors over the depth shows the tensor of this name."""
        return False


class PortedFamily(Family):
    """A family of this project, whose schema and weights are in ``models/NAME``.

    Attributes:
        defaults: default configuration of the command line.
        tokenizers: kinds of tokenizers, in the order of their search in a folder.
        attentions: kinds of attention that alternate over the layers, by the value of ``--attention``. The first value
            is the default.
        smaller: example of overrides that make a model small, for messages.
        last_maps: endings of the path of each block's last linear map.
        short_names: short names for the report, by the prefix of the path that each replaces.
        bench: settings of `toolkit bench`; None if the family is not measured.
        own_backward: whether the reference has its own backward in addition to plain autograd.
        example: example of an override of the configuration, for messages.
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
        """Return the complete configuration, with the default of each key that ``config`` lacks.

        Raises:
            ConfigError: the configuration is not valid.
        """
        return part(self.name, "schema").resolve(config)

    def keys(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the resolved configuration without the label mappings, which follow from ``num_labels``."""
        keys = self.resolve_config(config)
        for key in ("label2id", "id2label"):  # they follow from num_labels
            keys.pop(key, None)
        return keys

    def pad_token_id(self, config: Mapping[str, Any]) -> int | None:
        """Return the id of the padding token in a configuration; None if there is none."""
        return self.resolve_config(config)["pad_token_id"]

    def is_large(self, config: Mapping[str, Any], head: str) -> bool:
        """Return whether a model has too many parameters to be kept in memory several times."""
        return count_parameters(self.name, self.resolve_config(config), head) > MAX_PARAMETERS

    def chunk_length(self, config: Mapping[str, Any]) -> int:
        """Return the number of tokens in a chunk of attention; 1 for attention without chunks."""
        return 1

    def make_synthetic_config(self, head: str, attention: str, layers: int, length: int) -> dict[str, Any]:
        """Return a synthetic configuration of the family's usual layout, without the keys that follow from the length.

        Args:
            head: head of the model.
            attention: kind of attention, a key of :attr:`attentions`.
            layers: number of layers.
            length: number of tokens of each text.
        """
        raise NotImplementedError

    def bench_config(self, layers: int, length: int) -> dict[str, Any]:
        """Return the configuration that `toolkit bench` measures, without the keys that follow from the length.

        Args:
            layers: number of layers.
            length: number of tokens of each text.
        """
        raise NotImplementedError

    def keys_of_length(self, length: int) -> dict[str, Any]:
        """Return the keys of a synthetic configuration that follow from the length of the texts.

        Args:
            length: number of tokens of each text.
        """
        return {}

    def with_head(self, config: Mapping[str, Any], head: str) -> dict[str, Any]:
        """Return a configuration as a model with another head has it."""
        return dict(config)

    # -- stage by stage ---------------------------------------------------------------------------------------------

    def depth(self, config: Mapping[str, Any]) -> int:
        """Return the number of layers of a model with this configuration."""
        raise NotImplementedError

    def weights_of(self, stage: str, names: Iterable[str]) -> list[str]:
        """Return the names of the parameters that belong to a forward stage of a comparison stage by stage.

        Args:
            stage: name of the stage (:mod:`.stages`).
            names: names of all parameters.
        """
        raise NotImplementedError

    def stage_elements(self, config: Mapping[str, Any]) -> tuple[int, int]:
        """Return the number of parameters of the embedding, and of one layer."""
        raise NotImplementedError


def family(model: str) -> Family:
    """Return the gate's knowledge about a model family or about pairs.

    Args:
        model: name of the family, or :data:`.pair.PAIR`.
    """
    return family_part(model, "family").FAMILY


def ported_family(model: str) -> PortedFamily:
    """Return the gate's knowledge about a family of this project.

    Args:
        model: name of the family, one of ``models.families.FAMILIES``.
    """
    model_family = family(model)
    assert isinstance(model_family, PortedFamily), model
    return model_family
