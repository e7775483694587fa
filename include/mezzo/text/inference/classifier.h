#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mezzo/text/data/text_spans.h"
#include "mezzo/text/data/tokenized_texts.h"
#include "mezzo/text/inference/inference.h"
#include "mezzo/text/models/model_for_task.h"
#include "mezzo/text/models/precision.h"
#include "mezzo/text/tasks/task.h"
#include "mezzo/text/tokenizers/tokenizer.h"

namespace mezzo::text {

/// Options of Classifier.
struct ClassifierOptions {
  std::string precision = "auto";          ///< as in parse_precision(), or "int8" on a CPU
  c10::Device device = at::kCPU;           ///< of the model
  std::optional<int64_t> max_length = {};  ///< tokens to which texts are truncated; nullopt: as in training
  bool is_mapped = true;      ///< maps the weights, as map_pretrained(): cheaper, but do not change the file in place
  bool packs_weights = true;  ///< as ModelForTask::pack_weights(): faster; false saves memory
};

/// Checks a user's options of a classifier, without a model or the devices of this machine.
/// @param precision  "fp32", "bf16", "fp16", "int8" or "auto"
/// @param device  "cpu", "cuda", "cuda:N" or "auto", which is the CPU for int8
/// @throws c10::ValueError  naming the flag of `mezzo predict`
void check_classifier_options(const std::string& precision,
                              const std::string& device,
                              std::optional<int64_t> max_length);

/// A trained classifier of texts, of pairs of texts, or of words, from a Hugging Face folder: its tokenizer, model and
/// task.
///
/// Const members may be called from several threads at the same time; outputs() only from one.
class Classifier {
 public:
  /// @throws c10::ValueError  also for a folder without a trained classifier
  Classifier(const std::filesystem::path& folder, const ClassifierOptions& options);
  ~Classifier();

  /// @param rows  texts, pairs or words, at least one
  /// @param before  the number of earlier texts, which messages add to the number of a text
  /// @throws c10::ValueError  for input that the model does not support
  TokenizedTexts tokenize(const TextSpans& rows, int64_t before = 0) const;

  /// The outputs of predict_outputs(). May wait for the device. On a device that has graphs, batches of a size that
  /// comes up often are recorded and replayed.
  /// @param progress  as of predict_outputs(), which may stop it: undefined then.
  at::Tensor outputs(const TokenizedTexts& texts,
                     const InferenceShare& share = {},
                     const InferenceProgress& progress = {});

  /// Prepares a server: on a device that has graphs, records the batches of one text, up to 512 tokens. Waits for the
  /// device. Does nothing elsewhere.
  void record_single_texts();

  /// @param outputs  the result of outputs(), summed over ranks if there are several
  /// @throws c10::Error  naming the first text whose outputs are inf or NaN
  void check_finite(const at::Tensor& outputs, int64_t before = 0) const;

  /// The model's tokenizer.
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  /// The model's task.
  const Task& task() const { return *task_; }
  /// Whether it labels words instead of texts.
  bool reads_words() const { return task_->head().rows == RowsPer::kToken; }
  /// The model.
  const ModelForTask& model() const { return *model_; }
  /// The precision of the parts that are not in int8.
  Precision precision() const { return precision_; }
  /// The precision by name, such as "bf16" or "int8".
  std::string precision_name() const { return is_int8_ ? "int8" : std::string(to_string(precision_)); }
  /// The number of tokens to which texts are truncated.
  int64_t max_length() const { return max_length_; }
  /// Tensors of the folder's model.safetensors that the model does not use.
  const std::vector<std::string>& unused() const { return unused_; }

 private:
  bool is_int8_;
  Precision precision_;
  std::unique_ptr<ModelConfig> config_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<const Task> task_;
  std::vector<std::string> unused_;
  std::shared_ptr<ModelForTask> model_;
  int64_t max_length_;
  std::unique_ptr<RecordedForward> recorded_;  // null on a device without graphs
};

}  // namespace mezzo::text
