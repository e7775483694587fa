#include "text/train/memory_estimate.h"

#include <algorithm>

namespace mezzo::text {
namespace {

int64_t layer_parameters(const BertConfig& model) {
  const int64_t hidden = model.hidden_size, inner = model.intermediate_size;
  return 4 * hidden * (hidden + 1) + 2 * hidden * inner + inner + hidden + 4 * hidden;
}

int64_t word_table(const BertConfig& model) { return model.vocab_size * model.hidden_size; }

}  // namespace

int64_t count_parameters(const BertConfig& model) {
  const int64_t hidden = model.hidden_size;
  const int64_t tables = (model.vocab_size + model.max_position_embeddings + model.type_vocab_size + 2) * hidden;
  const int64_t head = hidden * (hidden + 1) + static_cast<int64_t>(model.label_names.size()) * (hidden + 1);
  return tables + model.num_hidden_layers * layer_parameters(model) + head;
}

int64_t largest_parameter_bytes(const BertConfig& model) { return kFloatBytes * word_table(model); }

double layer_bytes_per_row(const BertConfig& model, Precision precision) {
  const auto hidden = static_cast<double>(model.hidden_size), inner = static_cast<double>(model.intermediate_size);
  const auto heads = static_cast<double>(model.num_attention_heads);
  // Its input, queries, keys, values and context; the first norm, and its output; the inner product; the second norm;
  // and of each head the logarithm of its softmax's sum. In half precision all but the norms and those have two bytes.
  return precision == Precision::kFloat32 ? 4 * (8 * hidden + inner + heads) : 20 * hidden + 2 * inner + 4 * heads;
}

namespace {

/// What the micro-batch keeps, and the work space of the first layer that backward comes to.
int64_t activation_bytes(const BertConfig& model,
                         Precision precision,
                         const TrainConfig& config,
                         const BatchShape& batch) {
  const auto rows = static_cast<double>(batch.rows), hidden = static_cast<double>(model.hidden_size);
  const auto inner = static_cast<double>(model.intermediate_size);
  const auto layers = static_cast<double>(model.num_hidden_layers);
  const double layer = rows * layer_bytes_per_row(model, precision);
  // Gradients of the layer's output, of its second half's two inputs, of the inner rows, and the activations once more.
  const double work =
      rows * (precision == Precision::kFloat32 ? 4 * (3 * hidden + 2 * inner) : 10 * hidden + 4 * inner);
  const double embeddings = rows * kFloatBytes * hidden;
  if (config.gradient_checkpointing) {  // the inputs of all layers, and one layer
    return static_cast<int64_t>(embeddings + rows * kFloatBytes * hidden * layers + layer + work);
  }
  // Float32 weights have copies in half until backward has used them.
  const bool has_copies = precision != Precision::kFloat32 && !config.master_weights;
  const double copies = has_copies ? 2 * layers * static_cast<double>(layer_parameters(model)) : 0;
  // The last layer keeps little: one row a text.
  return static_cast<int64_t>(embeddings + (layers - 1) * layer + work + copies);
}

}  // namespace

MemoryEstimate estimate_memory(
    const BertConfig& model, Precision precision, const TrainConfig& config, int ranks, const BatchShape& batch) {
  MemoryEstimate estimate;
  const int64_t parameters = count_parameters(model);
  const int64_t weight = config.master_weights ? 2 : kFloatBytes;
  const bool accumulates = config.grad_accumulation > 1;
  estimate.weights = parameters * weight;
  // Masters sum the gradients of micro-batches in float32.
  estimate.gradients = parameters * (weight + (config.master_weights && accumulates ? kFloatBytes : 0));
  const int64_t moments = config.optimizer == "sgd" ? 0 : 2;
  const int64_t state = kFloatBytes * (moments + (config.master_weights ? 1 : 0));
  // Whole tensors are dealt out, so a rank has at least the largest of them.
  const bool is_sharded = config.zero_stage == 1 && ranks > 1;
  estimate.optimizer = state * (is_sharded ? std::max(parameters / ranks, word_table(model)) : parameters);
  estimate.activations = activation_bytes(model, precision, config, batch);
  estimate.total = estimate.weights + estimate.optimizer +
                   (accumulates || ranks > 1 ? estimate.gradients + estimate.activations
                                             : std::max(estimate.gradients, estimate.activations));
  return estimate;
}

}  // namespace mezzo::text
