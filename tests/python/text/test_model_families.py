"""Every model family on packed rows against transformers: logits, gradients, dropout, new weights, loading and saving."""
import copy
import dataclasses
import inspect
import json
import re
from pathlib import Path

import _mezzo
import pytest
import torch
from families import FAMILIES
from safetensors.torch import load_file, save_file
from scipy.stats import ks_2samp
from support import check_gradients, mixed_ids, padded
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoModelForTokenClassification

EVERY = pytest.mark.parametrize("name", FAMILIES)
# Real widths and positions, few layers and words.
WIDE = dict(vocab_size=500, hidden_size=768, num_hidden_layers=2, num_attention_heads=12, intermediate_size=3072,
            max_position_embeddings=514, initializer_range=0.03)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """By family: transformers' model with random weights, and the folder it was saved in."""
    made = {}

    def model_of(name, **more):
        key = name, repr(sorted(more.items()))
        if key not in made:
            folder = tmp_path_factory.mktemp("model")
            made[key] = FAMILIES[name].model(folder, **more), folder
        return made[key]

    return model_of


def lengths_of(model, count):
    """From 1 to as many tokens as the model has positions for, most of them short."""
    most = longest_of(model)
    return [most, 2, 3, 17, 1, most // 2, most - 1, 9][:count]


def longest_of(model):
    config = model.config
    is_roberta = config.model_type in ("roberta", "xlm-roberta", "camembert")
    return config.max_position_embeddings - (config.pad_token_id + 1 if is_roberta else 0)


def types_of_pairs(ids):
    """0 up to somewhere within each text, 1 from there on."""
    return [[0] * (len(row) // 3) + [1] * (len(row) - len(row) // 3) for row in ids]


def inputs_of(name, model, ids, types=None):
    has_types = FAMILIES[name].has_token_types
    return padded(ids, types if has_types else None, pad_id=model.config.pad_token_id)


@EVERY
@pytest.mark.parametrize("batching", ["packed", "dynamic", "grouped", "padded"])
@pytest.mark.parametrize("pairs", [False, True], ids=["texts", "pairs"])
def test_logits_are_those_of_transformers_up_to_the_longest_text(name, batching, pairs, models):
    model, folder = models(name)
    ids = mixed_ids(lengths_of(model, 8), vocab_size=model.config.vocab_size)
    # As if a text spelled it out: RoBERTa's positions pass over it.
    ids[0][5] = ids[3][0] = ids[5][7] = ids[5][8] = model.config.pad_token_id
    types = types_of_pairs(ids) if pairs else []
    mine = _mezzo.Model(str(folder))
    assert mine.initialised == [] and mine.unused == [] and mine.max_tokens == longest_of(model)
    mine.train(False)
    with torch.no_grad():
        expected = model(**inputs_of(name, model, ids, types or None)).logits
        actual = mine.forward(ids, batching=batching, max_length=longest_of(model), token_types=types)
        if pairs and FAMILIES[name].has_token_types:
            assert (expected - model(**inputs_of(name, model, ids)).logits).abs().max() > 1e-3, "the types matter"
    assert actual.dtype == torch.float32
    assert expected.std() > 0.1, "logits that say something"
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["roberta", "distilbert", "electra", "deberta-v3"])
def test_logits_at_real_widths_are_those_of_transformers(name, models):
    model, folder = models(name, **WIDE, **(dict(position_buckets=256) if name == "deberta-v3" else {}))
    ids = mixed_ids(lengths_of(model, 3), vocab_size=model.config.vocab_size)
    with torch.no_grad():
        expected = model(**inputs_of(name, model, ids)).logits
    torch.testing.assert_close(_mezzo.Model(str(folder)).predict(ids), expected, rtol=0, atol=1e-5)


def test_buckets_may_be_as_many_as_distances(models):
    model, folder = models("deberta-v3", position_buckets=142)
    ids = mixed_ids(lengths_of(model, 4), vocab_size=model.config.vocab_size)
    with torch.no_grad():
        expected = model(**inputs_of("deberta-v3", model, ids)).logits
    torch.testing.assert_close(_mezzo.Model(str(folder)).predict(ids), expected, rtol=0, atol=1e-5)


@EVERY
def test_outputs_for_each_token_are_those_of_transformers(name, models):
    model, folder = models(name, per_token=True)
    ids = mixed_ids(lengths_of(model, 6), vocab_size=model.config.vocab_size)
    mine = _mezzo.Model(str(folder), per_token=True)
    assert mine.initialised == [] and mine.unused == []
    with torch.no_grad():
        expected = model(**inputs_of(name, model, ids)).logits
    for text, row, reference in zip(ids, mine.predict(ids), expected):
        torch.testing.assert_close(row[:len(text)], reference[:len(text)], rtol=0, atol=1e-5)
        assert row[len(text):].count_nonzero() == 0


def loss_gradients(model, inputs, labels):
    model.zero_grad()
    model(**inputs, labels=labels).loss.backward()
    return {key: tensor.grad.clone() for key, tensor in model.named_parameters()}


@EVERY
@pytest.mark.parametrize("batching", ["packed", "dynamic"])
@pytest.mark.parametrize("of", ["texts", "pairs", "tokens"])
def test_gradients_of_every_parameter_are_those_of_transformers(name, batching, of, models):
    model, folder = models(name, per_token=of == "tokens")
    # No padding among the tokens: transformers gives its row no gradient.
    ids = [[token + 1 for token in row] for row in mixed_ids(lengths_of(model, 6), model.config.vocab_size - 1)]
    types = types_of_pairs(ids) if of == "pairs" else []
    inputs = inputs_of(name, model, ids, types or None)
    mine = _mezzo.Model(str(folder), per_token=of == "tokens")
    mine.train(False)  # eval mode also switches dropout off in transformers
    outputs = mine.forward(ids, batching=batching, token_types=types)
    if of == "tokens":
        labels = [[token % 3 for token in row] for row in ids]
        longest = max(map(len, ids))
        theirs_labels = torch.tensor([row + [-100] * (longest - len(row)) for row in labels])
        filled = labels if batching == "packed" else theirs_labels.tolist()
        flat = torch.tensor([label for row in filled for label in row])
        # Rows of filler come last.
        loss = torch.nn.functional.cross_entropy(outputs[:len(flat)], flat)
    else:
        theirs_labels = torch.tensor([0, 1, 2, 0, 1, 2])
        loss = torch.nn.functional.cross_entropy(outputs, theirs_labels)
    loss.backward()
    theirs = loss_gradients(model, inputs, theirs_labels)
    exact = loss_gradients(copy.deepcopy(model).double(), inputs, theirs_labels)
    gradients = {key: tensor.grad for key, tensor in mine.parameters().items()}
    check_gradients(gradients, theirs, exact)


@EVERY
@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("drops", [True, False], ids=["dropout", "none"])  # without, a layer reads the same tensors twice
def test_checkpointed_gradients_are_the_same_to_the_bit(name, dtype, drops, models):
    _, folder = models(name, **({} if drops else FAMILIES[name].without_dropout()))

    def step(on, seed=5):
        model = _mezzo.Model(str(folder))
        model.train(True)
        model.set_gradient_checkpointing(on)
        with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            logits = model.forward(mixed_ids([5, 31, 12, 2], vocab_size=120), seed=seed, step=3)
            torch.nn.functional.cross_entropy(logits.float(), torch.tensor([0, 1, 1, 2])).backward()
        return logits.detach(), {key: tensor.grad for key, tensor in model.parameters().items()}

    plain, thrifty = step(False), step(True)
    assert torch.equal(plain[0], thrifty[0])
    for key, gradient in plain[1].items():
        assert torch.equal(gradient, thrifty[1][key]), key
    assert torch.equal(plain[0], step(True, seed=6)[0]) != drops


@pytest.mark.parametrize("name, which", [(name, which) for name in ["bert", "roberta", "distilbert", "electra", "deberta-v3", "modernbert"]
                                         for which in range(len(FAMILIES[name].dropouts))])
@pytest.mark.parametrize("per_token", [False, True], ids=["texts", "tokens"])
def test_each_dropout_is_where_transformers_has_it(name, per_token, which, models):
    """Logits of copies of one text, each with separate masks, are spread as in transformers."""
    family = FAMILIES[name]
    chosen = family.dropouts[which]
    model, folder = models(name, per_token=per_token, **family.without_dropout() | {chosen: 0.3})
    # A mask of relative positions is one of the batch: then a batch has one copy.
    copies, batches = (1, 700) if name == "deberta-v3" and chosen == "hidden_dropout_prob" else (6000, 1)
    ids = mixed_ids([5], vocab_size=120) * copies
    mine = _mezzo.Model(str(folder), per_token=per_token)
    mine.train(True)
    torch.manual_seed(0)
    with torch.no_grad():
        actual = torch.cat([mine.forward(ids, seed=3, step=i)[:copies * (5 if per_token else 1)] for i in range(batches)])
        inputs = inputs_of(name, model.train(), ids)
        expected = torch.cat([model(**inputs).logits for _ in range(batches)])
        model.eval()
        still = model(**inputs_of(name, model, ids[:1])).logits[0]
    actual, expected = (logits.view(copies * batches, -1) for logits in (actual, expected))
    if per_token and chosen in ("seq_classif_dropout", "cls_dropout", "pooler_dropout"):  # which are of texts alone
        torch.testing.assert_close(actual, still.flatten().expand_as(actual), rtol=0, atol=1e-5)
        return
    assert (expected.std(0) > 0.01).all(), "the dropout matters"
    for column in range(actual.size(1)):
        # Two samples of the same distribution are this far apart once in 100,000 times.
        assert ks_2samp(actual[:, column], expected[:, column]).pvalue > 1e-5


@EVERY
def test_a_text_has_its_masks_however_long_the_texts_beside_it(name, models):
    """A device rounds the longest text's length up, where its steps are recorded."""
    model, folder = models(name)
    ids = mixed_ids([9, longest_of(model)], vocab_size=model.config.vocab_size)
    mine = _mezzo.Model(str(folder))
    mine.train(True)
    with torch.no_grad():
        alone, beside = (mine.forward(texts, max_length=longest_of(model), seed=4, step=2)[0] for texts in (ids[:1], ids))
        other = mine.forward(ids, max_length=longest_of(model), seed=5, step=2)[0]
    torch.testing.assert_close(beside, alone, rtol=1e-5, atol=1e-5)  # as logits of transformers are
    assert (other - alone).abs().max() > 1e-2, "dropout is on"


@EVERY
@pytest.mark.parametrize("per_token", [False, True], ids=["texts", "tokens"])
def test_new_weights_are_drawn_as_transformers_draws_them(name, per_token, tmp_path):
    config = FAMILIES[name].config(initializer_range=0.05)
    config.save_pretrained(tmp_path)
    mine = _mezzo.Model(str(tmp_path), seed=4, per_token=per_token, fresh=True).parameters()
    torch.manual_seed(0)
    auto = AutoModelForTokenClassification if per_token else AutoModelForSequenceClassification
    theirs = dict(auto.from_config(config).named_parameters())
    assert mine.keys() == theirs.keys()
    for key, expected in theirs.items():
        actual, expected = mine[key].detach(), expected.detach()
        assert actual.shape == expected.shape, key
        assert torch.equal(actual.flatten() == 0, expected.flatten() == 0), f"{key}: the padding row"
        if expected.std() == 0:
            assert torch.equal(actual, expected), key
        elif "sines" in name and "position_embeddings" in key:
            torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)
        else:
            drawn = expected != 0
            # As above: some hundred parameters, of which none should look like this by chance.
            assert ks_2samp(actual[drawn], expected[drawn]).pvalue > 1e-6, key
            assert not torch.equal(actual, expected)


@EVERY
def test_what_mezzo_writes_is_loaded_by_transformers_and_says_the_same(name, models, tmp_path):
    model, folder = models(name, id2label={0: "law", 1: "goal", 2: "rain"}, label2id={"law": 0, "goal": 1, "rain": 2})
    mine = _mezzo.Model(str(folder))
    mine.save(str(tmp_path))
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    assert type(theirs) is type(model)
    ids = mixed_ids(lengths_of(model, 6), vocab_size=model.config.vocab_size)
    with torch.no_grad():
        expected = model(**inputs_of(name, model, ids)).logits
        assert torch.equal(theirs(**inputs_of(name, model, ids)).logits, expected)
    torch.testing.assert_close(_mezzo.Model(str(tmp_path)).predict(ids), expected, rtol=0, atol=1e-5)
    # Its config has all fields of the original's config, except fields without effect on this
    # model.
    said, given = AutoConfig.from_pretrained(tmp_path).to_dict(), model.config.to_dict()
    apart = {key for key in given if said.get(key) != given[key]}
    assert apart <= {"dtype", "problem_type", "_name_or_path"}, apart


def test_what_is_missing_in_a_head_is_initialised_and_said(models, tmp_path):
    for name, head in [("roberta", ["classifier.dense", "classifier.out_proj"]), ("electra", ["classifier.dense", "classifier.out_proj"]),
                       ("distilbert", ["pre_classifier", "classifier"]), ("deberta-v3", ["pooler.dense", "classifier"]),
                       ("modernbert", ["head.dense", "head.norm", "classifier"])]:
        _, folder = models(name)
        target = tmp_path / name
        target.mkdir()
        (target / "config.json").write_bytes((folder / "config.json").read_bytes())
        whole = load_file(folder / "model.safetensors")
        tensors = {key: tensor for key, tensor in whole.items() if not key.startswith(tuple(head))}
        save_file(tensors | {"lm_head.bias": torch.zeros(3)}, target / "model.safetensors")
        mine = _mezzo.Model(str(target), seed=5)
        named = [f"{module}.{kind}" for module in head for kind in ("weight", "bias")]
        assert mine.initialised == [key for key in named if key in whole]
        assert mine.unused == ["lm_head.bias"]
        bare = {key.split(".", 1)[1]: tensor for key, tensor in tensors.items()}
        save_file(bare, target / "model.safetensors")  # as base models are saved
        assert _mezzo.Model(str(target), seed=5).initialised == mine.initialised


@EVERY
def test_a_parameter_of_the_encoder_may_not_be_missing(name, models, tmp_path):
    _, folder = models(name)
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    tensors = load_file(folder / "model.safetensors")
    for key in tensors:
        part = key.split(".")
        if part[0] in ("classifier", "pre_classifier", "pooler", "head") or part[1] == "pooler":
            continue
        save_file({other: tensor for other, tensor in tensors.items() if other != key}, tmp_path / "model.safetensors")
        with pytest.raises(ValueError, match=f"has no tensor {key}, which config.json requires$"):
            _mezzo.Model(str(tmp_path))


@EVERY
def test_layers_and_copies_of_their_weights(name, models):
    model, folder = models(name)
    mine = _mezzo.Model(str(folder))
    layers = {key: mine.layer_of(key) for key in mine.parameters()}
    for key, layer in layers.items():
        part = key.replace("layers", "layer").split(".")
        expected = (1 + int(part[part.index("layer") + 1]) if "layer" in part else
                    0 if part[1] == "embeddings" or "encoder" in part or "embeddings_project" in part else 4)
        assert layer == expected, key
    half_copies = mine.make_half_copies("bf16")
    matrices = {key for key, tensor in mine.parameters().items() if tensor.dim() == 2 and 1 <= layers[key] <= 3}
    apart = sum("pos_" in key for key in matrices)  # projections of relative positions
    assert half_copies.keys() == matrices and len(matrices) == 3 * (4 if name == "modernbert" else 6) + apart
    for key, half_copy in half_copies.items():
        assert torch.equal(half_copy, mine.parameters()[key].detach().bfloat16()), key


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@EVERY
def test_packed_weights_change_no_bit(name, precision, models):
    model, folder = models(name)
    # LibTorch multiplies few rows by plain weights. 70 texts are too many for it, also in layers with one row a text.
    ids = mixed_ids([1 + i % 9 for i in range(70)], model.config.vocab_size)
    mine, plain = _mezzo.Model(str(folder)), _mezzo.Model(str(folder))
    plain.train(False), mine.train(False)
    mine.pack_weights(precision)
    dtype = dict(bf16=torch.bfloat16, fp16=torch.float16).get(precision)

    def logits(model):  # in a separate region, which keeps no casts of the last one
        with torch.no_grad(), torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            return model.forward(ids)

    before = logits(mine)
    assert torch.equal(before, logits(plain))
    if precision == "fp32" and _mezzo.has_packed_products():
        few = ids[4:5]  # of five rows, which are LibTorch's to multiply unless weights are packed
        with torch.no_grad():
            sums = [model.forward(few) for model in (mine, plain)]
        assert not torch.equal(*sums) and torch.allclose(*sums, 1e-5, 1e-5)
    with torch.no_grad():
        for tensor in [*mine.parameters().values(), *plain.parameters().values()]:
            tensor.mul_(1.25)
    assert torch.equal(logits(mine), logits(plain))
    assert not torch.equal(logits(mine), before)


def with_config(folder, target, **change):
    target.mkdir()
    config = json.loads((folder / "config.json").read_text()) | change
    (target / "config.json").write_text(json.dumps(config))
    (target / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    return target


KINDS = {"bert": ["bert"], "deberta-v2": ["deberta-v3"], "distilbert": ["distilbert"], "electra": ["electra, unprojected"],
         "modernbert": ["modernbert"], "roberta": ["roberta", "xlm-roberta", "camembert"]}


def test_weights_of_one_family_are_refused_by_the_others(models, tmp_path):
    for kind, names in KINDS.items():
        for name in names:
            _, folder = models(name)
            for other, others in KINDS.items():
                if other != kind:
                    _, foreign = models(others[0])
                    target = with_config(foreign, tmp_path / f"{name}-{other}")
                    (target / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
                    with pytest.raises(ValueError, match="has no tensor .*, which config.json requires") as error:
                        _mezzo.Model(str(target))
                    assert "model_type" in str(error.value)


@pytest.mark.parametrize("name, change, message", [
    ("roberta", dict(model_type="gpt2"),
     'model_type is "gpt2", mezzo supports: bert, camembert, deberta-v2, distilbert, electra, modernbert, roberta, xlm-roberta'),
    ("roberta", dict(hidden_act="swish"), 'hidden_act is "swish", mezzo supports: gelu, gelu_new, gelu_pytorch_tanh, relu'),
    ("roberta", dict(position_embedding_type="relative_key"), 'position_embedding_type is "relative_key", mezzo supports: absolute'),
    ("roberta", dict(max_position_embeddings=3), "max_position_embeddings is 3, too few for a text: its positions begin at 2"),
    ("roberta", dict(pad_token_id=120), "pad_token_id is 120, outside the vocabulary of 120"),
    ("camembert", dict(is_decoder=True), "is_decoder is true, mezzo supports: false"),
    ("xlm-roberta", dict(add_cross_attention=True), "add_cross_attention is true, mezzo supports: false"),
    ("bert", dict(pruned_heads={"1": [0, 2]}), r'pruned_heads is {"1":\[0,2\]}, which mezzo does not support'),
    ("electra", dict(embedding_size=0), "embedding_size is 0, expected an integer from 1"),
    ("bert", dict(num_hidden_layers=1025), "num_hidden_layers is 1025, expected an integer from 1 to 1024"),
    ("electra", dict(hidden_act="gelu_fast"), 'hidden_act is "gelu_fast"'),
    ("electra", dict(classifier_dropout=1.5), "classifier_dropout is 1.5, expected a number from 0 to below 1"),
    ("distilbert", dict(activation="silu"), 'activation is "silu", mezzo supports: gelu'),
    ("distilbert", dict(dim=30), "dim is 30, which 4 attention heads cannot divide"),
    ("distilbert", dict(n_layers="six"), 'n_layers is "six", expected an integer from 1'),
    ("distilbert", dict(sinusoidal_pos_embds=1), "sinusoidal_pos_embds is 1, expected true or false"),
    ("distilbert", dict(seq_classif_dropout=1), "seq_classif_dropout is 1, expected a number from 0 to below 1"),
    ("distilbert", dict(pruned_heads={"0": [1]}), "pruned_heads is"),
    ("distilbert", dict(hidden_size=30), "hidden_size is 30, which 4 attention heads cannot divide"),
    ("bert", dict(num_labels=4), "num_labels is 4, but id2label has 3"),
    ("bert", dict(num_labels=65_537, id2label=None, label2id=None), "num_labels is 65537, expected an integer from 1 to 65536"),
    ("modernbert", dict(sliding_window=-1), "sliding_window is -1, expected an integer from 0"),
    ("deberta-v3", dict(pos_att_type="c2p|p2p"), 'pos_att_type has "p2p", mezzo supports: c2p, p2c'),
    ("deberta-v3", dict(pos_att_type=["c2p", "c2p"]), 'pos_att_type has "c2p" twice'),
    ("deberta-v3", dict(pos_att_type=7), r'pos_att_type is 7, expected a list such as \["p2c", "c2p"\]'),
    ("deberta-v3", dict(pos_att_type=None), "pos_att_type is empty, but relative_attention is true"),
    ("deberta-v3", dict(relative_attention=False), "pos_att_type is given, but relative_attention is false"),
    ("deberta, absolute", dict(norm_rel_ebd="layer_norm"), 'norm_rel_ebd is "layer_norm", but relative_attention is false'),
    ("deberta-v3", dict(norm_rel_ebd="rms"), 'norm_rel_ebd is "rms", mezzo supports: none, layer_norm'),
    ("deberta-v3", dict(position_buckets=1),
     "position_buckets is 1, of which half must be at least 1 and less than the largest distance, 71. Set -1 to give each distance its own row"),
    ("deberta-v3", dict(position_buckets=38, max_relative_positions=20), "position_buckets is 38, of which half must be .*, 19. Set -1 to"),
    ("deberta-v3", dict(pos_att_type="c 2p"), 'pos_att_type has "c 2p", mezzo supports: c2p, p2c'),
    ("deberta-v3", dict(conv_kernel_size=3), "conv_kernel_size is 3, mezzo supports: 0"),
    ("deberta-v3", dict(attention_head_size=16), "attention_head_size is 16, mezzo supports: 8"),
    ("deberta-v3", dict(pooler_hidden_size=16), "pooler_hidden_size is 16, mezzo supports: 32"),
    ("deberta-v3", dict(pooler_hidden_act="tanh"), 'pooler_hidden_act is "tanh", mezzo supports: gelu'),
    ("deberta-v3", dict(max_relative_positions=-2), "max_relative_positions is -2, expected an integer from -1"),
    ("deberta-v3", dict(max_relative_positions=1 << 24), "max_relative_positions is 16777216, expected an integer from -1 to 131072"),
    ("deberta-v3", dict(position_buckets=1 << 24), "position_buckets is 16777216, expected an integer from -1 to 131072"),
    ("modernbert", dict(max_position_embeddings=1 << 24), "max_position_embeddings is 16777216, expected an integer from 2 to 131072"),
])
def test_a_config_that_cannot_be_run_is_refused_by_field(models, tmp_path, name, change, message):
    target = with_config(models(name)[1], tmp_path / "m", **change)
    with pytest.raises(ValueError, match=message) as error:
        _mezzo.Model(str(target))
    assert str(target / "config.json") in str(error.value)


MODEL_TYPES = ["bert", "camembert", "deberta-v2", "distilbert", "electra", "modernbert", "roberta", "xlm-roberta"]


def fields_of_transformers(model_type):
    """The fields of a config's class, and the fields that the code of its models reads."""
    config = type(AutoConfig.for_model(model_type))
    fields = {field.name for field in dataclasses.fields(config)}
    for source in Path(inspect.getfile(config)).parent.glob("modeling_*.py"):
        for name in re.findall(r"\bconfig(?:\.|, \")([a-z]\w*)", source.read_text()):
            fields.add(name)
    return fields


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_every_field_of_transformers_is_known(model_type):
    assert fields_of_transformers(model_type) - set(_mezzo.known_config_fields(model_type)) == set()


# Read beside other values of other fields alone.
READ_WITH = {"window_stride": dict(window_pooling="mean"), "global_attn_every_n_layers": dict(layer_types=None),
             "global_rope_theta": dict(rope_parameters=None), "local_rope_theta": dict(rope_parameters=None)}


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_known_fields_are_what_they_are_said_to_be(model_type, models, tmp_path):
    family = next(name for name, family in FAMILIES.items() if family.model_type == model_type)
    _, folder = models(family)
    usual = json.loads((folder / "config.json").read_text())

    def saved(name, value, **more):
        (tmp_path / "config.json").write_text(json.dumps(usual | more | {name: value}))
        _mezzo.Model(str(tmp_path), fresh=True).save(str(tmp_path))
        return json.loads((tmp_path / "config.json").read_text())

    same = saved("model_type", model_type)
    odd = [[{"odd": 1}]]
    for name, use in _mezzo.known_config_fields(model_type).items():
        if name in ("architectures", "tokenizer_class"):
            continue  # only their text is used
        if use == "no effect":
            assert {**saved(name, odd), name: 0} == {**same, name: 0}, name  # ids of tokens are handed on
        else:
            with pytest.raises(ValueError, match=f"config.json: {name} (is|has) "):
                saved(name, odd, **READ_WITH.get(name, {}))
        if use == "only":
            saved(name, None)


def test_weights_that_are_quantized_are_refused_by_their_config(models, tmp_path):
    target = with_config(models("bert")[1], tmp_path / "m", quantization_config=dict(quant_method="compressed-tensors", config_groups={"a" * 99: 1}))
    with pytest.raises(ValueError, match=r'quantization_config is {"config_groups":.*\.\.\., which mezzo does not support; its weights are quantized. Use the '
                                         "unquantized model$"):
        _mezzo.Model(str(target))


@pytest.mark.parametrize("text, key", [
    ('{"model_type": "bert", "hidden_size": 32, "hidden_size": 64}', "hidden_size"),
    ('{"model_type": "bert", "id2label": {"0": "a", "1": "b", "\\u0030": "c"}}', "0"),
    ('{"other": [{"x": 1, "x": 1}]}', "x")])
def test_a_key_that_occurs_twice_is_refused(text, key, tmp_path):
    (tmp_path / "config.json").write_text("\n" + text)
    with pytest.raises(ValueError, match=f"config.json:2: the key '{key}' occurs twice in one object. Keep one."):
        _mezzo.Model(str(tmp_path), fresh=True)


@pytest.mark.parametrize("name, given, other", [
    ("distilbert", dict(hidden_size=40, num_attention_heads=5, num_hidden_layers=2),
     dict(hidden_size=40, num_attention_heads=5, num_hidden_layers=2)),
    ("modernbert", dict(local_attention=4), dict(sliding_window=2)),
    ("bert", dict(num_labels=5), dict(num_labels=5, id2label=None, label2id=None)),
])
def test_other_names_of_fields_are_understood_as_by_transformers(models, tmp_path, name, given, other):
    usual, folder = models(name)
    model, other_folder = models(name, **given)
    # The file has the family's own names beside these, and other values there.
    target = with_config(folder, tmp_path / "m", **other)
    (target / "model.safetensors").write_bytes((other_folder / "model.safetensors").read_bytes())
    config = AutoConfig.from_pretrained(target)
    assert all(getattr(config, key) == getattr(model.config, key) != getattr(usual.config, key) for key in given)
    mine = _mezzo.Model(str(target))
    ids = mixed_ids(lengths_of(model, 6), vocab_size=model.config.vocab_size)
    with torch.no_grad():
        expected = model(**inputs_of(name, model, ids)).logits
    torch.testing.assert_close(mine.predict(ids), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["roberta", "distilbert", "electra"])
def test_a_head_of_other_labels_is_told_by_its_rows(models, tmp_path, name):
    target = with_config(models(name)[1], tmp_path / "m", id2label={str(i): f"LABEL_{i}" for i in range(5)})
    with pytest.raises(ValueError, match=r"the model needs Float\[5, 32\] \(one row per label of the data\)"):
        _mezzo.Model(str(target))


@EVERY
def test_a_text_longer_than_the_model_is_an_error(name, models):
    model, folder = models(name)
    longest = longest_of(model)
    ids = [[token + 1 for token in mixed_ids([longest + 1], model.config.vocab_size - 1)[0]]]
    with pytest.raises(IndexError):
        _mezzo.Model(str(folder)).predict(ids)
