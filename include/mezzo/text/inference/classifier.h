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

struct ClassifierOptions {
  std::string precision = "auto";          ///< as of parse_precision(), or "int8" on a CPU
  c10::Device device = at::kCPU;           ///< where the model runs
  std::optional<int64_t> max_length = {};  ///< tokens a text is cut to; nullopt: what the model was trained with
  bool is_mapped = true;  ///< as map_pretrained() reads weights: cheaper, but the file is not to be changed in place
  bool packs_weights = true;  ///< as ModelForTask::pack_weights() does, for speed; false saves memory
};

/// Checks what a user says of a classifier, without a look at a model or at this machine's devices.
/// @param precision  "fp32", "bf16", "fp16", "int8" or "auto"
/// @param device  "cpu", "cuda", "cuda:N" or "auto", which is the CPU for int8
/// @throws c10::ValueError  that names the flag of `mezzo predict`
void check_classifier_options(const std::string& precision,
                              const std::string& device,
                              std::optional<int64_t> max_length);

/// A trained classifier of texts, of pairs of texts, or of words, as a Hugging Face folder holds it: its tokenizer,
/// model and task.
///
/// tokenize(), task() and what else is const may be called from any thread; outputs() from one at a time.
class Classifier {
 public:
  /// @throws c10::ValueError  also for a folder that holds no trained classifier.
  Classifier(const std::filesystem::path& folder, const ClassifierOptions& options);

  /// @param rows  texts, pairs or words, at least one.
  /// @param before  how many came before them: the numbers of texts that messages name go on from there.
  /// @throws c10::ValueError  for what such a model does not read.
  TokenizedTexts tokenize(const TextSpans& rows, int64_t before = 0) const;

  /// As predict_outputs() gives them. The device may be waited for.
  /// @param progress  as of predict_outputs(), which may stop it: undefined then.
  at::Tensor outputs(const TokenizedTexts& texts,
                     const InferenceShare& share = {},
                     const InferenceProgress& progress = {});

  /// @param outputs  of outputs(), summed over ranks if there are several.
  /// @throws c10::Error  naming the first text whose outputs are inf or NaN, of which nothing can be told.
  void check_finite(const at::Tensor& outputs, int64_t before = 0) const;

  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const Task& task() const { return *task_; }
  bool reads_words() const { return task_->head().rows == RowsPer::kToken; }
  const ModelForTask& model() const { return *model_; }
  /// Of what is not in int8.
  Precision precision() const { return precision_; }
  /// "bf16", or "int8".
  std::string precision_name() const { return is_int8_ ? "int8" : std::string(to_string(precision_)); }
  int64_t max_length() const { return max_length_; }
  /// Tensors of the folder's model.safetensors that the model has no place for.
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
};

}  // namespace mezzo::text
