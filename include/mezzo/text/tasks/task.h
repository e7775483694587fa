#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "mezzo/text/data/dataset.h"
#include "mezzo/text/data/packed_batch.h"
#include "mezzo/text/models/model_for_task.h"
#include "mezzo/text/tasks/metrics.h"
#include "mezzo/text/tasks/scores.h"

namespace mezzo::text {

/// A text, or word, whose label or labels were not predicted.
struct Mistake {
  int64_t row = 0;               ///< of the texts, from 0
  std::string label, predicted;  ///< several with | between them
  double score = 0;    ///< of what was predicted; of several labels, how sure the surest wrong decision on one was
  int64_t token = -1;  ///< the word's first, with a row a token
};

/// What an evaluation came to.
struct Evaluation {
  /// Mean over the texts, or words, in float32; inf or NaN where an output is.
  double loss = std::numeric_limits<double>::quiet_NaN();
  std::vector<double> metrics;  ///< those of Task::metrics(); NaN where not defined, or the loss is not finite
  std::vector<std::pair<std::string, double>> details;  ///< further numbers by name; none where the loss is not finite
  std::string report;                                   ///< for people, of several lines; empty where it is not finite
  std::vector<std::vector<int64_t>> confusion_matrix;   ///< [true label][predicted label]; empty where there is none
  std::vector<CalibrationBin> calibration;              ///< of what was predicted; empty where nothing is that sure
  std::vector<std::string> never_predicted;  ///< labels that rows have and that were predicted for none of the rows
  /// Accuracy if every row gets the most frequent label; nullopt unless each row has one of several labels.
  std::optional<double> majority_baseline = {};
  std::vector<Mistake> mistakes;  ///< as of Task::mistakes(); empty where nobody asked
};

/// A change of a model's outputs, and a sentence about it.
struct Tuning {
  OutputScaling scaling;
  std::string note;
};

/// What a task measures: all that it can, of which some are shown and the first of these decides
/// which model is the best.
class MetricChoice {
 public:
  /// @param known  all, the shown ones first.
  /// @param deciding  a name of `known`, which becomes the first of the shown ones; empty: known[0].
  /// @throws c10::ValueError  that lists the names, for another one.
  MetricChoice(std::vector<MetricInfo> known, size_t num_shown, std::string_view deciding);

  const std::vector<MetricInfo>& shown() const { return shown_; }

  /// An evaluation with this loss, whose metrics are NaN.
  Evaluation begin(double loss) const;
  /// Puts into `evaluation` the values of all that is known, in its order: the shown ones as its
  /// metrics, the others as details.
  void fill(Evaluation& evaluation, std::span<const double> values) const;
  /// Also puts in the report.
  void fill(Evaluation& evaluation, std::span<const double> values, ClassificationReport report) const;

 private:
  std::vector<MetricInfo> known_, shown_;
};

/// Words of a text that belong together, as transformers' pipeline tells of them.
struct EntityPrediction {
  std::string entity_group;    ///< "PER"
  double score = 0;            ///< mean over its words
  std::string word;            ///< that part of the text
  int64_t start = 0, end = 0;  ///< its place there, in code points

  bool operator==(const EntityPrediction&) const = default;
};

/// What is said of one text: members of a JSON object, in their order.
using PredictionValue = std::variant<std::monostate,
                                     double,
                                     std::string,
                                     std::vector<std::string>,
                                     std::vector<std::optional<std::string>>,
                                     std::vector<std::pair<std::string, double>>,
                                     std::vector<EntityPrediction>>;
using Prediction = std::vector<std::pair<std::string, PredictionValue>>;

struct PredictionOptions {
  std::optional<int64_t> top_k = {};  ///< so many labels' scores, the highest first; nullopt: of all, in their order
  double min_score = 0;               ///< a label whose score is lower is not given

  bool operator==(const PredictionOptions&) const = default;
};

/// The texts that predictions are of, where a task tells of their words.
struct WordsOfTexts {
  Texts texts;
  std::span<const std::vector<std::string>> words;
  Rows<int32_t> word_ids;  ///< as of TokenizedTexts
};

/// What training minimises in place of a task's own loss. Evaluations measure the task's own all the same, so that runs
/// compare.
struct LossOptions {
  /// "balanced", a weight for each label by its name ("rare=5,common=1"; others weigh 1), or empty: all weigh the same.
  std::string class_weights = {};
  double label_smoothing = 0;  ///< share of the target that goes to all labels alike, from 0 to below 1
  double focal_gamma = 0;      ///< exponent of the focal loss; 0: off

  bool operator==(const LossOptions&) const = default;
};

/// What a model is trained for: the targets that labels stand for, the
/// loss, and how good a model is.
///
/// Made from the training data, or from the config.json of a trained model, and never changed: any
/// number of threads may use one.
class Task {
 public:
  virtual ~Task() = default;

  /// As config.json spells it: "single_label_classification".
  virtual std::string_view problem_type() const = 0;
  /// id2label of config.json: a name for each output of the model.
  virtual const std::vector<std::string>& label_names() const = 0;
  /// What it reads of a model.
  virtual Head head() const = 0;
  /// What the labels are, for a note: "4 classes".
  virtual std::string summary() const = 0;
  /// Puts into a model's config what make_task() makes the same task of.
  virtual void describe(ModelConfig& config) const;

  /// What the loss compares with: row i is text i's. Its dtype and further
  /// dimensions are the task's own. With a head that has a row a token, those of words: see set_targets().
  /// @throws c10::ValueError  for a row whose label is missing or of another
  ///   task, with file, line and row.
  virtual at::Tensor targets(const LabeledRows& rows) const = 0;
  /// What is odd about `rows`, a line each: nothing of it need be wrong.
  virtual std::vector<std::string> odd_rows(const LabeledRows& rows) const = 0;
  /// What texts with these targets cannot teach, a line each.
  /// @param why  how that can be, after "no training text"; may be empty.
  virtual std::vector<std::string> untrained(const at::Tensor& targets, const std::string& why) const = 0;

  /// The loss of a batch, float32: the sum over its texts, or words, of which each weighs
  /// the same. Differentiable.
  /// @param outputs  of a model with that head, in any floating dtype.
  virtual at::Tensor loss(const at::Tensor& outputs, const PackedBatch& batch) const = 0;
  /// The same task with another loss.
  /// @param targets  of the training texts, by which "balanced" weighs.
  /// @param device  where the loss will be computed.
  /// @throws c10::ValueError  for options that are none of this task, or weights of labels that it lacks.
  virtual std::shared_ptr<const Task> with_loss(const LossOptions& options,
                                                const at::Tensor& targets,
                                                c10::Device device) const = 0;

  /// What evaluate() measures besides the loss, to be shown. The first decides which model is the best.
  virtual const std::vector<MetricInfo>& metrics() const = 0;
  /// Why the first of metrics() is not defined for texts with these targets, whatever a model predicts; empty if it is.
  virtual std::string why_undefined(const at::Tensor& targets) const;
  /// @param outputs  float32 on CPU; row i is text i's, as of `targets`.
  virtual Evaluation evaluate(const at::Tensor& outputs, const at::Tensor& targets) const = 0;
  /// The surest of the wrong predictions, twenty at most, the surest first; none where there are no labels.
  /// @param outputs, targets  as of evaluate(), which found a finite loss.
  virtual std::vector<Mistake> mistakes(const at::Tensor& outputs, const at::Tensor& targets) const;
  /// Whether tune() fits something to a trained model.
  virtual bool is_tunable() const { return false; }
  /// The change of a trained model's outputs that fits its scores to texts that it was not trained on.
  /// @param outputs, targets  as of evaluate().
  virtual Tuning tune(const at::Tensor& outputs, const at::Tensor& targets) const;
  /// Whether to keep a model with `score`, by the first of metrics(), in place of one with `best`; nullopt: there is
  /// none. If one of the two values is NaN, the lower loss decides. A model with a loss of inf or NaN is never kept.
  bool is_better(const ModelScore& score, const std::optional<ModelScore>& best) const;

  /// One for each row of `outputs`, float32 on CPU and finite.
  /// @param words  of each row's text, for a head with a row a token.
  /// @throws c10::ValueError  for options that are none of this task.
  virtual std::vector<Prediction> predictions(const at::Tensor& outputs,
                                              const WordsOfTexts& words,
                                              const PredictionOptions& options) const = 0;
};

/// What decides on the task of a training run.
struct TaskOptions {
  std::string problem_type = {};              ///< empty: single labels, but no fractions, which are a regression's
  std::vector<std::string> label_names = {};  ///< all there are, in their order; empty: those of the data
  std::string on_unknown_label = {};          ///< a sentence that tells what to do where a label is not among them
  std::string metric = {};                    ///< that decides which model is the best; empty: the task's own first
  bool calibrate = false;                     ///< whether a temperature is fitted to the trained model
};

/// What files have for labels of a problem type.
/// @param problem_type  empty: that of single labels
/// @throws c10::ValueError  that lists the names, for another.
LabelKind label_kind(std::string_view problem_type);

/// The task that the labels of training data make.
/// @throws c10::ValueError  for rows that nobody can mean to train on.
std::shared_ptr<const Task> make_task(const LabeledRows& rows, const TaskOptions& options = {});

/// The task that a model was trained for: by problem_type and label_names.
/// @throws c10::ValueError  that lists the problem types mezzo knows, for another.
std::shared_ptr<const Task> make_task(const ModelConfig& config);

}  // namespace mezzo::text
