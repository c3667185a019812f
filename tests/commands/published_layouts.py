"""Write data sets in well-known published layouts, with the real texts of ../shared/data.

Each function writes one layout into a folder and returns the path that a user would name.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

#: Writes a layout: (real data, a new folder) -> the path for `toolkit recipe new`.
Maker = Callable[["RealTexts", Path], Path]
#: Splits of most layouts, and their numbers of rows.
SIZES = {"train": 240, "validation": 40, "test": 60}
TOPICS = ("World", "Sports", "Business", "Sci/Tech")


class RealTexts:
    """The texts of ../shared/data for the layouts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def sentences(self, split_name: str = "train", count: int = SIZES["train"]) -> list[tuple[str, int]]:
        """Return sentences of film reviews, with 0 or 1."""
        lines = (self.folder / "sentence_polarity" / f"{split_name}.jsonl").read_text(encoding="utf-8").splitlines()
        return [(row["text"], row["label"]) for row in map(json.loads, lines[:count])]

    def splits(self) -> Iterator[tuple[str, list[tuple[str, int]]]]:
        for split_name, count in SIZES.items():
            yield split_name, self.sentences(split_name, count)

    def reviews(self, split_name: str = "train", count: int = 60) -> list[tuple[str, int]]:
        """Return long reviews, as many of 0 as of 1."""
        lines = (self.folder / "movie_reviews" / f"{split_name}.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [(row["text"], row["label"]) for row in map(json.loads, lines)]
        return [row for label in (0, 1) for row in [row for row in rows if row[1] == label][: count // 2]]

    def questions(self, split_name: str = "train", intents: int = 5, of_each: int = 40) -> list[tuple[str, str]]:
        """Return questions to a bank and their intents."""
        with open(self.folder / "banking77" / f"{split_name}.csv", encoding="utf-8", newline="") as file:
            rows = [(row["text"], row["category"]) for row in csv.DictReader(file)]
        names = list(dict.fromkeys(intent for _, intent in rows))[:intents]
        rows_by_intent = [[row for row in rows if row[1] == name][:of_each] for name in names]
        mixed_rows = [row for group in zip(*rows_by_intent, strict=False) for row in group]
        return [(text.replace("\n", " ").strip(), intent) for text, intent in mixed_rows]

    def squad(self, articles: slice) -> list[dict[str, Any]]:
        document = json.loads((self.folder / "squad" / "dev-v1.1.json").read_text(encoding="utf-8"))
        return [{**article, "paragraphs": article["paragraphs"][:6]} for article in document["data"][articles]]

    def text(self, name: str, size: int) -> str:
        return (self.folder / "text" / f"{name}.txt").read_text(encoding="utf-8")[:size]

    def sentences_with_tags(self, count: int = 200) -> list[list[tuple[str, str]]]:
        """Return sentences of a novel as tokens and tags: names of persons and places are its entities."""
        names = {"Raskolnikov": "PER", "Razumihin": "PER", "Sonia": "PER", "Dounia": "PER", "Petersburg": "LOC"}
        text = self.text("crime_and_punishment", 900_000)
        sentences = re.findall(r"[A-Z][^.!?\n]{20,160}[.!?]", text.replace("\n", " "))
        sentences_with_tags = []
        for sentence in sentences:
            tokens = re.findall(r"\w+|[^\w\s]", sentence)
            if any(token in names for token in tokens):
                sentences_with_tags.append(
                    [(token, f"B-{names[token]}" if token in names else "O") for token in tokens]
                )
        return sentences_with_tags[:count]

    def spans(self, count: int = 120) -> list[tuple[str, list[tuple[int, int, str]]]]:
        """Return sentences with the places of their entities: start, end, kind."""
        sentences_with_spans = []
        for sentence in self.sentences_with_tags(count):
            text, spans = "", []
            for token, tag in sentence:
                text += (" " if text else "") + token
                if tag != "O":
                    spans.append((len(text) - len(token), len(text), tag[2:]))
            sentences_with_spans.append((text, spans))
        return sentences_with_spans


def write_text(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode(encoding))
    return path


def write_rows(path: Path, rows: Sequence[Sequence[object]], encoding: str = "utf-8", **options: Any) -> Path:
    table = io.StringIO(newline="")
    csv.writer(table, **options).writerows(rows)
    return write_text(path, table.getvalue(), encoding)


def write_jsonl(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    return write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


# -- tables ---------------------------------------------------------------------------------------------------------


def ag_news(texts: RealTexts, folder: Path) -> Path:
    for split_name in ("train", "test"):
        rows = [
            (place % 4 + 1, text.split(",")[0][:40].title(), text)
            for place, (text, _) in enumerate(texts.sentences(split_name, SIZES[split_name]))
        ]
        write_rows(folder / f"{split_name}.csv", rows, quoting=csv.QUOTE_ALL)
    write_text(folder / "classes.txt", "\n".join(TOPICS) + "\n")
    write_text(folder / "readme.txt", "AG's News Topic Classification Dataset\n\nVersion 3, Updated 09/09/2015\n")
    return folder


def sst2(texts: RealTexts, folder: Path) -> Path:
    for split_name, rows in texts.splits():
        name = "dev" if split_name == "validation" else split_name
        head = ("index", "sentence") if split_name == "test" else ("sentence", "label")
        lines = list(enumerate(text for text, _ in rows)) if split_name == "test" else rows
        write_text(folder / f"{name}.tsv", "".join(f"{a}\t{b}\n" for a, b in [head, *lines]))
    return folder


def cola(texts: RealTexts, folder: Path) -> Path:
    rows = [("gj04", label, "" if label else "*", text) for text, label in texts.sentences()]
    return write_text(folder / "in_domain_train.tsv", "".join("\t".join(map(str, row)) + "\n" for row in rows))


def mrpc(texts: RealTexts, folder: Path) -> Path:
    for split_name in ("train", "test"):
        sentences = texts.sentences(split_name, SIZES[split_name])
        rows = [(label, 700000 + place, 800000 + place, text, sentences[place - 1][0])
                for place, (text, label) in enumerate(sentences)]  # fmt: skip
        head = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
        body = "".join("\t".join(map(str, row)) + "\r\n" for row in rows)
        write_text(folder / f"msr_paraphrase_{split_name}.txt", head + body)
    return folder / "msr_paraphrase_train.txt"


def sts_b(texts: RealTexts, folder: Path) -> Path:
    head = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore"
    sentences = texts.sentences()
    rows = [
        (place, "main-captions", "MSRvid", "2012test", f"{place:04}", "none", "none", text.replace('"', ""),
         sentences[place - 1][0].replace('"', ""), f"{(place * 7) % 51 / 10:.3f}")
        for place, (text, _) in enumerate(sentences)
    ]  # fmt: skip
    return write_text(folder / "train.tsv", "\n".join([head, *("\t".join(map(str, row)) for row in rows)]) + "\n")


def multi_nli(texts: RealTexts, folder: Path) -> Path:
    for split_name, name in (("train", "train"), ("validation", "dev_matched"), ("test", "dev_mismatched")):
        sentences, kinds = texts.sentences(split_name, SIZES[split_name]), ("entailment", "neutral", "contradiction")
        rows = [
            {"annotator_labels": [kinds[place % 3]], "genre": ("fiction", "travel")[place % 2],
             "gold_label": kinds[place % 3], "pairID": f"{place}n", "promptID": str(place),
             "sentence1": text, "sentence1_binary_parse": f"( {text} )", "sentence1_parse": f"(ROOT (S {text}))",
             "sentence2": sentences[place - 1][0], "sentence2_binary_parse": f"( {sentences[place - 1][0]} )",
             "sentence2_parse": f"(ROOT (S {sentences[place - 1][0]}))"}
            for place, (text, _) in enumerate(sentences)
        ]  # fmt: skip
        write_jsonl(folder / f"multinli_1.0_{name}.jsonl", rows)
    return folder


def sms_spam(texts: RealTexts, folder: Path) -> Path:
    """Write the collection of UCI: a tab, no header, no ending, in latin-1 as some mirrors have it."""
    rows = [f"{'spam' if label else 'ham'}\t{text.capitalize()} £{place}\n"
            for place, (text, label) in enumerate(texts.sentences())]  # fmt: skip
    return write_text(folder / "SMSSpamCollection", "".join(rows), "latin-1")


def sms_spam_kaggle(texts: RealTexts, folder: Path) -> Path:
    rows = [("spam" if label else "ham", f"{text} £{place}", "", "", "")
            for place, (text, label) in enumerate(texts.sentences())]  # fmt: skip
    return write_rows(folder / "spam.csv", [("v1", "v2", "", "", ""), *rows], "latin-1")


def sentiment140(texts: RealTexts, folder: Path) -> Path:
    rows = [
        (4 * label, 1467810369 + place, f"Mon Apr 06 22:{place // 60:02}:{place % 60:02} PDT 2009", "NO_QUERY",
         f"user_{place % 97}", f"@friend {text}")
        for place, (text, label) in enumerate(texts.sentences())
    ]  # fmt: skip
    return write_rows(folder / "training.1600000.processed.noemoticon.csv", rows, "latin-1", quoting=csv.QUOTE_ALL)


def go_emotions(texts: RealTexts, folder: Path) -> Path:
    for split_name, rows in texts.splits():
        lines = [f"{text}\t{f'{place % 5},{5 + place % 3}' if place % 4 == 0 else place % 8}\tee{place:05x}\n"
                 for place, (text, _) in enumerate(rows)]  # fmt: skip
        write_text(folder / f"{'dev' if split_name == 'validation' else split_name}.tsv", "".join(lines))
    write_text(
        folder / "emotions.txt", "admiration\namusement\nanger\nannoyance\napproval\ncaring\nconfusion\ncuriosity\n"
    )
    return folder


def toxic_comments(texts: RealTexts, folder: Path) -> Path:
    kinds = ("toxic", "severe_toxic", "obscene", "threat", "insult", "identity_hate")
    rows = [(f"{place:016x}", f"{text}\n\n{text[:20]}", *(int(place % (3 + number) == 0) for number in range(6)))
            for place, (text, _) in enumerate(texts.sentences())]  # fmt: skip
    write_rows(folder / "train.csv", [("id", "comment_text", *kinds), *rows])
    write_rows(folder / "test.csv", [("id", "comment_text"), *(row[:2] for row in rows[:50])])
    write_rows(folder / "sample_submission.csv", [("id", *kinds), *((row[0], *[0.5] * 6) for row in rows[:50])])
    return folder


def kaggle_title_and_body(texts: RealTexts, folder: Path) -> Path:
    rows = [(place, " ".join(text.split()[:6]).title(), f"Author {place % 50}", text, label)
            for place, (text, label) in enumerate(texts.sentences())]  # fmt: skip
    write_rows(folder / "train.csv", [("id", "title", "author", "text", "label"), *rows])
    write_rows(folder / "test.csv", [("id", "title", "author", "text"), *(row[:4] for row in rows[:50])])
    write_rows(folder / "submit.csv", [("id", "label"), *((row[0], 1) for row in rows[:50])])
    return folder


def excel_with_title_row(texts: RealTexts, folder: Path) -> Path:
    from openpyxl import Workbook

    book = Workbook()
    cover = book.active
    cover.title = "About"
    cover.append(["Exported by the help desk"])
    sheet = book.create_sheet("Tickets")
    sheet.append(["Tickets of the first quarter"])
    sheet.append([])
    sheet.append(["Ticket", "Message", "Category"])
    for place, (text, intent) in enumerate(texts.questions()):
        sheet.append([place + 1, text, intent])
    book.save(folder / "tickets.xlsx")
    return folder / "tickets.xlsx"


def parquet_of_the_hub(texts: RealTexts, folder: Path) -> Path:
    import datasets

    (folder / "data").mkdir()
    write_text(folder / "README.md", "---\ndataset_info:\n  features:\n  - name: text\n---\n# Rotten tomatoes\n")
    kinds = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])})
    for split_name, rows in texts.splits():
        columns = {"text": [text for text, _ in rows], "label": [label for _, label in rows]}
        path = folder / "data" / f"{split_name}-00000-of-00001.parquet"
        datasets.Dataset.from_dict(columns, features=kinds).to_parquet(str(path))
    return folder


# -- json -----------------------------------------------------------------------------------------------------------


def amazon_reviews(texts: RealTexts, folder: Path) -> Path:
    rows = [
        {"reviewerID": f"A{place:013X}", "asin": f"{place % 7:010}", "reviewerName": f"Customer {place}",
         "helpful": [place % 3, place % 5], "reviewText": text, "overall": float(place % 5 + 1),
         "summary": " ".join(text.split()[:4]), "unixReviewTime": 1390000000 + 86400 * place,
         "reviewTime": f"{place % 12 + 1:02} {place % 28 + 1}, 2014"}
        for place, (text, _) in enumerate(texts.sentences())
    ]  # fmt: skip
    return write_jsonl(folder / "Musical_Instruments_5.json", rows)


def yelp_reviews(texts: RealTexts, folder: Path) -> Path:
    rows = [
        {"review_id": f"{place:022x}", "user_id": f"{place % 50:022x}", "business_id": f"{place % 9:022x}",
         "stars": float(place % 5 + 1), "useful": place % 4, "funny": place % 3, "cool": place % 2, "text": text,
         "date": f"2018-07-{place % 28 + 1:02} 22:09:11"}
        for place, (text, _) in enumerate(texts.sentences())
    ]  # fmt: skip
    return write_jsonl(folder / "yelp_academic_dataset_review.json", rows)


def sarcasm_headlines(texts: RealTexts, folder: Path) -> Path:
    rows = [{"is_sarcastic": label, "headline": text, "article_link": f"https://example.com/entry_us_{place}"}
            for place, (text, label) in enumerate(texts.sentences())]  # fmt: skip
    return write_jsonl(folder / "Sarcasm_Headlines_Dataset.json", rows)


def github_issues(texts: RealTexts, folder: Path) -> Path:
    kinds = ("bug", "enhancement", "question")
    rows = [
        {"url": f"https://api.github.com/repos/o/r/issues/{place}", "id": 10**9 + place, "number": place + 1,
         "title": " ".join(text.split()[:6]), "user": {"login": f"user{place % 20}", "id": place % 20, "type": "User"},
         "labels": [{"id": 208045946 + kind, "name": kinds[kind], "color": "f29513", "default": True}
                    for kind in sorted({place % 3, place % 2})],
         "state": ("open", "closed")[place % 2], "locked": False, "assignee": None, "comments": place % 7,
         "created_at": f"2024-01-{place % 28 + 1:02}T08:00:00Z", "body": f"{text}\r\n\r\n{text[:30]}"}
        for place, (text, _) in enumerate(texts.sentences())
    ]  # fmt: skip
    return write_text(folder / "issues.json", json.dumps(rows))


def label_studio(texts: RealTexts, folder: Path) -> Path:
    rows = []
    for place, (text, spans) in enumerate(texts.spans()):
        result = [
            {"value": {"start": start, "end": end, "text": text[start:end], "labels": [kind]}, "id": f"x{place}{start}",
             "from_name": "label", "to_name": "text", "type": "labels"}
            for start, end, kind in spans
        ]  # fmt: skip
        rows.append({"id": place, "annotations": [{"id": place, "result": result}], "data": {"text": text}})
    return write_text(folder / "project-1-at-2024-05-01.json", json.dumps(rows))


def label_studio_choices(texts: RealTexts, folder: Path) -> Path:
    rows = []
    for place, (text, label) in enumerate(texts.sentences()):
        value = {"choices": [("Negative", "Positive")[label]]}
        choice = {"value": value, "id": f"c{place}", "from_name": "sentiment", "to_name": "text", "type": "choices"}
        rows.append({"id": place, "annotations": [{"id": place, "result": [choice]}], "data": {"text": text}})
    return write_text(folder / "project-2-at-2024-05-01.json", json.dumps(rows))


def dataturks(texts: RealTexts, folder: Path) -> Path:
    rows = [
        {"content": text,
         "annotation": [{"label": [kind], "points": [{"start": start, "end": end - 1, "text": text[start:end]}]}
                        for start, end, kind in spans],
         "extras": None, "metadata": {"first_done_at": 1527503426000, "sec_taken": 0}}
        for text, spans in texts.spans()
    ]  # fmt: skip
    return write_jsonl(folder / "Entity Recognition in Novels.json", rows)


def spacy_training(texts: RealTexts, folder: Path) -> Path:
    return write_text(folder / "train.json", json.dumps([[text, {"entities": spans}] for text, spans in texts.spans()]))


def squad_v1(texts: RealTexts, folder: Path) -> Path:
    for name, articles in (("train", slice(0, 4)), ("dev", slice(4, 6))):
        document = {"data": texts.squad(articles), "version": "1.1"}
        write_text(folder / f"{name}-v1.1.json", json.dumps(document))
    return folder


def squad_v2(texts: RealTexts, folder: Path) -> Path:
    for name, articles in (("train", slice(0, 4)), ("dev", slice(4, 6))):
        data = texts.squad(articles)
        for article in data:
            for paragraph in article["paragraphs"]:
                for place, question in enumerate(paragraph["qas"]):
                    question["is_impossible"] = place % 3 == 2
                    if question["is_impossible"]:
                        question["plausible_answers"], question["answers"] = question["answers"], []
        write_text(folder / f"{name}-v2.0.json", json.dumps({"version": "v2.0", "data": data}))
    return folder


# -- lines of text --------------------------------------------------------------------------------------------------


def fasttext(texts: RealTexts, folder: Path) -> Path:
    for split_name, name in (("train", "cooking.train"), ("test", "cooking.valid")):
        lines = [f"__label__{intent.replace(' ', '-')} {text}\n" for text, intent in texts.questions(split_name)]
        write_text(folder / name, "".join(lines))
    return folder / "cooking.train"


def trec(texts: RealTexts, folder: Path) -> Path:
    lines = [f"{('DESC:manner', 'LOC:city', 'NUM:date')[place % 3]} {text} caf\xe9 ?\n"
             for place, (text, _) in enumerate(texts.sentences())]  # fmt: skip
    write_text(folder / "TREC_10.label", "".join(lines[:50]), "latin-1")
    return write_text(folder / "train_5500.label", "".join(lines), "latin-1")


def snips(texts: RealTexts, folder: Path) -> Path:
    for split_name, name in (("train", "train"), ("train", "valid"), ("test", "test")):
        rows = texts.questions(split_name)
        write_text(folder / name / "seq.in", "".join(f"{text}\n" for text, _ in rows))
        write_text(folder / name / "seq.out", "".join(" ".join("O" for _ in text.split()) + "\n" for text, _ in rows))
        write_text(folder / name / "label", "".join(f"{intent}\n" for _, intent in rows))
    return folder


def tweet_eval(texts: RealTexts, folder: Path) -> Path:
    for split_name, rows in texts.splits():
        name = "val" if split_name == "validation" else split_name
        write_text(folder / f"{name}_text.txt", "".join(f"@user {text} \n" for text, _ in rows))
        write_text(folder / f"{name}_labels.txt", "".join(f"{label}\n" for _, label in rows))
    write_text(folder / "mapping.txt", "0\tnot-hate\n1\thate\n")
    return folder


def rt_polarity(texts: RealTexts, folder: Path) -> Path:
    for label, name in ((0, "neg"), (1, "pos")):
        write_text(
            folder / f"rt-polarity.{name}", "".join(f"{text} \n" for text, kind in texts.sentences() if kind == label)
        )
    return folder


def write_conll(
    folder: Path, tagged_sentences: list, names: tuple[str, str, str], line_of: Callable[[str, str], str]
) -> None:
    """Write 160, 40 and 40 tagged sentences into three files; ``line_of`` makes the line of a token and its tag."""
    for name, sentences in zip(
        names, (tagged_sentences[:160], tagged_sentences[160:200], tagged_sentences[200:]), strict=True
    ):
        blocks = ["".join(line_of(token, tag) for token, tag in sentence) for sentence in sentences]
        write_text(folder / name, "-DOCSTART- -X- -X- O\n\n" + "\n".join(blocks) + "\n")


def conll_2003(texts: RealTexts, folder: Path) -> Path:
    names = ("eng.train", "eng.testa", "eng.testb")
    write_conll(
        folder, texts.sentences_with_tags(240), names, lambda token, tag: f"{token} NN I-NP {tag.replace('B-', 'I-')}\n"
    )
    return folder


def conll_files(texts: RealTexts, folder: Path) -> Path:
    names = ("train.txt", "valid.txt", "test.txt")
    write_conll(folder, texts.sentences_with_tags(240), names, lambda token, tag: f"{token} NNP B-NP {tag}\n")
    write_text(folder / "metadata", "Reuters corpus\n")
    return folder


def wnut(texts: RealTexts, folder: Path) -> Path:
    tagged_sentences = texts.sentences_with_tags(240)
    files = {"wnut17train.conll": tagged_sentences[:160], "emerging.dev.conll": tagged_sentences[160:200]}
    for name, sentences in {**files, "emerging.test.annotated": tagged_sentences[200:]}.items():
        write_text(
            folder / name,
            "\n".join("".join(f"{token}\t{tag}\n" for token, tag in sentence) for sentence in sentences) + "\n",
        )
    return folder


# -- folders of texts, and plain text -------------------------------------------------------------------------------


def acl_imdb(texts: RealTexts, folder: Path) -> Path:
    for split_name in ("train", "test"):
        for place, (text, label) in enumerate(texts.reviews(split_name)):
            write_text(
                folder / split_name / ("neg", "pos")[label] / f"{place}_{8 if label else 2}.txt",
                text.replace("\n", "<br />"),
            )
        write_text(folder / split_name / "labeledBow.feat", "9 0:9 1:1 2:4\n" * 50)
        write_text(folder / split_name / "urls_pos.txt", "http://www.imdb.com/title/tt0453418/usercomments\n" * 50)
    for place, (text, _) in enumerate(texts.reviews("train", 90)[60:]):
        write_text(folder / "train" / "unsup" / f"{place}_0.txt", text)
    write_text(folder / "imdb.vocab", "the\nand\na\n")
    write_text(folder / "README", "Large Movie Review Dataset v1.0\n")
    return folder


def newsgroups(texts: RealTexts, folder: Path) -> Path:
    groups = ("alt.atheism", "comp.graphics", "sci.space")
    for split_name in ("train", "test"):
        for place, (text, _) in enumerate(texts.sentences(split_name, 90)):
            mail = f"From: user{place}@example.edu\nSubject: Re: {text[:20]}\nLines: 4\n\n{text} \xa0 caf\xe9\n"
            write_text(folder / f"20news-bydate-{split_name}" / groups[place % 3] / str(49960 + place), mail, "latin-1")
    return folder


def bbc_news(texts: RealTexts, folder: Path) -> Path:
    for place, (text, _) in enumerate(texts.sentences()):
        topic = ("business", "sport", "tech")[place % 3]
        write_text(folder / topic / f"{place:03}.txt", f"{text[:30].title()}\n\n{text} \xa3{place}bn.\n", "latin-1")
    write_text(folder / "README.TXT", "Consists of 2225 documents from the BBC news website\n")
    return folder


def wikitext(texts: RealTexts, folder: Path) -> Path:
    text = texts.text("wikitext2_valid", 300_000)
    for split_name, part in (("train", text[:200_000]), ("valid", text[200_000:250_000]), ("test", text[250_000:])):
        write_text(folder / f"wiki.{split_name}.tokens", part)
    return folder


def enwik8(texts: RealTexts, folder: Path) -> Path:
    pages = texts.text("wikitext2_valid", 200_000).split("\n = ")
    xml_pages = "".join(f"  <page>\n    <title>{page[:20].strip()}</title>\n    <text>{page}</text>\n  </page>\n"
                     for page in pages)  # fmt: skip
    return write_text(folder / "enwik8", f'<mediawiki xml:lang="en">\n{xml_pages}')


def tiny_shakespeare(texts: RealTexts, folder: Path) -> Path:
    lines = re.sub(r"\n{3,}", "\n\n", texts.text("crime_and_punishment", 200_000))
    return write_text(folder / "input.txt", lines)
