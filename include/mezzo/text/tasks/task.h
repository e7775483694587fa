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

/// A text, or word, whose label or labels were predicted wrongly.
struct Mistake {
  int64_t row = 0;        ///< number of the text, from 0
  std::string label;      ///< several are separated by |
  std::string predicted;  ///< several are separated by |
  double score = 0;       ///< of the prediction; with several labels, of the most confident wrong decision
  int64_t token = -1;     ///< first token of the word, with one row per token
};

/// The result of an evaluation.
struct Evaluation {
  /// Mean over the texts, or words, in float32; inf or NaN if an output is.
  double loss = std::numeric_limits<double>::quiet_NaN();
  std::vector<double> metrics;  ///< as in Task::metrics(); NaN if not defined, or if the loss is not finite
  std::vector<std::pair<std::string, double>> details;  ///< more numbers by name; empty if the loss is not finite
  std::string report;                                   ///< for people, with several lines; empty if not finite
  std::vector<std::vector<int64_t>> confusion_matrix;   ///< [true label][predicted label]; may be empty
  std::vector<CalibrationBin> calibration;              ///< of the predictions; empty for tasks without confidence
  std::vector<std::string> never_predicted;             ///< labels of rows that were predicted for no row
  /// Accuracy of the most frequent label for every row; nullopt unless each row has one of several
  /// labels.
  std::optional<double> majority_baseline = {};
  std::vector<Mistake> mistakes;  ///< as from Task::mistakes(); empty unless requested
};

/// A change of a model's outputs, with a note.
struct Tuning {
  OutputScaling scaling;  ///< to apply to the last layer
  std::string note;       ///< one sentence for the user
};

/// The metrics of a task. Some are shown, the others are details. The first shown metric decides
/// which model is the best.
class MetricChoice {
 public:
  /// @param known  all metrics, the shown ones first
  /// @param deciding  a name of `known`, which becomes the first shown metric; empty: known[0]
  /// @throws c10::ValueError  for another name; the message lists the names
  MetricChoice(std::vector<MetricInfo> known, size_t num_shown, std::string_view deciding);

  /// The shown metrics; the first decides.
  const std::vector<MetricInfo>& shown() const { return shown_; }

  /// An evaluation with this loss, and NaN for all metrics.
  Evaluation begin(double loss) const;
  /// Sets the values of all known metrics in `evaluation`, in their order: first the shown metrics,
  /// then the details.
  void fill(Evaluation& evaluation, std::span<const double> values) const;
  /// Also sets the report.
  void fill(Evaluation& evaluation, std::span<const double> values, ClassificationReport report) const;

 private:
  std::vector<MetricInfo> known_, shown_;
};

/// Words of a text that form an entity, in the format of transformers' pipeline.
struct EntityPrediction {
  std::string entity_group;  ///< "PER"
  double score = 0;          ///< mean over its words
  std::string word;          ///< its part of the text
  int64_t start = 0;         ///< its start in the text, in code points
  int64_t end = 0;           ///< its end in the text, in code points

  /// All members are equal.
  bool operator==(const EntityPrediction&) const = default;
};

/// A value in the prediction of one text, as a member of a JSON object.
using PredictionValue = std::variant<std::monostate,
                                     double,
                                     std::string,
                                     std::vector<std::string>,
                                     std::vector<std::optional<std::string>>,
                                     std::vector<std::pair<std::string, double>>,
                                     std::vector<EntityPrediction>>;
/// The prediction of one text: members of a JSON object, in order.
using Prediction = std::vector<std::pair<std::string, PredictionValue>>;

/// Options of predictions.
struct PredictionOptions {
  std::optional<int64_t> top_k = {};  ///< number of scores, the highest first; nullopt: all, in the order of labels
  double min_score = 0;               ///< labels with a lower score are omitted

  /// All members are equal.
  bool operator==(const PredictionOptions&) const = default;
};

/// The texts of predictions, for tasks that label words.
struct WordsOfTexts {
  Texts texts;                                      ///< the text of each row
  std::span<const std::vector<std::string>> words;  ///< of each row
  Rows<int32_t> word_ids;                           ///< as in TokenizedTexts
};

/// The loss to minimise in training. Evaluations always measure the task's default loss, so that
/// runs can be compared.
struct LossOptions {
  /// "balanced"; or a weight for each label by its name ("rare=5,common=1"; other labels have 1);
  /// or empty: all labels have weight 1.
  std::string class_weights = {};
  double label_smoothing = 0;  ///< share of the target that is spread equally over all labels, in [0, 1)
  double focal_gamma = 0;      ///< exponent of the focal loss; 0: off

  /// All members are equal.
  bool operator==(const LossOptions&) const = default;
};

/// A kind of prediction: the targets of labels, the loss, and the metrics.
///
/// Made from the training data, or from the config.json of a trained model. It never changes, so
/// any number of threads may use it.
class Task {
 public:
  virtual ~Task() = default;

  /// The task in the spelling of config.json: "single_label_classification".
  virtual std::string_view problem_type() const = 0;
  /// id2label of config.json: a name for each output of the model.
  virtual const std::vector<std::string>& label_names() const = 0;
  /// The output layer that the task reads.
  virtual Head head() const = 0;
  /// A note about the labels: "4 classes".
  virtual std::string summary() const = 0;
  /// Writes the task into a model's config, for make_task().
  virtual void describe(ModelConfig& config) const;

  /// The targets of the loss: row i belongs to text i. Dtype and further dimensions depend on the
  /// task. If the head has one row per token, the targets of words: see set_targets().
  /// @throws c10::ValueError  for a row whose label is missing or of another task, with file, line
  ///     and row
  virtual at::Tensor targets(const LabeledRows& rows) const = 0;
  /// Unusual properties of `rows`, one line each, which are not necessarily errors.
  virtual std::vector<std::string> odd_rows(const LabeledRows& rows) const = 0;
  /// Labels that texts with these targets cannot train, one line each.
  /// @param why  the reason, after "no training text"; may be empty
  virtual std::vector<std::string> untrained(const at::Tensor& targets, const std::string& why) const = 0;

  /// The loss of a batch, float32: the sum over its texts, or words, with equal weights.
  /// Differentiable.
  /// @param outputs  of a model with that head, in any floating dtype
  virtual at::Tensor loss(const at::Tensor& outputs, const PackedBatch& batch) const = 0;
  /// The same task with another loss.
  /// @param targets  of the training texts, for "balanced"
  /// @param device  of the loss computation
  /// @throws c10::ValueError  for options that do not fit this task, or weights of unknown labels
  virtual std::shared_ptr<const Task> with_loss(const LossOptions& options,
                                                const at::Tensor& targets,
                                                c10::Device device) const = 0;

  /// The shown metrics of evaluate(), except the loss. The first decides which model is the best.
  virtual const std::vector<MetricInfo>& metrics() const = 0;
  /// The reason why the first of metrics() is undefined for texts with these targets, for any
  /// prediction; empty if it is defined.
  virtual std::string why_undefined(const at::Tensor& targets) const;
  /// Compares outputs with targets.
  /// @param outputs  float32 on CPU; row i is text i's, as of `targets`.
  virtual Evaluation evaluate(const at::Tensor& outputs, const at::Tensor& targets) const = 0;
  /// The most confident wrong predictions, at most twenty, the most confident first; empty without
  /// labels.
  /// @param outputs,  targets  as in evaluate(), whose loss was finite
  virtual std::vector<Mistake> mistakes(const at::Tensor& outputs, const at::Tensor& targets) const;
  /// Whether tune() can adapt a trained model.
  virtual bool is_tunable() const { return false; }
  /// The change of a trained model's outputs that fits its scores to unseen texts.
  /// @param outputs,  targets  as in evaluate()
  virtual Tuning tune(const at::Tensor& outputs, const at::Tensor& targets) const;
  /// Whether to replace a model with `best` by a model with `score`, by the first of metrics().
  /// nullopt: no model yet. If one of the two values is NaN, the lower loss decides. A model with a
  /// loss of inf or NaN is never kept.
  bool is_better(const ModelScore& score, const std::optional<ModelScore>& best) const;

  /// One prediction for each row of `outputs`, which are float32 on CPU and finite.
  /// @param words  of each row's text, for a head with one row per token
  /// @throws c10::ValueError  for options that do not fit this task
  virtual std::vector<Prediction> predictions(const at::Tensor& outputs,
                                              const WordsOfTexts& words,
                                              const PredictionOptions& options) const = 0;
};

/// The options that determine the task of a training run.
struct TaskOptions {
  std::string problem_type = {};              ///< empty: single labels; fractions are then an error
  std::vector<std::string> label_names = {};  ///< all labels in order; empty: the labels of the data
  std::string on_unknown_label = {};          ///< advice for an unknown label, as a sentence
  std::string metric = {};                    ///< decides which model is the best; empty: the task's first metric
  bool calibrate = false;                     ///< whether a temperature is fitted to the trained model
};

/// The kind of labels in files, for a problem type.
/// @param problem_type  empty: single labels
/// @throws c10::ValueError  for another name; the message lists the names
LabelKind label_kind(std::string_view problem_type);

/// Makes a task from the labels of training data.
/// @throws c10::ValueError  for rows that cannot be training data
std::shared_ptr<const Task> make_task(const LabeledRows& rows, const TaskOptions& options = {});

/// The task of a trained model, from its problem_type and label_names.
/// @throws c10::ValueError  for another problem type; the message lists the known types
std::shared_ptr<const Task> make_task(const ModelConfig& config);

}  // namespace mezzo::text
