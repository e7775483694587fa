#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "mezzo/amp/grad_scaler.h"
#include "mezzo/optim/adam.h"
#include "mezzo/text/data/packed_batch.h"
#include "mezzo/text/models/bert_config.h"
#include "mezzo/text/models/model_for_task.h"
#include "mezzo/text/models/precision.h"
#include "mezzo/text/tasks/single_label_classification.h"

namespace mezzo::simulated {

/// BERT to be fine-tuned, of random weights, with LibTorch's device or kernels as they are: the
/// same weights and texts for the same arguments, wherever they are.
class BertTraining {
 public:
  struct Options {
    text::BertConfig config;
    text::Precision precision = text::Precision::kFloat32;
    double learning_rate = 1e-3;
    double max_grad_norm = 1;
    bool scales_loss = true;
    double init_scale = 1024;
    int64_t labels = 6;
  };
  BertTraining(const Options& options, c10::Device device);

  /// `lengths[i]` tokens of text i, all of them drawn; on the CPU.
  text::PackedBatch batch_of(const std::vector<int64_t>& lengths) const;

  /// The parts of a step. They do not wait for the device.
  /// @return the mean loss of the texts
  at::Tensor backward(const text::PackedBatch& on_cpu);
  StepResult update();
  void zero_grad() { optimizer_->zero_grad(); }

  text::ModelForTask& model() { return *model_; }
  AdamW& optimizer() { return *optimizer_; }
  GradScaler& scaler() { return scaler_; }
  const std::vector<NamedParameter>& parameters() const { return parameters_; }

 private:
  Options options_;
  c10::Device device_;
  text::SingleLabelClassification task_;
  std::shared_ptr<text::ModelForTask> model_;
  std::vector<NamedParameter> parameters_;
  std::optional<AdamW> optimizer_;
  GradScaler scaler_;
  uint32_t step_ = 0;
};

/// BERT of a size.
text::BertConfig bert_config(int64_t layers, int64_t hidden, int64_t heads, int64_t inner, int64_t words);

}  // namespace mezzo::simulated
