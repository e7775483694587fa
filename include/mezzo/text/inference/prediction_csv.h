#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "mezzo/text/data/text_spans.h"
#include "mezzo/text/tasks/task.h"

namespace mezzo::text {

/// Predictions as a CSV table by RFC 4180, in UTF-8 with a byte order mark. Its columns are `text`,
/// `text_pair` for pairs, the members of a Prediction, `score_NAME` for each label, and the other
/// columns of the data file. Several labels of a text are separated by '|'. Not thread-safe.
class PredictionCsv {
 public:
  /// @param task  must outlive this object
  /// @throws c10::ValueError  for a task that labels words
  explicit PredictionCsv(const Task& task);

  /// The lines of some texts, with the header before the first lines.
  /// @param outputs  a Classifier's outputs for `rows`, float32 on CPU and finite
  /// @throws c10::ValueError  for a row whose columns differ from the first row's
  std::string lines(const TextSpans& rows, const at::Tensor& outputs, const PredictionOptions& options);

 private:
  const Task& task_;
  int64_t num_rows_ = 0;
  std::vector<std::string> other_columns_;  // as the first row has them
};

}  // namespace mezzo::text
