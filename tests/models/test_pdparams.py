"""Test PaddleNLP's checkpoints: the ports compute the same outputs from them, and no code in such a file runs."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from models.ctrl import CTRLForSequenceClassification, CTRLLMHeadModel
from models.files.pdparams import read_pdparams
from models.files.plain import UnreadableFileError
from models.reformer import ReformerForQuestionAnswering, ReformerForSequenceClassification, ReformerModelWithLMHead
from toolkit.errors import UserError
from toolkit.files.paddle_checkpoint import get_hf_folder
from toolkit.finetune import model_config
from toolkit.recipe.load import load_recipe

REFORMER = {
    "axial_pos_shape": [4, 8], "axial_pos_embds_dim": [8, 24], "attn_layers": ["local", "local"],
    "num_hidden_layers": 2, "local_attn_chunk_length": 8, "hidden_size": 32, "num_attention_heads": 2,
    "attention_head_size": 16, "feed_forward_size": 48, "max_position_embeddings": 32, "vocab_size": 50,
}  # fmt: skip
CTRL = {"vocab_size": 50, "n_positions": 64, "n_embd": 16, "dff": 24, "n_layer": 2, "n_head": 2}

#: By pair: PaddleNLP's class, its head, its configuration, and our class.
PAIRS = {
    "reformer-lm": ("Reformer", "ModelWithLMHead", REFORMER, ReformerModelWithLMHead),
    "reformer-cls": ("Reformer", "ForSequenceClassification", {**REFORMER, "is_decoder": False, "num_classes": 5},
                     ReformerForSequenceClassification),
    "reformer-qa": ("Reformer", "ForQuestionAnswering", {**REFORMER, "is_decoder": False},
                    ReformerForQuestionAnswering),
    "ctrl-lm": ("CTRL", "LMHeadModel", CTRL, CTRLLMHeadModel),
    "ctrl-cls": ("CTRL", "ForSequenceClassification", {**CTRL, "num_classes": 3, "pad_token_id": 0},
                 CTRLForSequenceClassification),
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def saved_checkpoint(tmp_path_factory):
    """Return a function from a pair's name to the folder that PaddleNLP saved and its model in evaluation mode."""
    saved_models: dict = {}

    def get(name):
        if name not in saved_models:
            import paddle
            import paddlenlp.transformers as theirs

            family, head, keys, _ = PAIRS[name]
            paddle.seed(7)
            model = getattr(theirs, family + head)(getattr(theirs, f"{family}Config")(**keys))
            for parameter in model.parameters():  # the initial zeros of biases and ones of norms would hide a mistake
                if not parameter.stop_gradient:
                    parameter.set_value(parameter + 0.1 * paddle.randn(parameter.shape))
            model.eval()
            folder = tmp_path_factory.mktemp(name)
            model.save_pretrained(str(folder))
            saved_models[name] = (folder, model)
        return saved_models[name]

    return get


def compute_outputs(model) -> list[np.ndarray]:
    import paddle

    output = model(paddle.to_tensor(np.arange(2, 34)[None] % 48 + 2))
    output = getattr(output, "logits", output)
    output = (output.start_logits, output.end_logits) if hasattr(output, "start_logits") else output
    parts = output if isinstance(output, (tuple, list)) else [output]
    return [np.squeeze(part.numpy()) for part in parts if hasattr(part, "numpy")]


@pytest.mark.parametrize("name", PAIRS)
def test_our_ports_compute_the_same_from_paddlenlps_checkpoints(saved_checkpoint, name):
    folder, theirs = saved_checkpoint(name)
    ours = PAIRS[name][3].from_pretrained(get_hf_folder(folder))
    assert ours.new_weights == []
    ours.eval()
    their_outputs, our_outputs = compute_outputs(theirs), compute_outputs(ours)
    size = np.abs(their_outputs[0]).max()
    assert size > 0.1
    for index in range(2 if name == "reformer-qa" else 1):  # starts and ends
        np.testing.assert_allclose(our_outputs[index], their_outputs[index], rtol=0, atol=1e-4 * size)


def test_a_checkpoint_is_converted_once_and_includes_its_vocabulary(saved_checkpoint, tmp_path, capfd):
    folder, _ = saved_checkpoint("ctrl-lm")
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("config.json", "model_state.pdparams"):
        (copy / name).write_bytes((folder / name).read_bytes())
    first = get_hf_folder(folder)
    assert "reading model_state.pdparams" in capfd.readouterr().err
    assert get_hf_folder(copy / "model_state.pdparams") == first
    assert capfd.readouterr().err == ""
    (copy / "vocab.json").write_text("{}")
    assert (get_hf_folder(copy) / "vocab.json").read_text() == "{}"


def test_the_configuration_of_paddlenlp_2_is_read(saved_checkpoint, tmp_path):
    folder, _ = saved_checkpoint("ctrl-lm")
    names = {"n_embd": "hidden_size", "dff": "intermediate_size", "n_layer": "num_hidden_layers",
             "n_head": "num_attention_heads", "vocab_size": "vocab_size"}  # fmt: skip
    body = {name: CTRL[key] for key, name in names.items()}
    old = {"init_args": [{**body, "init_class": "CTRLModel"}], "init_class": "CTRLLMHeadModel"}
    (tmp_path / "model_config.json").write_text(json.dumps(old))
    (tmp_path / "model_state.pdparams").write_bytes((folder / "model_state.pdparams").read_bytes())
    keys = json.loads((get_hf_folder(tmp_path) / "config.json").read_text())
    assert {key: keys[key] for key in CTRL} == CTRL  # the number of positions is the length of the table


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_every_protocol_of_paddle_is_read(tmp_path, protocol):
    import paddle

    layer = paddle.nn.Linear(3, 4)
    paddle.save(layer.state_dict(), str(tmp_path / "a.pdparams"), protocol=protocol)
    arrays = read_pdparams(tmp_path / "a.pdparams")
    assert sorted(arrays) == ["bias", "weight"]
    np.testing.assert_array_equal(arrays["weight"], layer.weight.numpy())


def test_bfloat16_is_read_exactly(saved_checkpoint, tmp_path):
    import paddle

    folder, _ = saved_checkpoint("ctrl-lm")
    state = {name: paddle.to_tensor(value).astype("bfloat16")
             for name, value in read_pdparams(folder / "model_state.pdparams").items()}  # fmt: skip
    paddle.save(state, str(tmp_path / "model_state.pdparams"))
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    ours = CTRLLMHeadModel.from_pretrained(get_hf_folder(tmp_path))
    np.testing.assert_array_equal(ours.transformer.w.weight.numpy(), state["ctrl.w.weight"].astype("float32").numpy())


# -- nothing runs -----------------------------------------------------------------------------------------------------


class Payload:
    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


def payloads(mark: Path) -> dict[str, bytes]:
    """Return pickles in several forms that create the file `mark` if they are simply unpickled."""
    touch = f"touch {mark}"
    table = np.ones(3, np.float32)
    text = repr(f"__import__('os').system({touch!r})").encode()
    return {
        "reduce, protocol 2": pickle.dumps({"a": Payload(os.system, touch)}, 2),
        "reduce, protocol 4": pickle.dumps({"a": table, "b": Payload(os.system, touch)}, 4),
        "eval, as a tensor of Paddle's": pickle.dumps({"a": Payload(eval, f"__import__('os').system({touch!r})")}, 4),
        "in a key": pickle.dumps({Payload(os.system, touch): table}, 4),
        "an old protocol's text": b"cos\nsystem\n(S" + repr(touch).encode() + b"\ntR.",
        "INST": b"(S" + repr(touch).encode() + b"\nios\nsystem\n.",
        "behind the end": pickle.dumps({"a": table}, 4)[:-1] + b"0cos\nsystem\n(S" + repr(touch).encode() + b"\ntR.",
        "eval, INST": b"(S" + text + b"\ni__builtin__\neval\n.",
    }


@pytest.mark.parametrize("form", payloads(Path("/x")))
def test_code_in_a_file_never_runs(tmp_path, form):
    content = payloads(tmp_path / "ran")[form]
    (tmp_path / "a.pdparams").write_bytes(content)
    with pytest.raises(UnreadableFileError, match=r"nothing of it (was run|ran)") as raised_error:
        read_pdparams(tmp_path / "a.pdparams")
    assert "\n" not in str(raised_error.value)
    assert not (tmp_path / "ran").exists()
    if not form.startswith("eval"):
        pickle.loads(content)
        assert (tmp_path / "ran").exists()  # the payload does work


def array_state(shape: object = (3,), code: object = "f4", content: object = b"\0" * 12, order: object = "<") -> bytes:
    """Return a pickle of an array with these parts."""
    state = pickle.dumps((1, shape, "DTYPE", False, content), 2)[2:-1]
    dtype = b"cnumpy\ndtype\n" + pickle.dumps((code, False, True), 2)[2:-1] + b"R"
    dtype += pickle.dumps((3, order, None, None, None, -1, -1, 0), 2)[2:-1] + b"b"
    marker = pickle.dumps("DTYPE", 2)[2:-1]
    marker = marker[: marker.rindex(b"q")]  # without the array's index in the memo
    assert state.count(marker) == 1
    prefix, suffix = state.split(marker)
    state = prefix + dtype + suffix[2:]
    make = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n" + b"K\0\x85C\x01btR"
    return b"\x80\x02}X\x01\0\0\0a" + make + state + b"bs."


def test_an_array_without_the_faults_of_the_next_test_is_read(tmp_path):
    (tmp_path / "a.pdparams").write_bytes(array_state())
    np.testing.assert_array_equal(read_pdparams(tmp_path / "a.pdparams")["a"], np.zeros(3, np.float32))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"shape": (2**60,)}, "which do not fit"),
        ({"shape": (-3,)}, "without a proper shape"),
        ({"shape": (3.0,)}, "BINFLOAT"),
        ({"shape": (1,) * 40, "content": b"\0" * 4}, "which do not fit"),
        ({"code": "O"}, "holds an array of type 'O'; numbers are read and nothing else"),
        ({"code": "V12"}, "holds an array of type 'V12'"),
        ({"code": "c8"}, "holds an array of type 'c8'"),
        ({"order": "!"}, "a type with parts"),
        ({"content": [1, 2, 3]}, "something else than numbers"),
    ],
)
def test_a_hostile_array_is_rejected(tmp_path, parts, message):
    (tmp_path / "a.pdparams").write_bytes(array_state(**parts))
    with pytest.raises(UnreadableFileError, match=message):
        read_pdparams(tmp_path / "a.pdparams")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x80\x04\x8e" + b"\xff" * 7 + b"\x0f", "cannot be read|is no pickle|ends in the middle"),  # a huge length
        (b"\x80\x04}r\xff\xff\xff\x7f.", "memo 2147483647"),  # an index that would reserve gigabytes
        (b"\x80\x04}.", "holds no tensors"),
        (b"\x80\x04N.", "holds no tensors by name"),
        (pickle.dumps({"model": {"a": np.ones(2)}}, 4), "holds 'model', which is no array"),
        (b"once upon a time", "is no pickle"),
        (pickle.dumps({"a": np.ones(99)}, 4)[:-60], "cut short"),
        (b"\x80\x04cnumpy\ndtype\n}X\x01\0\0\0aK\1sb.", "changes a function"),
    ],
)
def test_an_invalid_file_is_rejected_in_one_line(tmp_path, content, message):
    (tmp_path / "a.pdparams").write_bytes(content)
    with pytest.raises(UnreadableFileError, match=message) as raised_error:
        read_pdparams(tmp_path / "a.pdparams")
    assert "\n" not in str(raised_error.value)


# -- recipe errors ----------------------------------------------------------------------------------------------------


def write_changed_copy(folder: Path, target: Path, keys=lambda keys: keys, state=lambda state: state) -> Path:
    """Write a copy of a checkpoint with another configuration or other arrays."""
    import paddle

    target.mkdir()
    config = json.loads((folder / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(keys(config)))
    arrays = {name: paddle.to_tensor(value) for name, value in read_pdparams(folder / "model_state.pdparams").items()}
    paddle.save(state(arrays), str(target / "model_state.pdparams"))
    return target


CHANGES = {
    "another model": ({"keys": lambda keys: {**keys, "model_type": "ernie", "architectures": ["ErnieModel"]}},
                      "describes 'ernie'; CTRL and Reformer are read"),
    "an unknown key": ({"keys": lambda keys: {**keys, "n_embed": 3}}, "n_embed: unknown key, did you mean n_embd"),
    "an epsilon": ({"keys": lambda keys: {**keys, "layer_norm_epsilon": 1e-5}}, "layer_norm_epsilon: 1e-05"),
    "a missing layer": ({"state": lambda state: {k: v for k, v in state.items() if "h.1." not in k}}, "16 missing"),
    "another layout": ({"state": lambda state: {f"net.{k}": v for k, v in state.items()}}, "unknown (net.ctrl"),
    "learned positions": ({"state": lambda state: {k: v + 1 if "pos_" in k else v for k, v in state.items()}},
                          "these are no sines and cosines"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_mismatch_is_reported_at_the_recipes_key(saved_checkpoint, tmp_path, cache, change):
    changes, message = CHANGES[change]
    checkpoint = write_changed_copy(saved_checkpoint("ctrl-lm")[0], tmp_path / "changed", **changes)
    with pytest.raises(ValueError) as raised_error:
        get_hf_folder(checkpoint)
    assert message in str(raised_error.value)
    assert str(checkpoint) in str(raised_error.value)
    assert "\n" not in str(raised_error.value)
    assert not list(cache.glob("weights/*"))


def make_recipe(tmp_path: Path, weights: Path, family: str = "ctrl"):
    data = "data:\n  dataset: csv\n  files: {train: t.csv}\n  max_length: 32\n"
    train = "train:\n  epochs: 1\n  learning_rate: 1e-3\n"
    model = f"task: classification\nmodel:\n  name: {family}\n  weights: {weights}\n"
    (tmp_path / "x.yaml").write_text(f"{model}tokenizer:\n  kind: checkpoint\n{data}{train}")
    return load_recipe(tmp_path / "x.yaml", [])


def test_a_recipe_accepts_a_file_or_its_folder(saved_checkpoint, tmp_path):
    folder, _ = saved_checkpoint("ctrl-lm")
    for weights in (folder, folder / "model_state.pdparams"):
        recipe = make_recipe(tmp_path, weights)
        assert recipe.hub_weights is None
        assert model_config._local_checkpoint_keys(recipe)["n_embd"] == CTRL["n_embd"]


@pytest.mark.parametrize(
    ("make", "family", "message"),
    [
        (lambda folder, checkpoint: folder / "gone.pdparams", "ctrl", "cannot read .*gone.pdparams: No such file"),
        (lambda folder, checkpoint: checkpoint, "reformer", "does not describe a Reformer"),
        (lambda folder, checkpoint: (folder / "alone.pdparams").write_bytes(b"x") and folder / "alone.pdparams", "ctrl",
         "has no config.json or model_config.json beside it"),
    ],
)  # fmt: skip
def test_an_unusable_checkpoint_is_reported_at_its_line(saved_checkpoint, tmp_path, make, family, message):
    recipe = make_recipe(tmp_path, make(tmp_path, saved_checkpoint("ctrl-lm")[0]), family)
    with pytest.raises(UserError, match=f"x.yaml:4: model.weights: .*{message}"):
        model_config._local_checkpoint_keys(recipe)


def test_sharded_weights_and_weights_next_to_safetensors(saved_checkpoint, tmp_path):
    folder = tmp_path / "both"
    folder.mkdir()
    for name in ("model.safetensors", "model_state.pdparams"):
        (folder / name).write_bytes(b"not looked at")
    assert get_hf_folder(folder) == folder
    (folder / "model_state.pdparams.index.json").write_text("{}")
    with pytest.raises(UnreadableFileError, match="weights in several files"):
        get_hf_folder(folder)
