"""Generate recipes with many kinds of errors by hypothesis, and run them in a worker process."""

from __future__ import annotations

import csv
import json
import os
import random
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st
from pydantic import BaseModel

from models.families import part
from toolkit.recipe import keys as recipe_keys
from toolkit.recipe import recipe as schema

#: A check that takes longer hangs. Training for a step also imports Paddle and reads data.
SECONDS = {False: 10.0, True: 240.0}

REFORMER = {
    "attn_layers": ["local", "lsh"], "hidden_size": 16, "num_attention_heads": 2, "attention_head_size": 8,
    "feed_forward_size": 16, "local_attn_chunk_length": 8, "local_num_chunks_after": 1, "lsh_attn_chunk_length": 8,
    "num_buckets": 4, "axial_pos_shape": [4, 8], "axial_pos_embds_dim": [4, 12], "vocab_size": 320,
}  # fmt: skip
CTRL = {"n_layer": 1, "n_embd": 8, "n_head": 2, "dff": 8, "n_positions": 32}
TRAIN = {"epochs": 1, "batch_size": 2, "learning_rate": 1e-3}

#: A small correct recipe of every task, on the files of :func:`write_data`.
BASES: dict[str, dict[str, Any]] = {
    "classification": {
        "model": {"config": REFORMER},
        "data": {"dataset": "csv", "files": {"train": "train.csv", "validation": "train.csv"}, "max_length": 32},
        "train": TRAIN,
    },
    "ctrl classification": {
        "model": {"name": "ctrl", "config": {**CTRL, "vocab_size": 300}},
        "tokenizer": {"vocab_size": 30},
        "data": {"dataset": "json", "files": {"train": "rows.json"}, "validation_fraction": 0.4, "max_length": 32},
        "train": TRAIN,
    },
    "question answering": {
        "task": "question_answering",
        "model": {"config": REFORMER},
        "data": {
            "dataset": "json", "files": {"train": "squad.json", "validation": "squad.json"}, "max_length": 32,
            "stride": 8, "max_answer_length": 8,
        },
        "train": TRAIN,
    },
    "language modeling": {
        "task": "language_modeling",
        "model": {"name": "ctrl", "config": CTRL},
        "tokenizer": {"vocab_size": 50},
        "data": {
            "dataset": "text", "sources": {"Tales": "tales.txt", "Laws": ["laws.txt"]}, "validation_fraction": 0.2,
            "max_length": 16,
        },
        "train": TRAIN,
    },
    "reformer language modeling": {
        "task": "language_modeling",
        "model": {"config": {**REFORMER, "local_num_chunks_after": 0, "is_decoder": True}},
        "data": {"dataset": "text", "files": {"train": "tales.txt"}, "validation_fraction": 0.2, "max_length": 32},
        "train": TRAIN,
    },
    "masked language modeling": {
        "task": "masked_language_modeling",
        "model": {"config": REFORMER},
        "data": {"dataset": "csv", "files": {"train": "train.csv"}, "validation_fraction": 0.2, "max_length": 32},
        "train": TRAIN,
    },
}  # fmt: skip


def write_data(folder: Path) -> None:
    """Write the files that :data:`BASES` name."""
    draws = random.Random(0)
    words = {"animals": ["cat", "dog", "cow"], "fruit": ["fig", "pear", "kiwi"]}
    rows = [(" ".join(draws.choices(words[label], k=6)), label) for _ in range(6) for label in words]
    with (folder / "train.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    (folder / "rows.json").write_text("".join(json.dumps({"text": t, "label": k}) + "\n" for t, k in rows))
    entries = [
        {
            "id": str(n),
            "question": f"Which is {n}?",
            "answers": {"text": [t.split()[0]], "answer_start": [0]},
            "context": t,
        }
        for n, (t, _) in enumerate(rows)
    ]
    (folder / "squad.json").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    for name, label in (("tales.txt", "animals"), ("laws.txt", "fruit")):
        (folder / name).write_text("\n\n".join(" ".join(draws.choices(words[label], k=1200)) for _ in range(6)))


# -- generated recipes ------------------------------------------------------------------------------------------------


def leaves(model: type[BaseModel], prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the path of every key that a recipe may have."""
    paths = []
    for name, field in model.model_fields.items():
        kinds = [field.annotation, *getattr(field.annotation, "__args__", ())]
        sections = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        paths.append((*prefix, name))
        for section in sections:
            paths += leaves(section, (*prefix, name))
    return paths


CONFIG_KEYS = sorted(
    {key for family in ("reformer", "ctrl") for key in part(family, "schema").DEFAULTS}
    | {key for family in ("reformer", "ctrl") for key in part(family, "schema").ONLY}
    | {"hidden_size", "num_hidden_layers", "bos_token_id", "torch_dtype", "no_such_key"}
)
KEYS = [
    *leaves(schema.Recipe), *(("model", "config", key) for key in CONFIG_KEYS for _ in range(2)),
    *(("data", "options", key) for key in ("languages", "chapters", "train", "é")), ("data", "sources", "Tales"),
    ("no_such_section",), ("train", "batch_sise"), ("", ""), ("a.b", "c"), ("model", "config", "", "x"),

]  # fmt: skip

WORDS = (
    "", " ", "~", "~nobody/x", "~/x", "/", ".", "..", "/dev/zero", "/dev/null", "/proc/self/mem", "train.csv",
    "rows.json", "squad.json", "tales.txt", "no", "yes", "1e5", "1e-5", "0x10", "1_000", "null", "a\0b", "\ud800",
    "\U0001f600", "\u202e", "[red]x[/red]", "x" * 300, "y" * 5000, "a/b", "a/b/c", "owner/name", "\n", "\t", "{}",
    "%s", "$HOME", "cpu", "gpu", "auto", "text", "csv", "json", "cldr_languages", "python_docs", "cldr_facts",
    "pandas", "bytes", "bpe", "sentencepiece", "checkpoint", "reformer", "ctrl", "relu", "gelu", "swish", "local",
    "lsh", "regression", "loss", "f1", "accuracy", "stage1", "linear",

)  # fmt: skip
NUMBERS = (
    0, 1, 2, 3, 4, 7, 8, 16, 17, 32, 64, 100, -1, -(2**31), 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63, 2**64,
    10**30, 0.0, -0.0, 1.0, 0.5, 1e-3, 0.1, 0.999999999, 1e-12, 1e-45, 1e-300, 5e-324, 1e39, 1e300, float("nan"),
    float("inf"), -0.5,

)  # fmt: skip
#: Pieces of YAML that no dumper writes.
RAW = (
    "9" * 5000, "1." + "0" * 5000 + "1", "-" + "9" * 4400, "1e999999999",
    "!!python/object/apply:os.system ['true']", "!!binary aGk=", "!t x", "&a [*a]", "*nowhere",
    "[" * 200 + "]" * 200, "[" * 5000 + "]" * 5000, "{a: " * 300 + "1" + "}" * 300, "{", "'", '"\\ud800"', '"\\0"',
    "? x", "- -", "<<: {a: 1}", "2001-01-01", "0o17", "1:30", "|\n x\n y", ">-", "@", "`", "%", "{[a]: 1}",
    "{1: 2}", "{null: 3}", "{true: 1}", "\t", "# x", "--- a", "...", "_", "1_", "+", ".", "._", "1__0", "e5",

)  # fmt: skip


def values() -> st.SearchStrategy[Any]:
    """Return a strategy for values of any kind: scalars that are often nearly valid, and nested values."""
    scalars = st.one_of(
        st.sampled_from(NUMBERS), st.sampled_from(WORDS), st.booleans(), st.none(), st.integers(-3, 70),
        st.floats(), st.text(max_size=8),
    )  # fmt: skip
    nested_values = st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    )
    return st.one_of(scalars, scalars, nested_values, st.sampled_from(RAW).map(Raw))


class Raw(str):
    """Text that is written into the file unchanged."""


SMALL = st.integers(1, 12)
SHARE = st.floats(0, 1, exclude_max=True)
SIZE = st.floats(1e-30, 1e30)

#: Keys with values that are valid in isolation, though not always together with other keys.
LIKELY: dict[str, st.SearchStrategy[Any]] = {
    "seed": st.integers(0, 2**32 - 1),
    "model.backward": st.sampled_from(["auto", "reversible", "autograd"]),
    "model.residual": st.sampled_from(["wide", "plain"]),
    "data.max_length": st.sampled_from([1, 2, 8, 15, 16, 17, 24, 32, 64]),
    "data.stride": st.integers(0, 40),
    "data.max_answer_length": SMALL,
    "data.no_answer_threshold": st.floats(-1e30, 1e30),
    "data.misplaced_answers": st.sampled_from(["refuse", "drop", "find"]),
    "data.whole_words": st.booleans(),
    "data.validation_fraction": SHARE,
    "data.test_fraction": SHARE,
    "data.label_names": st.sampled_from(
        [{"animals": "beasts", "fruit": "plants"}, ["fruit", "animals"], ["animals"], {"animals": "x", "fruit": "x"}]
    ),
    "data.problem_type": st.sampled_from(["single_label", "multi_label", "regression"]),
    "data.filter": st.sampled_from([{"label": "fruit"}, {"label": ["fruit", "animals"]}, {"text": "x"}, {"n": 1}]),
    "data.split_column": st.sampled_from(["label", "text", "split"]),
    "data.text": st.sampled_from(["text", ["text", "label"], ["text", "text"], ["text"]]),
    "data.limit.train": SMALL,
    "data.limit.validation": SMALL,
    "tokenizer.vocab_size": st.integers(8, 60),
    "train.batch_size": SMALL,
    "train.eval_batch_size": st.one_of(SMALL, st.just(2**31 - 1)),
    "train.gradient_accumulation_steps": SMALL,
    "train.learning_rate": st.one_of(st.floats(1e-6, 1), SIZE),
    "train.weight_decay": st.one_of(SHARE, SIZE),
    "train.adam_beta1": SHARE,
    "train.adam_beta2": SHARE,
    "train.adam_epsilon": st.floats(1e-300, 1),
    "train.warmup_ratio": SHARE,
    "train.lr_scheduler": st.sampled_from(["linear", "cosine", "constant"]),
    "train.max_grad_norm": st.none() | SIZE,
    "train.recompute": st.booleans(),
    "train.lora": st.sampled_from(
        [{}, {"rank": 2}, {"rank": 1, "alpha": 3, "dropout": 0.5}, {"targets": ["value", "query"]}, {"targets": ["Wq"]}]
    ),
    "train.lora.rank": SMALL,
    "train.lora.dropout": SHARE,
    "train.eval_steps": SMALL,
    "train.early_stopping_patience": SMALL,
    "train.class_weights": st.sampled_from(
        ["balanced", {"fruit": 2.5}, {"animals": 1, "fruit": 0.001}, {"figs": 2}, {"fruit": 0}]
    ),
    "train.save_best": st.sampled_from(
        ["loss", "accuracy", "macro_f1", "mse", "micro_f1", "f1", "exact_match", "perplexity"]
    ),
    "parity.examples": SMALL,
    "tracking.visualdl": st.booleans(),
    "tracking.tensorboard": st.booleans(),
    **{f"model.config.{key}": SMALL for key in (
        "attention_head_size", "feed_forward_size", "local_attn_chunk_length", "lsh_attn_chunk_length", "num_hashes",
        "num_attention_heads", "n_layer", "n_head", "dff", "local_num_chunks_before", "local_num_chunks_after",
        "lsh_num_chunks_before", "lsh_num_chunks_after", "chunk_size_feed_forward", "chunk_size_lm_head",
    )},
    **{f"model.config.{key}": SHARE for key in (
        "hidden_dropout_prob", "local_attention_probs_dropout_prob", "lsh_attention_probs_dropout_prob",
        "classifier_dropout", "embd_pdrop", "resid_pdrop",
    )},
    **{f"model.config.{key}": st.one_of(SHARE, st.floats(0, 1e30)) for key in ("initializer_range", "axial_norm_std")},
    **{f"model.config.{key}": st.floats(0, 1e-3) for key in ("layer_norm_eps", "layer_norm_epsilon")},
    "model.config.num_buckets": st.one_of(st.none(), st.sampled_from([2, 4, 6, [2, 2], [4, 2], [2, 2, 2], 64])),
    "model.config.hash_seed": st.one_of(st.none(), st.integers(0, 2**31 - 1)),
    "model.config.hidden_act": st.sampled_from(["relu", "gelu", "gelu_new", "silu", "tanh", "sigmoid"]),
    "model.config.attn_layers": st.lists(st.sampled_from(["local", "lsh"]), min_size=1, max_size=3),
    "model.config.axial_pos_embds": st.booleans(),
    "model.config.axial_pos_shape": st.sampled_from([[4, 8], [1, 32], [8, 8], [2, 16], [4, 4]]),
    "model.config.axial_pos_embds_dim": st.sampled_from([[4, 12], [15, 1], [8, 8]]),
    "model.config.max_position_embeddings": st.sampled_from([16, 32, 64, 10**6]),
    "model.config.n_embd": st.sampled_from([2, 4, 6, 8, 24]),
    "model.config.n_positions": st.sampled_from([16, 32, 33, 10**6]),
    "model.config.vocab_size": st.sampled_from([258, 320, 400, 100_000]),
    "model.config.pad_token_id": st.integers(0, 20),
    "model.config.tie_word_embeddings": st.booleans(),
}  # fmt: skip


@st.composite
def likely_recipes(draw: st.DrawFn) -> tuple[bytes, list[str]]:
    """Draw a recipe in which one to four keys have other values, valid in isolation; most recipes are accepted."""
    values_of = json.loads(json.dumps(draw(st.sampled_from(list(BASES.values())))))
    for key in draw(st.lists(st.sampled_from(_known_keys(values_of)), min_size=1, max_size=4, unique=True)):
        set_key(values_of, tuple(key.split(".")), draw(LIKELY[key]))
    return to_yaml(values_of), []


def _known_keys(recipe: dict[str, Any]) -> list[str]:
    """Return the keys of :data:`LIKELY` that the recipe's task and model know."""
    task, model = recipe.get("task", "classification"), recipe["model"].get("name", "reformer")
    restricted_keys = {
        key
        for keys_by_owner in (recipe_keys.TASK_KEYS, recipe_keys.MODEL_KEYS, recipe_keys.OPTIMIZER_KEYS)
        for keys in keys_by_owner.values()
        for key in keys
    }
    keys_of_recipe = {
        *recipe_keys.TASK_KEYS[task],
        *recipe_keys.MODEL_KEYS[model],
        *recipe_keys.OPTIMIZER_KEYS["adamw"],
    }
    config = part(model, "schema").DEFAULTS
    return sorted(
        key
        for key in LIKELY
        if (key not in restricted_keys or key in keys_of_recipe)
        and (not key.startswith("model.config.") or key.rpartition(".")[2] in config)
        and (key != "tokenizer.vocab_size" or model == "ctrl")
    )


@st.composite
def recipes(draw: st.DrawFn) -> tuple[bytes, list[str]]:
    """Draw a recipe file and the overrides of its command line: a correct recipe with one to four changes."""
    values_of = json.loads(json.dumps(draw(st.sampled_from(list(BASES.values())))))
    overrides = []
    for path, value in draw(st.lists(st.tuples(st.sampled_from(KEYS), values()), max_size=4)):
        if draw(st.integers(0, 5)) == 0 and not isinstance(value, (list, dict)):
            overrides.append(f"{'.'.join(path)}={'' if value is None else value}")
        else:
            set_key(values_of, path, value)
    text = to_yaml(values_of)
    if draw(st.integers(0, 5)) == 0:
        text = damage_bytes(draw, text)
    return text, [override.replace("\0", "") for override in overrides]  # a command line cannot contain NUL


def set_key(section: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Set a key, and replace values on its path that are not sections."""
    for name in path[:-1]:
        if not isinstance(section.get(name), dict):
            section[name] = {}
        section = section[name]
    section[path[-1]] = value


def to_yaml(content: dict[str, Any]) -> bytes:
    """Return the YAML of a recipe, with values of :class:`Raw` unchanged."""
    raw: list[str] = []

    def mark_raw_values(value: Any) -> Any:
        if isinstance(value, Raw):
            raw.append(str(value))
            return f"RAW{len(raw) - 1}RAW"
        if isinstance(value, dict):
            return {key: mark_raw_values(item) for key, item in value.items()}
        return [mark_raw_values(item) for item in value] if isinstance(value, list) else value

    text = yaml.safe_dump(mark_raw_values(content), sort_keys=False)
    for number, fragment in enumerate(raw):
        text = text.replace(f"RAW{number}RAW", fragment)
    return text.encode("utf-8", "surrogatepass")


def damage_bytes(draw: st.DrawFn, text: bytes) -> bytes:
    """Return the text with some bytes removed, doubled or replaced."""
    place = draw(st.integers(0, len(text)))
    length = draw(st.integers(0, 40))
    new = draw(
        st.one_of(st.binary(max_size=6), st.sampled_from(RAW).map(lambda raw: raw.encode()), st.just(text[:place]))
    )
    return text[:place] + new + text[place + length :]


# -- the worker -----------------------------------------------------------------------------------------------------


class Worker:
    """A process of :mod:`recipe_worker` in a folder with the data, which starts again if a recipe has ended it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_data(folder)
        self.process: subprocess.Popen | None = None

    def ask(self, text: bytes, overrides: list[str], train: bool) -> dict[str, Any]:
        """Return the worker's answer, with ``crashed`` or ``hung`` if there is none."""
        process = self.process or self._start()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps({"text": text.hex(), "overrides": overrides, "train": train}) + "\n")
        process.stdin.flush()
        if not select.select([process.stdout], [], [], SECONDS[train])[0]:
            self.close()
            return {"hung": f"for {SECONDS[train]:.0f} s"}
        line = process.stdout.readline()
        if not line:
            status = process.wait()
            self.close()
            return {"crashed": status}
        return json.loads(line)

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def _start(self) -> subprocess.Popen:
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_OFFLINE": "1",
            "TOOLKIT_CACHE": str(self.folder / "cache"),
            "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
        }
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("recipe_worker.py"))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=self.folder,
            env=environment,
        )  # fmt: skip
        return self.process
