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

/// What one of several ranks computes: every `of`-th batch.
struct InferenceShare {
  int rank = 0;
  int of = 1;
};

/// Tokens of a batch beyond which a larger one is no faster.
int64_t tokens_of_batch(Precision precision);

/// The outputs for each text, in the order of `texts`, whatever the batches were. Runs `model` in
/// eval mode without gradients, and puts its mode back.
/// @param texts  must not be empty; targets are not used
/// @param share  of several ranks: the rows of other ranks' texts are 0, so the sum over ranks has
///     all
/// @return float32 on CPU: [N, num_outputs], or with a row a token [N, L, num_outputs], where L is
///     the longest text's number of tokens and what is past a text's end is 0; undefined if
///     `progress` stopped it
at::Tensor predict_outputs(ModelForTask& model,
                           const TokenizedTexts& texts,
                           Precision precision,
                           const InferenceProgress& progress = {},
                           const InferenceShare& share = {});

}  // namespace mezzo::text
