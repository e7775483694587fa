"""`mezzo train`, `eval` and `predict` with ModernBERT. It reads by BERT's tokenizer here, so that the model alone is tested."""
import json

import pytest
import torch
from support import mezzo
from tiny_runs import LABELS, STEPS, flags, losses_of, model_of, trained, write_data
from transformers import AutoModelForSequenceClassification, BertTokenizer


@pytest.fixture(scope="module", params=["cls", "mean"])
def data(request, tmp_path_factory):
    folder = write_data(tmp_path_factory.mktemp("data"))
    config = dict(model_type="modernbert", vocab_size=11, hidden_size=16, num_hidden_layers=3, num_attention_heads=2,
                  intermediate_size=8, max_position_embeddings=16, local_attention=4, global_attn_every_n_layers=2,
                  pad_token_id=0, attention_dropout=0.1, mlp_dropout=0.1, classifier_pooling=request.param)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_what_is_trained_says_to_transformers_what_it_says_to_mezzo(data, tmp_path):
    trained(flags(data, tmp_path / "out"))
    assert len(losses_of(tmp_path / "out")) == STEPS
    texts = [json.loads(line)["text"] for line in (data / "dev.jsonl").read_text().splitlines()]
    said = mezzo("predict", "--model", tmp_path / "out", "--precision", "fp32", stdin="\n".join(texts) + "\n").stdout.splitlines()
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    tokenizer = BertTokenizer.from_pretrained(tmp_path / "out")
    with torch.no_grad():
        logits = model(**{key: value for key, value in tokenizer(texts, padding=True, return_tensors="pt").items()
                          if key != "token_type_ids"}).logits
    expected = [model.config.id2label[int(i)] for i in logits.argmax(1)]
    assert len(said) == len(expected) == 30 and set(expected) <= set(LABELS)
    assert [json.loads(line)["label"] if line.startswith("{") else line.split("\t")[0] for line in said] == expected
    evaluated = mezzo("eval", "--model", tmp_path / "out", "--data", data / "dev.jsonl", "--precision", "fp32").stdout
    assert "accuracy" in evaluated


@pytest.mark.parametrize("more", [[], ["--gradient-checkpointing"], ["--precision", "bf16"],
                                  ["--precision", "bf16", "--master-weights"], ["--layer-lr-decay", 0.5]])
def test_a_run_that_goes_on_ends_with_the_same_weights(data, tmp_path, more):
    trained(flags(data, tmp_path / "whole", *more))
    # Goes on from the fourth step.
    trained(flags(data, tmp_path / "again", *more, "--resume", tmp_path / "whole/checkpoints/step-4"))
    assert model_of(tmp_path / "again") == model_of(tmp_path / "whole")
    assert losses_of(tmp_path / "again") == losses_of(tmp_path / "whole")[4:]
