#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "mezzo/text/data/text_spans.h"
#include "mezzo/text/tasks/task.h"

namespace mezzo::text {

/// The output of `mezzo predict` for each text: a JSON object in one line, without its end.
/// @param rows  the texts
/// @param outputs  a Classifier's outputs for `rows`, float32 on CPU and finite
/// @param word_ids  as in TokenizedTexts; ignored if `task` labels texts
/// @param logits  whether to add the outputs
/// @throws c10::ValueError  for options that do not fit this task
std::vector<std::string> predictions_as_json(const Task& task,
                                             const TextSpans& rows,
                                             const at::Tensor& outputs,
                                             Rows<int32_t> word_ids,
                                             const PredictionOptions& options,
                                             bool logits);

}  // namespace mezzo::text
