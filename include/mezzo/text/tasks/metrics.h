#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace mezzo::text {

/// A number that an evaluation comes to.
struct MetricInfo {
  std::string name;      ///< in files: "macro_f1"
  std::string title;     ///< for people: "macro F1"
  bool is_share = true;  ///< from 0 to 1, which a page shows in percent
  bool greater_is_better = true;
};

/// What a model comes to on dev, by which models are compared.
struct ModelScore {
  double value = 0;  ///< of the metric that decides; NaN where it is not defined
  double loss = 0;
};

/// Whether `score` is better than `other`: by the metric, and by the lower loss where the metric says that they are
/// equal. A model whose metric is not defined is worse than one whose metric is. A strict weak ordering.
bool is_better(const ModelScore& score, const ModelScore& other, bool greater_is_better);

/// Precision, recall and F1, 0 where their denominator is 0, and the number of rows they stand for.
struct ClassScores {
  double precision = 0;
  double recall = 0;
  double f1 = 0;
  int64_t support = 0;
  int64_t predicted = 0;  ///< rows that were predicted to be of it; 0 of averages
};

/// How well predicted labels match the true ones, as scikit-learn counts it by default (with zero_division=0).
struct ClassificationReport {
  std::vector<std::string> names;    ///< of `classes`; of single labels only those in y_true or y_pred
  std::vector<ClassScores> classes;  ///< one per name
  double accuracy = 0;               ///< share of the rows of which nothing is wrong
  ClassScores macro_avg;             ///< each class counts the same
  ClassScores weighted_avg;          ///< each class counts by its support

  /// Where rows have several labels, or entities, which the text then tells in place of the accuracy.
  struct Several {
    ClassScores micro_avg;                   ///< each label of a row counts the same
    std::optional<ClassScores> samples_avg;  ///< each row counts the same; of entities nothing
  };
  std::optional<Several> several = {};

  /// Of more labels nobody reads a matrix, which grows with their square.
  static constexpr int64_t kMaxMatrixLabels = 1000;

  /// Names of the classes that rows have, and that were predicted for none.
  std::vector<std::string> never_predicted() const;

  /// `confusion[i][j]`: rows of label id i that were predicted as j, absent labels included. Empty above
  /// kMaxMatrixLabels, and where rows have several labels.
  std::vector<std::vector<int64_t>> confusion;

  /// The text of Python's `classification_report(y_true, y_pred, target_names=names, digits=digits,
  /// zero_division=0)`, byte for byte, with a line break at its end. Differs in one slip: when no prediction at all is
  /// right, scikit-learn 1.9 prints supports as 3.0 for 3.
  /// @param digits  after the decimal point, from 0 to 100
  std::string to_text(int digits = 2) const;
};

/// @param y_true, y_pred  label ids, one per row, from 0 to `names.size() - 1`
/// @param names  of the labels, absent ones included. Names are measured in code points, as Python
///     does, so wide characters misalign the text's columns.
/// @throws c10::ValueError  when the two differ in length, there are no rows or no names, or an id
///     is out of range
/// @see sklearn.metrics.classification_report (Python) without `labels`: averages are over the labels in y_true or
///     y_pred, so it has always a row "accuracy" and never "micro avg".
ClassificationReport classification_report(std::span<const int64_t> y_true,
                                           std::span<const int64_t> y_pred,
                                           std::vector<std::string> names);

/// The same of rows that have any number of labels each. All labels count, absent ones as 0.
/// @param y_true, y_pred  [rows, labels], row after row: whether it has the label.
/// @throws c10::ValueError  when the two differ in length, there are no rows or no names, or the last row is cut off
ClassificationReport classification_report(std::span<const bool> y_true,
                                           std::span<const bool> y_pred,
                                           std::vector<std::string> names);

/// The same of things that were found and were to be found, such as entities.
/// @param is, predicted, hits  of each name: how many there are, were found, and both.
/// @see seqeval.metrics.classification_report (Python), whose text it prints
ClassificationReport found_report(std::span<const int64_t> is,
                                  std::span<const int64_t> predicted,
                                  std::span<const int64_t> hits,
                                  std::vector<std::string> names);

}  // namespace mezzo::text
