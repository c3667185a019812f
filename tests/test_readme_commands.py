"""Run every command of the documents unchanged, by a shell, in an empty folder with small real data.

Words that are added to a line only cut it short. A line that cannot run here is listed with the reason.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from loopback_hub import LoopbackHub
from test_readme import FENCED_BLOCK, README, ROOT

from toolkit import cli
from toolkit.errors import UserError
from toolkit.recipe.load import load_recipe
from toolkit.tasks.corpora import cldr_languages


@dataclass(frozen=True)
class Here:
    """How a line is run.

    Attributes:
        chain: lines of a chain run one after the other, in the order of :data:`LINES`; chains run side by side.
        more: text that is appended to the line.
        names: placeholder of the documents -> its replacement.
        folder: where the line runs, relative to the folder of :func:`lay_out`.
        says: regular expression that the output contains.
    """

    chain: str
    more: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    says: str = ""
    folder: str = "."


@dataclass(frozen=True)
class Elsewhere:
    """The reason why a line does not run here; the options of lines of `toolkit` are still checked."""

    reason: str


#: The documents whose commands are run.
DOCUMENTS = (
    "README.md",
    "recipes/README.md",
    "models/README.md",
    "toolkit/commands/bench/README.md",
    "toolkit/parity/PAIRS.md",
    ".github/CONTRIBUTING.md",
)
TEXTS = {name: (ROOT / name).read_text(encoding="utf-8") for name in DOCUMENTS}
#: The pair for the commands of PAIRS.md: a small layer.
SMALL_PAIR = ROOT / "tests" / "pairs" / "first"
RUSSIA = '"RU is the code of Russia. The currency of Russia is rublo russo."'
#: The command of `make demo`.
DEMO = "toolkit finetune recipes/reformer_qa.yaml --new data.options.train=19200 train.output_dir=runs/demo"
CHECKPOINT = "HuggingFaceTB/SmolLM2-135M"

NETWORK = Elsewhere("installs from the network")
BY_CI = Elsewhere(".ci/run runs it")
CUT = "train.epochs=null train.max_steps=2 train.eval_steps=2"
SHORT = f"{CUT} train.batch_size=2"
FEW = "data.options.train=8 data.options.validation=1 data.options.test=1"
FEW_QUESTIONS = "data.options.train=400 data.options.validation=8 data.options.test=8"
UNGATED = "--skip-parity 'a test of the README'"
SMALL = {"reformer": "--layers 2 --length 64", "ctrl": "--layers 2 n_embd=64 n_head=4 dff=128 vocab_size=500"}
PARITY = r"PARITY|parity"
ONNX = importlib.util.find_spec("paddle2onnx") and importlib.util.find_spec("onnxruntime")

#: Each command of the documents, in the order in which they are run.
LINES: dict[str, Here | Elsewhere] = {
    # Data of one's own, from a table to the hub.
    "toolkit recipe new reviews.csv": Here("own", says="reviews.yaml"),
    "toolkit recipe check reviews.yaml": Here("own", says="ok"),
    "toolkit finetune reviews.yaml": Here("own", f"{SHORT} {UNGATED}", says="run folder: runs/reviews"),
    "toolkit predict runs/reviews --input new.csv --output labeled.csv": Here("own", says="labeled.csv: 9 rows in"),
    "toolkit finetune reviews.yaml train.batch_size=8": Elsewhere("as my.yaml below"),
    "toolkit finetune reviews.yaml --new": Here("own", f"{CUT} {UNGATED}", says="runs/reviews-2"),
    "toolkit compare runs/reviews runs/reviews-2": Here("own", says="validation accuracy"),
    "toolkit finetune reviews.yaml --skip-parity REASON": Elsewhere("as the line before, which skips the gate"),
    "toolkit export runs/reviews --format hf": Elsewhere("as runs/my below"),
    "toolkit serve runs/reviews": Elsewhere("answers until it is ended; test_serve.py asks it"),
    "toolkit push runs/reviews my-team/my-model": Elsewhere("as runs/my below"),
    "toolkit recipe check my.yaml": Here("own", says="ok"),
    "toolkit recipe show my.yaml": Here("own", says="learning_rate"),
    "toolkit finetune my.yaml": Here("own", SHORT, says="PARITY .* agree(.|\n)*run folder: runs/my"),
    "toolkit finetune my.yaml train.batch_size=8": Here("own", f"--new {CUT} {UNGATED}", says="runs/my-2"),
    'toolkit predict runs/my --text "..."': Here("own", says=r"\b(de|fi|fr)\b"),
    "toolkit finetune my.yaml --processes 4": Here(
        "own", f"--processes 2 --new {CUT} {UNGATED} train.batch_size=1", says="runs/my-3"
    ),
    "toolkit predict runs/my --input new.csv --output labeled.csv": Here("own", "--overwrite", says="9 rows in"),
    "toolkit serve runs/my": Elsewhere("answers until it is ended; test_serve.py asks it"),
    "toolkit compare runs/my runs/my-2": Here("own", says="train.batch_size(.|\n)*validation accuracy"),
    "toolkit report RUN": Here("own", names={"RUN": "runs/my"}, says="report.html"),
    "toolkit export runs/my --format hf": Here("own", says="runs/my/export/hf"),
    "toolkit export runs/my --format paddle": Here("own", says="runs/my/export/paddle"),
    "toolkit export runs/my --format onnx": (
        Here("own", says="runs/my/export/onnx") if ONNX else Elsewhere("needs paddle2onnx and onnxruntime")
    ),
    "toolkit push runs/my my-team/my-model": Here("own", says="my-team/my-model"),
    "toolkit parity --model reformer --weights FOLDER_OR_HUB_ID --trace": Here(
        "own", "--output runs/hub --length 64 --dtype float64", {"FOLDER_OR_HUB_ID": "my-team/my-model"}, PARITY
    ),
    # What ships.
    "make demo": Elsewhere("installs from the network first; .ci/run runs its other line"),
    DEMO: BY_CI,
    f'toolkit predict runs/demo --question "Which code does Russia have?" --context - <<< {RUSSIA}': BY_CI,
    "toolkit evaluate runs/demo": BY_CI,
    "toolkit finetune recipes/reformer_qa.yaml": Here("shipped", f"{SHORT} {UNGATED} {FEW_QUESTIONS}"),
    'toolkit predict runs/reformer_qa --question "When was the money of Finnland introduced?" --context fin.txt': Here(
        "shipped", says="score .*, probability"
    ),
    "toolkit finetune recipes/ctrl_lm.yaml": Here(
        "shipped", f"{SHORT} {UNGATED} 'data.options.chapters=[Statements]'", says="run folder: runs/ctrl_lm"
    ),
    'toolkit generate runs/ctrl_lm --prompt "The statement" --length 20 --temperature 0.8 --top-p 0.9': Here(
        "shipped", says="The statement"
    ),
    "toolkit parity texts --model ctrl --tokenizer FOLDER": Here(
        "shipped", "--texts 20", {"FOLDER": "runs/ctrl_lm/model"}, "differ on 0 of 20 texts"
    ),
    # The gate.
    "toolkit parity --model reformer": Here("gates", f"{SMALL['reformer']} --dtype float64", says=PARITY),
    "toolkit parity --model ctrl": Here("gates", f"{SMALL['ctrl']} --dtype float64", says=PARITY),
    "toolkit parity --model reformer --layers 12 --attention lsh num_hashes=4": Here(
        "gates", "--layers 1 --length 64 --dtype float64", says=PARITY
    ),
    "toolkit parity bitwise --model reformer": Elsewhere("test_foreign_code.py runs it with CTRL"),
    "toolkit parity record --model reformer -o bundle": Here(
        "gates", f"{SMALL['reformer']} --dtype float64", says="bundle"
    ),
    "toolkit parity replay bundle": Here("gates", says=PARITY),
    "toolkit parity mutants --model reformer": Elsewhere("a gate for each fault; the slow tests try them"),
    "toolkit parity sweep --model reformer --gates 20": Here("gates", "--gates 1", says="1"),
    "toolkit parity limits --model ctrl": Elsewhere("many gates for each parameter; the slow tests find the limits"),
    "toolkit finish RUN": Elsewhere("test_finish_early.py ends interrupted runs"),
    "toolkit finetune RECIPE --continue RUN": Elsewhere("test_continued.py continues runs"),
    # A port of one's own.
    **dict.fromkeys(
        (
            "toolkit parity record",
            "toolkit parity replay",
            "toolkit parity record --any-framework",
            "toolkit parity judge",
            "toolkit parity mutants",
            "toolkit parity limits",
        ),
        Elsewhere("of the table that leads to the lines below"),
    ),
    f"hf download {CHECKPOINT} --local-dir SmolLM2-135M": Here("decoder", folder="decoder"),
    "toolkit parity --port port.py --reference-model reference.py checkpoint=SmolLM2-135M": Here(
        "decoder", says="^PARITY", folder="decoder"
    ),
    "toolkit parity map --port port.py --reference-model reference.py": Here(
        "decoder", "checkpoint=SmolLM2-135M", says="embed_tokens", folder="decoder"
    ),
    "toolkit parity --port port.py --reference-model reference.py --steps 50": Elsewhere("as with hidden=32 below"),
    "toolkit parity --port port.py --reference-model reference.py hidden=32": Here("gates", says="^PARITY 114 tensors"),
    "toolkit parity --port port.py --reference-model reference.py hidden=32 --steps 50": Here(
        "gates", "--steps 3", says="3 steps of each side by itself"
    ),
    "toolkit parity map --port port.py --reference-model reference.py -o map.yaml": Here("gates"),
    "toolkit parity --port port.py --reference-model reference.py --map map.yaml": Here("gates", says="^PARITY 114"),
    "toolkit parity mutants --port port.py --reference-model reference.py": Elsewhere("test_pairs.py tries them"),
    "toolkit parity limits --port port.py --reference-model reference.py": Elsewhere("test_pair_trials.py finds them"),
    "toolkit parity sweep --port port.py --reference-model reference.py --gates 20 hidden=16 hidden=32": Elsewhere(
        "twenty gates; test_pair_trials.py sweeps two"
    ),
    "toolkit parity record --reference-model reference.py hidden=32 -o recorded": Here("gates", says="recorded"),
    "toolkit parity replay recorded --port port.py": Here("gates", says="^PARITY 114 tensors"),
    "toolkit parity record --any-framework --reference-model reference.py -o any": Elsewhere(
        "test_other_frameworks.py records one"
    ),
    "toolkit parity judge any port.py": Elsewhere("test_other_frameworks.py judges ports in NumPy, JAX and ONNX"),
    # How fast it is.
    "toolkit bench --model reformer": Elsewhere("test_bench.py measures a smaller model"),
    "toolkit bench --model ctrl --work generate --work generate-without-cache": Here(
        "gates", "--layers 1 --length 8 --new-tokens 4 --pairs 1 vocab_size=500", says="generation without cache"
    ),
    "toolkit bench --model reformer --work start --work tokenize --work gate": Elsewhere("test_bench.py tries them"),
    "toolkit bench --model ctrl --against paddlenlp": Elsewhere("imports all of PaddleNLP; the line above is run"),
    "toolkit bench --model ctrl --all": Elsewhere("takes minutes; test_bench.py tries its parts"),
    # Several processes.
    "toolkit finetune my.yaml --gpus 0,1": Elsewhere("needs two GPUs"),
    "toolkit finetune recipes/ctrl_lm_salesforce.yaml --gpus 0,1": Elsewhere("needs two GPUs and a checkpoint"),
    "python -m paddle.distributed.launch --nproc_per_node 2 .venv/bin/toolkit finetune my.yaml": Elsewhere(
        "names an environment that the tests do not run in"
    ),
    "python -m paddle.distributed.launch --ips 10.0.0.1,10.0.0.2 --gpus 0,1 .venv/bin/toolkit finetune my.yaml": (
        Elsewhere("needs two machines with GPUs")
    ),
    # The rest.
    "toolkit doctor": Elsewhere("test_foreign_code.py runs it"),
    "toolkit recipe list": Here("shipped", says="reformer_cls"),
    "toolkit recipe copy ctrl_lm lm.yaml": Here("shipped", says="wrote lm.yaml"),
    "toolkit evaluate --squad DATASET.json PREDICTIONS.json": Here("shipped", says='"exact_match": 50.0'),
    "toolkit evaluate --squad dev-v1.1.json predictions.json": Elsewhere("test_squad.py, with the published files"),
    "toolkit search my.yaml --trials 20": Elsewhere("twenty runs; test_search.py tries three"),
    "toolkit search my.yaml --over train.learning_rate=1e-4..1e-2 --over train.epochs=2,4,8": Elsewhere(
        "as the line before"
    ),
    "toolkit recipe new labeled.csv --pretrain TEXTS": Elsewhere("test_recipe_new.py writes both recipes"),
    "toolkit predict RUN --baseline": Elsewhere("test_linear_model.py asks such a run"),
    "toolkit predict RUN --text A --text-pair B": Elsewhere("test_text_pairs.py asks such a run"),
    "toolkit predict RUN --text TEXT": Elsewhere("test_token_classification.py asks such a run"),
    "toolkit finetune RECIPE --new": Elsewhere("with names above"),
    "toolkit finetune RECIPE --seeds 3": Elsewhere("three runs; test_train.py compares some"),
    "toolkit finetune RECIPE --skip-parity REASON": Elsewhere("with names above"),
    "toolkit finetune RECIPE parity.reference_python=PATH": Elsewhere("needs another environment"),
    "toolkit recipe show RECIPE": Elsewhere("with a name above"),
    "toolkit cache": Here("shipped", says="cache"),
    "toolkit cache clear [--older-than DAYS]": Elsewhere("test_cache.py clears caches"),
    "toolkit parity record --model ctrl --weights runs/my/model --length 256 -o bundle": Elsewhere(
        "needs a run of CTRL; test_exported_graph.py records one"
    ),
    'eval "$(_TOOLKIT_COMPLETE=bash_source toolkit)"': Here(
        "shipped", "&& complete -p toolkit", says="complete .*toolkit"
    ),
    'eval "$(_TOOLKIT_COMPLETE=zsh_source toolkit)"': Elsewhere("needs zsh; what it evaluates is looked at below"),
    "_TOOLKIT_COMPLETE=fish_source toolkit | source": Elsewhere("needs fish; what it reads is looked at below"),
    "source .venv/bin/activate": Elsewhere("the virtual environment is the one that the tests run in"),
    "export HF_ENDPOINT=https://hf-mirror.com": Elsewhere("is in the network; here it is the loopback hub"),
    "make install": NETWORK,
    "make install PADDLE=cpu": NETWORK,
    "make install PADDLE=gpu PADDLE_CUDA=cu126": Elsewhere("needs a GPU, and installs from the network"),
    'make install PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"': NETWORK,
    "pip install -c constraints.txt -e '.[cpu,reference,demo,tracking,dev]'": NETWORK,
    "pip wheel . --no-deps -w dist": NETWORK,
    "pip install -c constraints.txt 'dist/paddle_parity_toolkit-0.1.0-py3-none-any.whl[cpu,reference,demo]'": NETWORK,
    "toolkit recipe copy reformer_cls": Here("shipped", says="wrote reformer_cls.yaml"),
    "toolkit finetune reformer_cls.yaml": Here("shipped", f"--new {SHORT} {UNGATED} {FEW}", says="run folder: runs/"),
    'make install PIP_ARGS="-i https://pypi.tuna.tsinghua.edu.cn/simple"': NETWORK,
    "make test": Elsewhere("these tests"),
    "make test-slow": Elsewhere("these tests"),
    "make gpu": Elsewhere("needs a GPU"),
    "make ci": Elsewhere("these tests, and what .ci/run does"),
    **dict.fromkeys(
        (
            *("toolkit predict", "toolkit generate", "toolkit export", "toolkit bench", "toolkit search"),
            *("toolkit recipe check", "toolkit parity bitwise"),
        ),
        Elsewhere("names the command; its lines are above"),
    ),
    **dict.fromkeys(
        (*("make help", "make lint", "make docs", "make parity", "make clean"),),
        Elsewhere("in the table of targets, which .ci/docs.py writes"),
    ),
    'make test PYTEST_ARGS="tests/parity/test_verdict.py -k buckets"': Elsewhere("these tests"),
}

#: First lines of the blocks that show output, and the tests that keep them correct.
OUTPUT_BLOCKS = {
    "on AMD EPYC, 2 cores": "figures of one machine; test_bench.py looks at what is told",
    "data   19200 train, 400 validation, 1000 test questions in 21380 windows": "the demo's figures, from a run of it",
    "error: my.yaml:20: train.batch_sise": "below",
    "DRIFT reformer.encoder.layers.0.attention.layer_norm": "test_readme.py, of its places",
    "DRIFT norm (LayerNorm, port.py:9)": "test_pair_trials.py, of tests/pairs/first",
    "DRIFT add (paddlenlp/transformers/llama/modeling.py:401)": "test_pair_trials.py, of the files in the README",
}
COMMAND = re.compile(r"(\$ )?(toolkit|make|hf|pip|python|source|export|eval|_TOOLKIT_COMPLETE=)")


def console_blocks() -> list[list[str]]:
    """Return the lines of the blocks that are not files, without comments and blank lines."""
    fenced_blocks = [
        block for text in TEXTS.values() for block in FENCED_BLOCK.findall(text) if block.startswith("```\n")
    ]
    blocks = [block.splitlines()[1:-1] for block in fenced_blocks]
    lines = [[re.sub(r"\s+# .*", "", text).rstrip() for text in block] for block in blocks]
    return [[line for line in block if line] for block in lines]


def commands() -> list[str]:
    """Return the commands of the documents, from blocks, sentences and tables."""
    lines_of_blocks = []
    for block in console_blocks():
        if any(line.startswith("$ ") for line in block):
            lines_of_blocks += [line.removeprefix("$ ") for line in block if line.startswith("$ ")]
        elif any(COMMAND.match(line) for line in block):
            lines_of_blocks += block
    texts = (FENCED_BLOCK.sub("", text) for text in TEXTS.values())
    spans = (" ".join(span.split()) for text in texts for span in re.findall(r"`([^`]+)`", text))
    return list(dict.fromkeys([*lines_of_blocks, *(span for span in spans if re.match(r"(toolkit|make) \w", span))]))


def test_every_line_of_the_documents_is_run_or_has_a_reason():
    assert f"$(BIN)/{DEMO}\n" in (ROOT / "Makefile").read_text()
    there = [*commands(), DEMO]
    assert len(there) > 100
    assert not (odd := set(there) - set(LINES)), f"the documents have commands that nobody runs: {odd}"
    assert not (odd := set(LINES) - set(there)), f"these are not in the documents any more: {odd}"
    by_ci = " ".join((ROOT / ".ci" / "run").read_text().replace("\\\n", "").split())
    for line in [line for line, how in LINES.items() if how is BY_CI]:  # the demo with a tenth of its questions
        assert f"timed ${line.replace('=19200', '=1920')}" in by_ci
    for block in console_blocks():
        if not any(COMMAND.match(line) for line in block):
            assert block[0].startswith(tuple(OUTPUT_BLOCKS)), f"neither commands nor known output: {block[0]}"


def test_lines_that_do_not_run_here_have_known_options():
    lines_elsewhere = [
        line for line, how in LINES.items() if isinstance(how, Elsewhere) and line.startswith("toolkit ")
    ]
    assert len(lines_elsewhere) >= 3
    for line in lines_elsewhere:
        words = shlex.split(re.sub(r"[\[\]]", "", line))[1:]
        cli.toolkit.main([*words, "--help"], standalone_mode=False, obj=cli.Settings())


def my_recipe() -> str:
    """Return the recipe that recipes/README.md asks to save as my.yaml."""
    (block,) = (
        block for block in FENCED_BLOCK.findall(TEXTS["recipes/README.md"]) if block.startswith("```yaml\ntask:")
    )
    return "\n".join(block.splitlines()[1:-1]) + "\n"


def decoder_pair() -> dict[str, str]:
    """Return the two files of a pair that README.md shows: name -> text."""
    blocks = [block for block in FENCED_BLOCK.findall(README) if "def build(config)" in block]
    sides = ["port.py" if "from paddle" in block else "reference.py" for block in blocks]
    return {side: "\n".join(block.splitlines()[1:-1]) + "\n" for side, block in zip(sides, blocks, strict=True)}


#: Write a checkpoint with the configuration of the README's, but smaller, into the folder that is the first argument.
SMALL_CHECKPOINT = """
import sys
from torch import bfloat16, manual_seed
from transformers import LlamaConfig, LlamaForCausalLM
manual_seed(0)
sizes = dict(vocab_size=49152, hidden_size=36, intermediate_size=64, num_hidden_layers=2, num_attention_heads=9)
names = dict(num_key_value_heads=3, rope_theta=100000, rms_norm_eps=1e-5, tie_word_embeddings=True)
LlamaForCausalLM(LlamaConfig(**sizes, **names)).to(bfloat16).save_pretrained(sys.argv[1])
"""


def lay_out_decoder(folder: Path) -> Path:
    """Write the README's pair and a small checkpoint into a new folder; return the checkpoint's folder."""
    for side, text in decoder_pair().items():
        folder.mkdir(exist_ok=True)
        (folder / side).write_text(text)
    subprocess.run([sys.executable, "-c", SMALL_CHECKPOINT, folder / "small"], check=True, capture_output=True)
    return folder / "small"


def test_the_error_message_in_the_readme_is_real(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text(my_recipe().replace("batch_size", "batch_sise"))
    with pytest.raises(UserError) as mistake:
        load_recipe("my.yaml")
    assert f"error: {mistake.value}" in [line for (line, *_) in console_blocks()]


# -- the lines that run ---------------------------------------------------------------------------------------------

TOKEN = "hf_writer"
#: Starts what pip's script starts, by the fork server of the tests: 50 lines would spend minutes on imports.
PROGRAM = f"""#!{sys.executable}
import sys
sys.path.insert(0, {str(ROOT / "tests")!r})
from fork_server import ForkingPopen
if sys.argv[1:]:
    sys.exit(ForkingPopen([sys.executable, "-m", "toolkit", *sys.argv[1:]]).wait())
from toolkit.cli import main
main()
"""
FACT = "On 1. Januar 1999 the money of Finnland was introduced. The capital of Finnland is Helsinki."


def lay_out(folder: Path) -> None:
    """Write the files that the README assumes, real and small."""
    options = cldr_languages.Options(languages=["de", "fi", "fr"], train=20, validation=3, test=1)
    corpus = cldr_languages.load(options)
    for name in ("train", "reviews"):
        rows = corpus["train"]
        labels = map(rows.features["label"].int2str, rows["label"])
        rows.remove_columns("label").add_column("label", list(labels)).to_csv(folder / f"{name}.csv")
    corpus["validation"].select_columns(["text"]).to_csv(folder / "new.csv")
    (folder / "my.yaml").write_text(my_recipe())
    (folder / "fin.txt").write_text(FACT)
    for side in ("port.py", "reference.py"):
        shutil.copy(SMALL_PAIR / side, folder)
    (folder / "recipes").symlink_to(ROOT / "recipes")
    questions = [
        {"id": name, "question": "Which?", "answers": [{"text": text, "answer_start": FACT.index(text)}]}
        for name, text in {"a": "Helsinki", "b": "1. Januar 1999"}.items()
    ]
    squad = {"version": "1.1", "data": [{"title": "x", "paragraphs": [{"context": FACT, "qas": questions}]}]}
    (folder / "DATASET.json").write_text(json.dumps(squad))
    (folder / "PREDICTIONS.json").write_text(json.dumps({"a": "Helsinki", "b": "never"}))
    (folder / "bin").mkdir()
    (folder / "bin" / "toolkit").write_text(PROGRAM)
    (folder / "bin" / "toolkit").chmod(0o755)
    (folder / "bin" / "hf").symlink_to(Path(sys.executable).parent / "hf")


@pytest.mark.slow
def test_every_line_that_can_run_here_runs(tmp_path):
    lay_out(tmp_path)
    with LoopbackHub() as hub:
        hub.tokens.add(TOKEN)
        hub.writers[TOKEN] = {"my-team"}
        hub.add(CHECKPOINT, lay_out_decoder(tmp_path / "decoder"))
        environment = {
            **hub.environment(tmp_path / "home", HF_TOKEN=TOKEN),
            "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "WANDB_MODE": "offline",
        }

        def run(line: str, how: Here) -> None:
            for name, replacement in how.names.items():
                line = re.sub(rf"\b{name}\b", replacement, line)
            result = subprocess.run(
                ["bash", "-c", f"{line} {how.more}"],
                cwd=tmp_path / how.folder,
                env=environment,
                capture_output=True,
                text=True,
            )
            transcript = f"$ {line} {how.more}\n{result.stdout}{result.stderr}"
            assert result.returncode == 0 and "Traceback" not in transcript, transcript
            assert re.search(how.says, result.stdout + result.stderr), (
                f"{how.says!r} is not in the output:\n{transcript}"
            )

        def run_chain(chain: str) -> None:
            for line, how in LINES.items():
                if isinstance(how, Here) and how.chain == chain:
                    run(line, how)

        with ThreadPoolExecutor(2) as workers:
            list(workers.map(run_chain, ["gates", "own", "shipped", "decoder"]))  # the longest first
    completion_scripts = {
        shell: subprocess.run(
            ["toolkit"], env={**environment, "_TOOLKIT_COMPLETE": f"{shell}_source"}, capture_output=True, text=True
        ).stdout
        for shell in ("zsh", "fish")
    }
    assert "compdef _toolkit_completion toolkit" in completion_scripts["zsh"]
    assert "complete --no-files --command toolkit" in completion_scripts["fish"]
