#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "mezzo/amp/cpu_half_compute.h"
#include "mezzo/distributed/group/process_group.h"
#include "mezzo/text/data/dataset.h"
#include "mezzo/text/data/text_spans.h"
#include "mezzo/text/hub/hub.h"
#include "mezzo/text/inference/classifier.h"
#include "mezzo/text/tasks/task.h"

namespace mezzo::app {

/// The words of --model in help.
constexpr const char* kModelHelp =
    "folder of a model, or its name on the Hugging Face Hub: NAME, ORG/NAME, NAME@REVISION";

/// The folder of a model, downloaded if --model names one of the hub. Ctrl-C stops the download.
/// @param name  empty for none.
std::filesystem::path find_model(const std::filesystem::path& name,
                                 text::ModelFiles files = text::ModelFiles::kAll,
                                 bool quiet = false);

/// Flags of the commands that run a trained model.
struct ModelFlags {
  std::filesystem::path model;
  std::string precision = "auto";
  std::string device = "auto";
  std::optional<int64_t> max_length;  ///< nullopt: the value from training
  int64_t threads = 0;

  bool is_int8() const { return precision == "int8"; }
  void add_to(CLI::App& app, bool chooses_precision = true, bool names_model = true);
  /// Then the device of int8 is the CPU, and the model is a folder, downloaded if it was not. @throws UsageError
  void check();
  /// The options of a classifier by these flags, once they are checked; the number of threads is set.
  text::ClassifierOptions options() const;
};

/// A trained classifier, loaded and ready to label texts.
class ModelSession {
 public:
  /// @param group  the ranks that share the work, each with the same texts;
  ///   nullptr: this process alone.
  /// @param runs  whether it is for more than to look at the model.
  /// @throws c10::ValueError  also for a folder that holds no trained classifier.
  ModelSession(const ModelFlags& flags, distributed::ProcessGroup* group, bool runs = true);

  struct Result {
    at::Tensor outputs;          ///< as predict_outputs() gives them
    text::TokenizedTexts texts;  ///< the model's input
  };
  /// Runs the model on texts, pairs or words, at least one.
  /// @throws c10::Error  naming the first text of all so far whose outputs are inf or NaN:
  /// nothing can be told from them.
  Result run(const text::TextSpans& rows);
  /// Says on stderr how many of all texts so far were cut, if any.
  void report_cut_texts() const;
  const text::Classifier& classifier() const { return classifier_; }
  const text::Task& task() const { return classifier_.task(); }

 private:
  distributed::ProcessGroup* group_;
  CpuHalfCompute fast_half_compute_;
  text::Classifier classifier_;
  int64_t num_texts_ = 0, num_cut_ = 0;
};

/// Labelled texts, and the task's targets for their labels.
struct LabelledTexts {
  text::LabeledRows rows;
  at::Tensor targets;
};

/// @param warns  whether to report on stderr replaced bytes, and the labels that its numbers mean
LabelledTexts read_labelled_texts(const std::vector<std::filesystem::path>& data,
                                  const text::ColumnNames& columns,
                                  const text::Task& task,
                                  bool warns);

/// A model's outputs, its input, and their quality.
struct Evaluated {
  ModelSession::Result result;
  text::Evaluation evaluation;
};

Evaluated evaluate(ModelSession& session, const LabelledTexts& texts);

}  // namespace mezzo::app
