"""Train a tiny sentiment model in a few seconds, then ask where its prediction came from."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from rich import print as show
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

import whence

Reviews = list[tuple[str, int]]  # texts with their labels

GOOD = ["good", "great", "brilliant", "moving", "funny", "clever", "charming", "superb"]
BAD = ["bad", "awful", "boring", "dull", "clumsy", "bland", "tedious", "weak"]
THINGS = ["film", "movie", "plot", "story", "acting", "music", "ending", "script"]
DEGREES = ["", "very", "really", "so"]
NEGATIONS = ["not", "never", "hardly"]
# Asides hold no opinion: a good explanation passes over them.
PEOPLE = ["we", "they", "my brother", "our friends", "the critics"]
DEEDS = ["read the book", "taken the train", "eaten", "bought tickets", "come early", "seen the trailer"]
LABELS = ["negative", "positive"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXT = "My brother had read the book, the film was not boring, we had come early."
METHODS = ["integrated_gradients", "gradient_x_input", "attention", "random"]


def make_aside(rng: random.Random) -> str:
    """A clause that says nothing about the film."""
    return join(rng.choice(PEOPLE), "had", rng.choice(DEEDS))


def make_opinion(rng: random.Random, label: int) -> str:
    """A clause that decides the label, sometimes negated."""
    negated = rng.random() < 0.3
    word = rng.choice(GOOD if label != negated else BAD)
    return join("the", rng.choice(THINGS), "was", rng.choice(NEGATIONS) if negated else "", rng.choice(DEGREES), word)


def join(*words: str) -> str:
    """The words that are not empty, as one text."""
    return " ".join(filter(None, words))


def make_review(rng: random.Random) -> tuple[str, int]:
    """One review and its label: an opinion among up to two asides."""
    label = rng.randrange(2)
    clauses = [make_opinion(rng, label), *(make_aside(rng) for _ in range(rng.randrange(3)))]
    rng.shuffle(clauses)
    return ", ".join(clauses) + ".", label


def make_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """A WordPiece tokenizer that knows the words of the texts and spells all others letter by letter."""
    splitter = pre_tokenizers.BertPreTokenizer()
    words = sorted({word for text in texts for word, _ in splitter.pre_tokenize_str(text)})
    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = dict.fromkeys([*SPECIAL, *letters, *(f"##{letter}" for letter in letters), *words])
    vocabulary = {piece: index for index, piece in enumerate(pieces)}

    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = splitter
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"]))
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **names)


def make_model(vocabulary_size: int) -> BertForSequenceClassification:
    """A two-layer BERT with random weights."""
    config = BertConfig(
        vocab_size=vocabulary_size,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=64,
        initializer_range=0.05,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        id2label=dict(enumerate(LABELS)),
        label2id={label: index for index, label in enumerate(LABELS)},
    )
    return BertForSequenceClassification(config)


def hide_words(ids: torch.Tensor, tokenizer: PreTrainedTokenizerFast) -> torch.Tensor:
    """Blank a random share of each text, so that the model also knows texts with missing words."""
    blanks = torch.tensor([tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.mask_token_id])
    share = torch.rand(len(ids), 1) ** 4
    hidden = (torch.rand(ids.shape) < share) & (ids >= len(SPECIAL))  # (review, token)
    return torch.where(hidden, blanks[torch.randint(3, (len(ids), 1))], ids)


def train(model: BertForSequenceClassification, tokenizer: PreTrainedTokenizerFast, reviews: Reviews) -> None:
    """One pass over the reviews, in batches of 32."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.train()
    for start in range(0, len(reviews), 32):
        texts, labels = zip(*reviews[start : start + 32], strict=True)
        inputs = tokenizer(list(texts), padding=True, return_tensors="pt")
        inputs["input_ids"] = hide_words(inputs["input_ids"], tokenizer)
        model(**inputs, labels=torch.tensor(labels)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()


@torch.no_grad()
def accuracy(model: BertForSequenceClassification, tokenizer: PreTrainedTokenizerFast, reviews: Reviews) -> float:
    """The share of reviews whose label the model predicts."""
    texts, labels = zip(*reviews, strict=True)
    logits = model(**tokenizer(list(texts), padding=True, return_tensors="pt")).logits  # (review, label)
    return (logits.argmax(-1) == torch.tensor(labels)).float().mean().item()


def trained_model() -> tuple[BertForSequenceClassification, PreTrainedTokenizerFast]:
    """The trained model and its tokenizer, the same on every run."""
    print("Training a tiny sentiment model (some ten seconds) ...")
    torch.manual_seed(0)
    rng = random.Random(0)
    reviews = [make_review(rng) for _ in range(12_000)]
    tokenizer = make_tokenizer([text for text, _ in reviews])
    model = make_model(len(tokenizer))
    train(model, tokenizer, reviews)
    held_out = [make_review(rng) for _ in range(500)]
    print(f"Trained a two-layer BERT; right on {accuracy(model, tokenizer, held_out):.1%} of 500 new reviews.\n")
    return model, tokenizer


def main() -> None:
    torch.set_num_threads(1)  # matrices this small are faster on one core than shared out
    subject = whence.wrap(*trained_model())

    attribution = whence.explain(subject, TEXT, method="integrated_gradients")
    show(attribution)

    comparison = whence.compare(subject, TEXT, methods=METHODS)
    show(comparison)

    page = Path("out/demo.html")
    page.parent.mkdir(exist_ok=True)
    page.write_text(comparison.to_html(), encoding="utf-8")
    print(f"The same comparison as a page: {page.resolve()}")


if __name__ == "__main__":
    main()
