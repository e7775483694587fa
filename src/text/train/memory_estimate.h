#pragma once

#include <cstdint>

#include "mezzo/text/models/model_for_task.h"
#include "mezzo/text/models/precision.h"
#include "mezzo/text/train/train_config.h"

namespace mezzo::text {

constexpr int64_t kFloatBytes = 4;

/// The memory that a training run keeps at once, in bytes of tensors on one rank.
struct MemoryEstimate {
  int64_t weights = 0;
  int64_t optimizer = 0;    ///< moments, and float32 masters
  int64_t gradients = 0;    ///< of all parameters
  int64_t activations = 0;  ///< tensors that the largest micro-batch keeps for backward, and its work space
  int64_t total = 0;        ///< at the fullest moment of a step; see estimate_memory
  int64_t checkpoint = 0;   ///< beyond that, of the CPU's memory, while one is written beside training
};

/// The largest micro-batch of a rank.
struct BatchShape {
  int64_t rows = 0;     ///< of its matrices, padding and filler included
  int64_t longest = 0;  ///< tokens of its longest text
};

/// Estimates the fullest moment of a step. Without accumulation and on one rank, only the larger of
/// gradients and activations counts. A step drops its gradients at its end, and backward makes them
/// layer by layer as it frees the activations. Micro-batches after the first, and buckets that are
/// exchanged among ranks, need both. Steps that are recorded into graphs need what counts twice:
/// the graphs' memory stays theirs, and the first step of each kind runs beside it. Buckets are
/// shared.
/// @param config  for the optimizer, masters, checkpointing, accumulation and ZeRO
/// @param model  whose weights need not be there yet
MemoryEstimate estimate_memory(
    const ModelForTask& model, Precision precision, const TrainConfig& config, int ranks, const BatchShape& batch);

/// In float32: of the table of words, as a rule.
int64_t largest_parameter_bytes(const ModelForTask& model);

int64_t count_parameters(const ModelForTask& model);

}  // namespace mezzo::text
