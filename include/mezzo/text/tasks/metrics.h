#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace mezzo::text {

/// A metric of evaluations.
struct MetricInfo {
  std::string name;               ///< in files: "macro_f1"
  std::string title;              ///< for people: "macro F1"
  bool is_share = true;           ///< from 0 to 1; pages show it in percent
  bool greater_is_better = true;  ///< false: lower is better
};

/// The result of a model on dev, for comparisons of models.
struct ModelScore {
  double value = 0;  ///< of the deciding metric; NaN if it is not defined
  double loss = 0;   ///< mean over dev
};

/// Whether `score` is better than `other`: by the metric, or by the lower loss if the metric is
/// equal. A model whose metric is not defined is worse than any other. A strict weak ordering.
bool is_better(const ModelScore& score, const ModelScore& other, bool greater_is_better);

/// Precision, recall and F1, 0 if their denominator is 0, and the number of rows.
struct ClassScores {
  double precision = 0;   ///< correct share of the predicted rows
  double recall = 0;      ///< correctly predicted share of its rows
  double f1 = 0;          ///< harmonic mean of precision and recall
  int64_t support = 0;    ///< rows of the class
  int64_t predicted = 0;  ///< rows predicted as the class; 0 for averages
};

/// The agreement of predicted with true labels, by scikit-learn's definitions (with
/// zero_division=0).
struct ClassificationReport {
  std::vector<std::string> names;    ///< of `classes`; for single labels only labels in y_true or y_pred
  std::vector<ClassScores> classes;  ///< one per name
  double accuracy = 0;               ///< share of the rows without an error
  ClassScores macro_avg;             ///< mean over the classes
  ClassScores weighted_avg;          ///< mean weighted by support

  /// For rows with several labels, or entities; the text then shows it instead of the accuracy.
  struct Several {
    ClassScores micro_avg;                   ///< over all labels of all rows
    std::optional<ClassScores> samples_avg;  ///< mean over the rows; nullopt for entities
  };
  std::optional<Several> several = {};  ///< nullopt for single labels

  /// The largest number of labels with a confusion matrix, which grows with their square.
  static constexpr int64_t kMaxMatrixLabels = 1000;

  /// The names of classes that rows have, but no prediction.
  std::vector<std::string> never_predicted() const;

  /// `confusion[i][j]`: the number of rows of label id i that were predicted as j, including absent
  /// labels. Empty above kMaxMatrixLabels, and if rows have several labels.
  std::vector<std::vector<int64_t>> confusion;

  /// The text of Python's `classification_report(y_true, y_pred, target_names=names, digits=digits,
  /// zero_division=0)`, byte for byte, with a final line break. Differs in one case: if no
  /// prediction is right, scikit-learn 1.9 prints supports as 3.0 instead of 3.
  /// @param digits  after the decimal point, from 0 to 100
  std::string to_text(int digits = 2) const;
};

/// Compares predicted with true labels.
/// @param y_true,  y_pred  label ids, one per row, from 0 to `names.size() - 1`
/// @param names  of the labels, including absent labels. Widths are counted in code points, as in
///     Python, so wide characters misalign the text's columns.
/// @throws c10::ValueError  if the lengths differ, rows or names are missing, or an id is out of
///     range
/// @see sklearn.metrics.classification_report (Python) without `labels`: averages are over the
///     labels in y_true or y_pred, so there is always a row "accuracy" and never "micro avg"
ClassificationReport classification_report(std::span<const int64_t> y_true,
                                           std::span<const int64_t> y_pred,
                                           std::vector<std::string> names);

/// The same for rows with any number of labels. All labels count, absent labels as 0.
/// @param y_true,  y_pred  [rows, labels], row after row: whether the row has the label
/// @throws c10::ValueError  if the lengths differ, rows or names are missing, or the last row is
///     incomplete
ClassificationReport classification_report(std::span<const bool> y_true,
                                           std::span<const bool> y_pred,
                                           std::vector<std::string> names);

/// The same for objects to be found in texts, such as entities.
/// @param is,  predicted, hits  for each name: true objects, found objects, and correctly found
///     objects
/// @see seqeval.metrics.classification_report (Python), which has the same text
ClassificationReport found_report(std::span<const int64_t> is,
                                  std::span<const int64_t> predicted,
                                  std::span<const int64_t> hits,
                                  std::vector<std::string> names);

}  // namespace mezzo::text
