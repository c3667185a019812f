"""Test `toolkit recipe new` on the layouts of well-known published data sets.

The recipe has the task, the columns, the labels and the number of examples of the data; otherwise the refusal gives the
reason and helpful arguments.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import published_layouts as layouts
import pytest
import yaml
from test_recipe_new import run  # noqa: F401

from toolkit.recipe.load import load_recipe
from toolkit.tasks import task_of

pytestmark = [pytest.mark.slow, pytest.mark.shared_data]


@dataclass(frozen=True)
class ExpectedRecipe:
    """The correct recipe of a layout.

    Attributes:
        examples: number of examples of train, validation and, if there is one, test.
        text, label: the columns; None if the layout has no names for them.
        labels: number of labels.
    """

    examples: tuple[int, ...]
    text: str | list[str] | None = None
    label: str | list[str] | None = None
    labels: int | None = None
    problem_type: str = "single_label"
    task: str = "classification"


def expect_tagged_tokens(*examples: int, text: str | None = None, label: str | None = None) -> ExpectedRecipe:
    return ExpectedRecipe(examples, text, label, task="token_classification")


TOXIC = ["toxic", "severe_toxic", "obscene", "threat", "insult", "identity_hate"]
RECIPES = {
    layouts.ag_news: ExpectedRecipe((216, 24, 60), "column3", "column1", 4),
    layouts.sst2: ExpectedRecipe((240, 40), "sentence", "label", 2),
    layouts.cola: ExpectedRecipe((216, 24), "column4", "column2", 2),
    layouts.mrpc: ExpectedRecipe((216, 24, 60), ["#1 String", "#2 String"], "Quality", 2),
    layouts.sts_b: ExpectedRecipe((216, 24), ["sentence1", "sentence2"], "score", problem_type="regression"),
    layouts.multi_nli: ExpectedRecipe((216, 24), ["sentence1", "sentence2"], "gold_label", 3),
    layouts.sms_spam: ExpectedRecipe((216, 24), "column2", "column1", 2),
    layouts.sms_spam_kaggle: ExpectedRecipe((216, 24), "v2", "v1", 2),
    layouts.sentiment140: ExpectedRecipe((216, 24), "column6", "column1", 2),
    layouts.go_emotions: ExpectedRecipe((240, 40, 60), "column1", "column2", 8, "multi_label"),
    layouts.toxic_comments: ExpectedRecipe((216, 24), "comment_text", TOXIC, 6, "multi_label"),
    layouts.kaggle_title_and_body: ExpectedRecipe((216, 24), ["title", "text"], "label", 2),
    layouts.excel_with_title_row: ExpectedRecipe((180, 20), "Message", "Category", 5),
    layouts.parquet_of_the_hub: ExpectedRecipe((240, 40, 60), "text", "label", 2),
    layouts.amazon_reviews: ExpectedRecipe((215, 25), "reviewText", "overall", 5),
    layouts.yelp_reviews: ExpectedRecipe((215, 25), "text", "stars", 5),
    layouts.sarcasm_headlines: ExpectedRecipe((216, 24), "headline", "is_sarcastic", 2),
    layouts.fasttext: ExpectedRecipe((200, 200), "text", "label", 5),
    layouts.trec: ExpectedRecipe((216, 24), "text", "label", 3),
    layouts.snips: ExpectedRecipe((200, 200, 200), "text", "label", 5),
    layouts.tweet_eval: ExpectedRecipe((240, 40, 60), "text", "label", 2),
    layouts.rt_polarity: ExpectedRecipe((216, 24), "text", "label", 2),
    layouts.acl_imdb: ExpectedRecipe((42, 18, 60), labels=2),
    layouts.newsgroups: ExpectedRecipe((63, 27, 90), labels=3),
    layouts.bbc_news: ExpectedRecipe((216, 24), labels=3),
    layouts.label_studio: expect_tagged_tokens(96, 24, text="data.text", label="annotations"),
    layouts.dataturks: expect_tagged_tokens(96, 24, text="content", label="annotation"),
    layouts.spacy_training: expect_tagged_tokens(96, 24, text="column1", label="column2.entities"),
    layouts.conll_2003: expect_tagged_tokens(160, 40, 40),
    layouts.conll_files: expect_tagged_tokens(160, 40, 40),
    layouts.wnut: expect_tagged_tokens(128, 32),
    layouts.squad_v1: ExpectedRecipe((230, 52), task="question_answering"),
    layouts.squad_v2: ExpectedRecipe((230, 52), task="question_answering"),
    layouts.tiny_shakespeare: ExpectedRecipe((31, 4, 3), task="language_modeling"),
}
#: Layouts without a recipe -> the reason, and the arguments that help.
REFUSED_LAYOUTS = {
    layouts.label_studio_choices: (r"no column of labels .*: every value of id is another; annotations holds", None),
    layouts.wikitext: (r"files that end in one of .*; --task language_modeling reads its files as text", (29, 3, 5)),
    layouts.enwik8: (r"its name should end in one of .*; --task language_modeling reads it as text", (30, 5, 4)),
}


def test_at_least_eighteen_of_twenty_layouts_get_a_recipe():
    assert len(RECIPES) >= 18 and 10 * len(REFUSED_LAYOUTS) <= 2 * (len(RECIPES) + len(REFUSED_LAYOUTS))


def examples_of(recipe_path) -> tuple[int, ...]:
    recipe = load_recipe(recipe_path)
    splits = task_of(recipe).load_splits(recipe)
    return tuple(len(splits[name]) for name in ("train", "validation", "test") if name in splits)


@pytest.mark.parametrize("maker", RECIPES, ids=lambda maker: maker.__name__)
def test_the_recipe_fits_the_data(run, tmp_path, shared_data, maker):  # noqa: F811
    expected_recipe, folder = RECIPES[maker], tmp_path / "data"
    folder.mkdir()
    status, out, err = run("recipe", "new", maker(layouts.RealTexts(shared_data), folder), "--output", "new.yaml")
    assert status == 0, err
    recipe = load_recipe(tmp_path / "new.yaml")
    assert recipe.task == expected_recipe.task
    data_section = yaml.safe_load((tmp_path / "new.yaml").read_text(encoding="utf-8"))["data"]
    assert (data_section.get("text"), data_section.get("label")) == (expected_recipe.text, expected_recipe.label)
    assert data_section.get("problem_type", "single_label") == expected_recipe.problem_type
    found_labels = re.search(r"(\d[\d,]*) labels", out)
    assert (int(found_labels[1]) if found_labels else None) == expected_recipe.labels
    assert examples_of(tmp_path / "new.yaml") == expected_recipe.examples
    status, out, err = run("recipe", "check", "new.yaml")
    assert status == 0 and out.endswith("new.yaml: ok\n"), err


@pytest.mark.parametrize("maker", REFUSED_LAYOUTS, ids=lambda maker: maker.__name__)
def test_the_reason_of_a_refusal_is_true_and_its_advice_works(run, tmp_path, shared_data, maker):  # noqa: F811
    (reason, examples), folder = REFUSED_LAYOUTS[maker], tmp_path / "data"
    folder.mkdir()
    path = maker(layouts.RealTexts(shared_data), folder)
    status, _, err = run("recipe", "new", path, "--output", "new.yaml")
    assert status == 2 and err.count("\n") == 1 and re.search(reason, err), err
    assert not (tmp_path / "new.yaml").exists()
    if examples is not None:
        status, _, err = run("recipe", "new", path, "--output", "new.yaml", "--task", "language_modeling")
        assert status == 0 and examples_of(tmp_path / "new.yaml") == examples, err


def test_a_guess_about_issues_of_github_is_reported(run, tmp_path, shared_data):  # noqa: F811
    """Their labels are lists of objects, which cannot be predicted, so the state is only a guess."""
    path = layouts.github_issues(layouts.RealTexts(shared_data), tmp_path)
    status, out, err = run("recipe", "new", path, "--output", "new.yaml")
    assert status == 0 and "that state holds the labels is a guess" in out and "--label NAME chooses" in out, err
    recipe = load_recipe(tmp_path / "new.yaml")
    assert (recipe.data.text, recipe.data.label) == (["title", "body"], "state")
