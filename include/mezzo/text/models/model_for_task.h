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

/// What a task asks of the end of a model.
struct Head {
  int64_t num_outputs = 0;  ///< of each row
  RowsPer rows = RowsPer::kText;
};

/// A change of a model's outputs: times `factor`, plus `shift`.
struct OutputScaling {
  double factor = 1;
  at::Tensor shift = {};  ///< [num_outputs]; undefined for none
};

/// An encoder and a head for a task, on packed rows; made by make_model().
///
/// A torch::nn::Module whose parameters carry transformers' names
/// (`bert.encoder.layer.0.attention.self.query.weight`, …), so weights move between the two by
/// name. Gives what transformers' model of that family and kind gives for each sequence by itself.
class ModelForTask : public torch::nn::Module {
 public:
  /// @param batch  T rows on the parameters' device; `targets` are not used
  /// @param random  keys every dropout mask in training mode (`train()`); without effect after
  ///     `eval()`
  /// @return [B, num_outputs], or [T, num_outputs] with RowsPer::kToken: float32, or what autocast
  ///     makes of it
  virtual at::Tensor forward(const PackedBatch& batch, const DropoutSeed& random = {}) = 0;

  using torch::nn::Module::to;
  /// Moves parameters and buffers in place, also to an accelerator that is registered as
  /// PrivateUse1, which LibTorch's own modules refuse. There, weights of one input lie side by
  /// side in memory. Waits, whatever it is told: weights come from memory that may go.
  void to(torch::Device device, bool = false) override;

  /// Adds what forward() computes to an ONNX graph, without dropout, for padded batches: see export_onnx().
  /// @return the name of a value [B, num_outputs] or [B, S, num_outputs].
  virtual std::string add_to(const GraphTexts& texts) const = 0;
  /// Whether token types change what it computes.
  virtual bool reads_token_types() const { return false; }

  virtual const ModelConfig& config() const = 0;
  const Head& head() const { return head_; }
  /// What begins the names of the last layer's weight and bias: "classifier".
  std::string_view output_layer() const {
    return head_.rows == RowsPer::kToken ? "classifier" : config().head_prefix();
  }

  /// What begins the names of the encoder's parameters: "bert".
  /// @see PreTrainedModel.base_model_prefix (transformers).
  virtual std::string_view base_model_prefix() const = 0;
  virtual Encoder& encoder() = 0;
  virtual const Encoder& encoder() const = 0;

  /// Draws every parameter as transformers does: normal(0, initializer_range) for tables and
  /// matrices (the padding row zero), zero biases, unit layer norms. The same `seed` gives the same
  /// weights on every machine. Only parameters whose name passes `select` are drawn; each has a
  /// random stream of its own, so what is selected does not change what is drawn.
  void init_weights(uint64_t seed, const std::function<bool(const std::string& name)>& select);
  void init_weights(uint64_t seed);

  /// In training, each encoder layer keeps only its input for backward and is computed again there:
  /// the same numbers to the bit, in less memory and about a third more time. Off unless switched
  /// on.
  /// @see PreTrainedModel.gradient_checkpointing_enable (transformers)
  void set_gradient_checkpointing(bool on) { encoder().set_gradient_checkpointing(on); }

  /// Keeps copies in half precision of the encoder layers' weight matrices, so that autocast to
  /// `dtype` casts none of them. Make each the `half_copy` of its parameter in one of mezzo's
  /// optimizers, which refreshes it along with the weight; one whose weight was changed otherwise
  /// is made anew when next used.
  /// @param dtype  kHalf or kBFloat16
  /// @return by the parameter's name; none on a kind of device whose blocks are not fused, since
  ///   nothing would read them: fused they are on CPUs and, if built with CUDA kernels, on CUDA
  ///   devices
  /// @throws c10::ValueError  for another dtype
  std::map<std::string, at::Tensor> make_half_copies(at::ScalarType dtype);

  /// Keeps the encoder layers' weights in `dtype` from now on, rearranged for matrix products where those are the
  /// library's own (CPUs that are not of Intel): else that is done for every batch, which a batch of few texts feels.
  /// Products stay the same to the bit, but those with fewer than 64 rows, which LibTorch does otherwise. Takes as much
  /// memory as the layers do in `dtype`, and once more for a half type. For prediction: with gradients they are not
  /// read, and a weight that changes is rearranged with the next batch. To be called once the model is where it runs.
  /// LoRA's weights are left out.
  /// @param dtype  what is computed in: kFloat, kHalf or kBFloat16
  void pack_weights(at::ScalarType dtype);
  /// Drops all copies that pack_weights() made.
  void unpack_weights();

  /// Makes the encoder layers' linear layers int8 for prediction: weights with a scale a row, and for each product
  /// their input with a scale a token; sums are exact. What lies between is as precise as before, and so are
  /// embeddings, the head, the last layer's attention where it is of first tokens alone (BERT and its line), and all of
  /// it in training mode, where gradients are on, under an op policy or a FiniteTracer. Parameters stay as they are.
  /// @throws c10::ValueError  on a device, or a CPU, that has no such products; for a model with LoRA
  void quantize();

  /// The place of a parameter: 0 for the embeddings, 1 to num_hidden_layers for the
  /// layers, one more for the head.
  int64_t layer_of(std::string_view parameter) const;
  /// A parameter's name within the encoder; empty for one of the head.
  std::string_view name_in_encoder(std::string_view parameter) const;
  /// The part of the model that a parameter belongs to: "embeddings", "layer
  /// 3", "pooler", "classifier".
  std::string part_of(std::string_view parameter) const;

 protected:
  explicit ModelForTask(const Head& head);

  /// Draws one parameter, as init_weights does, with a generator of its own.
  virtual void init_parameter(const std::string& name, at::Tensor& parameter, const at::Generator& generator);

 private:
  /// Of the encoder's layers, by name, which LoRA has not been added to.
  std::vector<std::pair<std::string, Dense*>> layers_weights();

  Head head_;
};

/// Makes the model that `config` is of. Parameters are float32 on CPU and **not initialised**: call
/// `init_weights`, or `load_pretrained` (pretrained.h).
/// @throws c10::ValueError  for a head without outputs, or of another number of them than
/// `config` has label names, if any.
std::shared_ptr<ModelForTask> make_model(const ModelConfig& config, const Head& head);

}  // namespace mezzo::text
