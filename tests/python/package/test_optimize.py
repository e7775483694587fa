"""mezzo.optimize against the same models of transformers without it: outputs, gradients, training loops, and calls left to the
models' own code."""
import copy
import inspect
import io
import os
import socket
import warnings
from concurrent.futures import ThreadPoolExecutor

import accelerate
import mezzo
import peft
import pytest
import torch
import transformers
from families import FAMILIES
from scipy.stats import ks_2samp
from sentence_transformers import SentenceTransformer, losses
from support import MINILM, check_gradients, mixed_ids, padded
from torch import nn
from transformers import AutoModel, AutoModelForSequenceClassification, GPT2Config, GPT2Model, Trainer, TrainingArguments
from transformers.activations import ACT2FN

EVERY = pytest.mark.parametrize("name", FAMILIES)
ONE_OF_EACH = ["bert", "roberta", "distilbert", "electra", "deberta-v3", "modernbert"]
EACH = pytest.mark.parametrize("name", ONE_OF_EACH)
KINDS = ["texts", "tokens", "base"]
LENGTHS = [40, 2, 3, 17, 1, 35, 9]


@pytest.fixture(autouse=True)
def no_warning_is_expected():
    """A call that runs a model's own code warns, so no test passes because mezzo computes nothing."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="mezzo.optimize")
        yield


def model_of(name, kind="texts", **more):
    model = FAMILIES[name].model(per_token=kind == "tokens", **more)
    return model.base_model if kind == "base" else model


def pair_of(name, kind="texts", **more):
    """A model of transformers, and an optimized copy."""
    theirs = model_of(name, kind, **more)
    return theirs, mezzo.optimize(copy.deepcopy(theirs))


def unpadded_ids(model, lengths, seed=0):
    """Without padding among the tokens: transformers gives its row no gradient."""
    pad = model.config.pad_token_id
    return [[token + (token >= pad) for token in row] for row in mixed_ids(lengths, model.config.vocab_size - 1, seed)]


def inputs_of(name, model, lengths=LENGTHS, pairs=False, seed=0):
    ids = unpadded_ids(model, lengths, seed)
    types = [[0] * (len(row) // 3) + [1] * (len(row) - len(row) // 3) for row in ids] if pairs and FAMILIES[name].has_token_types else None
    return padded(ids, types, pad_id=model.config.pad_token_id)


def loss_of(model, inputs):
    """A number that depends on all outputs: the model's own loss, or the mean of squared states of the texts' tokens."""
    outputs = model(**inputs)
    if hasattr(outputs, "logits"):
        logits = outputs.logits.float()
        if logits.dim() == 3:
            logits = logits[inputs["attention_mask"].bool()]
        return nn.functional.cross_entropy(logits, torch.arange(len(logits)) % 3)
    loss = (outputs.last_hidden_state.float() ** 2 * inputs["attention_mask"].unsqueeze(2)).sum() / inputs["attention_mask"].sum()
    pooled = getattr(outputs, "pooler_output", None)
    return loss if pooled is None else loss + pooled.float().sum()


def gradients_of(model, inputs, scale=1.0, autocast=None):
    model.zero_grad()
    with torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None):
        loss = loss_of(model, inputs)
    (loss * scale).backward()
    return {key: tensor.grad.clone() for key, tensor in model.named_parameters() if tensor.grad is not None}


@EVERY
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pairs", [False, True], ids=["one", "pairs"])
def test_outputs_are_those_of_transformers(name, kind, pairs):
    theirs, mine = pair_of(name, kind)
    assert type(mine) is not type(theirs) or kind == "tokens"
    assert str(type(mine)) == str(type(theirs)) and isinstance(mine, type(theirs))
    assert inspect.signature(mine.forward) == inspect.signature(theirs.forward)
    inputs = inputs_of(name, theirs, pairs=pairs)
    mask = inputs["attention_mask"].bool()
    for context in (torch.no_grad, torch.enable_grad, torch.inference_mode):
        with context():
            expected, actual = theirs(**inputs), mine(**inputs)
        assert type(actual) is type(expected) and actual.keys() == expected.keys()
        for key, value in expected.items():
            assert actual[key].dtype == torch.float32 and actual[key].shape == value.shape, key
            at = mask if value.dim() == 3 else slice(None)
            torch.testing.assert_close(actual[key][at], value[at], rtol=0, atol=1e-5)  # as in test_model_families.py
        if kind == "base":
            assert actual.last_hidden_state[~mask].count_nonzero() == 0
    assert not mine.training
    # Without a mask, without a dataclass, and all of the same length.
    del inputs["attention_mask"]
    same = {key: value[:1, :2] for key, value in inputs.items()}
    with torch.no_grad():
        expected, actual = theirs(**same, return_dict=False), mine(**same, return_dict=False)
    assert type(actual) is tuple and len(actual) == len(expected)
    for a, b in zip(actual, expected):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


@EVERY
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_every_parameter_are_those_of_transformers(name, kind):
    theirs, mine = pair_of(name, kind)
    inputs = inputs_of(name, theirs, pairs=True)
    exact = gradients_of(copy.deepcopy(theirs).double(), inputs)
    check_gradients(gradients_of(mine, inputs), gradients_of(theirs, inputs), exact)
    # A scale of a power of two, as a scaler's, changes no bit unless numbers become subnormal.
    for scale in (65536.0, 2.0 ** -27):
        plain, scaled = gradients_of(mine, inputs), gradients_of(mine, inputs, scale)
        for key, gradient in plain.items():
            torch.testing.assert_close(scaled[key] / scale, gradient, rtol=0, atol=1e-6 * float(gradient.abs().max()))


@EACH
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_autocast_is_as_precise_as_in_transformers(name, kind, dtype):
    theirs, mine = pair_of(name, kind)
    inputs = inputs_of(name, theirs, [3 + i % 30 for i in range(60)])  # many numbers, so that their errors' norms have little spread
    with torch.no_grad(), torch.autocast("cpu", dtype):
        actual, expected = mine(**inputs), theirs(**inputs)
    exact = theirs.double()(**inputs)
    theirs.float()
    mask = inputs["attention_mask"].bool()
    for key in exact.keys():
        at = mask if exact[key].dim() == 3 else slice(None)
        error, usual = ((outputs[key].double() - exact[key])[at].norm() for outputs in (actual, expected))
        assert error < 1.25 * usual, key  # 1.15 was seen: not all is rounded at the same places
    exact = gradients_of(copy.deepcopy(theirs).double(), inputs)
    for scale in (1.0, 65536.0 if dtype == torch.bfloat16 else 128.0):
        actual, expected = (gradients_of(model, inputs, scale, dtype) for model in (mine, theirs))
        assert actual.keys() == expected.keys()
        error, usual = (sum(float((gradients[key].double() / scale - exact[key]).norm() ** 2) for key in exact) ** 0.5
                        for gradients in (actual, expected))
        assert error < 1.25 * usual
        assert all(gradient.dtype == torch.float32 for gradient in actual.values())


@EACH
def test_a_model_in_bfloat16_computes_in_bfloat16(name):
    theirs, mine = pair_of(name, "base")
    inputs = inputs_of(name, theirs)
    exact = theirs.double()(**inputs).last_hidden_state
    theirs.float().bfloat16(), mine.bfloat16()
    mask = inputs["attention_mask"].bool()
    for context in (torch.no_grad, torch.enable_grad):
        with context():
            actual, expected = mine(**inputs).last_hidden_state, theirs(**inputs).last_hidden_state
        assert actual.dtype == torch.bfloat16
        error, usual = ((states.double() - exact)[mask].norm() for states in (actual, expected))
        assert error < 1.5 * usual
    actual.float().sum().backward()
    assert all(tensor.grad.dtype == torch.bfloat16 for key, tensor in mine.named_parameters() if "pooler" not in key)


def test_a_change_of_dtype_after_a_call_is_seen():
    theirs, mine = pair_of("deberta-v3", "base")
    inputs = inputs_of("deberta-v3", theirs)
    with torch.no_grad():
        for change in ("bfloat16", "half", "double", "float"):
            getattr(theirs, change)(), getattr(mine, change)()
            actual, expected = mine(**inputs).last_hidden_state, theirs(**inputs).last_hidden_state
            assert actual.dtype == expected.dtype
            mask = inputs["attention_mask"].bool()
            torch.testing.assert_close(actual[mask], expected[mask], rtol=0, atol={"bfloat16": 0.2, "half": 0.02}.get(change, 1e-5))


def test_threads_may_share_a_model():
    _, mine = pair_of("bert")
    inputs = [inputs_of("bert", mine, [5 + i, 3]) for i in range(8)]
    with torch.no_grad():
        expected = [mine(**part).logits for part in inputs]

    def logits(part):
        with torch.no_grad():
            return mine(**part).logits

    with ThreadPoolExecutor(4) as pool:
        for actual, alone in zip(pool.map(logits, inputs * 4), expected * 4):
            assert torch.equal(actual, alone)


def test_parameters_and_files_stay(tmp_path):
    theirs, mine = pair_of("bert")
    inputs = inputs_of("bert", theirs)
    mine(**inputs).logits.sum().backward()
    assert mezzo.optimize(mine) is mine
    assert list(mine.state_dict()) == list(theirs.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(mine.state_dict().values(), theirs.state_dict().values()))
    mine.save_pretrained(tmp_path / "mine"), theirs.save_pretrained(tmp_path / "theirs")
    for file in os.listdir(tmp_path / "theirs"):
        assert (tmp_path / "mine" / file).read_bytes() == (tmp_path / "theirs" / file).read_bytes(), file
    loaded = mezzo.optimize(AutoModelForSequenceClassification.from_pretrained(tmp_path / "mine").eval())
    base = mezzo.optimize(AutoModel.from_pretrained(tmp_path / "mine").eval())
    with torch.no_grad():
        assert torch.equal(loaded(**inputs).logits, mine.eval()(**inputs).logits)
        torch.testing.assert_close(base(**inputs).pooler_output, theirs.bert(**inputs).pooler_output, rtol=0, atol=1e-5)
    undone = mine.base_model
    undone.__class__ = type(undone).__base__
    with torch.no_grad():
        assert torch.equal(undone(**inputs)[0], theirs.bert(**inputs)[0])
        mezzo.optimize(mine)
        assert not torch.equal(mine.bert(**inputs)[0], theirs.bert(**inputs)[0]), "optimized again"


def test_copies_and_pickles_are_optimized_and_apart():
    theirs, mine = pair_of("roberta")
    inputs = inputs_of("roberta", theirs)
    with torch.no_grad():
        expected = mine(**inputs).logits
        buffer = io.BytesIO()
        torch.save(mine, buffer)
        buffer.seek(0)
        for other in (copy.deepcopy(mine), torch.load(buffer, weights_only=False)):
            assert type(other) is type(mine) and torch.equal(other(**inputs).logits, expected)
            other.classifier.out_proj.weight.zero_()
            other.roberta.embeddings.word_embeddings.weight.zero_()
            assert not torch.equal(other(**inputs).logits, expected) and torch.equal(mine(**inputs).logits, expected)


def change_in_place(weight):
    weight.mul_(2)


def change_data(weight):
    weight.data.mul_(2)


def change_storage(weight):
    weight.data = weight.data * 2


@pytest.mark.parametrize("change", [change_in_place, change_data, change_storage])
@pytest.mark.parametrize("autocast", [False, True])
def test_weights_that_change_between_calls_are_seen(change, autocast):
    theirs, mine = pair_of("bert")
    inputs = inputs_of("bert", theirs)

    def logits(model):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return model(**inputs).logits

    tolerance = 0.05 if autocast else 1e-5
    with torch.no_grad():
        before = logits(mine)
        for model in (mine, theirs):
            for layer in model.bert.encoder.layer:
                change(layer.intermediate.dense.weight)
        after = logits(mine)
        torch.testing.assert_close(after, logits(theirs), rtol=0, atol=tolerance)
        assert (after - before).abs().max() > 2 * tolerance


def test_modules_that_are_replaced_are_seen():
    theirs, mine = pair_of("bert")
    inputs = inputs_of("bert", theirs)
    mine(**inputs)
    for model in (mine, theirs):
        torch.manual_seed(1)
        model.bert.encoder.layer[1].output.dense = nn.Linear(64, 32)
        model.bert.encoder.layer[0].output.dense.weight = nn.Parameter(torch.randn(32, 64))
        model.bert.encoder.layer[2].attention.self.key.weight = model.bert.encoder.layer[2].attention.self.query.weight  # tied
        model.resize_token_embeddings(130)
    inputs["input_ids"][0, 1] = 129
    actual, expected = gradients_of(mine, inputs), gradients_of(theirs, inputs)
    assert actual.keys() == expected.keys()
    for key, gradient in expected.items():
        torch.testing.assert_close(actual[key], gradient, rtol=1e-3, atol=1e-5)
    assert mine.bert.encoder.layer[2].attention.self.key.weight is mine.bert.encoder.layer[2].attention.self.query.weight


def test_gradients_accumulate_and_frozen_parameters_get_none():
    theirs, mine = pair_of("electra")
    inputs, more = (inputs_of("electra", theirs, seed=seed) for seed in (0, 1))
    for model in (theirs, mine):
        model.electra.embeddings.requires_grad_(False)
        model.electra.encoder.layer[0].requires_grad_(False)
        model.zero_grad()
        for part in (inputs, more):
            loss_of(model, part).backward()
    for (key, tensor), expected in zip(mine.named_parameters(), theirs.parameters()):
        if expected.grad is None:
            assert tensor.grad is None, key
        else:
            torch.testing.assert_close(tensor.grad, expected.grad, rtol=1e-3, atol=1e-5)
    kept = mine.classifier.out_proj.weight.grad
    loss_of(mine, inputs).backward()
    assert mine.classifier.out_proj.weight.grad is kept
    mine.requires_grad_(False)
    assert not mine(**inputs).logits.requires_grad


@EACH
def test_dropout_follows_the_seed_and_the_modes(name):
    family = FAMILIES[name]
    _, mine = pair_of(name, **family.without_dropout() | dict.fromkeys(family.dropouts[:1], 0.3))
    inputs = inputs_of(name, mine, [5])
    with torch.no_grad():
        still = mine(**inputs).logits
        mine.train()
        torch.manual_seed(3)
        first, second = mine(**inputs).logits, mine(**inputs).logits
        torch.manual_seed(3)
        assert torch.equal(mine(**inputs).logits, first) and not torch.equal(first, second)
        assert torch.equal(mine.eval()(**inputs).logits, still)
        for module in mine.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        state = torch.get_rng_state()
        torch.testing.assert_close(mine.train()(**inputs).logits, still, rtol=0, atol=1e-5)
        assert torch.equal(torch.get_rng_state(), state), "without dropout nothing is drawn"


def test_dropout_that_is_replaced_by_identity_is_none():
    theirs, mine = pair_of("bert")
    inputs = inputs_of("bert", theirs)
    for model in (theirs, mine):
        for module in list(model.train().modules()):
            for key, child in module.named_children():
                if isinstance(child, nn.Dropout) and key == "dropout" and not hasattr(module, "query"):
                    module.dropout = nn.Identity()
                elif isinstance(child, nn.Dropout):
                    child.p = 0.0
    torch.testing.assert_close(mine(**inputs).logits, theirs(**inputs).logits, rtol=0, atol=1e-5)


class Mean(nn.Module):
    """A head, or a pooler, that reads the states of all tokens."""

    def forward(self, states):
        return states.mean(1)[:, :3]


@pytest.mark.parametrize("name, place", [("bert", "bert.pooler"), ("roberta", "classifier"), ("electra", "classifier"), ("deberta-v3", "pooler")])
def test_heads_of_the_user_read_all_states(name, place):
    theirs, mine = pair_of(name)
    for model in (theirs, mine):
        torch.manual_seed(0)
        model.classifier = nn.Linear(3, 3)
        model.set_submodule(place, Mean())
    inputs = inputs_of(name, theirs, [9, 9])
    with torch.no_grad():
        torch.testing.assert_close(mine(**inputs).logits, theirs(**inputs).logits, rtol=0, atol=1e-5)


@EACH
def test_classifiers_compute_the_last_layer_for_first_tokens_alone(name):
    _, mine = pair_of(name)
    seen = []
    own = mine.base_model._mezzo.forward
    mine.base_model._mezzo.forward = lambda *given: seen.append(own(*given)) or seen[-1]
    for model in (mine, lora_model(name, mine)):
        model(**inputs_of(name, mine))
        assert seen.pop().last_hidden_state.shape[1] == 1


@EACH
def test_logits_under_dropout_are_spread_as_in_transformers(name):
    theirs, mine = (model.train() for model in pair_of(name))
    inputs = {key: value.expand(1 if name == "deberta-v3" else 3000, -1) for key, value in inputs_of(name, theirs, [5]).items()}
    torch.manual_seed(0)
    with torch.no_grad():  # a mask of relative positions is one of the batch
        actual, expected = (torch.cat([model(**inputs).logits for _ in range(400 if name == "deberta-v3" else 1)]) for model in (mine, theirs))
    for column in range(3):
        assert ks_2samp(actual[:, column], expected[:, column]).pvalue > 1e-5  # as in test_model_families.py


@EACH
def test_checkpointed_gradients_are_the_same(name):
    _, mine = pair_of(name)
    mine.train()
    inputs = inputs_of(name, mine)
    torch.manual_seed(1)
    plain = gradients_of(mine, inputs)
    mine.gradient_checkpointing_enable()
    mine.enable_input_require_grads()
    torch.manual_seed(1)
    thrifty = gradients_of(mine, inputs)
    assert all(torch.equal(thrifty[key], gradient) for key, gradient in plain.items())
    assert mine.base_model._mezzo.mirror.check_modules(True), "layers are checkpointed"


def lora_model(name, model, dropout=0.0, **more):
    targets = {"distilbert": ["q_lin", "lin2"], "modernbert": ["Wqkv", "mlp.Wo"], "deberta-v3": ["query_proj", "output.dense"]}
    config = peft.LoraConfig(task_type="SEQ_CLS", r=4, lora_alpha=8, lora_dropout=dropout,
                             target_modules=targets.get(name, ["query", "output.dense"]), **more)
    torch.manual_seed(5)
    model = peft.get_peft_model(model, config)
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            if "lora_B" in key:
                tensor.normal_(0, 0.3)
    return model.eval()


@EACH
def test_lora_of_peft_is_computed(name):
    theirs, mine = pair_of(name)
    theirs, mine = lora_model(name, theirs), lora_model(name, mine)
    inputs = inputs_of(name, theirs)
    with torch.no_grad():
        torch.testing.assert_close(mine(**inputs).logits, theirs(**inputs).logits, rtol=0, atol=1e-5)
    actual, expected = gradients_of(mine, inputs), gradients_of(theirs, inputs)
    exact = gradients_of(copy.deepcopy(theirs).double(), inputs)
    assert any("lora_A" in key for key in actual) and all("base_layer" not in key for key in actual)
    check_gradients(actual, expected, exact)
    # What PEFT changes is seen: other factors, another scale, merged, without the adapter.
    with torch.no_grad():
        for change in ("set_scale", "merge_adapter", "unmerge_adapter"):
            for model in (theirs, mine):
                if change == "set_scale":
                    for module in model.modules():
                        if hasattr(module, "set_scale"):
                            module.set_scale("default", 0.3)
                else:
                    getattr(model, change)()
            torch.testing.assert_close(mine(**inputs).logits, theirs(**inputs).logits, rtol=0, atol=1e-5)
        with theirs.disable_adapter(), mine.disable_adapter():
            torch.testing.assert_close(mine(**inputs).logits, theirs(**inputs).logits, rtol=0, atol=1e-5)


def test_lora_with_dropout_is_spread_as_in_peft():
    theirs, mine = (lora_model("bert", model, dropout=0.4).train() for model in pair_of("bert", **FAMILIES["bert"].without_dropout()))
    inputs = {key: value.expand(3000, -1) for key, value in inputs_of("bert", theirs, [5]).items()}
    torch.manual_seed(0)
    with torch.no_grad():
        actual, expected = mine(**inputs).logits, theirs(**inputs).logits
    for column in range(3):
        assert expected[:, column].std() > 0.01
        assert ks_2samp(actual[:, column], expected[:, column]).pvalue > 1e-5


# --- calls left to the model's own code

def same_outputs_and_a_warning(theirs, mine, inputs, reason):
    with torch.no_grad():
        expected = theirs(**inputs)
        with pytest.warns(UserWarning, match=f"mezzo.optimize: .* runs its own forward: .*{reason}"):
            actual = mine(**inputs)
        again = mine(**inputs)  # without a second warning, which would be an error
    assert actual.keys() == expected.keys() == again.keys()
    for key in expected.keys():
        for a, b in zip(*(value if isinstance(value, tuple) else (value,) for value in (actual[key], expected[key]))):
            assert torch.equal(a, b), key


@pytest.mark.parametrize("more, reason", [
    (dict(output_hidden_states=True), "output_hidden_states is given"),
    (dict(output_attentions=True), "output_attentions is given"),
    (dict(position_ids=torch.arange(40).flip(0).unsqueeze(0)), "position_ids is given"),
    (dict(attention_mask=torch.ones(7, 40, 40, dtype=torch.long).unsqueeze(1).bool()), r"attention_mask is not a tensor \[B, S\]"),
    (dict(attention_mask=torch.ones(7, 40).triu(0)), "attention_mask masks a whole text, or positions that are not on the right"),
    (dict(attention_mask=torch.arange(40).ne(5).expand(7, 40)), "attention_mask masks a whole text, or positions that are not on the right"),
])
def test_calls_that_run_the_models_own_code(more, reason):
    theirs = model_of("bert").base_model
    theirs.set_attn_implementation("eager")
    mine = mezzo.optimize(copy.deepcopy(theirs))
    same_outputs_and_a_warning(theirs, mine, inputs_of("bert", theirs) | more, reason)


def hooked(model):
    model.encoder.layer[0].output.register_forward_hook(lambda module, inputs, output: output * 2)


def partly_training(model):
    model.encoder.layer[0].train()


def odd_layer(model):
    class Doubled(nn.Linear):
        def forward(self, x):
            return super().forward(x) * 2

    torch.manual_seed(0)
    model.encoder.layer[0].intermediate.dense = Doubled(32, 64)


def odd_forward(model):
    model.encoder.layer[0].output.forward = lambda states, inputs: inputs


def other_probability(model):
    model.encoder.layer[0].output.dropout.p = 0.7


def other_config(model):
    model.config.hidden_act = "silu"
    for layer in model.encoder.layer:
        layer.intermediate.intermediate_act_fn = ACT2FN["silu"]


def other_activation(model):
    for layer in model.encoder.layer:
        layer.intermediate.intermediate_act_fn = nn.ReLU().eval()


def other_eps(model):
    for layer in model.encoder.layer:
        layer.output.LayerNorm.eps = 0.5


def half_of_it(model):
    model.encoder.layer[0].bfloat16()


def parametrized(model):
    torch.nn.utils.parametrizations.orthogonal(model.encoder.layer[0].attention.self.query)


@pytest.mark.parametrize("change, reason", [
    (hooked, "a module inside the encoder has a hook"),
    (odd_layer, "encoder.layer.0.intermediate.dense is a .*Doubled"),
    (odd_forward, "a module inside the encoder has another forward"),
    (other_probability, "modules with hidden_dropout_prob have different probabilities"),
    (other_config, 'the model\'s config: hidden_act is "silu", mezzo supports: gelu'),
    (other_activation, "encoder.layer.0.intermediate.intermediate_act_fn is a .*ReLU"),
    (other_eps, "encoder.layer.0.output.LayerNorm has the eps 0.5, and the config 1e-12"),
    (parametrized, "encoder.layer.0.attention.self.query is a .*ParametrizedLinear"),
])
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_models_that_run_their_own_code(change, reason, late):
    theirs, mine = pair_of("bert", "base")
    inputs = inputs_of("bert", theirs)
    if late:
        mine(**inputs)
    change(theirs), change(mine)
    same_outputs_and_a_warning(theirs, mine, inputs, reason)


def test_parts_in_other_modes_and_dtypes_run_their_own_code():
    theirs, mine = pair_of("bert", "base")
    inputs = inputs_of("bert", theirs)
    partly_training(mine)
    with pytest.warns(UserWarning, match="some modules are in train mode and others in eval mode"):
        mine(**inputs)
    mine.eval()
    half_of_it(mine)
    with pytest.warns(UserWarning, match="parameters are of several dtypes"), pytest.raises(RuntimeError, match="dtype"):
        mine(**inputs)
    mine.float()
    unmasked = dict(input_ids=inputs["input_ids"])
    with torch.no_grad():
        torch.testing.assert_close(mine(**unmasked)[0], theirs.float()(**unmasked)[0], rtol=0, atol=0.1)
    with pytest.warns(UserWarning, match="input_ids has padding that attention_mask does not mask"):
        mine(**unmasked)
    embeds = dict(inputs_embeds=theirs.embeddings.word_embeddings(inputs["input_ids"]))
    with pytest.warns(UserWarning, match="inputs_embeds is given"):
        mine(**embeds)


def two_adapters(model):
    model.add_adapter("other", peft.LoraConfig(r=2, target_modules=["query"]))
    for module in model.modules():
        if isinstance(module, peft.tuners.lora.Linear):
            module.set_adapter(["default", "other"])


@pytest.mark.parametrize("change, more", [(two_adapters, {}), (lambda model: None, dict(use_dora=True)), (lambda model: None, dict(lora_bias=True))])
def test_loras_of_other_kinds_run_their_own_code(change, more):
    theirs, mine = (lora_model("bert", model, **more) for model in pair_of("bert"))
    change(theirs), change(mine)
    for a, b in zip(theirs.parameters(), mine.parameters()):
        b.data.copy_(a.data)
    same_outputs_and_a_warning(theirs, mine, inputs_of("bert", theirs), "has several adapters, or one that is not plain LoRA")


def test_models_of_other_kinds_are_refused():
    with pytest.raises(ValueError, match="GPT2Model holds no encoder that mezzo computes. It computes BERT, .* and ModernBERT of transformers"):
        mezzo.optimize(GPT2Model(GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=9)))

    answers = transformers.RobertaForQuestionAnswering(FAMILIES["roberta"].config())
    with pytest.raises(ValueError, match="RobertaForQuestionAnswering chooses among all positions, padding included"):
        mezzo.optimize(answers)
    assert not hasattr(type(answers.roberta), "_mezzo_own")

    class Mine(transformers.BertModel):
        def forward(self, *args, **kwargs):
            return super().forward(*args, **kwargs)

    with pytest.raises(ValueError, match="Mine holds no encoder"):
        mezzo.optimize(Mine(FAMILIES["bert"].config()))


def test_an_encoder_whose_forward_was_replaced_is_refused():
    model = model_of("bert", "base")
    model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)  # as Accelerate does
    with pytest.raises(ValueError, match="the forward of this BertModel was replaced, for example by Accelerate"):
        mezzo.optimize(model)
    assert not hasattr(type(model), "_mezzo_own")


def test_wrong_token_ids_and_long_texts_are_the_errors_of_transformers():
    theirs, mine = pair_of("bert")
    inputs = inputs_of("bert", theirs)
    inputs["input_ids"][0, 0] = 120
    for model in (theirs, mine):
        with pytest.raises(IndexError):
            model(**inputs)
    long = dict(input_ids=torch.ones(1, 73, dtype=torch.long))
    with pytest.raises(Exception) as error:
        theirs(**long)
    with pytest.raises(type(error.value)), pytest.warns(UserWarning, match="texts have 73 tokens, more than the 72"):
        mine(**long)


def test_masked_words_are_predicted_the_same():
    torch.manual_seed(0)
    theirs = transformers.BertForMaskedLM(FAMILIES["bert"].config()).eval()
    mine = mezzo.optimize(copy.deepcopy(theirs))
    inputs = inputs_of("bert", theirs)
    labels = torch.where(inputs["attention_mask"].bool() & (inputs["input_ids"] % 3 == 0), inputs["input_ids"], -100)
    for model in (theirs, mine):
        model(**inputs, labels=labels).loss.backward()
    for (key, tensor), expected in zip(mine.named_parameters(), theirs.parameters()):
        torch.testing.assert_close(tensor.grad, expected.grad, rtol=1e-3, atol=1e-5, msg=key)
    assert mine.bert.embeddings.word_embeddings.weight is mine.cls.predictions.decoder.weight


def test_torch_compile_and_export_take_the_models_own_code():
    theirs, mine = pair_of("bert")
    inputs = inputs_of("bert", theirs)
    mine(**inputs)
    with torch.no_grad():
        expected = theirs(**inputs).logits
        compiled = torch.compile(mine, backend="eager")
        torch.testing.assert_close(compiled(**inputs).logits, expected, rtol=0, atol=1e-5)
        exported = torch.export.export(mine, (), inputs)
        torch.testing.assert_close(exported.module()(**inputs).logits, expected, rtol=0, atol=1e-5)
        functional = torch.func.functional_call(mine, {key: tensor * 1.1 for key, tensor in theirs.named_parameters()}, (), inputs).logits
        reference = torch.func.functional_call(theirs, {key: tensor * 1.1 for key, tensor in theirs.named_parameters()}, (), inputs).logits
        torch.testing.assert_close(functional, reference, rtol=0, atol=1e-5)


# --- loops that others wrote

def rows_of(model, count=48):
    lengths = torch.randint(2, 30, (count,), generator=torch.Generator().manual_seed(0)).tolist()
    return [dict(input_ids=row, attention_mask=[1] * len(row), labels=row[0] % 3) for row in unpadded_ids(model, lengths)]


class Padding:
    """As DataCollatorWithPadding, without a tokenizer."""

    def __init__(self, model):
        self.pad_id = model.config.pad_token_id

    def __call__(self, rows):
        return padded([row["input_ids"] for row in rows], pad_id=self.pad_id) | dict(labels=torch.tensor([row["labels"] for row in rows]))


def curve_of(model, folder, **more):
    arguments = TrainingArguments(output_dir=str(folder), per_device_train_batch_size=8, num_train_epochs=2, logging_steps=1, learning_rate=1e-3,
                                  save_strategy="no", report_to=[], use_cpu=True, seed=7, disable_tqdm=True, eval_strategy="epoch", **more)
    rows = rows_of(model)
    trainer = Trainer(model, arguments, data_collator=Padding(model), train_dataset=rows, eval_dataset=rows[:16])
    trainer.train()
    return [[record[key] for record in trainer.state.log_history if key in record] for key in ("loss", "grad_norm", "eval_loss")]


@pytest.mark.parametrize("name, more", [
    ("bert", {}), ("deberta-v3", {}), ("modernbert", {}), ("roberta", dict(gradient_accumulation_steps=2, gradient_checkpointing=True)),
    ("distilbert", dict(bf16=True)), ("electra", dict(train_sampling_strategy="group_by_length"))])
def test_curves_of_the_trainer_are_the_same(name, more, tmp_path):
    theirs, mine = pair_of(name, **FAMILIES[name].without_dropout())
    expected, actual = (curve_of(model, tmp_path, **more) for model in (theirs, mine))
    for ours, reference in zip(actual, expected):
        assert len(ours) == len(reference) > 0
        # float32: rounding grows over the steps; bfloat16: 8 bits
        torch.testing.assert_close(ours, reference, rtol=0.1 if "bf16" in more else 5e-3, atol=0.05 if "bf16" in more else 1e-3)
    assert len(set(expected[0])) == len(expected[0]), "it learns"


def test_curves_of_accelerate_are_the_same():
    losses = []
    for model in pair_of("bert", **FAMILIES["bert"].without_dropout()):
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        loader = torch.utils.data.DataLoader(rows_of(model), batch_size=8, collate_fn=Padding(model))
        model, optimizer, loader = accelerator.prepare(model.train(), torch.optim.AdamW(model.parameters(), 1e-3), loader)
        losses.append([])
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                losses[-1].append(loss.item())
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-5)


def test_sentence_transformers_embeds_and_trains_the_same():
    theirs = SentenceTransformer(str(MINILM), device="cpu")
    mine = mezzo.optimize(copy.deepcopy(theirs))
    texts = ["a short text", "another text, a good deal longer than the first one", "x"]
    for a, b in zip(mine.encode(texts), theirs.encode(texts)):
        assert abs(a - b).max() < 1e-5
    gradients = []
    for model in (theirs, mine):
        features = [model.preprocess(texts), model.preprocess(texts[::-1])]
        losses.CosineSimilarityLoss(model)(features, torch.tensor([0.9, 1.0, 0.1])).backward()
        gradients.append({key: tensor.grad for key, tensor in model.named_parameters()})
    for key, expected in gradients[0].items():
        if expected is None:
            assert gradients[1][key] is None, key
        elif not key.endswith("key.bias"):  # whose gradient is zero except for rounding
            assert (gradients[1][key] - expected).norm() < 1e-4 * expected.norm() + 1e-7, key


def train_on_a_rank(rank, port, model, inputs, found):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    parallel = nn.parallel.DistributedDataParallel(model)
    loss_of(parallel, inputs[rank]).backward()
    if rank == 0:
        found.put({key: tensor.grad.numpy() for key, tensor in model.named_parameters()})
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def test_distributed_data_parallel_averages_gradients():
    theirs, mine = pair_of("bert")
    inputs = [inputs_of("bert", theirs, seed=seed) for seed in (0, 1)]
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    context = torch.multiprocessing.get_context("fork")
    found = context.Queue()
    processes = [context.Process(target=train_on_a_rank, args=(rank, port, mine, inputs, found), daemon=True) for rank in range(2)]
    for process in processes:
        process.start()
    actual = found.get(timeout=60)
    for process in processes:
        process.join(60)
    first, second = (gradients_of(theirs, part) for part in inputs)
    for key, gradient in actual.items():
        torch.testing.assert_close(torch.from_numpy(gradient), (first[key] + second[key]) / 2, rtol=1e-3, atol=1e-5)
