#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "mezzo/text/data/packed_batch.h"
#include "text/data/batch_kinds.h"

namespace mezzo::text {

/// Tensors of a PackedBatch, in their order, some of them undefined. A graph reads them: batches of one kind have the
/// same sizes, and only the device knows the bounds of the texts.
using GraphBatch = std::vector<at::Tensor>;
constexpr size_t kGraphBatchTensors = 6;

/// The sequences of batches whose number of sequences changes: as many, or a few more.
int64_t round_sequences(int64_t sequences);

/// The size that a kind must have at least. If there are more sequences than texts, one row of filler is needed.
BatchSize size_of(const PackedBatch& batch, int64_t sequences);

/// Fills the rows up with filler. Sequences beyond the batch's have no tokens. Targets stay as they are.
/// @param kind  no less than size_of()
/// @param sequences  no less than the batch has
/// @return on the batch's device
GraphBatch to_graph_batch(const PackedBatch& batch, BatchSize kind, int64_t sequences, int64_t pad_id);

/// The batch, without the fields that only the CPU knew.
/// @param first  of kGraphBatchTensors tensors
PackedBatch from_graph_batch(const at::Tensor* first, int64_t longest);

}  // namespace mezzo::text
