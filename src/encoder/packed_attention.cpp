#include "encoder/packed_attention.h"

#include <ATen/Context.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>

#include "kernels/philox.h"

namespace mezzo::kernels {
namespace {

/// LibTorch's flash attention: half types on CUDA, sequences side by side without padding.
bool can_flash(const at::Tensor& query, int64_t num_heads, const SequenceLayout& layout) {
  constexpr int64_t kLargestHead = 256;
  const auto dtype = query.scalar_type();
  return query.is_cuda() && (dtype == at::kHalf || dtype == at::kBFloat16) && layout.is_gapless() &&
         query.size(1) / num_heads <= kLargestHead && query.size(1) / num_heads % 8 == 0;
}

/// The op draws from the device's generator: keyed anew for every call, it draws the same in every run.
void key_generator(const at::Device& device, const RandomKey& key) {
  const auto words = Philox::generate({key.step, key.site, 0, 0}, key.seed);
  auto generator = at::globalContext().defaultGenerator(device);
  generator.set_current_seed(uint64_t{words[0]} << 32 | words[1]);
}

at::Tensor flash_attention(const at::Tensor& query,
                           const at::Tensor& key,
                           const at::Tensor& value,
                           int64_t num_heads,
                           const SequenceLayout& layout,
                           const DropoutSite& dropout) {
  std::vector<int32_t> cu_seqlens{0};
  int64_t longest = 0;
  for (const Sequence& sequence : layout.sequences()) {
    cu_seqlens.push_back(cu_seqlens.back() + static_cast<int32_t>(sequence.num_tokens));
    longest = std::max(longest, sequence.num_tokens);
  }
  const int64_t tokens = cu_seqlens.back(), head_size = query.size(1) / num_heads;
  const auto heads_of = [&](const at::Tensor& rows) {  // [T, H] -> [tokens, heads, head_size]
    return rows.narrow(0, 0, tokens).view({tokens, num_heads, head_size});
  };
  const auto cumulated = at::tensor(cu_seqlens, at::kInt).to(query.device());
  if (dropout.p > 0) {
    key_generator(query.device(), dropout.key);
  }
  const auto context = std::get<0>(at::_flash_attention_forward(
      heads_of(query), heads_of(key), heads_of(value), cumulated, cumulated, longest, longest, dropout.p,
      /*is_causal=*/false, /*return_debug_mask=*/false, 1 / std::sqrt(static_cast<double>(head_size))));
  return at::constant_pad_nd(context.reshape({tokens, query.size(1)}), {0, 0, 0, query.size(0) - tokens});
}

}  // namespace

SequenceLayout::SequenceLayout(const at::Tensor& cu_seqlens,
                               const at::Tensor& seqlens,
                               int64_t num_rows,
                               const at::Device& device)
    : num_rows_(num_rows) {
  TORCH_CHECK_VALUE(cu_seqlens.numel() == seqlens.numel() + 1, "SequenceLayout: ", cu_seqlens.numel(),
                    " rows in cu_seqlens for ", seqlens.numel(),
                    " sequences; there is one more, where the last one ends");
  const auto first = cu_seqlens.accessor<int32_t, 1>(), counts = seqlens.accessor<int32_t, 1>();
  const int64_t batch_size = counts.size(0);
  int64_t free_from = 0;  // the rows before are others'
  for (int64_t b = 0; b < batch_size; ++b) {
    const int64_t begin = first[b], count = counts[b], end = first[b + 1];
    TORCH_CHECK_VALUE(count > 0 && begin >= free_from && begin + count <= end && end <= num_rows,
                      "SequenceLayout: sequence ", b, " has ", count, " tokens in rows ", begin, " to ", end - 1,
                      " of ", num_rows, ", and the sequences before it own those up to ", free_from - 1,
                      "; each needs one token at least, rows for all of them, and rows behind those of the one before");
    sequences_.push_back({begin, count});
    free_from = end;
  }
  first_rows_ = cu_seqlens.narrow(0, 0, batch_size).to(device, at::kLong);
}

bool SequenceLayout::is_gapless() const {
  int64_t next = 0;
  for (const Sequence& sequence : sequences_) {
    if (sequence.first_row != next) {
      return false;
    }
    next += sequence.num_tokens;
  }
  return true;
}

at::Tensor packed_attention(const at::Tensor& query,
                            const at::Tensor& key,
                            const at::Tensor& value,
                            int64_t num_heads,
                            const SequenceLayout& layout,
                            const DropoutSite& dropout) {
  return can_flash(query, num_heads, layout)
             ? flash_attention(query, key, value, num_heads, layout, dropout)
             : reference::packed_attention(query, key, value, num_heads, layout, dropout);
}

}  // namespace mezzo::kernels
