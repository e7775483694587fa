"""The model families of mezzo, as transformers makes them, for tests that are to hold for each."""
from dataclasses import dataclass, field

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoModelForTokenClassification

SMALL = dict(vocab_size=120, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64,
             max_position_embeddings=72)


@dataclass
class Family:
    model_type: str
    more: dict = field(default_factory=dict)  # config fields besides SMALL
    has_token_types: bool = True              # that change its results
    dropouts: tuple = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")
    attentions: tuple = ("sdpa", "eager")     # that transformers can run it with

    def config(self, **more):
        """Of few units. Weights are spread wider than at initialisation so that every part matters."""
        given = dict(SMALL, initializer_range=0.15, num_labels=3) | self.more | more
        if self.model_type == "distilbert":
            given["hidden_dim"] = given.pop("intermediate_size")
        return AutoConfig.for_model(self.model_type, **given)

    def without_dropout(self):
        return {name: 0.0 for name in self.dropouts}

    def model(self, folder=None, per_token=False, seed=0, **more):
        torch.manual_seed(seed)
        auto = AutoModelForTokenClassification if per_token else AutoModelForSequenceClassification
        model = auto.from_config(self.config(**more)).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():  # biases and norms matter, too
                if parameter.dim() == 1:
                    parameter += 0.1 * torch.randn_like(parameter)
        if folder is not None:
            model.save_pretrained(folder)
        return model


DEBERTA_V3 = dict(relative_attention=True, pos_att_type=["p2c", "c2p"], share_att_key=True, norm_rel_ebd="layer_norm", position_buckets=16,
                  max_relative_positions=-1, position_biased_input=False, pooler_dropout=0, cls_dropout=0.2)
DEBERTA_DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "cls_dropout", "pooler_dropout")

# Windows narrower than texts; ids within the vocabulary.
MODERNBERT_DROPOUTS = ("embedding_dropout", "attention_dropout", "mlp_dropout", "classifier_dropout")
MODERNBERT = dict(local_attention=8, global_attn_every_n_layers=2, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1,
                  sep_token_id=3) | dict.fromkeys(MODERNBERT_DROPOUTS, 0.1)

# A line for each that joins.
FAMILIES = {
    "bert": Family("bert"),
    "bert, one type": Family("bert", dict(type_vocab_size=1), has_token_types=False),
    "roberta": Family("roberta"),
    "roberta, one type": Family("roberta", dict(type_vocab_size=1, layer_norm_eps=1e-5), has_token_types=False),
    "roberta, pad 0": Family("roberta", dict(pad_token_id=0)),
    "xlm-roberta": Family("xlm-roberta", dict(hidden_act="gelu_new")),
    "camembert": Family("camembert", dict(hidden_act="relu", bos_token_id=5, eos_token_id=6)),
    "distilbert": Family("distilbert", has_token_types=False, dropouts=("dropout", "attention_dropout", "seq_classif_dropout")),
    "distilbert, sines": Family("distilbert", dict(sinusoidal_pos_embds=True, activation="gelu_new"), has_token_types=False,
                                dropouts=("dropout", "attention_dropout", "seq_classif_dropout")),
    "electra": Family("electra", dict(embedding_size=20)),
    "electra, unprojected": Family("electra", dict(embedding_size=32)),
    # As DeBERTa-v3 and mDeBERTa, of fewer buckets.
    "deberta-v3": Family("deberta-v2", DEBERTA_V3, has_token_types=False, dropouts=DEBERTA_DROPOUTS, attentions=("eager",)),
    "deberta, p2c, token types": Family("deberta-v2", DEBERTA_V3 | dict(
        pos_att_type=["p2c"], share_att_key=False, norm_rel_ebd="none", position_buckets=-1, max_relative_positions=20, type_vocab_size=2,
        position_biased_input=True, hidden_act="gelu_new", pooler_hidden_act="relu"), dropouts=DEBERTA_DROPOUTS),
    "deberta, apart, narrow": Family("deberta-v2", DEBERTA_V3 | dict(
        pos_att_type="c2p|p2c", share_att_key=False, position_buckets=9, embedding_size=20, type_vocab_size=2), dropouts=DEBERTA_DROPOUTS),
    "deberta, absolute": Family("deberta-v2", dict(pad_token_id=1, position_buckets=256), has_token_types=False, dropouts=DEBERTA_DROPOUTS),
    "modernbert": Family("modernbert", MODERNBERT, has_token_types=False, dropouts=MODERNBERT_DROPOUTS),
}
