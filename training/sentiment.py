"""The recipe of `sentiment`: MiniLM fine-tuned on tweets, for the benchmarks; its weights do not ship."""

from __future__ import annotations

import gzip
import html
import re
import zlib
from pathlib import Path

from training import common, tweets

LABELS = ("negative", "neutral", "positive")
YEARS = (2013, 2015, 2016)
HELD_OUT = 10  # one of ten training tweets is kept aside to judge the recipe by
EPOCHS, RATE = 2, 1e-4  # on those tweets the second epoch still helps


def run(data: Path | None) -> None:
    """Fine-tune on the tweets of SemEval and keep the model below out/models."""
    if data is None:
        raise SystemExit(
            f"sentiment needs --data FOLDER with semeval2017_4a/twitter-{{{','.join(map(str, YEARS))}}}train-A.tsv.gz "
            "and tweet_eval/sentiment/test_{text,labels}.txt"
        )
    rows = training_tweets(data / "semeval2017_4a")
    # The text decides and not its place in the file, so that the same tweet never lies on both sides.
    aside = [zlib.crc32(text.lower().encode()) % HELD_OUT == 0 for _, text in rows]
    train = [row for row, out in zip(rows, aside, strict=True) if not out]
    held_out = [row for row, out in zip(rows, aside, strict=True) if out]
    # TweetEval's validation tweets overlap the training files, so only its test tweets are of use.
    test = tweets.read(data / "tweet_eval" / "sentiment", "test")
    tweets.make(CARD, LABELS, train, held_out, test, epochs=EPOCHS, rate=RATE)


def training_tweets(folder: Path) -> tweets.Rows:
    """The tweets of all years with their labels, each text once."""
    labels: dict[str, int] = {}
    for year in YEARS:
        with gzip.open(folder / f"twitter-{year}train-A.tsv.gz", "rt", encoding="utf-8", newline="\n") as lines:
            for line in lines:
                _, label, text = line.rstrip("\r\n").split("\t")
                labels[as_in_test(text)] = LABELS.index(label)
    return [(label, text) for text, label in labels.items()]


def as_in_test(text: str) -> str:
    """A tweet of SemEval as TweetEval writes it: no escapes, every user named @user, no links."""
    quoted = re.fullmatch(r'"((?:[^"]|"")*)"', text)  # as a CSV field, where a quotation mark became \""""
    if quoted:
        text = re.sub(r'\\?"+', '"', quoted[1])
    text = re.sub(r"\\u([0-9a-fA-F]{4})", lambda code: chr(int(code[1], 16)), text)
    text = re.sub(r"@\w+", "@user", html.unescape(text))
    return " ".join(re.sub(r"https?://\S+", "", text).split())


CARD = common.Card(
    name="sentiment",
    family="BERT encoder, 6 layers",
    task="text-classification",
    what=f"sentiment of tweets: {', '.join(LABELS)}",
    data="SemEval-2017 task 4A, 16,173 tweets of 2013 to 2016 for training; 12,284 of TweetEval's test for measuring",
    metric="accuracy on TweetEval sentiment test",
    licence="not shipped; the weights start from MiniLM (Apache-2.0), the tweets are under Twitter's terms",
    seed=tweets.SEED,
    recipe="training/sentiment.py",
    text=f"""
# sentiment

Is a tweet negative, neutral or positive? all-MiniLM-L6-v2 (6 layers, width 384, 12 heads, uncased, its whole
vocabulary) with a classification head. The benchmarks measure explanations on it; it does not ship with the package.

**Recipe.** The training tweets are written as those of the test (no escapes, users as @user, no links), and each text
is used once. One in {HELD_OUT} is held out, by a hash of its text; on those the second epoch still helps. All
weights are trained for {EPOCHS} epochs with AdamW, batches of {tweets.BATCH_SIZE} tweets of similar length. Weights are
stored in half precision and load as float32. `python -m training sentiment --data FOLDER` repeats it.

**Test.** On the 12,284 test tweets, measured with the files in this folder: accuracy {{accuracy}}, macro F1
{{macro_f1}}, macro recall {{macro_recall}}. They are younger than the training tweets, and more of them are negative
(32 % instead of 15 %). TweetEval's validation tweets were not used: some of them are training tweets.
""",
)
