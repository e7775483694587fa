"""ModernBERT on packed rows against transformers: logits, gradients, loading and saving, where test_model_families does not look."""
import json

import _mezzo
import mezzo
import pytest
import torch
from support import check_gradients, mixed_ids, padded
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    ModernBertConfig,
    ModernBertForSequenceClassification,
    ModernBertForTokenClassification,
)

# Texts shorter and longer than the window, and than the three blocks of keys that a block of queries
# may see.
LENGTHS = [2, 3, 17, 64, 1, 600, 40, 128, 9]

KINDS = {
    "cls": {},
    "mean": dict(classifier_pooling="mean"),
    # Its last layer is local, so that a text's first token sees few.
    "local_end": dict(num_hidden_layers=3, local_attention=10),
    "biases": dict(norm_bias=True, attention_bias=True, mlp_bias=True, classifier_bias=True),
    "norm_biases": dict(norm_bias=True, hidden_activation="relu"),
    "wide": dict(local_attention=300, hidden_activation="gelu_pytorch_tanh", classifier_activation="relu"),
    "all_global": dict(layer_types=["full_attention"] * 4),
}


def config_of(kind="cls", **sizes):
    defaults = dict(
        vocab_size=300, hidden_size=48, num_attention_heads=4, num_hidden_layers=4, intermediate_size=70,
        max_position_embeddings=640, local_attention=32, initializer_range=0.2, num_labels=3, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)
    return ModernBertConfig(**(defaults | KINDS[kind] | sizes))


def random_model(folder, config, make=ModernBertForSequenceClassification):
    """Of weights spread so wide that every part matters, saved by transformers."""
    torch.manual_seed(0)
    config._attn_implementation = "eager"
    model = make(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.add_(torch.randn_like(parameter) * 0.2)
            elif name.endswith("bias"):
                parameter.copy_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batching", ["packed", "dynamic"])
def test_logits_are_those_of_transformers_for_mixed_lengths(kind, batching, tmp_path):
    model = random_model(tmp_path, config_of(kind))
    ids = mixed_ids(LENGTHS, vocab_size=300)
    mine = _mezzo.Model(str(tmp_path))
    assert mine.initialised == [] and mine.unused == []
    mine.train(False)
    with torch.no_grad():
        expected = model(**padded(ids)).logits
        actual = mine.forward(ids, batching=batching, max_length=600)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


def test_windows_matter_in_these_tests(tmp_path):
    """Else the test above would pass with any window."""
    ids = mixed_ids(LENGTHS, vocab_size=300)
    logits = []
    for window in (32, 34, 1200):
        random_model(tmp_path / str(window), config_of(local_attention=window))
        with torch.no_grad():
            logits.append(_mezzo.Model(str(tmp_path / str(window))).predict(ids))
    assert (logits[0] - logits[1]).abs().max() > 1e-3
    assert (logits[0] - logits[2]).abs().max() > 1e-3


@pytest.mark.parametrize("kind", ["cls", "mean"])
def test_outputs_for_each_token_are_those_of_transformers(kind, tmp_path):
    model = random_model(tmp_path, config_of(kind), ModernBertForTokenClassification)
    ids = mixed_ids(LENGTHS, vocab_size=300)
    mine = _mezzo.Model(str(tmp_path), per_token=True)
    assert mine.initialised == [] and mine.unused == []
    actual = mine.predict(ids)
    with torch.no_grad():
        expected = model(**padded(ids)).logits
    for text, row, reference in zip(ids, actual, expected):
        torch.testing.assert_close(row[:len(text)], reference[:len(text)], rtol=0, atol=2e-5)


def loss_gradients(logits, model, labels):
    model.zero_grad()
    torch.nn.functional.cross_entropy(logits, labels).backward()
    return {key: tensor.grad.clone() for key, tensor in model.named_parameters()}


def double(folder):
    """The model in float64, one text at a time: eager attention takes its softmax in float32, in which the other's
    rows of padding, which see no token, are not numbers."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="sdpa").eval().double()
    return model, lambda ids: torch.cat([model(torch.tensor([row])).logits for row in ids])


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_every_parameter_are_those_of_transformers(kind, tmp_path):
    model = random_model(tmp_path, config_of(kind))
    ids = mixed_ids([5, 31, 190, 2, 50, 1], vocab_size=300)
    labels = torch.tensor([0, 1, 1, 0, 2, 2])
    # Angles and inverse frequencies are float32 in both, also in their float64 model.
    theirs = loss_gradients(model(**padded(ids)).logits, model, labels)
    exact_model, logits_of = double(tmp_path)
    exact = loss_gradients(logits_of(ids), exact_model, labels)
    mine = _mezzo.Model(str(tmp_path))
    mine.train(False)
    torch.nn.functional.cross_entropy(mine.forward(ids), labels).backward()
    gradients = {key: tensor.grad for key, tensor in mine.parameters().items()}
    check_gradients(gradients, theirs, exact)


@pytest.mark.parametrize("kind", ["cls", "biases", "mean"])
def test_checkpointed_layers_give_the_same_gradients(kind, tmp_path):
    random_model(tmp_path, config_of(kind, attention_dropout=0.1, mlp_dropout=0.2, embedding_dropout=0.1))
    ids = mixed_ids([5, 31, 190], vocab_size=300)
    gradients = []
    for on in (False, True):
        mine = _mezzo.Model(str(tmp_path))
        mine.train(True)
        mine.set_gradient_checkpointing(on)
        mine.forward(ids, seed=3, step=4).square().sum().backward()
        gradients.append({key: tensor.grad for key, tensor in mine.parameters().items()})
    for key, gradient in gradients[0].items():
        assert torch.equal(gradient, gradients[1][key]), key


@pytest.mark.parametrize("kind", ["cls", "local_end", "mean"])
def test_a_loss_with_dropout_is_reproduced_in_backward(kind, tmp_path):
    """The composition and its masks, by a directional finite difference in float64; then the fused blocks by it."""
    random_model(tmp_path, config_of(kind, attention_dropout=0.1, mlp_dropout=0.2, embedding_dropout=0.1,
                                     classifier_dropout=0.3, initializer_range=0.1))
    ids = mixed_ids([7, 20, 133], vocab_size=300)
    labels = torch.tensor([1, 2, 0])

    def loss(model):
        return torch.nn.functional.cross_entropy(model.forward(ids, seed=3, step=4), labels)

    fused, mine = _mezzo.Model(str(tmp_path)), _mezzo.Model(str(tmp_path))
    fused.train(True)
    mine.train(True)
    parameters = mine.parameters()
    for tensor in parameters.values():
        tensor.data = tensor.data.double()
    loss(mine).backward()
    loss(fused).backward()
    for key, tensor in fused.parameters().items():
        exact = parameters[key].grad
        assert (tensor.grad - exact).norm() <= 1e-4 * exact.norm() + 1e-7, key
    generator = torch.Generator().manual_seed(0)
    direction = {k: torch.randn(t.shape, generator=generator, dtype=torch.float64) for k, t in parameters.items()}
    slope = sum((direction[k] * t.grad).sum() for k, t in parameters.items())
    step = 1e-7  # error of a central difference: step^2 from the curve, 1e-16 / step from rounding
    with torch.no_grad():
        for k, t in parameters.items():
            t += step * direction[k]
        above = loss(mine)
        for k, t in parameters.items():
            t -= 2 * step * direction[k]
        below = loss(mine)
    assert torch.isclose((above - below) / (2 * step), slope, rtol=1e-5), ((above - below) / (2 * step), slope)


@pytest.mark.parametrize("kind", KINDS)
def test_what_mezzo_saves_is_the_same_model_to_transformers(kind, tmp_path):
    model = random_model(tmp_path / "theirs", config_of(kind))
    ids = mixed_ids([5, 31, 190], vocab_size=300)
    _mezzo.Model(str(tmp_path / "theirs")).save(str(tmp_path / "mine"))
    loaded, info = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "mine", output_loading_info=True, attn_implementation="eager")
    assert not info["missing_keys"] and not info["unexpected_keys"]
    with torch.no_grad():
        assert torch.equal(loaded.eval()(**padded(ids)).logits, model(**padded(ids)).logits)
    # No field of my file contradicts the same field of theirs.
    written = json.loads((tmp_path / "mine/config.json").read_text())
    for key, value in json.loads((tmp_path / "theirs/config.json").read_text()).items():
        assert written.get(key, value) == value, key
    again = _mezzo.Model(str(tmp_path / "mine"))
    assert torch.equal(again.predict(ids), _mezzo.Model(str(tmp_path / "theirs")).predict(ids))


def test_configs_of_older_releases_are_understood(tmp_path):
    model = random_model(tmp_path, config_of())
    config = json.loads((tmp_path / "config.json").read_text())
    del config["rope_parameters"], config["layer_types"]
    config |= dict(global_rope_theta=5000.0, local_rope_theta=70.0, global_attn_every_n_layers=2,
                   position_embedding_type="absolute")
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path, attn_implementation="eager").eval()
    ids = mixed_ids(LENGTHS, vocab_size=300)
    with torch.no_grad():
        expected = model(**padded(ids)).logits
    torch.testing.assert_close(_mezzo.Model(str(tmp_path)).predict(ids), expected, rtol=0, atol=1e-5)


def test_fresh_weights_are_distributed_as_those_of_transformers(tmp_path):
    config = config_of("biases", vocab_size=400, hidden_size=128, intermediate_size=200, initializer_range=0.02,
                       num_labels=70, initializer_cutoff_factor=1.5)
    config.save_pretrained(tmp_path)
    torch.manual_seed(1)
    theirs = dict(ModernBertForSequenceClassification(config).named_parameters())
    mine = _mezzo.Model(str(tmp_path), seed=1, fresh=True).parameters()
    assert mine.keys() == theirs.keys()
    points = torch.tensor([0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0])
    for key, expected in theirs.items():
        actual = mine[key]
        if expected.std() == 0:
            assert torch.equal(actual, expected), key
            continue
        spread = expected.std()
        assert abs(actual.std() / spread - 1) < 4 / actual.numel()**0.5, key
        # Quantiles of n draws: a standard error of some 2 spreads / sqrt(n), for each of the two.
        difference = actual.flatten().quantile(points) - expected.flatten().quantile(points)
        assert difference.abs().max() < 12 * spread / actual.numel()**0.5, key
    table = "model.embeddings.tok_embeddings.weight"
    assert (mine[table][0] == 0).all() == (theirs[table][0] == 0).all(), "the padding row"


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(hidden_activation="silu"), 'hidden_activation is "silu", mezzo supports: gelu'),
        (dict(classifier_pooling="max"), 'classifier_pooling is "max", mezzo supports: cls, mean'),
        (dict(norm_bias=1), "norm_bias is 1, expected true or false"),
        (dict(num_attention_heads=16), "num_attention_heads is 16, so each head of hidden_size 48 has an odd number of columns"),
        (dict(layer_types=["full_attention"]), "layer_types is not a list of 4 types"),
        (dict(layer_types=["full_attention"] * 3 + ["chunked_attention"]), 'layer_types has "chunked_attention"'),
        (dict(rope_parameters=dict(full_attention=dict(rope_type="yarn", rope_theta=1e4))),
         'rope_parameters.full_attention.rope_type is "yarn", mezzo supports rope_type "default"'),
        (dict(rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=-1))),
         "rope_parameters.full_attention.rope_theta is -1, expected a number above 0"),
        (dict(rope_parameters=dict(sliding_attention=dict(rope_type="default", rope_theta=None))),
         "rope_parameters.sliding_attention.rope_theta is null, expected a number above 0"),
        (dict(rope_parameters=None, local_rope_theta=None), "local_rope_theta is null, expected a number above 0"),
        (dict(rope_parameters=dict(rope_type="default", rope_theta=1e4)), "rope_parameters is .*, expected an object for"),
        (dict(rope_scaling=dict(type="linear")), "rope_scaling is .*, which mezzo does not support"),
        (dict(local_attention=-2), "local_attention is -2, expected an integer from 0"),
        (dict(mlp_dropout=1.5), "mlp_dropout is 1.5, expected a number from 0 to below 1"),
    ],
)
def test_a_config_that_cannot_be_run_is_refused_by_field(tmp_path, change, message):
    random_model(tmp_path, config_of())
    config = json.loads((tmp_path / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="config.json: " + message):
        _mezzo.Model(str(tmp_path))


def test_layers_are_numbered_and_have_half_copies(tmp_path):
    random_model(tmp_path, config_of())
    mine = _mezzo.Model(str(tmp_path))
    places = {"model.embeddings.norm.weight": 0, "model.layers.0.attn.Wqkv.weight": 1,
              "model.layers.3.mlp_norm.weight": 4, "model.final_norm.weight": 5, "head.dense.weight": 5,
              "classifier.bias": 5}
    assert {name: mine.layer_of(name) for name in places} == places
    assert mine.max_tokens == 640
    half_copies = mine.make_half_copies("bf16")
    assert len(half_copies) == 4 * 4
    ids = mixed_ids([5, 31, 190], vocab_size=300)
    mine.train(False)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        with_half_copies = mine.forward(ids)
        without = _mezzo.Model(str(tmp_path))
        without.train(False)
        assert torch.equal(with_half_copies, without.forward(ids))


# As the models on the hub have them, of fewer units.
RELATIVES = {
    "ettin": dict(
        bos_token_id=1, cls_token_id=1, eos_token_id=2, sep_token_id=2, pad_token_id=3, global_rope_theta=160000.0, local_rope_theta=160000.0, max_position_embeddings=7999,
        classifier_pooling="mean", causal_mask=False, is_causal=False, decoder_bias=True, num_hidden_layers=7),
    "mmbert": dict(
        bos_token_id=2, cls_token_id=1, eos_token_id=1, sep_token_id=1, mask_token_id=4, pad_token_id=0, global_rope_theta=160000, local_rope_theta=160000,
        max_position_embeddings=8192, classifier_pooling="mean", num_hidden_layers=4),
}


def gemma_like_tokenizer(folder):
    """As mmBERT's: BPE that falls back to bytes, words begun by ▁, and files that name Gemma's class."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer, tokenizer.decoder = normalizers.Replace(" ", "▁"), decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    tokenizer.train_from_iterator(["a good film and a bad film"] * 9, trainers.BpeTrainer(vocab_size=300, special_tokens=[*special, *(f"<0x{i:02X}>" for i in range(256))]))
    tokenizer.post_processor = processors.TemplateProcessing("<bos> $A <eos>", "<bos> $A <eos> $B:1 <eos>:1", [("<bos>", 2), ("<eos>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = dict(bos_token="<bos>", eos_token="<eos>", unk_token="<unk>", pad_token="<pad>", mask_token="<mask>", cls_token="<bos>", sep_token="<eos>")
    (folder / "tokenizer_config.json").write_text(json.dumps(dict(tokenizer_class="GemmaTokenizer", add_bos_token=True, add_eos_token=True, **names)))


@pytest.mark.parametrize("kind", RELATIVES)
def test_ettin_and_mmbert_are_read_as_transformers_reads_them(kind, tmp_path):
    fields = dict(
        model_type="modernbert", architectures=["ModernBertForMaskedLM"], vocab_size=300, hidden_size=48, num_attention_heads=4, intermediate_size=70, local_attention=32,
        attention_bias=False, attention_dropout=0.0, classifier_activation="gelu", classifier_bias=False, classifier_dropout=0.0, deterministic_flash_attn=False,
        embedding_dropout=0.0, global_attn_every_n_layers=3, gradient_checkpointing=False, hidden_activation="gelu", initializer_cutoff_factor=2.0, initializer_range=0.2,
        layer_norm_eps=1e-5, mlp_bias=False, mlp_dropout=0.0, norm_bias=False, norm_eps=1e-5, position_embedding_type="sans_pos", repad_logits_with_grad=False,
        sparse_pred_ignore_index=-100, sparse_prediction=False, torch_dtype="float32") | RELATIVES[kind]
    (tmp_path / "config.json").write_text(json.dumps(fields))
    model = random_model(tmp_path, AutoConfig.from_pretrained(tmp_path))
    fields["architectures"] = ["ModernBertForSequenceClassification"]
    (tmp_path / "config.json").write_text(json.dumps(fields))  # as the hub has it, not as transformers saves it today
    ids = mixed_ids(LENGTHS, vocab_size=300)
    mine = _mezzo.Model(str(tmp_path))
    assert mine.initialised == [] and mine.unused == []
    mine.train(False)
    with torch.no_grad():
        expected = model(**padded(ids, pad_id=fields["pad_token_id"])).logits
        torch.testing.assert_close(mine.forward(ids), expected, rtol=0, atol=1e-5)
    gemma_like_tokenizer(tmp_path)
    ours, theirs = mezzo.Tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    for text in ("a good film", "  Été 今天 film\n", "", "<mask> bad"):
        assert ours.encode(text) == theirs(text)["input_ids"], text
    for field in ("causal_mask", "is_causal"):
        (tmp_path / "config.json").write_text(json.dumps(fields | {field: True}))
        with pytest.raises(ValueError, match=f"{field} is true"):
            _mezzo.Model(str(tmp_path))
