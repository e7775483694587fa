#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "mezzo/text/data/packed_batch.h"
#include "mezzo/text/models/bert_config.h"

namespace mezzo::text {

/// BERT (Devlin et al. 2018) with a classification head, on packed rows.
///
/// A torch::nn::Module whose parameters carry transformers' names
/// (`bert.encoder.layer.0.attention.self.query.weight`, …), so weights move
/// between the two by name. Gives the logits of transformers'
/// BertForSequenceClassification for each sequence by itself.
class BertForSequenceClassification : public torch::nn::Module {
 public:
  /// Parameters are float32 on CPU and **not initialised**: call
  /// `init_weights`, or `load_pretrained` (pretrained.h).
  /// `config.label_names` must name at least two labels.
  explicit BertForSequenceClassification(const BertConfig& config);

  /// Draws every parameter as transformers does: normal(0, initializer_range)
  /// for tables and matrices (the padding row zero), zero biases, unit layer
  /// norms. The same `seed` gives the same weights on every machine. Only
  /// parameters whose name passes `select` are drawn; each has a random stream
  /// of its own, so what is selected does not change what is drawn.
  void init_weights(uint64_t seed, const std::function<bool(const std::string& name)>& select);
  void init_weights(uint64_t seed);

  /// @param batch  T rows on the parameters' device; `targets` are not used.
  /// @param random  seed and step key every dropout mask in training mode
  ///     (`train()`); without effect after `eval()`.
  /// @return logits [B, num_labels]: float32, or what autocast makes of it.
  at::Tensor forward(const PackedBatch& batch, const DropoutSeed& random = {});

  /// In training, each encoder layer keeps only its input for backward and is
  /// computed again there: the same numbers to the bit, in less memory and about
  /// a third more time. Off unless switched on.
  /// @see PreTrainedModel.gradient_checkpointing_enable (transformers).
  void set_gradient_checkpointing(bool on);

  /// Keeps copies in half precision of the encoder's weight matrices, so that autocast to `dtype` on a CPU casts none
  /// of them. Make each the `shadow` of its parameter in one of mezzo's optimizers, which then refreshes it in the pass
  /// that updates the weight. A copy whose weight was changed otherwise is made anew when it is next used.
  /// @param dtype  kHalf or kBFloat16
  /// @return by the parameter's name
  /// @throws c10::ValueError  for another dtype
  std::map<std::string, at::Tensor> make_shadows(at::ScalarType dtype);

  const BertConfig& config() const { return config_; }
  int64_t num_labels() const { return static_cast<int64_t>(config_.label_names.size()); }

 private:
  BertConfig config_;
  std::shared_ptr<class BertModel> bert_;
  std::shared_ptr<class Dense> classifier_;
};

}  // namespace mezzo::text
