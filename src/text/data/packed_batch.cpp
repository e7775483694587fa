#include "mezzo/text/data/packed_batch.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "memory/device_copy.h"

namespace mezzo::text {

PackedBatch PackedBatch::to(const at::Device& device) const {
  PackedBatch moved = *this;
  for (at::Tensor* tensor : {&moved.input_ids, &moved.positions, &moved.token_types, &moved.targets,
                             &moved.sequence_table, &moved.window_counts}) {
    *tensor = copy_to(*tensor, device);
  }
  return moved;
}

PackedBatch pack(std::span<const std::span<const int32_t>> texts,
                 const PackOptions& options,
                 std::span<const std::span<const int32_t>> token_types) {
  TORCH_CHECK_VALUE(!texts.empty(), "pack: a batch needs at least one text");
  const auto batch_size = static_cast<int64_t>(texts.size());
  PackedBatch batch;
  batch.cu_seqlens = at::zeros({batch_size + 1}, at::kInt);
  batch.seqlens = at::empty({batch_size}, at::kInt);
  auto* first = batch.cu_seqlens.mutable_data_ptr<int32_t>();
  auto* counts = batch.seqlens.mutable_data_ptr<int32_t>();
  for (int64_t b = 0; b < batch_size; ++b) {
    const auto count = static_cast<int64_t>(texts[b].size());
    TORCH_CHECK_VALUE(count > 0, "pack: text ", b, " has no tokens; a tokenizer gives at least [CLS] and [SEP]");
    TORCH_CHECK_VALUE(options.pad_to == 0 || count <= options.pad_to, "pack: text ", b, " has ", count,
                      " tokens, more than pad_to ", options.pad_to);
    counts[b] = static_cast<int32_t>(count);
    first[b + 1] = first[b] + static_cast<int32_t>(std::max(count, options.pad_to));
    batch.num_tokens += count;
  }

  const int64_t rows = std::max<int64_t>(first[batch_size], options.rows);
  batch.input_ids = at::empty({rows}, at::kLong);
  batch.positions = at::zeros({rows}, at::kLong);
  auto* ids = batch.input_ids.mutable_data_ptr<int64_t>();
  auto* positions = batch.positions.mutable_data_ptr<int64_t>();
  std::fill(ids, ids + rows, options.pad_id);
  for (int64_t b = 0; b < batch_size; ++b) {
    std::copy(texts[b].begin(), texts[b].end(), ids + first[b]);
    for (int64_t i = 0; i < first[b + 1] - first[b]; ++i) {
      positions[first[b] + i] = i;
    }
  }
  if (!token_types.empty()) {
    TORCH_CHECK_VALUE(token_types.size() == texts.size(), "pack: ", texts.size(), " texts but token types of ",
                      token_types.size());
    batch.token_types = at::zeros({rows}, at::kLong);
    for (int64_t b = 0; b < batch_size; ++b) {
      TORCH_CHECK_VALUE(token_types[b].size() == texts[b].size(), "pack: text ", b, " has ", texts[b].size(),
                        " tokens but ", token_types[b].size(), " token types");
      std::ranges::copy(token_types[b], batch.token_types.mutable_data_ptr<int64_t>() + first[b]);
    }
  }
  return batch;
}

}  // namespace mezzo::text
