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

/// What `mezzo predict` writes of each text: an object of JSON in one line, without its end.
/// @param rows  the texts.
/// @param outputs  of a Classifier for them, float32 on CPU and finite.
/// @param word_ids  as of TokenizedTexts; not read where `task` is of texts.
/// @param logits  whether the outputs themselves are wanted, too.
/// @throws c10::ValueError  for options that are none of this task.
std::vector<std::string> predictions_as_json(const Task& task,
                                             const TextSpans& rows,
                                             const at::Tensor& outputs,
                                             Rows<int32_t> word_ids,
                                             const PredictionOptions& options,
                                             bool logits);

}  // namespace mezzo::text
