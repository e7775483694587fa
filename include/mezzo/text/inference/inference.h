#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "mezzo/text/data/batching.h"
#include "mezzo/text/models/model_for_task.h"
#include "mezzo/text/models/precision.h"

namespace mezzo::text {

/// Called with the number of texts done so far; returns false to stop early.
using InferenceProgress = std::function<bool(int64_t done)>;

/// The part of one of several ranks: every `of`-th batch.
struct InferenceShare {
  int rank = 0;  ///< in [0, of)
  int of = 1;    ///< number of ranks
};

class RecordedForward;

/// The number of tokens per batch beyond which larger batches are not faster.
int64_t tokens_of_batch(Precision precision);

/// The outputs for each text, in the order of `texts`, for any batches. Runs `model` in eval mode
/// without gradients, and then restores its mode.
/// @param texts  must not be empty; targets are not used
/// @param share  With several ranks, the rows of other ranks' texts are 0, so the sum over ranks is
///     complete.
/// @param recorded  runs the batches, on a device that has graphs; nullptr: each kernel is launched by itself
/// @return float32 on CPU: [N, num_outputs], or with one row per token [N, L, num_outputs]. L is the
///     number of tokens of the longest text; rows after a text's end are 0. Undefined if `progress`
///     stopped it.
at::Tensor predict_outputs(ModelForTask& model,
                           const TokenizedTexts& texts,
                           Precision precision,
                           const InferenceProgress& progress = {},
                           const InferenceShare& share = {},
                           RecordedForward* recorded = nullptr);

}  // namespace mezzo::text
