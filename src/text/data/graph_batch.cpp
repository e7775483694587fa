#include "text/data/graph_batch.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/stack.h>

#include <bit>

namespace mezzo::text {
namespace {

enum Tensor { kIds, kPositions, kTypes, kTargets, kTable, kWindowCounts, kTensors };
static_assert(kTensors == kGraphBatchTensors);

/// The first row after the texts.
int64_t end_of(const PackedBatch& batch) { return batch.cu_seqlens.const_data_ptr<int32_t>()[batch.size()]; }

at::Tensor with_filler(const at::Tensor& rows, int64_t count, int64_t filler) {
  return rows.defined() ? at::constant_pad_nd(rows, {0, count - rows.size(0)}, filler) : rows;
}

/// [sequences, 2]: first row and tokens of each.
at::Tensor sequence_table(const PackedBatch& batch, int64_t sequences) {
  const int64_t more = sequences - batch.size();
  const auto first = at::constant_pad_nd(batch.cu_seqlens.narrow(0, 0, batch.size()), {0, more}, end_of(batch));
  return at::stack({first, at::constant_pad_nd(batch.seqlens, {0, more}, 0)}, 1);
}

}  // namespace

int64_t round_sequences(int64_t sequences) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(sequences)));
}

BatchSize size_of(const PackedBatch& batch, int64_t sequences) {
  const int64_t rows = batch.input_ids.size(0);
  const bool needs_filler = sequences > batch.size() && rows == end_of(batch);
  return {rows + (needs_filler ? 1 : 0), batch.seqlens.max().item<int64_t>()};
}

GraphBatch to_graph_batch(const PackedBatch& batch, BatchSize kind, int64_t sequences, int64_t pad_id) {
  return {with_filler(batch.input_ids, kind.rows, pad_id),
          with_filler(batch.positions, kind.rows, 0),
          with_filler(batch.token_types, kind.rows, 0),
          batch.targets,
          sequence_table(batch, sequences),
          batch.window_counts};
}

PackedBatch from_graph_batch(const at::Tensor* first, int64_t longest) {
  return {.input_ids = first[kIds],
          .positions = first[kPositions],
          .token_types = first[kTypes],
          .cu_seqlens = {},
          .seqlens = {},
          .targets = first[kTargets],
          .window_counts = first[kWindowCounts],
          .sequence_table = first[kTable],
          .max_seqlen = longest};
}

}  // namespace mezzo::text
