"""The base of every port: loading and saving in Hugging Face's layout, for PaddleNLP's users and ours.

The heads' output classes are re-exported here.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import paddle
from huggingface_hub.serialization import split_state_dict_into_shards_factory
from paddle import nn
from safetensors.numpy import save_file

from models.families import part
from models.files.hub import read_tensors, resolve_folder
from models.files.plain import open_tensors, read_object
from models.files.tensor_file import OnDemand
from models.files.writing import replace_tensors, write_json
from models.port.lora import LoRA, merged, parameters
from models.port.paddlenlp_entry import PretrainedConfig, PretrainedModel
from models.port.paddlenlp_entry import model_outputs as model_outputs
from models.port.weights import Parameter, load, values_of

if TYPE_CHECKING:
    from typing_extensions import Self

#: File of the constants that a model was given.
CONSTANTS = "constants.safetensors"
#: Makes `transformers` generate with a language model as ``toolkit generate`` does, by default.
GENERATION_FILE = "generation_config.json"
#: A larger checkpoint is saved in several files, as transformers does.
SHARD_BYTES = 5 * 10**9


class PortConfig(PretrainedConfig):
    """A family's Hugging Face configuration keys, each honoured or rejected by name, plus the port's settings. Raises
    :class:`models.port.schema.ConfigError` for an unknown key or a wrong value; ``.key`` names it."""

    def __init__(self, **keys: Any) -> None:
        super().__init__(**part(self.model_type, "schema").resolve(keys))

    @classmethod
    def from_pretrained(cls, folder_or_id: str | os.PathLike, *, revision: str | None = None, **overrides: Any) -> Self:
        """The configuration in a Hugging Face folder or hub repository, with ``overrides`` on top.

        Args:
            revision: a branch, tag, ``refs/pr/N`` or commit of the hub repository; None for its main branch.

        Raises:
            FileNotFoundError: no ``config.json`` there; of a hub repository, :class:`models.files.hub_errors.HubError`.
            models.port.schema.ConfigError: as the constructor.
        """
        stored = read_object(resolve_folder(folder_or_id, revision) / "config.json")
        if "num_labels" in overrides or "id2label" in overrides:
            stored = {key: value for key, value in stored.items() if key not in ("num_labels", "id2label", "label2id")}
        return cls(**{**stored, **overrides})

    def to_hf(self) -> dict[str, Any]:
        """The honoured keys as a Hugging Face ``config.json`` holds them."""
        defaults = part(self.model_type, "schema").DEFAULTS
        keys = {key: getattr(self, key) for key in defaults if key != "num_labels"}
        keys["id2label"] = {str(index): name for index, name in self.id2label.items()}
        return {**keys, "model_type": self.model_type}

    def save_pretrained(self, folder: str | os.PathLike, **_: Any) -> None:
        """Write ``config.json`` into ``folder``, in Hugging Face's form."""
        keys = {**self.to_hf(), "architectures": self.architectures}
        write_json(folder, "config.json", keys, sort_keys=True)


class Port(PretrainedModel):
    """A model whose parameters are named, shaped and saved as Hugging Face's."""

    #: The head's name in the family's :mod:`weights`; None for the bare body.
    head: str | None = None
    #: The name of the reference's class, for ``config.json``.
    architecture: str = ""
    #: Of a language model: whether it goes on token by token from what it has kept (``begin``).
    has_cache = False
    #: Whether ``transformers`` with its own cache then says the same.
    has_reference_cache = False
    #: Of a language model: in generation, divides the positive logits of tokens that are already in the text.
    repetition_penalty = 1.0

    #: Of a classifier: weight of each label in the training loss
    #: (:func:`models.operations.losses.classification`); None for equal weights. Not saved with the model.
    class_weights: np.ndarray | None = None
    #: Likewise the share of each label that is spread over all.
    label_smoothing = 0.0
    #: The adapter that :func:`models.port.adapter.adapt` put in; None in a plain model.
    adapter: LoRA | None = None

    #: Given to :meth:`hold_constants`.
    given_constants: Mapping[str, np.ndarray] = MappingProxyType({})

    def hold_constants(self, constants: Mapping[str, np.ndarray]) -> None:
        """Replace the model's constants by others that were computed elsewhere. They are saved with the model.
        ``constants`` maps the path of a NumPy array attribute to its value. Raises ValueError for another shape or
        dtype than the model's own."""
        for name, value in constants.items():
            *path, attribute = name.split(".")
            owner: Any = functools.reduce(lambda owner, part: getattr(owner, part, None), path, cast(Any, self))
            own = getattr(owner, attribute, None)
            if not isinstance(own, np.ndarray):
                raise ValueError(f"{name}: the model has no such constant")
            if (own.shape, own.dtype) != (value.shape, value.dtype):
                raise ValueError(f"{name}: {value.dtype} {value.shape}, but the model has {own.dtype} {own.shape}")
            setattr(owner, attribute, value)
        self.given_constants = dict(constants)

    @property
    def loss_settings(self) -> tuple[np.ndarray | None, float]:
        """:attr:`class_weights` and :attr:`label_smoothing` in training; neither in evaluation."""
        return (self.class_weights, self.label_smoothing) if self.training else (None, 0.0)

    def stored(self) -> tuple[PortConfig, Mapping[str, np.ndarray]]:
        """Return the configuration and weights that :meth:`save_pretrained` writes, in Hugging Face's names and layout.
        An adapted model gives those of the equivalent plain model. Each weight is made on access."""
        weights = values_of(self)
        return self.config, weights if self.adapter is None else merged(weights, self.adapter)

    @property
    def table(self) -> dict[str, Parameter]:
        """Parameters that the model must have, by name."""
        table = part(self.config.model_type, "weights").parameters(self.config, self.head)
        return table if self.adapter is None else {**table, **parameters(table, self.adapter)}

    def _init_weights(self, layer: nn.Layer) -> None:
        """Draw new weights (the family's ``initial_weights``), seeded by Paddle's generator."""
        if layer is self and self.head is not None:
            seed = int(paddle.randint(0, 2**31 - 1, [1]))
            load(self, part(self.config.model_type, "weights").initial_values(self.config, self.head, seed))

    @classmethod
    def from_pretrained(
        cls, folder_or_id: str | os.PathLike, *_: Any, revision: str | None = None, seed: int = 0, **overrides: Any
    ) -> Self:
        """Load a Hugging Face folder or hub repository (``config.json`` and safetensors, sharded or not).

        Args:
            folder_or_id: a folder, or a repository's name on the hub.
            revision: a branch, tag, ``refs/pr/N`` or commit of the repository; None for its main branch.
            seed: for the parameters of a head that the checkpoint does not have; they are listed in ``.new_weights``.
            overrides: configuration keys.

        Raises:
            FileNotFoundError: no such folder or repository (:class:`models.files.hub_errors.HubError`), or no
                safetensors in it.
            models.port.weights.WeightsError: the weights do not fit one to one.
        """
        folder = resolve_folder(folder_or_id, revision)
        config = cls.config_class.from_pretrained(folder, **overrides)
        weights = part(config.model_type, "weights")
        found = weights.select(read_tensors(folder), config, cls.head)  # first: wrong sizes would fill the memory
        model = cls(config)
        initial = weights.initial_values(config, cls.head, seed)
        new = {name: initial[name] for name in initial if name not in found}
        model.new_weights = list(new)
        load(model, {**found, **new})
        if os.path.lexists(stored := folder / CONSTANTS):
            with open_tensors(stored) as tensors:
                constants = {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118 - no mapping
            model.hold_constants(constants)
        return model

    def save_pretrained(self, save_dir: str | os.PathLike, *_: Any, shard_bytes: int = SHARD_BYTES, **__: Any) -> None:
        """Write ``config.json`` and safetensors into ``save_dir``, as ``transformers`` reads them, and for a language
        model ``generation_config.json``. Constants from :meth:`hold_constants` go to a file of their own, which
        ``transformers`` ignores.

        Args:
            shard_bytes: larger weights are split into several files with an index.
        """
        folder = Path(save_dir)
        folder.mkdir(parents=True, exist_ok=True)
        config, weights = self.stored()
        config.architectures = [self.architecture]
        config.save_pretrained(folder)
        if self.head == "causal_lm":
            length = part(config.model_type, "schema").positions(config.to_hf())
            generation = {"do_sample": False, "max_length": length, "pad_token_id": config.pad_token_id}
            if self.repetition_penalty != 1.0:
                generation["repetition_penalty"] = self.repetition_penalty
            if not self.has_reference_cache:
                generation["use_cache"] = False
            write_json(folder, GENERATION_FILE, generation)
        plan = split_state_dict_into_shards_factory(
            {name: value.nbytes for name, value in weights.items()},
            get_storage_size=int,
            filename_pattern="model{suffix}.safetensors",
            max_shard_size=shard_bytes,
        )
        for file, names in plan.filename_to_tensors.items():
            tensors = OnDemand({name: functools.partial(weights.__getitem__, name) for name in names})
            replace_tensors(folder / file, tensors, {"format": "pt"})
        if self.given_constants:
            save_file(dict(self.given_constants), folder / CONSTANTS)
        if plan.is_sharded:
            index = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
            write_json(folder, "model.safetensors.index.json", index)
