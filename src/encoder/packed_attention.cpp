#include "encoder/packed_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <c10/core/DeviceGuard.h>

#include <optional>

#include "encoder/block_arguments.h"
#include "encoder/fused/block.h"
#include "encoder/fused/nodes.h"
#include "kernels/operator.h"

namespace mezzo::encoder {
namespace {

at::Tensor choose_packed_attention(const at::Tensor& query,
                                   const at::Tensor& key,
                                   const at::Tensor& value,
                                   const SequenceLayoutPtr& layout,
                                   const AttentionDescription& description) {
  if (!fused::can_attend(key, description)) {
    return reference::packed_attention(query, key, value, layout, description);
  }
  const auto dtype = fused::compute_dtype(key);
  const auto rows = [&](const at::Tensor& x) { return x.to(dtype).contiguous(); };
  return fused::packed_attention(rows(query), rows(key), rows(value), /*biases=*/{}, layout, description);
}

using PackedAttentionFunction = at::Tensor(
    const at::Tensor&, const at::Tensor&, const at::Tensor&, const SequenceLayoutPtr&, const AttentionDescription&);

template <PackedAttentionFunction& kCompute>
at::Tensor packed_attention_kernel(const at::Tensor& query,
                                   const at::Tensor& key,
                                   const at::Tensor& value,
                                   const SequenceLayoutPtr& layout,
                                   const AttentionHolderPtr& attention,
                                   const OptionalTensor& position_key,
                                   const OptionalTensor& position_query) {
  const auto checked = attention->with(position_key, position_query).checked(*layout, key.device(), key.size(1));
  layout->check({key, value}, checked.num_heads);
  const int64_t queries = checked.only_first_queries ? layout->size() : key.size(0);
  TORCH_CHECK_VALUE(query.dim() == 2 && query.size(0) == queries && query.size(1) == key.size(1),
                    "mezzo::packed_attention: needs ", queries, " queries of ", key.size(1), " columns, got ",
                    query.sizes());
  return kCompute(query, key, value, layout, checked);
}

const kernels::Operator<decltype(packed_attention_kernel<choose_packed_attention>)> packed_attention_op(
    "packed_attention(Tensor query, Tensor key, Tensor value, " + sequence_layout_schema() + " layout, " +
        attention_schema() + " attention, Tensor? position_key=None, Tensor? position_query=None) -> Tensor",
    kernels::meta_like_first(),
    kernels::choosing_kernels<&packed_attention_kernel<choose_packed_attention>>(),
    kernels::kernel<&packed_attention_kernel<reference::packed_attention>>(
        c10::DispatchKey::CompositeImplicitAutograd));

}  // namespace

at::Tensor rotary_table(int64_t positions, int64_t head_size, double theta) {
  TORCH_CHECK_VALUE(head_size % 2 == 0, "rotary_table: columns are turned in pairs, and a head has ", head_size);
  const auto exponents = at::arange(0, head_size, 2, at::kFloat) / head_size;
  const auto angles = at::outer(at::arange(positions, at::kFloat), 1.0 / at::pow(theta, exponents));
  return at::cat({angles.cos(), angles.sin()}, 1);
}

/// This hook of LibTorch asks the current device for it, and for cuDNN 8 or newer. Every LibTorch that mezzo builds
/// with has that.
bool has_tensor_cores(const at::Device& device) {
  if (!device.is_cuda()) {
    return true;
  }
  const c10::DeviceGuard guard(device);
  return at::detail::getCUDAHooks().supportsBFloat16ConvolutionWithCuDNNv8();
}

at::Tensor packed_attention(const at::Tensor& query,
                            const at::Tensor& key,
                            const at::Tensor& value,
                            const SequenceLayoutPtr& layout,
                            const AttentionDescription& description) {
  return packed_attention_op(query, key, value, layout, without_tables(description),
                             kernels::if_defined(description.relative.key),
                             kernels::if_defined(description.relative.query));
}

}  // namespace mezzo::encoder
