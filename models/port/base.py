"""Base classes of all ports: configuration and model, loaded and saved in Hugging Face's layout.

Both are subclasses of PaddleNLP's classes. The output classes of the heads are re-exported here.
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
from models.files.tensor_file import LazyArrays
from models.files.writing import replace_tensors, write_json
from models.port.lora import LoRA, adapter_parameters, merge_weights
from models.port.paddlenlp_entry import PretrainedConfig, PretrainedModel
from models.port.paddlenlp_entry import model_outputs as model_outputs
from models.port.weights import Parameter, load, parameter_values

if TYPE_CHECKING:
    from typing_extensions import Self

#: File with the constants that replace a model's computed constants.
CONSTANTS = "constants.safetensors"
#: File with the default settings of text generation in `transformers`, the same as in ``toolkit generate``.
GENERATION_FILE = "generation_config.json"
#: Maximum bytes of one checkpoint file, as in `transformers`.
SHARD_BYTES = 5 * 10**9


class PortConfig(PretrainedConfig):
    """Configuration of a port: Hugging Face's keys of its family, and the settings of the port.

    Raises:
        models.port.schema.ConfigError: a key is unknown, or its value is not supported.
    """

    def __init__(self, **keys: Any) -> None:
        super().__init__(**part(self.model_type, "schema").resolve(keys))

    @classmethod
    def from_pretrained(cls, folder_or_id: str | os.PathLike, *, revision: str | None = None, **overrides: Any) -> Self:
        """Load the configuration of a Hugging Face folder or hub repository.

        Args:
            folder_or_id: folder, or name of a repository on the hub.
            revision: branch, tag, ``refs/pr/N`` or commit of the hub repository; None for its main branch.
            overrides: configuration keys that replace the stored keys.

        Raises:
            FileNotFoundError: ``config.json`` is missing, or the hub does not provide it
                (:class:`models.files.hub_errors.HubError`).
            models.port.schema.ConfigError: a key is unknown, or its value is not supported.
        """
        keys = read_object(resolve_folder(folder_or_id, revision) / "config.json")
        if "num_labels" in overrides or "id2label" in overrides:
            keys = {key: value for key, value in keys.items() if key not in ("num_labels", "id2label", "label2id")}
        return cls(**{**keys, **overrides})

    def to_hf(self) -> dict[str, Any]:
        """Return the honored keys as in a Hugging Face ``config.json``."""
        defaults = part(self.model_type, "schema").DEFAULTS
        keys = {key: getattr(self, key) for key in defaults if key != "num_labels"}
        keys["id2label"] = {str(index): name for index, name in self.id2label.items()}
        return {**keys, "model_type": self.model_type}

    def save_pretrained(self, folder: str | os.PathLike, **_: Any) -> None:
        """Write a Hugging Face ``config.json`` into the folder."""
        keys = {**self.to_hf(), "architectures": self.architectures}
        write_json(folder, "config.json", keys, sort_keys=True)


class Port(PretrainedModel):
    """Base class of all models, with the parameter names, shapes and files of Hugging Face."""

    #: Name of the head in ``models/FAMILY/weights.py``; None for a model without a head.
    head: str | None = None
    #: Name of the reference's class, for ``config.json``.
    architecture: str = ""
    #: Whether a language model generates token by token with a cache (``begin``).
    has_cache = False
    #: Whether ``transformers`` generates the same tokens with its own cache.
    has_reference_cache = False
    #: Divisor of the positive logits of tokens that are already in the generated text.
    repetition_penalty = 1.0

    #: Weight of each label in the training loss of a classifier (:func:`models.operations.losses.classification`),
    #: (labels,); None for equal weights. The weights are not saved with the model.
    class_weights: np.ndarray | None = None
    #: Share of each label that the training loss of a classifier spreads over all labels.
    label_smoothing = 0.0
    #: Settings of the adapter from :func:`models.port.adapter.add_adapter`; None in a plain model.
    adapter: LoRA | None = None

    #: Constants from :meth:`hold_constants`, by the path of the attribute that holds them.
    given_constants: Mapping[str, np.ndarray] = MappingProxyType({})

    def hold_constants(self, constants: Mapping[str, np.ndarray]) -> None:
        """Replace constants of the model by values that were computed elsewhere, and save them with the model.

        Args:
            constants: new values by the path of the attribute, such as ``transformer.pos_encoding``.

        Raises:
            ValueError: the model has no such constant, or its shape or dtype differs.
        """
        for name, value in constants.items():
            *path, attribute = name.split(".")
            owner: Any = functools.reduce(lambda owner, part: getattr(owner, part, None), path, cast(Any, self))
            old_value = getattr(owner, attribute, None)
            if not isinstance(old_value, np.ndarray):
                raise ValueError(f"{name}: the model has no such constant")
            if (old_value.shape, old_value.dtype) != (value.shape, value.dtype):
                difference = f"{value.dtype} {value.shape}, but the model has {old_value.dtype} {old_value.shape}"
                raise ValueError(f"{name}: {difference}")
            setattr(owner, attribute, value)
        self.given_constants = dict(constants)

    @property
    def loss_settings(self) -> tuple[np.ndarray | None, float]:
        """:attr:`class_weights` and :attr:`label_smoothing` in training, and no effect of either in evaluation."""
        return (self.class_weights, self.label_smoothing) if self.training else (None, 0.0)

    def state_to_save(self) -> tuple[PortConfig, Mapping[str, np.ndarray]]:
        """Return the configuration and the weights that :meth:`save_pretrained` writes.

        The weights have Hugging Face's names and layout and are computed on access. The updates of an adapter are
        merged into them.
        """
        weights = parameter_values(self)
        return self.config, weights if self.adapter is None else merge_weights(weights, self.adapter)

    @property
    def parameter_table(self) -> dict[str, Parameter]:
        """Parameters that the model must have, by name, including an adapter's."""
        table = part(self.config.model_type, "weights").parameters(self.config, self.head)
        return table if self.adapter is None else {**table, **adapter_parameters(table, self.adapter)}

    def _init_weights(self, layer: nn.Layer) -> None:
        """Initialize all weights of the model, with a seed from Paddle's generator."""
        if layer is self and self.head is not None:
            seed = int(paddle.randint(0, 2**31 - 1, [1]))
            load(self, part(self.config.model_type, "weights").initial_values(self.config, self.head, seed))

    @classmethod
    def from_pretrained(
        cls, folder_or_id: str | os.PathLike, *_: Any, revision: str | None = None, seed: int = 0, **overrides: Any
    ) -> Self:
        """Load a model from a Hugging Face folder or hub repository with ``config.json`` and safetensors.

        Parameters of a head that the checkpoint lacks are initialized and listed in ``new_weights``.

        Args:
            folder_or_id: folder, or name of a repository on the hub.
            revision: branch, tag, ``refs/pr/N`` or commit of the repository; None for its main branch.
            seed: seed of the initialized parameters.
            overrides: configuration keys that replace the stored keys.

        Raises:
            FileNotFoundError: the folder, the repository (:class:`models.files.hub_errors.HubError`) or the safetensors
                file does not exist.
            models.port.weights.WeightsError: the weights do not match the parameters one to one.
        """
        folder = resolve_folder(folder_or_id, revision)
        config = cls.config_class.from_pretrained(folder, **overrides)
        weights = part(config.model_type, "weights")
        # Check the checkpoint before the model is built: a model of wrong sizes could fill the memory.
        checkpoint_weights = weights.select(read_tensors(folder), config, cls.head)
        model = cls(config)
        initial_values = weights.initial_values(config, cls.head, seed)
        new_weights = {name: initial_values[name] for name in initial_values if name not in checkpoint_weights}
        model.new_weights = list(new_weights)
        load(model, {**checkpoint_weights, **new_weights})
        if os.path.lexists(constants_path := folder / CONSTANTS):
            with open_tensors(constants_path) as tensors:
                constants = {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118 - no mapping
            model.hold_constants(constants)
        return model

    def save_pretrained(self, save_dir: str | os.PathLike, *_: Any, shard_bytes: int = SHARD_BYTES, **__: Any) -> None:
        """Write a folder that ``transformers`` loads: ``config.json`` and safetensors.

        A language model also gets ``generation_config.json``. Constants from :meth:`hold_constants` are written to a
        separate file, which ``transformers`` ignores.

        Args:
            save_dir: folder, created if it does not exist.
            shard_bytes: maximum bytes of a safetensors file; larger weights get several files and an index.
        """
        folder = Path(save_dir)
        folder.mkdir(parents=True, exist_ok=True)
        config, weights = self.state_to_save()
        config.architectures = [self.architecture]
        config.save_pretrained(folder)
        if self.head == "causal_lm":
            length = part(config.model_type, "schema").max_positions(config.to_hf())
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
            tensors = LazyArrays({name: functools.partial(weights.__getitem__, name) for name in names})
            replace_tensors(folder / file, tensors, {"format": "pt"})
        if self.given_constants:
            save_file(dict(self.given_constants), folder / CONSTANTS)
        if plan.is_sharded:
            index = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
            write_json(folder, "model.safetensors.index.json", index)
