#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace mezzo::text {

// Numbers by which models are compared, as scikit-learn computes them by default. All are computed in double, in at
// most n log n for n rows. A score that is not defined is NaN.

/// The mean of the recalls of the classes that occur.
/// @param y_true, y_pred  ids of classes, [rows] int64 on CPU, from 0 to `num_classes` - 1.
/// @see sklearn.metrics.balanced_accuracy_score (Python)
double balanced_accuracy(const at::Tensor& y_true, const at::Tensor& y_pred, int64_t num_classes);

/// From -1 to 1; 0 if all rows, or all predictions, are of one class.
/// @see sklearn.metrics.matthews_corrcoef (Python); Gorodkin, Comparing two K-category assignments
///     by a K-category correlation coefficient (2004), equation 8
double matthews_corrcoef(const at::Tensor& y_true, const at::Tensor& y_pred, int64_t num_classes);

/// The probability that a positive row has a higher score than a negative row; ties count half. NaN
/// if all rows are positive, or all negative.
/// @param is_positive,  scores  one per row; scores are finite
/// @see sklearn.metrics.roc_auc_score (Python) of binary labels
double roc_auc(std::span<const bool> is_positive, std::span<const double> scores);

/// The sum of precisions over the thresholds, weighted by the increase of recall. 0 without
/// positive rows.
/// @see sklearn.metrics.average_precision_score (Python) of binary labels
double average_precision(std::span<const bool> is_positive, std::span<const double> scores);

/// The threshold of positive predictions with the largest F1. It lies in the middle between a row's
/// score and the next lower score. Of equally good thresholds the highest. 0.5 without positive
/// rows.
/// @param is_positive,  scores  one per row; scores are from 0 to 1
double best_f1_threshold(std::span<const bool> is_positive, std::span<const double> scores);

/// Means over the labels of the scores of each label's probabilities against all other labels.
struct RankingScores {
  double roc_auc = 0;            ///< NaN if a label has no row, or all rows
  double average_precision = 0;  ///< see average_precision()
};
/// @param has_label,  probabilities  [labels, rows], label after label
/// @param absent_labels_count  whether the average precision of labels without rows counts, as 0
/// @see sklearn.metrics.roc_auc_score (Python) with multi_class="ovr" and all labels. Differs in
///     average_precision_score, which counts absent labels if rows have several labels, and refuses
///     them if rows have one
RankingScores ranking_scores(std::span<const bool> has_label,
                             std::span<const double> probabilities,
                             size_t rows,
                             bool absent_labels_count);

/// Rows with similar confidence.
struct CalibrationBin {
  int64_t rows = 0;       ///< number of rows
  double confidence = 0;  ///< their mean confidence; 0 without rows
  double accuracy = 0;    ///< their correct share
};

/// A reliability diagram: `bins` of equal width, open below.
/// @param confidences  of the predictions, from 0 to 1, one per row
/// @param is_right  whether the prediction was right, one per row
/// @see Guo et al., On Calibration of Modern Neural Networks (2017), figure 1
std::vector<CalibrationBin> calibration_bins(std::span<const double> confidences,
                                             std::span<const bool> is_right,
                                             int64_t bins = 15);

/// The mean distance between confidence and accuracy over the rows of such bins; NaN without rows.
/// @see equation 3 in Guo et al. (2017)
double expected_calibration_error(std::span<const CalibrationBin> bins);

/// Correlation of two columns; NaN if one is constant, or with fewer than two rows.
/// @see scipy.stats.pearsonr (Python)
double pearson(std::span<const double> x, std::span<const double> y);

/// Correlation of the ranks; equal values share their mean rank.
/// @see scipy.stats.spearmanr (Python)
double spearman(std::span<const double> x, std::span<const double> y);

/// The mean of the squared differences.
/// @see sklearn.metrics.mean_squared_error (Python)
double mean_squared_error(std::span<const double> x, std::span<const double> y);

}  // namespace mezzo::text
