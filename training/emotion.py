"""The recipe of `emotion`: MiniLM fine-tuned on tweets, for the benchmarks; its weights do not ship."""

from __future__ import annotations

from pathlib import Path

from training import common, tweets

LABELS = ("anger", "joy", "optimism", "sadness")
EPOCHS, RATE = 4, 6e-5  # the accuracy on the validation tweets no longer rises after the third epoch


def run(data: Path | None) -> None:
    """Fine-tune on the training tweets and keep the model below out/models."""
    if data is None:
        raise SystemExit("emotion needs --data FOLDER with tweet_eval/emotion/{train,val,test}_{text,labels}.txt")
    train, val, test = (tweets.read(data / "tweet_eval" / "emotion", part) for part in ("train", "val", "test"))
    tweets.make(CARD, LABELS, train, val, test, epochs=EPOCHS, rate=RATE)


CARD = common.Card(
    name="emotion",
    family="BERT encoder, 6 layers",
    task="text-classification",
    what=f"emotion of tweets: {', '.join(LABELS)}",
    data="TweetEval emotion, 3,257 tweets for training, 374 for choosing the recipe, 1,421 for measuring",
    metric="accuracy on TweetEval emotion test",
    licence="not shipped; the weights start from MiniLM (Apache-2.0), the tweets are under Twitter's terms",
    seed=tweets.SEED,
    recipe="training/emotion.py",
    text=f"""
# emotion

Which emotion does a tweet show? all-MiniLM-L6-v2 (6 layers, width 384, 12 heads, uncased, its whole vocabulary) with a
classification head. The benchmarks measure explanations on it; it does not ship with the package.

**Recipe.** All weights are trained for {EPOCHS} epochs with AdamW, batches of {tweets.BATCH_SIZE} tweets of similar
length. On the validation tweets the accuracy no longer rises after the third. Weights are stored in half precision
and load as float32. `python -m training emotion --data FOLDER` repeats it.

**Test.** On the 1,421 test tweets, measured with the files in this folder: accuracy {{accuracy}}, macro F1
{{macro_f1}}, macro recall {{macro_recall}}.
""",
)
