#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "mezzo/amp/cpu_half_compute.h"
#include "mezzo/distributed/group/process_group.h"
#include "mezzo/text/inference/inference.h"
#include "mezzo/text/models/model_for_task.h"
#include "mezzo/text/tasks/task.h"
#include "mezzo/text/tokenizers/tokenizer.h"
#include "text_source.h"

namespace mezzo::app {

/// Flags of the commands that run a trained model.
struct ModelFlags {
  std::filesystem::path model;
  std::string precision = "auto";
  std::string device = "auto";
  std::optional<int64_t> max_length;  ///< nullopt: what the model was trained with
  int64_t threads = 0;

  bool is_int8() const { return precision == "int8"; }
  void add_to(CLI::App& app, bool chooses_precision = true, bool names_model = true);
  /// Of int8 the device is the CPU then. @throws UsageError
  void check();
};

/// A trained classifier, loaded and ready to label texts.
class ModelSession {
 public:
  /// @param group  the ranks that share the work, each with the same texts;
  ///   nullptr: this process alone.
  /// @throws c10::ValueError  also for a folder that holds no trained classifier.
  ModelSession(const ModelFlags& flags, distributed::ProcessGroup* group);

  struct Result {
    at::Tensor outputs;          ///< as predict_outputs() gives them
    text::TokenizedTexts texts;  ///< what the model has read
  };
  /// Runs the model on texts, pairs or words, at least one.
  /// @throws c10::Error  naming the first text of all so far whose outputs are inf or NaN:
  /// nothing can be told from them.
  Result run(const TextSpans& rows);
  /// Says on stderr how many of all texts so far were cut, if any.
  void report_cut_texts() const;
  const text::Task& task() const { return *task_; }
  const text::ModelForTask& model() const { return *model_; }
  /// Of what is not in int8.
  text::Precision precision() const { return precision_; }
  int64_t max_length() const { return max_length_; }

 private:
  distributed::ProcessGroup* group_;
  CpuHalfCompute fast_half_compute_;
  c10::Device device_;
  text::Precision precision_;
  bool is_int8_;
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  std::unique_ptr<text::ModelConfig> config_;
  std::shared_ptr<const text::Task> task_;
  std::shared_ptr<text::ModelForTask> model_;
  int64_t max_length_;
  int64_t num_texts_ = 0, num_cut_ = 0;

  void check_finite(const at::Tensor& outputs) const;
};

}  // namespace mezzo::app
