#pragma once

#include "mezzo/cpp20.h"

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mezzo/text/data/packed_batch.h"
#include "mezzo/text/models/encoder.h"
#include "mezzo/text/models/model_config.h"

namespace mezzo::text {

class Dense;

/// The output layer that a task needs.
struct Head {
  int64_t num_outputs = 0;        ///< of each row
  RowsPer rows = RowsPer::kText;  ///< one row per text, or per token
};

/// A change of a model's outputs: multiplication by `factor`, then addition of `shift`.
struct OutputScaling {
  double factor = 1;      ///< the same for all outputs
  at::Tensor shift = {};  ///< [num_outputs]; undefined: 0
};

/// An encoder and a head for a task, on packed rows; made by make_model().
///
/// A torch::nn::Module whose parameters have transformers' names
/// (`bert.encoder.layer.0.attention.self.query.weight`, …), so weights can be exchanged by name.
/// Its outputs equal the outputs of transformers' model of that family and kind for each sequence
/// alone.
class ModelForTask : public torch::nn::Module {
 public:
  /// @param batch  T rows on the parameters' device; `targets` are not used
  /// @param random  key of every dropout mask in training mode (`train()`); ignored after `eval()`
  /// @return [B, num_outputs], or [T, num_outputs] with RowsPer::kToken: float32, or autocast's
  ///     dtype
  virtual at::Tensor forward(const PackedBatch& batch, const DropoutSeed& random = {}) = 0;

  using torch::nn::Module::to;
  /// Moves parameters and buffers in place, also to an accelerator that is registered as
  /// PrivateUse1, which LibTorch's modules refuse. On it, weights with the same input are adjacent
  /// in memory. Always waits for the device, because the source memory may be freed afterwards.
  void to(torch::Device device, bool = false) override;

  /// Adds the computation of forward() to an ONNX graph, without dropout, for padded batches: see
  /// export_onnx().
  /// @return the name of a value [B, num_outputs] or [B, S, num_outputs]
  virtual std::string add_to(const GraphTexts& texts) const = 0;
  /// Whether outputs depend on token types.
  virtual bool reads_token_types() const { return false; }

  /// The fields of its config.json.
  virtual const ModelConfig& config() const = 0;
  /// The output layer.
  const Head& head() const { return head_; }
  /// The prefix of the last layer's weight and bias: "classifier".
  std::string_view output_layer() const {
    return head_.rows == RowsPer::kToken ? "classifier" : config().head_prefix();
  }

  /// The prefix of the encoder's parameters: "bert".
  /// @see PreTrainedModel.base_model_prefix (transformers)
  virtual std::string_view base_model_prefix() const = 0;
  /// The part before the head.
  virtual Encoder& encoder() = 0;
  /// The part before the head.
  virtual const Encoder& encoder() const = 0;

  /// Draws every parameter as transformers does: normal(0, initializer_range) for tables and
  /// matrices (the padding row zero), zero biases, unit layer norms. The same `seed` gives the same
  /// weights on every machine.
  ///
  /// Draws only parameters for whose names `select` is true. Each has a separate random stream, so
  /// the selection does not change the drawn values.
  void init_weights(uint64_t seed, const std::function<bool(const std::string& name)>& select);
  /// Draws all parameters.
  void init_weights(uint64_t seed);

  /// In training, each encoder layer keeps only its input for backward and is recomputed in
  /// backward. The results are bit-identical, with less memory and about a third more time.
  /// Default: off.
  /// @see PreTrainedModel.gradient_checkpointing_enable (transformers)
  void set_gradient_checkpointing(bool on) { encoder().set_gradient_checkpointing(on); }

  /// Keeps copies in half precision of the encoder layers' weight matrices, so that autocast to
  /// `dtype` casts none of them. Make each the `half_copy` of its parameter in an optimizer of
  /// mezzo, which refreshes it with the weight. If a weight was changed otherwise, its copy is made
  /// again at the next use. Changes through `data()` or `set_data` are not seen, because autograd
  /// counts neither.
  /// @param dtype  kHalf or kBFloat16
  /// @return The copies, by the parameter's name. Empty on devices without fused blocks, which
  ///     alone read the copies. Blocks are fused on CPUs and, in builds with CUDA kernels, on CUDA
  ///     devices.
  /// @throws c10::ValueError  for another dtype
  std::map<std::string, at::Tensor> make_half_copies(at::ScalarType dtype);

  /// Keeps the encoder layers' weights in `dtype`, rearranged for matrix products, if the products
  /// are mezzo's (CPUs that are not Intel's). Otherwise this is done for every batch, which slows
  /// down small batches. Call it when the model is on its device.
  ///
  /// Products are bit-identical, except products with fewer than 64 rows, which LibTorch computes
  /// otherwise. Needs the memory of the layers in `dtype`, and the same again for a half type. For
  /// prediction only: with gradients the copies are not read, and after a change of a weight they
  /// are rearranged with the next batch. LoRA's weights are excluded.
  /// @param dtype  dtype of the computation: kFloat, kHalf or kBFloat16
  void pack_weights(at::ScalarType dtype);
  /// Drops all copies of pack_weights().
  void unpack_weights();

  /// Makes the encoder layers' linear layers int8 for prediction. Weights have one scale per row,
  /// the inputs of each product one scale per token, and sums are exact. Parameters do not change.
  ///
  /// The following stay in the previous precision: everything between the products, embeddings, the
  /// head, and the last layer's attention if it reads only first tokens (BERT and its relatives).
  /// In training mode, with gradients, and under an op policy or a FiniteTracer, the whole model
  /// does.
  /// @throws c10::ValueError  on a device or CPU without such products; for a model with LoRA
  void quantize();

  /// The index of a parameter: 0 for the embeddings, 1 to num_hidden_layers for the layers, one
  /// more for the head.
  int64_t layer_of(std::string_view parameter) const;
  /// A parameter's name within the encoder; empty for one of the head.
  std::string_view name_in_encoder(std::string_view parameter) const;
  /// The part of the model to which a parameter belongs: "embeddings", "layer 3", "pooler",
  /// "classifier".
  std::string part_of(std::string_view parameter) const;

 protected:
  /// @param head  the output layer
  explicit ModelForTask(const Head& head);

  /// Draws one parameter, as init_weights does, with a separate generator.
  virtual void init_parameter(const std::string& name, at::Tensor& parameter, const at::Generator& generator);

 private:
  /// The linear layers of the encoder's layers, by name, except layers with LoRA.
  std::vector<std::pair<std::string, Dense*>> layers_weights();

  Head head_;
};

/// Makes the model of `config`. Its parameters are float32 on CPU and **not initialised**: call
/// `init_weights`, or `load_pretrained` (pretrained.h).
/// @throws c10::ValueError  for a head without outputs, or if their number differs from the number
///     of label names in `config`
std::shared_ptr<ModelForTask> make_model(const ModelConfig& config, const Head& head);

}  // namespace mezzo::text
