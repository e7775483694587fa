#include "encoder/packed_attention.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/tensor.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <optional>

#include "amp/random_state_guard.h"
#include "kernels/dtypes.h"
#include "kernels/operator.h"
#include "kernels/philox.h"
#include "memory/device_copy.h"

namespace mezzo::encoder {
namespace {

using kernels::kernel;

/// The op draws from the device's generator: keyed anew for every call, it
/// draws the same in every run.
void key_generator(at::Generator generator, const RandomKey& key) {
  const auto words = kernels::Philox::generate({key.step, key.site, 0, 0}, key.seed);
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(uint64_t{words[0]} << 32 | words[1]);
}

/// The op takes for granted that it can read sixteen bytes at a time.
at::Tensor readable_by_flash(const at::Tensor& rows) {
  constexpr int64_t kAtOnce = 16;
  const auto is_multiple = [](uint64_t bytes) { return bytes % kAtOnce == 0; };
  const auto row_bytes = static_cast<uint64_t>(rows.stride(0) * rows.element_size());
  if (rows.stride(1) == 1 && is_multiple(row_bytes) &&
      is_multiple(reinterpret_cast<uintptr_t>(rows.const_data_ptr()))) {
    return rows;
  }
  return rows.clone(at::MemoryFormat::Contiguous);
}

at::Tensor flash_attention(const at::Tensor& query,
                           const at::Tensor& key,
                           const at::Tensor& value,
                           int64_t num_heads,
                           const SequenceLayoutPtr& layout,
                           const DropoutSite& dropout,
                           const TokenPositions& positions) {
  std::vector<int32_t> cu_seqlens{0};
  std::vector<int64_t> places;
  int64_t longest = 0;
  for (const Sequence& sequence : layout->sequences()) {
    cu_seqlens.push_back(cu_seqlens.back() + static_cast<int32_t>(sequence.num_tokens));
    longest = std::max(longest, sequence.num_tokens);
    for (int64_t i = 0; i < sequence.num_tokens && positions.rotary.defined(); ++i) {
      places.push_back(i);
    }
  }
  const int64_t tokens = cu_seqlens.back(), head_size = query.size(1) / num_heads;
  // Parts of all rows are views, which autograd would copy.
  const auto of_tokens = [&](const at::Tensor& rows) {
    return tokens == rows.size(0) ? rows : rows.narrow(0, 0, tokens);
  };
  const auto heads_of = [&](const at::Tensor& rows) {  // [T, H] -> [tokens, heads, head_size]
    return readable_by_flash(of_tokens(rows)).view({tokens, num_heads, head_size});
  };
  const auto turned = [&](const at::Tensor& rows) {
    return places.empty() ? heads_of(rows)
                          : reference::rotate(
                                heads_of(rows),
                                positions.rotary.index_select(0, copy_to(at::tensor(places, at::kLong), query.device()))
                                    .unsqueeze(1));
  };
  const auto cumulated = copy_to(at::tensor(cu_seqlens, at::kInt), query.device());
  std::optional<RandomStateGuard> random_state;  // what the user draws next is not ours to change
  if (dropout.p > 0) {
    const auto& generator = at::globalContext().defaultGenerator(query.device());
    RandomStates states;
    states.add(generator);
    random_state.emplace(std::move(states));
    key_generator(generator, dropout.key);
  }
  const auto context = std::get<0>(at::_flash_attention_forward(
      turned(query), turned(key), heads_of(value), cumulated, cumulated, longest, longest, dropout.p,
      /*is_causal=*/false, /*return_debug_mask=*/false, 1 / std::sqrt(static_cast<double>(head_size)), positions.window,
      positions.window));
  const auto rows = context.reshape({tokens, query.size(1)});
  return tokens == query.size(0) ? rows : at::constant_pad_nd(rows, {0, 0, 0, query.size(0) - tokens});
}

using PackedAttentionFunction = at::Tensor(const at::Tensor&,
                                           const at::Tensor&,
                                           const at::Tensor&,
                                           int64_t,
                                           const SequenceLayoutPtr&,
                                           const DropoutSite&,
                                           const TokenPositions&,
                                           const RelativePositions&);

at::Tensor choose_packed_attention(const at::Tensor& query,
                                   const at::Tensor& key,
                                   const at::Tensor& value,
                                   int64_t num_heads,
                                   const SequenceLayoutPtr& layout,
                                   const DropoutSite& dropout,
                                   const TokenPositions& positions,
                                   const RelativePositions& relative) {
  const bool flashes = runs_flash(query.device(), query.scalar_type(), query.size(1) / num_heads, layout) &&
                       !relative.defined() && !dropout.step_offset.defined();  // its generator is keyed by the host
  return flashes ? flash_attention(query, key, value, num_heads, layout, dropout, positions)
                 : reference::packed_attention(query, key, value, num_heads, layout, dropout, positions, relative);
}

template <PackedAttentionFunction& kCompute>
at::Tensor packed_attention_kernel(const at::Tensor& query,
                                   const at::Tensor& key,
                                   const at::Tensor& value,
                                   int64_t num_heads,
                                   const SequenceLayoutPtr& layout,
                                   double dropout,
                                   int64_t seed,
                                   int64_t step,
                                   int64_t site,
                                   const std::optional<at::Tensor>& step_offset,
                                   const std::optional<at::Tensor>& rotary,
                                   std::optional<int64_t> window,
                                   const std::optional<at::Tensor>& position_key,
                                   const std::optional<at::Tensor>& position_query,
                                   const std::optional<at::Tensor>& position_rows) {
  layout->check({query, key, value}, num_heads);
  const auto positions = TokenPositions::of(rotary, window, *layout, query.device(), query.size(1) / num_heads);
  return kCompute(
      query, key, value, num_heads, layout, DropoutSite::of(dropout, seed, step, site, step_offset, query.device()),
      positions,
      RelativePositions::of(position_key, position_query, position_rows, *layout, query.device(), query.size(1)));
}

const kernels::Operator<decltype(packed_attention_kernel<choose_packed_attention>)> packed_attention_op(
    "packed_attention(Tensor query, Tensor key, Tensor value, int num_heads, " + sequence_layout_schema() +
        " layout, float dropout, int seed, int step, int site, Tensor? step_offset=None, Tensor? rotary=None, "
        "int? window=None, Tensor? position_key=None, Tensor? position_query=None, Tensor? position_rows=None) -> "
        "Tensor",
    kernel<&packed_attention_kernel<choose_packed_attention>>(c10::DispatchKey::CUDA),
    kernel<&packed_attention_kernel<choose_packed_attention>>(c10::DispatchKey::AutogradCUDA),
    kernels::meta_like_first(),
    kernel<&packed_attention_kernel<reference::packed_attention>>(c10::DispatchKey::CompositeImplicitAutograd));

}  // namespace

at::Tensor rotary_table(int64_t positions, int64_t head_size, double theta) {
  TORCH_CHECK_VALUE(head_size % 2 == 0, "rotary_table: columns are turned in pairs, and a head has ", head_size);
  const auto exponents = at::arange(0, head_size, 2, at::kFloat) / head_size;
  const auto angles = at::outer(at::arange(positions, at::kFloat), 1.0 / at::pow(theta, exponents));
  return at::cat({angles.cos(), angles.sin()}, 1);
}

TokenPositions TokenPositions::of(const std::optional<at::Tensor>& rotary,
                                  std::optional<int64_t> window,
                                  const SequenceLayout& layout,
                                  const at::Device& device,
                                  int64_t head_size) {
  TORCH_CHECK_VALUE(window.value_or(0) >= 0, "mezzo: a window of attention cannot be ", *window);
  if (!rotary) {
    return {{}, window};
  }
  TORCH_CHECK_VALUE(rotary->dim() == 2 && rotary->size(0) >= layout.longest() && rotary->size(1) == head_size &&
                        head_size % 2 == 0 && rotary->is_floating_point() && rotary->device() == device,
                    "mezzo: a rotary table for heads of ", head_size, " columns and sequences of up to ",
                    layout.longest(), " tokens on ", device, " cannot be ", rotary->scalar_type(), rotary->sizes(),
                    " on ", rotary->device());
  return {rotary->detach(), window};
}

/// This hook of LibTorch asks the current device for it, and that its cuDNN is 8 or newer, as that of
/// every LibTorch that mezzo builds with is.
bool has_tensor_cores(const at::Device& device) {
  if (!device.is_cuda()) {
    return true;
  }
  const c10::DeviceGuard guard(device);
  return at::detail::getCUDAHooks().supportsBFloat16ConvolutionWithCuDNNv8();
}

bool has_flash(const at::Device& device, at::ScalarType dtype, int64_t head_size) {
  constexpr int64_t kLargestHead = 192;  // with more, consumer GPUs (8.6, 8.9, 12.0) have no backward pass
  return device.is_cuda() && is_half(dtype) && head_size <= kLargestHead && head_size % 8 == 0 &&
         has_tensor_cores(device);
}

bool prefers_flash(const at::Device& device, at::ScalarType dtype, int64_t head_size, int64_t longest) {
  constexpr int64_t kShort = 128;  // a block of ours holds so many rows at once
  return longest > kShort && has_flash(device, dtype, head_size);
}

bool runs_flash(const at::Device& device, at::ScalarType dtype, int64_t head_size, const SequenceLayoutPtr& layout) {
  return has_flash(device, dtype, head_size) && layout->is_known() && layout->size() > 0 && layout->is_gapless();
}

at::Tensor packed_attention(const at::Tensor& query,
                            const at::Tensor& key,
                            const at::Tensor& value,
                            int64_t num_heads,
                            const SequenceLayoutPtr& layout,
                            const DropoutSite& dropout,
                            const TokenPositions& positions,
                            const RelativePositions& relative) {
  const RandomKey& random = dropout.key;
  return packed_attention_op(query, key, value, num_heads, layout, dropout.p, static_cast<int64_t>(random.seed),
                             random.step, random.site, kernels::if_defined(dropout.step_offset),
                             kernels::if_defined(positions.rotary), positions.window, kernels::if_defined(relative.key),
                             kernels::if_defined(relative.query), kernels::if_defined(relative.rows));
}

}  // namespace mezzo::encoder
