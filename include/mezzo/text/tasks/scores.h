#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace mezzo::text {

// Numbers by which models are compared, as scikit-learn computes them by default. All are computed in double, in at
// most n log n for n rows. A score that is not defined is NaN.

/// Mean of the recalls of the classes that occur.
/// @param y_true, y_pred  ids of classes, [rows] int64 on CPU, from 0 to `num_classes` - 1.
/// @see sklearn.metrics.balanced_accuracy_score (Python)
double balanced_accuracy(const at::Tensor& y_true, const at::Tensor& y_pred, int64_t num_classes);

/// From -1 to 1, and 0 where all rows are, or were predicted to be, of one class.
/// @see sklearn.metrics.matthews_corrcoef (Python); Gorodkin, Comparing two K-category assignments by a K-category
///   correlation coefficient (2004), equation 8
double matthews_corrcoef(const at::Tensor& y_true, const at::Tensor& y_pred, int64_t num_classes);

/// Chance that a positive row has a higher score than a negative one; ties count half. NaN where all rows are alike.
/// @param is_positive, scores  one per row; scores are finite.
/// @see sklearn.metrics.roc_auc_score (Python) of binary labels
double roc_auc(std::span<const bool> is_positive, std::span<const double> scores);

/// Precision at each threshold, weighted by the recall that it adds. 0 where no row is positive.
/// @see sklearn.metrics.average_precision_score (Python) of binary labels
double average_precision(std::span<const bool> is_positive, std::span<const double> scores);

/// The lowest score to predict as positive for the most F1, in the middle between a row's score and the next lower one;
/// of equally good ones the highest. 0.5 where no row is positive.
/// @param is_positive, scores  one per row; scores are from 0 to 1.
double best_f1_threshold(std::span<const bool> is_positive, std::span<const double> scores);

/// Means over the labels of the scores that a label's probabilities have against the rest.
struct RankingScores {
  double roc_auc = 0;  ///< NaN where a label has no row, or all
  double average_precision = 0;
};
/// @param has_label, probabilities  [labels, rows], label after label.
/// @param absent_labels_count  whether the average precision of labels without rows counts, as 0.
/// @see sklearn.metrics.roc_auc_score (Python) with multi_class="ovr" and all labels; average_precision_score, which
///   counts absent labels if rows have several labels, and refuses them if rows have one
RankingScores ranking_scores(std::span<const bool> has_label,
                             std::span<const double> probabilities,
                             size_t rows,
                             bool absent_labels_count);

/// Rows whose confidence is about the same.
struct CalibrationBin {
  int64_t rows = 0;
  double confidence = 0;  ///< mean of theirs; 0 where there are none
  double accuracy = 0;    ///< how many of them are right
};

/// A reliability diagram: `bins` of equal width, open below.
/// @param confidences  from 0 to 1, of what was predicted, one per row.
/// @param is_right  whether it was right, one per row.
/// @see Guo et al., On Calibration of Modern Neural Networks (2017), figure 1
std::vector<CalibrationBin> calibration_bins(std::span<const double> confidences,
                                             std::span<const bool> is_right,
                                             int64_t bins = 15);

/// How far confidence is from accuracy on average over the rows of such bins; NaN for none.
/// @see equation 3 there
double expected_calibration_error(std::span<const CalibrationBin> bins);

/// Correlation of two columns; NaN where one is constant, or there are fewer than two rows.
/// @see scipy.stats.pearsonr (Python)
double pearson(std::span<const double> x, std::span<const double> y);

/// Correlation of their ranks; equal values share the mean of theirs.
/// @see scipy.stats.spearmanr (Python)
double spearman(std::span<const double> x, std::span<const double> y);

/// @see sklearn.metrics.mean_squared_error (Python)
double mean_squared_error(std::span<const double> x, std::span<const double> y);

}  // namespace mezzo::text
