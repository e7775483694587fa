#include "mezzo/text/data/batching.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ceil_div.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "text/io/known_value.h"

namespace mezzo::text {
namespace {

/// Batches that are shuffled together before grouping by length, as in transformers.
constexpr int64_t kMegaBatch = 50;

std::vector<std::vector<int64_t>> chunks(const std::vector<int64_t>& order, int64_t size) {
  TORCH_CHECK_VALUE(size > 0, "batch size must be at least 1, got ", size);
  std::vector<std::vector<int64_t>> batches;
  for (size_t begin = 0; begin < order.size(); begin += static_cast<size_t>(size)) {
    const size_t end = std::min(order.size(), begin + static_cast<size_t>(size));
    batches.emplace_back(order.begin() + static_cast<ptrdiff_t>(begin), order.begin() + static_cast<ptrdiff_t>(end));
  }
  return batches;
}

template <class Iterator>
void sort_longest_first(const TokenizedTexts& texts, Iterator begin, Iterator end) {
  std::stable_sort(begin, end, [&](int64_t a, int64_t b) { return texts.ids[a].size() > texts.ids[b].size(); });
}

/// The sequences that a text makes.
/// @param rows  as long as the ids each, or none.
void append_windows(const TokenizedTexts& texts,
                    int64_t text,
                    const Rows<int32_t>& rows,
                    std::vector<std::span<const int32_t>>& sequences) {
  if (rows.empty()) return;
  std::span<const int32_t> rest = rows[text];
  if (texts.window_lengths.empty()) {
    sequences.push_back(rest);
    return;
  }
  for (const int32_t length : texts.window_lengths[text]) {
    sequences.push_back(rest.first(static_cast<size_t>(length)));
    rest = rest.subspan(static_cast<size_t>(length));
  }
}

}  // namespace

Batching parse_batching(std::string_view name) {
  check_known("--batching", name, {"packed", "grouped", "dynamic", "padded"});
  if (name == "packed") return Batching::kPacked;
  if (name == "grouped") return Batching::kGrouped;
  if (name == "dynamic") return Batching::kDynamic;
  return Batching::kPadded;
}

std::vector<std::vector<int64_t>> epoch_batches(
    const TokenizedTexts& texts, int64_t batch_size, Batching batching, uint64_t seed, int64_t epoch) {
  const auto count = static_cast<int64_t>(texts.ids.size());
  // As torch's DistributedSampler shuffles: a generator seeded with seed + epoch.
  const auto permutation = at::randperm(count, at::detail::createCPUGenerator(seed + static_cast<uint64_t>(epoch)),
                                        at::TensorOptions(at::kLong));
  std::vector<int64_t> order(permutation.const_data_ptr<int64_t>(), permutation.const_data_ptr<int64_t>() + count);
  if (batching == Batching::kGrouped) {
    const int64_t mega = kMegaBatch * batch_size;
    for (int64_t begin = 0; begin < count; begin += mega) {
      sort_longest_first(texts, order.begin() + begin, order.begin() + std::min(count, begin + mega));
    }
  }
  return chunks(order, batch_size);
}

std::vector<std::vector<int64_t>> length_sorted_batches(const TokenizedTexts& texts, int64_t max_tokens) {
  std::vector<int64_t> order(texts.ids.size());
  std::iota(order.begin(), order.end(), 0);
  sort_longest_first(texts, order.begin(), order.end());
  std::vector<std::vector<int64_t>> batches;
  int64_t tokens = max_tokens;  // of the last batch
  for (const int64_t index : order) {
    const auto length = static_cast<int64_t>(texts.ids[index].size());
    if (batches.empty() || tokens + length > max_tokens) {
      batches.emplace_back();
      tokens = 0;
    }
    batches.back().push_back(index);
    tokens += length;
  }
  return batches;
}

int64_t packed_rows(int64_t tokens) {
  // Matrix libraries build a kernel for each shape. A single text should not wait for filler.
  const int64_t share = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(tokens))) / 16;
  const int64_t multiple = std::clamp<int64_t>(share, 1, 32);
  return at::round_up(tokens, multiple);
}

int64_t count_rows(const TokenizedTexts& texts,
                   std::span<const int64_t> indices,
                   Batching batching,
                   int64_t max_length) {
  int64_t tokens = 0, longest = 0, count = 0;
  for (const int64_t index : indices) {
    tokens += std::ssize(texts.ids[index]);
    longest = std::max(longest, texts.longest(index));
    count += texts.num_windows(index);
  }
  switch (batching) {
    case Batching::kPacked: return packed_rows(tokens);
    case Batching::kGrouped:
    case Batching::kDynamic: return count * longest;
    case Batching::kPadded: return count * max_length;
  }
  TORCH_INTERNAL_ASSERT(false, "unknown batching");
}

PackedBatch collate(const TokenizedTexts& texts,
                    std::span<const int64_t> indices,
                    Batching batching,
                    int64_t max_length,
                    int64_t pad_id) {
  std::vector<std::span<const int32_t>> ids, token_types;
  int64_t tokens = 0, longest = 0;
  std::vector<int64_t> window_counts;
  for (int64_t index : indices) {
    tokens += std::ssize(texts.ids[index]);
    longest = std::max(longest, texts.longest(index));
    if (!texts.window_lengths.empty()) {
      window_counts.push_back(texts.num_windows(index));
    }
    append_windows(texts, index, texts.ids, ids);
    append_windows(texts, index, texts.token_types, token_types);
  }
  PackOptions options;
  options.pad_id = pad_id;
  switch (batching) {
    case Batching::kPacked: options.rows = packed_rows(tokens); break;
    case Batching::kGrouped:
    case Batching::kDynamic: options.pad_to = longest; break;
    case Batching::kPadded: options.pad_to = max_length; break;
  }
  PackedBatch batch = pack(ids, options, token_types);
  if (!window_counts.empty()) batch.window_counts = at::tensor(window_counts, at::kLong);
  if (texts.targets.defined() && !texts.word_ids.empty()) {
    batch.targets = at::full({batch.input_ids.size(0)}, TokenizedTexts::kNoTarget, at::kLong);
    const auto first = batch.cu_seqlens.accessor<int32_t, 1>(), count = batch.seqlens.accessor<int32_t, 1>();
    for (int64_t b = 0; b < batch.size(); ++b) {
      batch.targets.narrow(0, first[b], count[b])
          .copy_(texts.targets[indices[static_cast<size_t>(b)]].narrow(0, 0, count[b]));
    }
  } else if (texts.targets.defined()) {
    batch.targets = texts.targets.index_select(0, at::tensor(at::ArrayRef<int64_t>(indices.data(), indices.size())));
  }
  return batch;
}

}  // namespace mezzo::text
