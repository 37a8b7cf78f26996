"""The model that was lent is given back as it was: after success, failure and interruption, from many threads."""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whence
from families import FAMILIES, TEXTS, Family, family, fresh, plain_inputs, plain_logits
from whence.core import registry
from whence.model.loan import difference, fingerprint, lent
from whence.model.subject import Subject
from whence.propagation.operations import through

METHODS = ("attention", "gradient_x_input", "random")
THREADS = 8
ROUNDS = 63  # explanations per thread: 8 x 63 > 500


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """The same bits need the same order of sums, whatever else the machine does."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(count)


def wrapped(made: Family) -> Subject:
    return whence.wrap(made.model, made.processor, **made.kwargs)


def scores(subject: Subject, raw: Any, methods: tuple[str, ...] = METHODS) -> list[np.ndarray]:
    return [whence.explain(subject, raw, method=method).scores for method in methods]


def same(found: list[np.ndarray], expected: list[np.ndarray]) -> bool:
    return all(np.array_equal(one, two) for one, two in zip(found, expected, strict=True))


class Watch:
    """The fingerprint of a model, taken on the way in and compared on the way out."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __enter__(self) -> None:
        self.before = fingerprint(self.model, full=True)

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            assert difference(self.before, fingerprint(self.model, full=True)) == ""


@pytest.fixture
def own_method() -> Iterator[Callable[[Callable[..., Any]], str]]:
    """Registers a method of the test's own, and forgets it afterwards."""
    names: list[str] = []

    def register(function: Callable[..., Any]) -> str:
        whence.method(family="baseline", signed=False)(function)
        names.append(function.__name__)
        return function.__name__

    yield register
    for name in names:
        registry.unregister("method", name)


# --- Success ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_given_back(name: str) -> None:
    made = fresh(name)
    methods = ["gradient_x_input", "random", *(["attention"] if not made.windows else [])]
    with Watch(made.model):
        whence.compare(wrapped(made), made.inputs[:2], methods=methods)


@pytest.mark.parametrize("method", [*METHODS, "gradient", "integrated_gradients(steps=4)"])
def test_every_method_gives_back(method: str) -> None:
    made = fresh("bert")
    with Watch(made.model):
        whence.explain(wrapped(made), made.inputs, method=method)


# --- Failure ----------------------------------------------------------------------------------------------------------


class Fuse:
    """Raises on one of its calls: the n-th since it was armed."""

    def __init__(self, error: BaseException) -> None:
        self.error, self.left = error, -1

    def arm(self, calls: int) -> None:
        self.left = calls

    @property
    def blown(self) -> bool:
        return self.left < 0

    def __call__(self, *_: Any, **__: Any) -> None:
        if self.left >= 0:
            self.left -= 1
            if self.left < 0:
                raise self.error


def in_the_model(module: Any, fuse: Fuse) -> None:
    forward = module.forward

    def failing(*args: Any, **kwargs: Any) -> Any:
        fuse()
        return forward(*args, **kwargs)

    module.forward = failing


def in_a_hook(module: nn.Module, fuse: Fuse) -> None:
    module.register_forward_hook(fuse)


def in_a_pre_hook(module: nn.Module, fuse: Fuse) -> None:
    module.register_forward_pre_hook(fuse)


def in_a_backward_hook(module: nn.Module, fuse: Fuse) -> None:
    module.register_full_backward_hook(fuse)


PLACES: list[Callable[..., None]] = [in_the_model, in_a_hook, in_a_pre_hook, in_a_backward_hook]
ERRORS = [RuntimeError("a fuse blew"), KeyboardInterrupt()]
MODULES = {
    "bert": "bert.encoder.layer.1.output",
    "clip": "vision_model.encoder.layers.1.mlp",
    "t5": "decoder.block.1.layer.2",
    "torch-encoder": "encoder.layers.1.linear1",
}
MOMENTS = [("bert", place) for place in PLACES]
MOMENTS += [(name, place) for name in MODULES for place in (in_the_model, in_a_backward_hook) if name != "bert"]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(("name", "place"), MOMENTS, ids=lambda moment: getattr(moment, "__name__", moment))
def test_a_failure_at_any_moment_gives_back(name: str, place: Callable[..., None], error: BaseException) -> None:
    """The fuse blows on the first call, then on the second, and so on, until a whole explanation has fewer calls."""
    made = fresh(name)
    module, fuse = made.model.get_submodule(MODULES[name]), Fuse(error)
    method = "gradient_x_input" if place is in_a_backward_hook else "attention"
    raws = made.inputs[: 1 if name == "t5" else 2]  # the generated tokens of one text make a batch already
    expected = whence.explain(wrapped(fresh(name)), raws, method=method)
    place(module, fuse)
    for calls in range(1000):
        subject = wrapped(made)  # has found out nothing yet
        fuse.arm(calls)
        with Watch(made.model):
            try:
                whence.explain(subject, raws, method=method)
            except (RuntimeError, KeyboardInterrupt) as raised:
                assert raised is error
        if not fuse.blown:
            break
        fuse.arm(10**9)
        with ThreadPoolExecutor(1) as other:  # the lock is free for others too
            again = other.submit(whence.explain, subject, raws, method=method).result(timeout=60)
        for one, two in zip(again, expected, strict=True):
            np.testing.assert_allclose(one.scores, two.scores, atol=1e-5)
    assert 2 <= calls < 100


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_failing_method_gives_back(error: BaseException, own_method: Callable[..., str]) -> None:
    made = fresh("bert")
    subject = wrapped(made)
    expected = scores(subject, made.inputs[0])

    def failing(subject: Subject, batch: Any, target: Any) -> Tensor:
        """Fails after a pass."""
        subject.trace(batch, target, ("attention", "attention_gradient"))
        raise error

    def failing_edit(subject: Subject, batch: Any, target: Any) -> Tensor:
        """Fails in the middle of a pass."""

        def edit(record: Any, weights: Tensor, values: Tensor) -> Any:
            raise error

        subject.trace(batch, target, ("attention",), edit=edit)
        raise AssertionError("the edit did not run")

    for function in (failing, failing_edit):
        with Watch(made.model):
            with pytest.raises(type(error)) as raised:
                whence.explain(subject, made.inputs[0], method=own_method(function))
            assert raised.value is error
        assert same(scores(subject, made.inputs[0]), expected)


def test_bad_targets_and_inputs_give_back() -> None:
    made = fresh("bert")
    subject = wrapped(made)

    def wrong(logits: Tensor, batch: Any) -> Tensor:
        return logits

    for raw, target in (("", None), (made.inputs[0], "no such label"), (made.inputs[0], wrong)):
        for method in METHODS:
            with Watch(made.model), pytest.raises(ValueError):
                whence.explain(subject, raw, method=method, target=target)


# --- Settings of its own ----------------------------------------------------------------------------------------------


def test_each_tower_keeps_its_attention_setting() -> None:
    made = fresh("clip")
    model: Any = made.model
    model.set_attn_implementation("eager")
    expected = scores(wrapped(made), made.inputs[0])
    model.set_attn_implementation({"text_config": "eager", "vision_config": "sdpa"})
    with Watch(model):
        found = scores(wrapped(made), made.inputs[0])
    assert model.text_model.config._attn_implementation == "eager"
    assert model.vision_model.config._attn_implementation == "sdpa"
    assert np.array_equal(found[0], expected[0])  # attention runs on the eager path of both towers
    np.testing.assert_allclose(found[1], expected[1], atol=1e-5)


def test_a_copy_of_the_attention_setting_in_a_module_is_kept() -> None:
    """GPT-2 notes the setting in a module too."""
    made = fresh("gpt2")
    model: Any = made.model
    assert model.transformer._attn_implementation == "sdpa"
    scores(wrapped(made), made.inputs[0])
    assert model.transformer._attn_implementation == "sdpa"


def test_train_mode_explains_without_dropout_and_stays() -> None:
    made = fresh("bert")
    expected = scores(wrapped(fresh("bert")), made.inputs[0])
    for module in made.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.5
    made.model.train()
    inner: Any = made.model.get_submodule("bert.encoder.layer.0")
    inner.eval()  # a mixed state
    tensors = plain_inputs(made, made.inputs[0])
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        assert not torch.equal(made.model(**tensors).logits, made.model(**tensors).logits)  # dropout is felt
    with Watch(made.model):
        found = scores(wrapped(made), made.inputs[0])
    assert same(found, expected)
    assert made.model.training and not any(module.training for module in inner.modules())


@pytest.mark.parametrize("frozen", ["none", "all", "half"])
def test_frozen_and_unfrozen_parameters_stay_so(frozen: str) -> None:
    made = fresh("bert")
    for number, parameter in enumerate(made.model.parameters()):
        parameter.requires_grad_(frozen == "none" or (frozen == "half" and number % 2 == 0))
    flags = [parameter.requires_grad for parameter in made.model.parameters()]
    with Watch(made.model):
        found = scores(wrapped(made), made.inputs[0])
    assert [parameter.requires_grad for parameter in made.model.parameters()] == flags
    assert same(found, scores(wrapped(family("bert")), made.inputs[0]))


@pytest.mark.parametrize("name", ["bert", "clip", "torch-encoder"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions(name: str, dtype: torch.dtype) -> None:
    made = fresh(name)
    expected = scores(wrapped(made), made.inputs[0])
    made.model.to(dtype)
    with Watch(made.model):
        found = scores(wrapped(made), made.inputs[0])
    assert {parameter.dtype for parameter in made.model.parameters()} == {dtype}
    digits = {torch.bfloat16: 0.1, torch.float16: 0.02, torch.float64: 1e-5}[dtype]
    for one, two in zip(found[:2], expected[:2], strict=True):
        assert one.dtype == (np.float64 if dtype is torch.float64 else np.float32)
        np.testing.assert_allclose(one, two, atol=digits * np.abs(two).max())


def test_hooks_in_the_style_of_accelerate_stay_and_run() -> None:
    """accelerate replaces `forward` on the instance by a wrapper around the old one, and notes its hook beside it."""
    made = fresh("bert")
    expected = scores(wrapped(made), made.inputs[0])
    calls: list[nn.Module] = []
    wrappers = {}
    for module in made.model.modules():
        old = module.forward

        def wrapper(*args: Any, old: Any = old, module: nn.Module = module, **kwargs: Any) -> Any:
            calls.append(module)
            return old(*args, **kwargs)

        owner: Any = module
        owner._hf_hook, owner._old_forward = object(), old
        owner.forward = wrappers[module] = functools.update_wrapper(wrapper, old)
    with Watch(made.model):
        found = scores(wrapped(made), made.inputs[0])
    assert same(found, expected)
    assert all(vars(module)["forward"] is wrapper for module, wrapper in wrappers.items())
    assert made.model in calls and made.model.get_submodule("bert.encoder.layer.1.output.dense") in calls


@pytest.mark.parametrize("setting", ["output_attentions", "output_hidden_states"])
def test_a_config_that_asks_for_more_outputs(setting: str) -> None:
    """transformers hangs hooks into such a model on its first run: that must not be taken for damage, nor be left."""
    made = fresh("bert")
    model: Any = made.model
    model.set_attn_implementation("eager")
    expected = scores(wrapped(made), made.inputs[0])
    setattr(model.config, setting, True)
    with Watch(model):
        assert same(scores(wrapped(made), made.inputs[0]), expected)
    tensors = plain_inputs(made, made.inputs[0])
    assert model(**tensors)[setting.removeprefix("output_")] is not None


class AsksForStates(nn.Module):
    """A model that asks a part of its own for all hidden states, as LLaVA asks its vision tower."""

    def __init__(self, part: Any) -> None:
        super().__init__()
        self.part = part.bert
        self.head = nn.Linear(32, 3)

    def forward(self, input_ids: Tensor) -> Any:
        return self.head(self.part(input_ids, output_hidden_states=True).hidden_states[-1][:, 0])


def test_a_model_that_asks_a_part_for_its_states() -> None:
    made = fresh("bert")
    model = AsksForStates(made.model).eval()

    def encode(raw: str) -> dict[str, Any]:
        ids = made.processor(raw)["input_ids"]
        return {"tensors": {"input_ids": ids}, "features": {"text": made.processor.convert_ids_to_tokens(ids)}}

    s = whence.wrap(model, encode=encode, labels=["a", "b", "c"])
    with Watch(model):
        first = [whence.explain(s, made.inputs[0], method) for method in METHODS]
    assert not any(module._forward_hooks for module in model.modules())
    states = model.part(torch.tensor([[1, 2]]), output_hidden_states=True).hidden_states  # with its hooks hung again
    assert len(states) > 1
    again = [whence.explain(s, made.inputs[0], method) for method in METHODS]
    assert all(np.array_equal(a.scores, b.scores) for a, b in zip(first, again, strict=True))
    assert any(module._forward_hooks for module in model.modules()), "hooks that were there before stay"


def test_a_generation_config_that_asks_for_more_outputs() -> None:
    """Decoding then runs with hooks of transformers, which it leaves on the model."""
    made = fresh("t5")
    model: Any = made.model
    model.generation_config.output_attentions = True
    model.generation_config.return_dict_in_generate = False
    with Watch(model):
        assert whence.explain(wrapped(made), "a good film", "gradient_x_input").scores.any()
    assert model.generation_config.output_attentions is True


def test_gradients_of_parameters_are_untouched() -> None:
    made = fresh("bert")
    made.model(**plain_inputs(made, made.inputs[0])).logits.sum().backward()
    parameters = list(made.model.parameters())
    parameters[0].grad = None
    kept = [(parameter.grad, None if parameter.grad is None else parameter.grad.clone()) for parameter in parameters]
    assert any(gradient is not None and gradient.any() for _, gradient in kept)
    with Watch(made.model):
        scores(wrapped(made), made.inputs[0], (*METHODS, "integrated_gradients(steps=4)"))
    for parameter, (gradient, content) in zip(parameters, kept, strict=True):
        assert parameter.grad is gradient
        assert gradient is None or content is None or torch.equal(gradient, content)


def test_user_hooks_stay_fire_and_count() -> None:
    """A hook that changes the model changes what is explained, as it changes what the plain model says."""
    made = fresh("bert")
    before = scores(wrapped(made), made.inputs[0])
    fired: list[str] = []
    module = made.model.get_submodule("bert.encoder.layer.0.output")

    def louder(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        fired.append("forward")
        return output * 1.5

    module.register_forward_hook(louder)
    module.register_forward_pre_hook(lambda module, args: fired.append("pre"))
    with Watch(made.model):
        found = whence.explain(wrapped(made), made.inputs[0], method="attention", target="positive")
    assert {"forward", "pre"} <= set(fired)
    assert found.output == pytest.approx(plain_logits(made, made.inputs[0])[0, 2].item(), abs=1e-5)
    assert not np.allclose(found.scores, before[0], atol=1e-3)
    fired.clear()
    plain_logits(made, made.inputs[0])
    assert fired == ["pre", "forward"]


# --- Surroundings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "vit", "t5", "torch-encoder"])
def test_no_grad_around_the_caller(name: str) -> None:
    made = fresh(name)
    expected = scores(wrapped(made), made.inputs[0], (*METHODS, "integrated_gradients(steps=4)"))
    with Watch(made.model), torch.no_grad():
        found = scores(wrapped(made), made.inputs[0], (*METHODS, "integrated_gradients(steps=4)"))
        assert not torch.is_grad_enabled()
    assert same(found, expected)


@pytest.mark.parametrize("method", METHODS)
def test_inference_mode_around_the_caller(method: str) -> None:
    """Works, or says in one sentence that it cannot; what was found out there must do no harm afterwards."""
    made = fresh("bert")
    subject, expected = wrapped(made), whence.explain(wrapped(made), made.inputs[0], method=method)
    with Watch(made.model):
        with torch.inference_mode():
            try:
                assert whence.explain(subject, made.inputs[0], method=method) == expected
            except (RuntimeError, ValueError) as error:
                assert "inference_mode" in str(error) and "\n" not in str(error)
            assert torch.is_inference_mode_enabled()
        assert whence.explain(subject, made.inputs[0], method=method) == expected


def test_a_model_made_in_inference_mode() -> None:
    """Its tensors cannot take part in gradients: it is explained, or refused in one sentence; flags stay either way."""
    with torch.inference_mode():
        made = fresh("bert")
    with Watch(made.model):
        try:
            found = scores(wrapped(made), made.inputs[0])
        except ValueError as error:
            assert "inference" in str(error) and "\n" not in str(error)
        else:
            assert same(found, scores(wrapped(family("bert")), made.inputs[0]))


@pytest.mark.parametrize("name", ["bert", "vilt"])
def test_global_random_states_are_left_as_found(name: str) -> None:
    """Also for `random`, which draws numbers, and for ViLT, which shuffles its patches."""
    made = family(name)
    subject = wrapped(made)
    for method in (*METHODS, "integrated_gradients(steps=4)"):
        random.seed(1)
        np.random.seed(2)
        torch.manual_seed(3)
        expected = random.random(), np.random.random(), torch.rand(()).item()
        random.seed(1)
        np.random.seed(2)
        torch.manual_seed(3)
        first = whence.explain(subject, made.inputs[0], method=method)
        assert (random.random(), np.random.random(), torch.rand(()).item()) == expected
        second = whence.explain(subject, made.inputs[0], method=method)  # from other global states
        assert np.array_equal(first.scores, second.scores)


def test_only_the_seed_decides_what_random_draws() -> None:
    subject, raw = wrapped(family("bert")), TEXTS[0]
    drawn = [whence.explain(subject, raw, method="random", seed=seed).scores for seed in (0, 0, 1)]
    assert np.array_equal(drawn[0], drawn[1]) and not np.array_equal(drawn[0], drawn[2])


# --- Threads ----------------------------------------------------------------------------------------------------------


def raws_of(made: Family) -> list[Any]:
    """An example for each thread."""
    more = ["the house was warm", "two dogs", "it was neither good nor bad", "they walked along the river"]
    return [*made.inputs, *more]


def attention_settings(model: nn.Module) -> list[tuple[str, str]]:
    kept = [(name, vars(module).get("_attn_implementation")) for name, module in model.named_modules()]
    configs = [(name, vars(module).get("config")) for name, module in model.named_modules()]
    return kept + [(name, config._attn_implementation) for name, config in configs if config is not None]


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads change places a hundred times as often as they would."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(interval / 100)
    yield
    sys.setswitchinterval(interval)


def hammer(subjects: list[Subject], made: list[Family]) -> None:
    """Every thread explains its own example of every model by all methods in turn, and compares with alone."""
    expected = [[scores(wrapped(one), raw) for raw in raws_of(one)] for one in made]

    def work(thread: int) -> int:
        done = 0
        for turn in range(ROUNDS):
            method = (turn + thread) % len(METHODS)
            for number, one in enumerate(made):
                subject = subjects[(thread + turn) % 2 * len(made) + number]
                found = whence.explain(subject, raws_of(one)[thread], method=METHODS[method])
                assert np.array_equal(found.scores, expected[number][thread][method])
                done += 1
        return done

    with ThreadPoolExecutor(THREADS) as pool:
        assert sum(pool.map(work, range(THREADS))) >= 500 * len(made)


@pytest.mark.slow
@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("names", [("bert",), ("distilbert", "gpt2")], ids=["one model", "two models"])
def test_eight_threads_at_once(names: tuple[str, ...]) -> None:
    """Two subjects of each model, so that even what a subject knows of its model is found out under contention."""
    made = [fresh(name) for name in names]
    for number, one in enumerate(made):
        model: Any = one.model
        model.set_attn_implementation(["sdpa", "eager"][number])
        model.train(number == 0)
    settings = [attention_settings(one.model) for one in made]
    before = [fingerprint(one.model, full=True) for one in made]
    hammer([wrapped(one) for one in (*made, *made)], made)
    assert [difference(old, fingerprint(one.model, full=True)) for old, one in zip(before, made, strict=True)] == [
        "" for _ in made
    ]
    assert [attention_settings(one.model) for one in made] == settings


def test_a_loan_is_one_for_nested_scopes() -> None:
    model = fresh("bert").model.train()
    with lent(model):
        with lent(model):
            assert not model.training
        assert not model.training  # the inner scope did not give it back
        assert not any(parameter.requires_grad for parameter in model.parameters())
    assert model.training and all(parameter.requires_grad for parameter in model.parameters())


# --- The fingerprint itself -------------------------------------------------------------------------------------------

HOOK = "vision_model.encoder.layers.0.mlp"


def _replace_parameter(model: Any) -> None:
    model.visual_projection.weight = nn.Parameter(model.visual_projection.weight.detach().clone())


def _replace_module(model: Any) -> None:
    model.visual_projection = torch.nn.Linear(32, 16, bias=False)


def _add_to_gradient(model: Any) -> None:
    model.visual_projection.weight.grad.add_(1)


TAMPERINGS: dict[str, Callable[[Any], Any]] = {
    "weight changed in place": lambda model: model.visual_projection.weight.data.mul_(1.01),
    "weight changed and changed back": lambda model: model.visual_projection.weight.detach().add_(1).sub_(1),
    "weight replaced": _replace_parameter,
    "gradient left": lambda model: setattr(model.logit_scale, "grad", torch.ones(())),
    "gradient added to": _add_to_gradient,
    "buffer changed": lambda model: model.text_model.embeddings.position_ids.add_(1),
    "module replaced": _replace_module,
    "forward hook left": lambda model: model.get_submodule(HOOK).register_forward_hook(lambda *_: None),
    "pre-hook left": lambda model: model.get_submodule(HOOK).register_forward_pre_hook(lambda *_: None),
    "backward hook left": lambda model: model.get_submodule(HOOK).register_full_backward_hook(lambda *_: None),
    "hook taken away": lambda model: model.get_submodule("text_model")._forward_hooks.clear(),
    "mode flipped": lambda model: model.get_submodule(HOOK).train(),
    "parameter frozen": lambda model: model.logit_scale.requires_grad_(False),
    "parameter thawed": lambda model: model.text_projection.weight.requires_grad_(True),
    "config changed": lambda model: setattr(model.config, "projection_dim", 17),
    "attention setting of a tower changed": lambda model: setattr(
        model.config.vision_config, "_attn_implementation", "eager"
    ),
    "attribute added": lambda model: setattr(model.get_submodule(HOOK), "note", 1),
    "attribute changed": lambda model: setattr(model.text_model, "eos_token_id", 7),
    "attribute taken away": lambda model: delattr(model.text_model, "eos_token_id"),
    "forward replaced": lambda model: setattr(model.get_submodule(HOOK), "forward", lambda x: x),
    "forward replaced once more": lambda model: setattr(model.text_projection, "forward", lambda x: x),
    "random state of torch advanced": lambda model: torch.rand(1),
    "random state of numpy advanced": lambda model: np.random.random(),
    "random state of python advanced": lambda model: random.random(),
}
# A loan sets these itself, and so puts them right.
PUT_RIGHT = [
    "mode flipped",
    "parameter frozen",
    *(name for name in TAMPERINGS if name.startswith("random state")),
    "weight replaced",
    "module replaced",
    "config changed",
    "attention setting of a tower changed",
    "attribute added",
    "attribute changed",
    "attribute taken away",
    "forward replaced",
    "forward replaced once more",
]
# Changes of gradients are seen by the hashes only, which a loan does not take.
HASHED = ["gradient added to"]


@pytest.fixture
def tampered() -> Iterator[Any]:
    """CLIP as a user may have it: a hook, a gradient, a frozen weight, a `forward` replaced. Random states are kept."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    model: Any = fresh("clip").model
    model.text_model.register_forward_hook(lambda *_: None)
    model.visual_projection.weight.grad = torch.zeros_like(model.visual_projection.weight)
    model.text_projection.forward = model.text_projection.forward
    model.text_projection.weight.requires_grad_(False)
    yield model
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


def test_nothing_done_is_no_difference(tampered: Any) -> None:
    before = fingerprint(tampered, full=True)
    with torch.no_grad():
        tampered.get_text_features(input_ids=torch.tensor([[0, 5, 1]]))
    assert difference(before, fingerprint(tampered, full=True)) == ""


@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_tampering_is_seen(tampering: str, tampered: Any) -> None:
    before = fingerprint(tampered, full=True)
    TAMPERINGS[tampering](tampered)
    assert difference(before, fingerprint(tampered, full=True)) != ""


@pytest.mark.parametrize("tampering", [t for t in TAMPERINGS if t not in PUT_RIGHT + HASHED])
def test_tampering_within_a_loan_raises(tampering: str, tampered: Any) -> None:
    with pytest.raises(RuntimeError, match="not given back as it was lent"), lent(tampered):
        TAMPERINGS[tampering](tampered)
    with lent(tampered):  # the loan is over, and another can begin
        pass


@pytest.mark.parametrize("tampering", PUT_RIGHT)
def test_some_tampering_within_a_loan_is_put_right(tampering: str, tampered: Any) -> None:
    with Watch(tampered), lent(tampered):
        TAMPERINGS[tampering](tampered)


def test_a_method_that_tampers_is_told(own_method: Callable[..., str]) -> None:
    made = fresh("bert")
    model: Any = made.model

    def tampering(subject: Subject, batch: Any, target: Any) -> Tensor:
        """Leaves a hook behind."""
        model.bert.encoder.register_forward_hook(lambda *_: None)
        return torch.zeros(batch.mask.shape)

    name = own_method(tampering)
    with pytest.raises(RuntimeError, match=r"not given back as it was lent: module bert\.encoder changed"):
        whence.explain(wrapped(made), made.inputs[0], method=name)


# --- through ----------------------------------------------------------------------------------------------------------


def test_through_has_the_value_of_one_and_the_gradient_of_the_other() -> None:
    """`s + (y - s).detach()` would have the gradient, but lose digits of the value."""
    y = torch.tensor([1e-8, 1.0, -3e4, float("inf"), 0.1], requires_grad=True)
    s = torch.tensor([1e8, 2.0, 7.0, 1.0, 3e-9], requires_grad=True)
    out = through(y, s.square())
    assert torch.equal(out, y)
    weights = torch.arange(1.0, 6.0)
    (out * weights).sum().backward()
    assert y.grad is None
    assert s.grad is not None and torch.equal(s.grad, 2 * s.detach() * weights)


def test_through_leaves_both_alone() -> None:
    y, s = torch.randn(3, generator=torch.Generator().manual_seed(0)), torch.ones(3, requires_grad=True)
    kept = y.clone()
    out = through(y, s) * 2
    assert torch.equal(y, kept) and torch.equal(s, torch.ones(3)) and torch.equal(out, 2 * y)
    assert not y.requires_grad
