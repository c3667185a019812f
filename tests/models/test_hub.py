"""Test downloads from the hub: files, revisions, and one line for each error.

The tests use the real client libraries; the hub is a small server on the loopback interface.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import datasets
import numpy as np
import pytest
from loopback_hub import Corrupt, Cut, LoopbackHub, Pointer, Stall, Status, WrongSize
from safetensors import safe_open
from safetensors.numpy import save

from models.files.hub import split_revision
from models.reformer import schema
from models.reformer import weights as reformer
from models.reformer.tokenizer import load_tokenizer, train_sentencepiece
from toolkit.errors import UserError
from toolkit.recipe.load import load_recipe

ROOT = Path(__file__).parents[2]
SMALL = save({"weight": np.arange(8, dtype=np.float32)})
#: More bytes than the chunk size of the client, which stores partial downloads chunk by chunk.
LARGE = save({"weight": np.zeros(6 * 2**20, dtype=np.float32)})
CONFIG = '{"model_type": "reformer"}'


class Client:
    """The program :mod:`hub_client`, by default with a separate cache."""

    def __init__(self, hub: LoopbackHub, home: Path, **options: str) -> None:
        self.home = home
        environment = {**hub.environment(home, **options), "PYTHONPATH": str(ROOT)}
        program = [sys.executable, str(ROOT / "tests" / "hub_client.py")]
        self.errors = (home.parent / f"{home.name}.stderr").open("w+")
        self.process = subprocess.Popen(
            program, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True
        )

    def ask(self, id: str, revision: str | None = None, **options: object) -> dict:
        return self.send({"id": id, "revision": revision, **options})

    def send(self, question: dict) -> dict:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, Path(self.errors.name).read_text()
        return json.loads(line)

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()
        self.errors.close()


@pytest.fixture
def hub():
    with LoopbackHub() as hub:
        yield hub


@pytest.fixture
def client(hub, tmp_path):
    """Return a function that starts clients; by default, all use one cache."""
    clients = []

    def start(home: str = "home", **options: str) -> Client:
        clients.append(Client(hub, tmp_path / home, **options))
        return clients[-1]

    yield start
    for started_client in clients:
        started_client.close()


# -- files and revisions --------------------------------------------------------------------------------------------


def test_only_needed_files_are_downloaded_and_pickles_only_without_an_alternative(hub, client):
    common = {"config.json": CONFIG, "tokenizer_config.json": "{}", "spiece.model": b"x", "vocab.json": "{}"}
    never = {"rust_model.ot": b"x", "tf_model.h5": b"x", "training_args.bin": b"x", "run.py": "", "onnx/a.json": "{}"}
    pickles = {"pytorch_model.bin": b"x", "merges.txt": "a"}
    old = hub.add("a/old", {**common, **never, **pickles})
    shards = {f"pytorch_model-0000{n}-of-00002.bin": b"x%d" % n for n in (1, 2)}
    index = json.dumps({"weight_map": {"a": "pytorch_model-00001-of-00002.bin"}})
    hub.add("a/sharded", {**common, **never, **shards, "pytorch_model.bin.index.json": index})
    old.commit({**common, **pickles, "model.safetensors": SMALL}, "refs/pr/1")
    hub_client = client()
    assert hub_client.ask("a/old")["files"] == sorted([*common, *pickles])
    assert hub_client.ask("a/old", "refs/pr/1")["files"] == sorted([*common, "merges.txt", "model.safetensors"])
    assert hub_client.ask("a/sharded")["files"] == sorted([*common, *shards, "pytorch_model.bin.index.json"])


def test_a_revision_is_a_folder_named_by_its_commit_and_is_not_downloaded_twice(hub, client):
    repository = hub.add("a/b", {"config.json": CONFIG, "model.safetensors": SMALL})
    first = repository.refs["main"]
    second = repository.commit({"config.json": CONFIG, "model.safetensors": SMALL, "merges.txt": "a"}, "refs/pr/3")
    hub_client = client()
    assert Path(hub_client.ask("a/b")["folder"]).name == first
    assert Path(hub_client.ask("a/b", "refs/pr/3")["folder"]).name == second
    assert len(hub.requests_with("/storage/", "GET")) == 1  # both revisions have the same weights
    repository.commit({"config.json": CONFIG + " "})
    hub.requests.clear()
    assert Path(hub_client.ask("a/b", first)["folder"]).name == first
    assert hub.requests_with("resolve") == [] and hub.requests_with("/storage/") == []
    assert Path(hub_client.ask("a/b")["folder"]).name == repository.refs["main"] != first


# -- errors ---------------------------------------------------------------------------------------------------------


def test_every_error_is_one_line_with_the_place_and_the_remedy(hub, client):
    files = {"config.json": CONFIG, "model.safetensors": SMALL}
    for access in ("public", "private", "gated", "missing"):
        hub.add(f"a/{access}", files).access = access
    hub.add("a/empty", {"README.md": "nothing"})
    hub.add("a/ill", files).faults["model.safetensors"] = Status(429, message="slower")
    hub.add("a/pointer", files).faults["model.safetensors"] = Pointer()
    hub.add("a/corrupt", files).faults["model.safetensors"] = Corrupt(20)
    hub.add("a/size", files).faults["model.safetensors"] = WrongSize(100)
    hub.add("a/broken", {"config.json": CONFIG, "model.safetensors": SMALL[:-8]})
    hub.tokens |= {"hf_known"}
    hub_client, page = client(), hub.endpoint
    private = (
        "the model a/{} does not exist, or is private: without a login the hub does not say which; {}; if it is "
        "private, log in (hf auth login, or HF_TOKEN)"
    )
    advice = "run the same command again"
    expected_errors = {
        ("a/private",): ("private", private.format("private", "check its name")),
        ("a/missing",): ("private", private.format("missing", "check its name")),
        ("google/reformer-enwiki8",): (
            "private",
            private.replace("a/{}", "{}").format("google/reformer-enwiki8", "did you mean google/reformer-enwik8"),
        ),
        ("a/private", None, "hf_known"): (
            "missing",
            "the model a/private does not exist, or is private and not for the account of this token; check its name; "
            f"see {page}/a/private",
        ),
        ("a/public", None, "hf_unknown"): (
            "token",
            "cannot read the model a/public: the hub does not know the token that was sent with it: it is wrong or has "
            "expired; log in again (hf auth login), or change HF_TOKEN",
        ),
        ("a/gated",): (
            "gated",
            "the model a/gated is gated: its files are for those who were granted access; ask for it at "
            f"{page}/a/gated, then log in (hf auth login, or HF_TOKEN); now there is no login here",
        ),
        ("a/gated", None, "hf_known"): (
            "gated",
            "the model a/gated is gated: its files are for those who were granted access; ask for it at "
            f"{page}/a/gated, and run again when it is granted to the account of this token",
        ),
        ("a/public", "refs/pr/9"): (
            "revision",
            "the model a/public has no revision refs/pr/9; it has main, and the commits at "
            f"{page}/a/public/commits/main",
        ),
        ("a/empty",): (
            "file",
            f"the model a/empty has no config.json, so it is no checkpoint of transformers; see {page}/a/empty",
        ),
        ("not//a name",): ("name", "not//a name is neither a folder nor the name of a hub repository (owner/name)"),
        ("a/ill",): (
            "hub",
            f"cannot read model.safetensors of the model a/ill at revision COMMIT: the hub answers 429 (slower); "
            f"{advice} later",
        ),
        ("a/corrupt",): (
            "corrupt",
            "model.safetensors of the model a/corrupt at revision COMMIT came damaged: its checksum is not the one "
            f"that the hub announced; it was removed: {advice} to fetch it",
        ),
        ("a/size",): (
            "corrupt",
            "model.safetensors of the model a/size at revision COMMIT came with another size than the hub announced; "
            f"what came was removed: {advice} to fetch it",
        ),
        ("a/pointer",): (
            "UnreadableFileError",
            "SNAPSHOT/model.safetensors is a pointer of git-LFS, not the file itself (model.safetensors of the model "
            "a/pointer at revision COMMIT); the repository holds no more: take another revision, or tell its owner",
        ),
        ("a/broken",): (
            "UnreadableFileError",
            "SNAPSHOT/model.safetensors cannot be read as safetensors: Error while deserializing header: incomplete "
            "metadata, file not fully covered (model.safetensors of the model a/broken at revision COMMIT); delete "
            "BLOB, and it is fetched again",
        ),
    }
    for (id, revision, token), (reason, line) in {
        (*question, None, None)[:3]: answer for question, answer in expected_errors.items()
    }.items():
        reply = hub_client.ask(id, revision, token=token, read=True)
        repository = hub.repositories.get(("model", id))
        commit = repository.refs["main"] if repository else ""
        folder = hub_client.home / "hub" / f"models--{id.replace('/', '--')}"
        snapshot = folder / "snapshots" / commit
        blob = os.path.realpath(snapshot / "model.safetensors")
        line = line.replace("COMMIT", commit).replace("SNAPSHOT", str(snapshot)).replace("BLOB", blob)
        assert (reply.get("reason"), reply.get("error")) == (reason, line), reply
    assert hub_client.ask("a/size")["reason"] == "corrupt"  # the first attempt leaves nothing that blocks the second
    # The files that were removed arrive complete in the next attempt.
    for id in ("a/corrupt", "a/size", "a/ill"):
        hub.repositories["model", id].faults.clear()
        assert "model.safetensors" in hub_client.ask(id, read=True)["files"]


def test_a_broken_file_is_downloaded_again_after_the_user_deletes_it(hub, client):
    repository = hub.add("a/b", {"config.json": CONFIG, "model.safetensors": SMALL})
    hub_client = client()
    folder = Path(hub_client.ask("a/b")["folder"])
    blob = Path(os.path.realpath(folder / "model.safetensors"))
    blob.write_bytes(SMALL[:-8])
    assert f"delete {blob}, and it is fetched again" in hub_client.ask("a/b", read=True)["error"]
    blob.unlink()
    hub.requests.clear()
    assert hub_client.ask("a/b", read=True)["folder"] == str(folder) and len(hub.requests_with("/storage/", "GET")) == 1
    assert repository.refs["main"] == folder.name


# -- without the hub ------------------------------------------------------------------------------------------------


def test_offline_the_cache_is_used_and_missing_files_are_named(hub, client):
    repository = hub.add("a/b", {"config.json": CONFIG, "model.safetensors": SMALL})
    folder = client().ask("a/b")["folder"]
    hub.requests.clear()
    offline = client(HF_HUB_OFFLINE="1")
    assert offline.ask("a/b")["folder"] == folder
    assert offline.ask("a/b", repository.refs["main"])["folder"] == folder
    cache = offline.home / "hub"
    way = "unset it and run the same command again, or copy the cache of a machine that has it"
    assert offline.ask("a/c") == {
        "error": f"offline and not cached: config.json of the model a/c is not in {cache}, and HF_HUB_OFFLINE is set; "
        + way,
        "reason": "offline",
    }
    assert "config.json of the model a/b at revision refs/pr/1 is not in" in offline.ask("a/b", "refs/pr/1")["error"]
    Path(os.path.realpath(Path(folder, "model.safetensors"))).unlink()
    assert offline.ask("a/b")["error"].startswith("offline and not cached: model.safetensors of the model a/b is not")
    assert hub.requests == []


def test_an_unreachable_hub_is_treated_as_offline(tmp_path):
    with LoopbackHub() as hub:
        hub.add("a/b", {"config.json": CONFIG, "model.safetensors": SMALL})
        endpoint, hub_client = hub.endpoint, Client(hub, tmp_path / "home")
        folder = hub_client.ask("a/b")["folder"]
    try:
        assert hub_client.ask("a/b")["folder"] == folder
        assert f"and {endpoint} cannot be reached; connect" in hub_client.ask("a/c")["error"]
    finally:
        hub_client.close()


# -- interrupted ----------------------------------------------------------------------------------------------------


def test_a_download_resumes_after_a_lost_connection(hub, client):
    repository = hub.add("a/b", {"config.json": CONFIG, "model.safetensors": LARGE})
    repository.faults["model.safetensors"] = Cut(22 * 2**20, times=1)
    hub_client = client(TQDM_POSITION="-1")  # shows the client's progress bars without a terminal, too
    commit = repository.refs["main"]
    assert hub_client.ask("a/b") == {
        "error": f"the download of model.safetensors of the model a/b at revision {commit} was interrupted: the "
        "connection was closed; run the same command again: it goes on where it was",
        "reason": "interrupted",
    }
    hub.requests.clear()
    assert "folder" in hub_client.ask("a/b", read=True)
    assert [request.start for request in hub.requests_with("/storage/", "GET")] == [20 * 2**20]
    assert "model.safetensors: 100%" in Path(hub_client.errors.name).read_text()


def incomplete_bytes(client: Client) -> int:
    """Return the size in bytes of the file whose download was interrupted, 0 if there is none."""
    return sum(path.stat().st_size for path in client.home.rglob("*.incomplete"))


@pytest.mark.slow  # the client tries five times, one second each
def test_a_stalled_download_times_out_and_can_be_resumed(hub, client):
    repository = hub.add("a/b", {"config.json": CONFIG, "model.safetensors": LARGE})
    repository.faults["model.safetensors"] = Stall(22 * 2**20)
    hub_client = client(HF_HUB_DOWNLOAD_TIMEOUT="1")
    for _ in range(5):  # on a busy machine, the first bytes may take longer than the client's timeout of one second
        error = hub_client.ask("a/b")["error"]
        assert "was interrupted: no more bytes came; run the same command again: it goes on" in error
        if incomplete_bytes(hub_client) == 20 * 2**20:
            break
    repository.faults.clear()
    hub.requests.clear()
    assert "folder" in hub_client.ask("a/b", read=True)
    assert [request.start for request in hub.requests_with("/storage/", "GET")] == [20 * 2**20]


def test_a_download_resumes_after_its_process_is_killed(hub, client):
    repository = hub.add("a/b", {"config.json": CONFIG, "model.safetensors": LARGE})
    repository.faults["model.safetensors"] = Stall(22 * 2**20)
    killed_client = client(HF_HUB_DOWNLOAD_TIMEOUT="60")
    assert killed_client.process.stdin
    killed_client.process.stdin.write('{"id": "a/b"}\n')
    killed_client.process.stdin.flush()
    for _ in range(600):
        if incomplete_bytes(killed_client) == 20 * 2**20:
            break
        time.sleep(0.05)
    killed_client.process.kill()
    repository.faults.clear()
    hub.requests.clear()
    assert "folder" in client().ask("a/b", read=True)
    assert [request.start for request in hub.requests_with("/storage/", "GET")] == [20 * 2**20]


# -- data sets ------------------------------------------------------------------------------------------------------

ROWS = [{"text": f"text number {index}", "label": ["no", "yes"][index % 2]} for index in range(20)]
RECIPE = """\
train: {epochs: 1, learning_rate: 1e-3}
model: {config: {axial_pos_shape: [4, 8]}}
data:
  dataset: DATASET
  revision: REVISION
  max_length: 32
"""


def make_table(kind: str, count: int, **options: str) -> bytes:
    """Return a file with the first rows, with a constant column for each further argument."""
    rows = datasets.Dataset.from_list([{**row, **options} for row in ROWS[:count]])
    target = io.BytesIO()
    {"csv": rows.to_csv, "json": rows.to_json, "parquet": rows.to_parquet}[kind](target)
    return target.getvalue()


def write_recipe(tmp_path: Path, dataset: str, revision: str = "null") -> str:
    path = tmp_path / "x.yaml"
    path.write_text(RECIPE.replace("DATASET", dataset).replace("REVISION", revision))
    return str(path)


def test_a_hub_data_set_is_loaded_at_its_revision_and_again_offline(hub, client, tmp_path):
    for kind in ("csv", "json", "parquet"):
        content = {f"data/train.{kind}": make_table(kind, 12), f"data/validation.{kind}": make_table(kind, 4)}
        repository = hub.add(f"a/{kind}", content, kind="dataset")
    old = repository.refs["main"]
    new = repository.commit(
        {"data/train.parquet": make_table("parquet", 6), "data/validation.parquet": make_table("parquet", 2)}
    )
    hub_client = client()
    for kind, rows in (("csv", 12), ("json", 12), ("parquet", 6)):
        reply = hub_client.send({"recipe": write_recipe(tmp_path, f"a/{kind}")})
        assert len(reply["rows"]["train"]) == rows and reply["rows"]["train"][0] == "text number 0", reply
    assert reply["commit"] == new
    assert len(hub_client.send({"recipe": write_recipe(tmp_path, "a/parquet", old)})["rows"]["train"]) == 12
    offline = client(HF_HUB_OFFLINE="1")
    hub.requests.clear()
    assert len(offline.send({"recipe": write_recipe(tmp_path, "a/parquet", old)})["rows"]["train"]) == 12
    assert len(offline.send({"recipe": write_recipe(tmp_path, "a/parquet")})["rows"]["train"]) == 6
    assert hub.requests == []
    error = offline.send({"recipe": write_recipe(tmp_path, "a/parquet", "f" * 40)})["error"]
    assert ":4: data.dataset: offline and not cached: the data set a/parquet at revision fff" in error


def test_every_data_set_error_names_its_recipe_line(hub, client, tmp_path):
    content = {"train.csv": make_table("csv", 12)}
    for access in ("public", "private", "gated"):
        hub.add(f"a/{access}", content, kind="dataset").access = access
    hub.add("a/empty", {"README.md": "nothing"}, kind="dataset")
    hub.add("a/pictures", {"train/a.png": b"x", "train/b.png": b"y"}, kind="dataset")
    for kind in ("parquet", "csv"):
        hub.add(f"a/cut_{kind}", {f"train.{kind}": make_table(kind, 12)}, kind="dataset").faults[f"train.{kind}"] = Cut(
            10
        )
    for name, fault in {"size": WrongSize(100), "ill": Status(429, message="slower")}.items():
        hub.add(f"a/{name}", {"train.parquet": make_table("parquet", 12)}, kind="dataset").faults["train.parquet"] = (
            fault
        )
    hub_client = client()
    unknown = "does not exist, or is private: without a login the hub does not say which"
    login = "log in (hf auth login, or HF_TOKEN)"
    lines = {
        "a/private": f"4: data.dataset: the data set a/private {unknown}; check its name; if it is private, {login}",
        "coastalcph/lexglue": f"4: data.dataset: the data set coastalcph/lexglue {unknown}; did you mean "
        f"coastalcph/lex_glue; if it is private, {login}",
        "a/gated": "4: data.dataset: the data set a/gated is gated: its files are for those who were granted access; "
        f"ask for it at {hub.endpoint}/datasets/a/gated, then {login}; now there is no login here",
        "a/public@v2": "5: data.revision: the data set a/public has no revision v2; it has main, and the commits at "
        f"{hub.endpoint}/datasets/a/public/commits/main",
        "a/size": "4: data.dataset: train.parquet of the data set a/size came with another size than the hub "
        "announced; what came was removed: run the same command again to fetch it",
        "a/ill": "4: data.dataset: cannot read train.parquet of the data set a/ill: the hub answers 429 (slower); run "
        "the same command again later",
        **{
            f"a/cut_{kind}": f"4: data.dataset: the download of train.{kind} of the data set a/cut_{kind} was "
            "interrupted: the connection was closed; run the same command again: it goes on where it was"
            for kind in ("parquet", "csv")
        },
        "a/pictures": "4: data.dataset: a/pictures holds data of the kind imagefolder, which is not read here; it "
        "should consist of files of one of the kinds json, csv, parquet, arrow, text",
    }
    for name, line in lines.items():
        dataset, _, revision = name.partition("@")
        path = write_recipe(tmp_path, dataset, revision or "null")
        assert hub_client.send({"recipe": path})["error"] == f"{path}:{line}"
    configs = "---\nconfigs:\n- {config_name: x, data_files: x.csv}\n- {config_name: y, data_files: y.csv}\n---\n"
    hub.add(
        "a/configs",
        {"README.md": configs, "x.csv": make_table("csv", 2), "y.csv": make_table("csv", 2)},
        kind="dataset",
    )
    path = write_recipe(tmp_path, "a/configs")
    assert ": data.config: missing; a/configs has the configurations x, y" in hub_client.send({"recipe": path})["error"]
    assert (
        ":4: data.dataset: cannot load a/empty: "
        in hub_client.send({"recipe": write_recipe(tmp_path, "a/empty")})["error"]
    )


def test_an_interrupted_data_set_names_the_missing_file_and_resumes(hub, client, tmp_path):
    noise = np.random.default_rng(0).bytes(6 * 2**20).hex()
    large = datasets.Dataset.from_list([{**ROWS[n % 20], "noise": noise[n :: 2**10]} for n in range(2**10)])
    hub_client = client()
    for kind in ("parquet", "csv"):
        target = io.BytesIO()
        {"csv": large.to_csv, "parquet": large.to_parquet}[kind](target)
        small = {f"{name}.{kind}": make_table(kind, 2, noise="") for name in ("train-0", "validation")}
        repository = hub.add(f"a/{kind}", {**small, f"train-1.{kind}": target.getvalue()}, kind="dataset")
        repository.faults[f"train-1.{kind}"] = Cut(11 * 2**20, times=1)
        path = write_recipe(tmp_path, f"a/{kind}")
        assert hub_client.send({"recipe": path})["error"] == (
            f"{path}:4: data.dataset: the download of train-1.{kind} of the data set a/{kind} was interrupted: the "
            "connection was closed; run the same command again: it goes on where it was"
        )
        hub.requests.clear()
        assert len(hub_client.send({"recipe": path})["rows"]["train"]) == 2 + 2**10
        resume_offsets = [
            request.start for request in hub.requests_with(f"train-1.{kind}", "GET") if request.status in (200, 206)
        ]
        assert resume_offsets == [10 * 2**20]


# -- recipes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            "data.revision=v1",
            "data.revision: is of a hub repository, and data.dataset is cldr_languages, which is none; ",
        ),
        ("model.revision=v1", "model.revision: is of a hub repository, and model.weights is not set; remove it"),
    ],
)
def test_a_revision_without_a_repository_is_rejected_at_its_line(change, line):
    with pytest.raises(UserError) as raised_error:
        load_recipe(ROOT / "recipes" / "reformer_cls.yaml", [change])
    assert line in str(raised_error.value) and "\n" not in str(raised_error.value)


def test_a_folder_has_no_revision(tmp_path):
    with pytest.raises(
        UserError, match=r"model\.revision: is of a hub repository, and model\.weights is .*; remove it"
    ):
        load_recipe(ROOT / "recipes" / "reformer_cls.yaml", [f"model.weights={tmp_path}", "model.revision=refs/pr/1"])


def test_a_revision_on_a_command_line_is_split_from_the_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert split_revision("a/b@refs/pr/1") == ("a/b", "refs/pr/1")
    assert split_revision("a/b") == ("a/b", None)
    Path("a@b").mkdir()
    assert split_revision("a@b") == ("a@b", None)


# -- whole runs -----------------------------------------------------------------------------------------------------

TINY = {
    "attn_layers": ["local"], "hidden_size": 32, "num_attention_heads": 1, "feed_forward_size": 32,
    "axial_pos_shape": [4, 8], "axial_pos_embds_dim": [16, 16], "local_num_chunks_after": 1, "vocab_size": 258,
    "model_type": "reformer",
}  # fmt: skip
RUN = """\
train: {max_steps: 4, eval_steps: 2, learning_rate: 1e-3}
model: {weights: a/tiny}
data: {dataset: a/data, max_length: 32}
"""
#: Code of a run that kills itself after its first checkpoint.
KILL_AFTER_CHECKPOINT = """
import os
from toolkit.run_folder.checkpoint import Checkpoints
save = Checkpoints.save
def save_and_die(self, *arguments, **named):
    save(self, *arguments, **named)
    os._exit(9)
Checkpoints.save = save_and_die
from toolkit.__main__ import main
main()
"""


def make_checkpoint(seed: int) -> dict[str, bytes | str]:
    """Return the files of a small, randomly initialized Reformer."""
    weights = reformer.initial_weights(schema.resolve(TINY), "masked_lm", seed)
    return {"config.json": json.dumps(TINY), "model.safetensors": save(weights)}


def run_command(
    hub: LoopbackHub, folder: Path, *arguments: str, code: str | None = None, **options: str
) -> tuple[int, str, str]:
    """Run a command line in `folder` with the cache there.

    Return the exit status, standard output and standard error.
    """
    environment = {**hub.environment(folder / "home", **options), "PYTHONPATH": str(ROOT)}
    program = ["-c", code] if code else ["-m", "toolkit"]
    process = subprocess.run(
        [sys.executable, *program, *arguments], env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in process.stderr, process.stderr
    return process.returncode, process.stdout, process.stderr


@pytest.mark.slow
def test_a_resumed_run_keeps_its_first_commits(hub, tmp_path):
    model = hub.add("a/tiny", make_checkpoint(0))
    data = hub.add(
        "a/data", {"train.csv": make_table("csv", 16), "validation.csv": make_table("csv", 4)}, kind="dataset"
    )
    old = {"model": model.refs["main"], "data": data.refs["main"]}
    (tmp_path / "x.yaml").write_text(RUN)
    finetune = ("finetune", "x.yaml", "--skip-parity", "a test", "train.output_dir=run")
    assert run_command(hub, tmp_path, *finetune, code=KILL_AFTER_CHECKPOINT)[0] == 9
    assert json.loads((tmp_path / "run/identity.json").read_text())["commits"] == old
    new_commit = model.commit(make_checkpoint(1))
    data.commit({"train.csv": make_table("csv", 12), "validation.csv": make_table("csv", 4)})
    status, output, errors = run_command(hub, tmp_path, *finetune)
    assert status == 0, errors
    text = " ".join(output.split())
    assert f"hub a/tiny at {old['model']} hub a/data at {old['data']}" in text
    assert (
        f"note a/tiny (main) has moved since this run began, from {old['model']} to {new_commit}; the run goes" in text
    )
    assert "resuming run after step" in output
    card = (tmp_path / "run/README.md").read_text()
    assert f"starting from `a/tiny` at commit `{old['model']}`" in card
    assert f"`a/data` at commit `{old['data']}`" in card
    assert json.loads((tmp_path / "run/identity.json").read_text())["commits"] == old
    # A new run uses the current commit of the branch; offline, it uses the last known commit.
    status, output, errors = run_command(hub, tmp_path, *finetune[:-1], "train.output_dir=new")
    assert status == 0 and f"hub    a/tiny at {new_commit}\n" in output, errors
    hub.requests.clear()
    status, output, errors = run_command(hub, tmp_path, *finetune[:-1], "train.output_dir=offline", HF_HUB_OFFLINE="1")
    assert status == 0 and f"hub    a/tiny at {new_commit}\n" in output and hub.requests == [], errors


@pytest.mark.slow
def test_a_gate_reports_the_commit_of_its_weights(hub, tmp_path):
    repository = hub.add("a/tiny", make_checkpoint(0))
    commit = repository.commit(make_checkpoint(1), "refs/pr/1")
    options = ("--model", "reformer", "--head", "masked_lm", "--length", "32", "--weights", "a/tiny@refs/pr/1")
    status, output, errors = run_command(hub, tmp_path, "parity", *options, "--output", "out")
    assert status == 0, output + errors
    assert f"checkpoint a/tiny at {commit}" in " ".join(output.split())
    assert json.loads((tmp_path / "out/cpu/parity.json").read_text())["checkpoint"] == f"a/tiny at {commit}"
    assert f"a/tiny at {commit}" in (tmp_path / "out/cpu/parity.html").read_text()
    status, output, errors = run_command(hub, tmp_path, "parity", *options[:-1], "a/tiny@refs/pr/2", "--output", "out")
    assert (status, errors.splitlines()[-1]) == (
        2,
        "error: --weights a/tiny@refs/pr/2: the model a/tiny has no revision refs/pr/2; it has refs/pr/1, main, and "
        f"the commits at {hub.endpoint}/a/tiny/commits/main",
    )


@pytest.mark.slow
def test_a_hub_error_names_the_recipe_line_and_leaves_no_files(hub, tmp_path):
    hub.add("a/tiny", make_checkpoint(0)).access = "private"
    hub.add("a/data", {"train.csv": make_table("csv", 16), "validation.csv": make_table("csv", 4)}, kind="dataset")
    (tmp_path / "x.yaml").write_text(RUN)
    hub.requests.clear()
    status, output, _ = run_command(hub, tmp_path, "recipe", "check", "x.yaml")
    assert status == 0 and "a/data is a hub data set; it is fetched and checked when a run starts" in output
    assert hub.requests == []
    status, _, errors = run_command(
        hub, tmp_path, "finetune", "x.yaml", "--skip-parity", "a test", "train.output_dir=run"
    )
    assert status == 2 and not (tmp_path / "run").exists()
    assert errors.splitlines()[-1] == (
        "error: x.yaml:2: model.weights: the model a/tiny does not exist, or is private: without a login the hub does "
        "not say which; check its name; if it is private, log in (hf auth login, or HF_TOKEN)"
    )


# -- a released layout ----------------------------------------------------------------------------------------------

#: Creates a small model with the layout of google/reformer-crime-and-punishment, in the file format of torch of 2020.
CAUSAL_REFORMER = """
import sys
from pathlib import Path
import torch
from transformers import ReformerConfig, ReformerModelWithLMHead
here, vocab_size = Path(sys.argv[1]), int(sys.argv[2])
config = ReformerConfig(
    architectures=["ReformerModelWithLMHead"], is_decoder=True, vocab_size=vocab_size, hidden_size=32,
    attn_layers=["local", "lsh", "local", "lsh"], axial_pos_shape=[8, 16], axial_pos_embds_dim=[8, 24],
    max_position_embeddings=128, num_attention_heads=2, attention_head_size=16, feed_forward_size=64,
    local_attn_chunk_length=16, lsh_attn_chunk_length=16, num_buckets=[2, 4], num_hashes=1, output_past=True,
    task_specific_params={"text-generation": {"do_sample": True, "max_length": 100}},
)
torch.manual_seed(0)
config.save_pretrained(here)
state = ReformerModelWithLMHead(config).state_dict()
torch.save(state, here / "pytorch_model.bin", _use_new_zipfile_serialization=False)
"""


@pytest.mark.slow
def test_the_shipped_recipe_fine_tunes_a_released_language_model(hub, tmp_path):
    text = "".join(f"The {word} ran over the hill and said so.\n\n" * 150 for word in ("cat", "dog", "hen"))
    (tmp_path / "text.txt").write_text(text)
    model_dir = tmp_path / "made"
    tokenizer = train_sentencepiece([text], 48, model_dir)
    process = subprocess.run(
        [sys.executable, "-c", CAUSAL_REFORMER, str(model_dir), "48"], capture_output=True, text=True, check=False
    )
    if "No module named 'transformers'" in process.stderr or "No module named 'torch'" in process.stderr:
        pytest.skip("transformers is not installed (extra: reference)")
    assert process.returncode == 0, process.stderr
    (model_dir / "tokenizer_config.json").unlink()
    hub.add("google/reformer-crime-and-punishment", model_dir)
    recipe = str(ROOT / "recipes/reformer_lm_crime_and_punishment.yaml")
    changes = ("data.files.train=text.txt", "data.max_length=60", "train.output_dir=run", "train.max_steps=2")
    status, output, errors = run_command(hub, tmp_path, "recipe", "check", recipe, *changes)
    assert status == 0 and output.endswith(": ok\n"), output + errors
    status, output, errors = run_command(hub, tmp_path, "finetune", recipe, *changes, "--skip-parity", "a test")
    assert status == 0, errors
    joined_output = " ".join(output.split())
    assert "4 layers" in joined_output and "(new: none)" in joined_output
    assert "texts of up to 60 tokens are padded to 64: a multiple of" in joined_output
    assert "positions: the first 4 of 8 rows of the checkpoint's table (64 of 128 tokens)" in joined_output
    with safe_open(tmp_path / "run/model/model.safetensors", "np") as weights_file:
        assert weights_file.get_slice("reformer.embeddings.position_embeddings.weights.0").get_shape() == [8, 1, 8]
    assert load_tokenizer(tmp_path / "run/model").fingerprint() == tokenizer.fingerprint()
    status, output, errors = run_command(hub, tmp_path, "generate", "run", "--prompt", "The cat", "--length", "100")
    assert status == 0 and output.startswith("The cat"), errors
