"""ONNX graphs of every model family, run by onnxruntime, against transformers' models."""
import _mezzo
import onnx
import pytest
import torch
from families import FAMILIES
from onnx_sessions import logits_of, session_of
from support import mixed_ids
from test_model_families import inputs_of, lengths_of, models, types_of_pairs  # noqa: F401: a fixture

EVERY = pytest.mark.parametrize("name", FAMILIES)


def real_rows(logits, inputs, per_token):
    """The logits of tokens, if each token has one. Logits of padding are useless."""
    return logits[inputs["attention_mask"].bool()] if per_token else logits


@EVERY
@pytest.mark.parametrize("per_token", [False, True], ids=["texts", "tokens"])
def test_logits_are_those_of_transformers(name, per_token, models, tmp_path):  # noqa: F811
    model, folder = models(name, per_token=per_token)
    path = tmp_path / "model.onnx"
    inputs = _mezzo.Model(str(folder), per_token=per_token).export_onnx(str(path))
    assert ("token_type_ids" in inputs) == FAMILIES[name].has_token_types
    onnx.checker.check_model(str(path), full_check=True)
    session = session_of(path)
    ids = mixed_ids(lengths_of(model, 8), vocab_size=model.config.vocab_size)
    ids[0][5] = model.config.pad_token_id  # as if a text spelled it out
    for of_batch in (ids, ids[1:4], [ids[2]], [ids[4]]):
        batch = inputs_of(name, model, of_batch, types_of_pairs(of_batch))
        with torch.no_grad():
            expected = model(**batch).logits
        if "token_type_ids" in inputs:
            assert "token_type_ids" in batch
        actual = logits_of(session, batch)
        assert actual.shape == expected.shape and (len(of_batch) < 8 or expected.std() > 0.1)
        torch.testing.assert_close(real_rows(actual, batch, per_token), real_rows(expected, batch, per_token), rtol=0, atol=1e-4)


def test_the_mean_of_modernbert_skips_padding(models, tmp_path):  # noqa: F811
    model, folder = models("modernbert", classifier_pooling="mean")
    _mezzo.Model(str(folder)).export_onnx(str(tmp_path / "m.onnx"))
    batch = inputs_of("modernbert", model, mixed_ids(lengths_of(model, 8), vocab_size=model.config.vocab_size))
    with torch.no_grad():
        torch.testing.assert_close(logits_of(session_of(tmp_path / "m.onnx"), batch), model(**batch).logits, rtol=0, atol=1e-4)


def test_means_and_far_padding_do_not_overflow_float16(models, tmp_path):  # noqa: F811
    """Rows of hundreds, summed over a text; and queries of padding that see no key within their window."""
    model, folder = models("modernbert", classifier_pooling="mean", max_position_embeddings=1024, local_attention=8)
    with torch.no_grad():
        model.model.final_norm.weight *= 300
        model.head.dense.weight /= 300
        for layer in model.model.layers:
            layer.attn.Wqkv.weight *= 3
    model.save_pretrained(folder)
    _mezzo.Model(str(folder)).export_onnx(str(tmp_path / "half.onnx"), "fp16")
    batch = inputs_of("modernbert", model, mixed_ids([1024, 3, 500], vocab_size=model.config.vocab_size))
    with torch.no_grad():
        expected = model(**batch).logits
    actual = logits_of(session_of(tmp_path / "half.onnx"), batch)
    assert (actual - expected).abs().max() < 0.1 * expected.abs().max()


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "electra", "deberta-v3", "modernbert"])
def test_float16_is_near(name, models, tmp_path):  # noqa: F811
    model, folder = models(name)
    _mezzo.Model(str(folder)).export_onnx(str(tmp_path / "half.onnx"), "fp16")
    _mezzo.Model(str(folder)).export_onnx(str(tmp_path / "whole.onnx"))
    assert (tmp_path / "half.onnx").stat().st_size < 0.62 * (tmp_path / "whole.onnx").stat().st_size
    ids = mixed_ids(lengths_of(model, 8), vocab_size=model.config.vocab_size)
    batch = inputs_of(name, model, ids, types_of_pairs(ids))
    with torch.no_grad():
        expected = model(**batch).logits
    actual = logits_of(session_of(tmp_path / "half.onnx"), batch)
    assert actual.dtype == torch.float32
    # Ten bits of a mantissa, through three layers.
    assert 1e-6 < (actual - expected).abs().max() < 0.03


def test_refuses_what_fp16_does_not_hold(models, tmp_path):  # noqa: F811
    _, folder = models("bert")
    model = _mezzo.Model(str(folder))
    with torch.no_grad():
        model.parameters()["classifier.weight"][0, 0] = 1e6
    with pytest.raises(ValueError, match=r"classifier\.weight has a number beyond the range of fp16"):
        model.export_onnx(str(tmp_path / "m.onnx"), "fp16")
    assert not list(tmp_path.iterdir()), "nothing half written"
    with pytest.raises(ValueError, match="cannot be written|No such file"):
        model.export_onnx(str(tmp_path / "nowhere/m.onnx"))
