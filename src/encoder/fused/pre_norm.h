#pragma once

#include <algorithm>
#include <optional>

#include "encoder/fused/block.h"
#include "encoder/pre_norm_blocks.h"
#include "kernels/operator.h"

/// What the nodes of pre-norm blocks share.
namespace mezzo::encoder::fused {

using kernels::if_defined;
using MaybeTensor = std::optional<at::Tensor>;  // as nodes take what may be undefined

inline const PreNormOps& pre_norm_ops_of(const at::Tensor& x) { return *ops_of(x).pre_norm; }

/// The number that autograd gives the input of a node, for which it counts defined ones alone.
/// @param saved  begins with the inputs
inline size_t edge_of(const variable_list& saved, size_t input) {
  return std::count_if(saved.begin(), saved.begin() + static_cast<ptrdiff_t>(input),
                       [](const at::Tensor& tensor) { return tensor.defined(); });
}

inline at::Tensor grad_if_defined(const at::Tensor& sums, const at::Tensor& param) {
  return param.defined() ? grad_vector(sums, param) : param;
}

}  // namespace mezzo::encoder::fused
