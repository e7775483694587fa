#include "text/models/known_config_fields.h"

namespace mezzo::text {
namespace {

using enum FieldUse;

// Of earlier versions of mezzo.
constexpr const char* kFolded = "; mezzo now puts it into the weights. Train the model again";

constexpr KnownField kOfAll[] = {
    {"_name_or_path", kNoEffect},
    {"add_cross_attention", kOnly, "[false]"},
    {"architectures", kRead},
    {"attn_implementation", kNoEffect},
    {"auto_map", kNoEffect},  // transformers has built-in code for these models
    {"bos_token_id", kNoEffect},
    {"chunk_size_feed_forward", kNoEffect},
    {"cls_token_id", kNoEffect},
    {"compression_config", kOnly, "[]", "; its weights are quantized. Use the unquantized model"},
    {"cross_attention_hidden_size", kNoEffect},
    {"decoder_start_token_id", kNoEffect},
    {"dtype", kNoEffect},  // tensors tell their own
    {"eos_token_id", kNoEffect},
    {"finetuning_task", kNoEffect},
    {"fusion_config", kNoEffect},
    {"gradient_checkpointing", kNoEffect},
    {"hidden_size", kRead},
    {"id2label", kRead},
    {"initializer_range", kRead},
    {"is_decoder", kOnly, "[false]"},
    {"is_encoder_decoder", kOnly, "[false]"},
    {"label2id", kNoEffect},  // id2label names the outputs
    {"label_thresholds", kOnly, "[[]]", kFolded},
    {"mask_token_id", kNoEffect},
    {"max_position_embeddings", kRead},
    {"model_type", kRead},
    {"name_or_path", kNoEffect},
    {"num_attention_heads", kRead},
    {"num_hidden_layers", kRead},
    {"num_labels", kRead},
    {"output_attentions", kNoEffect},
    {"output_hidden_states", kNoEffect},
    {"output_past", kNoEffect},
    {"pad_token_id", kRead},
    {"per_layer_config", kOnly, "[{}]"},
    {"prefix", kNoEffect},
    {"problem_type", kRead},
    {"pruned_heads", kOnly, "[{}]"},
    {"reads_pairs", kRead},
    {"quantization_config", kOnly, "[]", "; its weights are quantized. Use the unquantized model"},
    {"return_dict", kNoEffect},
    {"sep_token_id", kNoEffect},
    {"softmax_temperature", kOnly, "[1]", kFolded},
    {"task_specific_params", kNoEffect},
    {"tie_encoder_decoder", kNoEffect},
    {"tie_last_hidden_states", kNoEffect},
    {"tie_word_embeddings", kNoEffect},  // a classifier has no head of words
    {"tokenizer_class", kRead},
    {"torch_dtype", kNoEffect},
    {"torchscript", kNoEffect},
    {"transformers_version", kNoEffect},
    {"transformers_weights", kOnly, R"(["model.safetensors", "model.safetensors.index.json"])"},
    {"unk_token_id", kNoEffect},
    {"use_bfloat16", kNoEffect},
    {"use_cache", kNoEffect},
    {"use_return_dict", kNoEffect},
    {"vocab_size", kRead},
    {"window_pooling", kRead},
    {"window_stride", kRead},
};

constexpr std::string_view kBertLineTypes[] = {"bert", "camembert", "electra", "roberta", "xlm-roberta"};
constexpr KnownField kOfBertLine[] = {
    {"attention_probs_dropout_prob", kRead},
    {"classifier_dropout", kRead},
    {"directionality", kNoEffect},  // of BERT's first code, as the pooler's fields
    {"hidden_act", kRead},
    {"hidden_dropout_prob", kRead},
    {"intermediate_size", kRead},
    {"layer_norm_eps", kRead},
    {"pooler_fc_size", kNoEffect},
    {"pooler_num_attention_heads", kNoEffect},
    {"pooler_num_fc_layers", kNoEffect},
    {"pooler_size_per_head", kNoEffect},
    {"pooler_type", kNoEffect},
    {"position_embedding_type", kOnly, R"(["absolute"])"},
    {"type_vocab_size", kRead},
};

constexpr std::string_view kBertTypes[] = {"bert", "camembert", "roberta", "xlm-roberta"};
constexpr KnownField kOfBert[] = {
    {"embedding_size", kNoEffect},
};

constexpr std::string_view kElectraTypes[] = {"electra"};
constexpr KnownField kOfElectra[] = {
    {"embedding_size", kRead},
    {"summary_activation", kNoEffect},  // these are of its head for multiple choice
    {"summary_first_dropout", kNoEffect},
    {"summary_last_dropout", kNoEffect},
    {"summary_proj_to_labels", kNoEffect},
    {"summary_type", kNoEffect},
    {"summary_use_proj", kNoEffect},
};

constexpr std::string_view kDistilBertTypes[] = {"distilbert"};
constexpr KnownField kOfDistilBert[] = {
    {"activation", kRead},
    {"attention_dropout", kRead},
    {"dim", kRead},
    {"dropout", kRead},
    {"hidden_dim", kRead},
    {"layer_norm_eps", kNoEffect},  // always 1e-12
    {"n_heads", kRead},
    {"n_layers", kRead},
    {"qa_dropout", kNoEffect},
    {"seq_classif_dropout", kRead},
    {"sinusoidal_pos_embds", kRead},
    {"tie_weights_", kNoEffect},
};

constexpr std::string_view kDebertaV2Types[] = {"deberta-v2"};
constexpr KnownField kOfDebertaV2[] = {
    {"attention_head_size", kRead},
    {"attention_probs_dropout_prob", kRead},
    {"classifier_dropout", kNoEffect},  // its name is cls_dropout here
    {"cls_dropout", kRead},
    {"conv_act", kNoEffect},  // without a convolution
    {"conv_groups", kNoEffect},
    {"conv_kernel_size", kOnly, "[0]"},
    {"embedding_size", kRead},
    {"hidden_act", kRead},
    {"hidden_dropout_prob", kRead},
    {"intermediate_size", kRead},
    {"layer_norm_eps", kRead},
    {"legacy", kRead},
    {"max_relative_positions", kRead},
    {"norm_rel_ebd", kRead},
    {"pooler_dropout", kRead},
    {"pooler_hidden_act", kRead},
    {"pooler_hidden_size", kRead},
    {"pos_att_type", kRead},
    {"position_biased_input", kRead},
    {"position_buckets", kRead},
    {"relative_attention", kRead},
    {"share_att_key", kRead},
    {"type_vocab_size", kRead},
};

constexpr std::string_view kModernBertTypes[] = {"modernbert"};
constexpr KnownField kOfModernBert[] = {
    {"attention_bias", kRead},
    {"attention_dropout", kRead},
    {"causal_mask", kOnly, "[false]"},  // of Ettin, as is_causal
    {"classifier_activation", kRead},
    {"classifier_bias", kRead},
    {"classifier_dropout", kRead},
    {"classifier_pooling", kRead},
    {"decoder_bias", kNoEffect},
    {"deterministic_flash_attn", kNoEffect},
    {"embedding_dropout", kRead},
    {"global_attn_every_n_layers", kRead},
    {"global_rope_theta", kRead},
    {"head_dim", kRead},
    {"hidden_activation", kRead},
    {"initializer_cutoff_factor", kRead},
    {"is_causal", kOnly, "[false]"},
    {"intermediate_size", kRead},
    {"layer_norm_eps", kNoEffect},  // its name is norm_eps here
    {"layer_types", kRead},
    {"local_attention", kRead},
    {"local_rope_theta", kRead},
    {"mlp_bias", kRead},
    {"mlp_dropout", kRead},
    {"norm_bias", kRead},
    {"norm_eps", kRead},
    {"position_embedding_type", kNoEffect},  // always rotary
    {"reference_compile", kNoEffect},
    {"repad_logits_with_grad", kNoEffect},
    {"rope_parameters", kRead},
    {"rope_scaling", kOnly, "[]"},
    {"sliding_window", kRead},
    {"sparse_pred_ignore_index", kNoEffect},  // of its head of words, as the next
    {"sparse_prediction", kNoEffect},
};

constexpr KnownFields kTables[] = {
    {{}, kOfAll},
    {kBertLineTypes, kOfBertLine},
    {kBertTypes, kOfBert},
    {kElectraTypes, kOfElectra},
    {kDistilBertTypes, kOfDistilBert},
    {kDebertaV2Types, kOfDebertaV2},
    {kModernBertTypes, kOfModernBert},
};

}  // namespace

std::span<const KnownFields> known_config_fields() { return kTables; }

}  // namespace mezzo::text
