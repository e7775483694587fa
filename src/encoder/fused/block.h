#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <string>
#include <utility>

#include "amp/policy_region.h"
#include "amp/tensor_caster.h"
#include "encoder/block_ops.h"
#include "encoder/fused/next_input.h"
#include "encoder/fused_blocks.h"
#include "encoder/int8_weights.h"
#include "encoder/packed_weights.h"
#include "encoder/products.h"
#include "encoder/side_by_side.h"
#include "memory/side_stream.h"

/// Code that the blocks share.
namespace mezzo::encoder::fused {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Stands for an undefined tensor among the inputs of a node, of which autograd takes none.
inline const at::Tensor& absent() {
  static const at::Tensor tensor = [] {
    const c10::InferenceMode no_inference(false);
    return at::empty({0});
  }();
  return tensor;
}

/// A node of the graph. Its forward gets the inputs in one list, to be read by `inputs_of`. Its backward returns a
/// gradient for each input, and an undefined one for the settings.
template <class Node>
auto apply_node(variable_list inputs, const typename Node::Settings& settings) {
  for (at::Tensor& input : inputs) {
    input = input.defined() ? input : absent();
  }
  return Node::apply(at::TensorList(inputs), settings);
}

inline variable_list inputs_of(at::TensorList given) {
  variable_list inputs = given.vec();
  for (at::Tensor& input : inputs) {
    input = input.is_same(absent()) ? at::Tensor() : input;
  }
  return inputs;
}

/// While it lives, autocast casts nothing: the block has made its casts.
struct NoAutocast {
  c10::impl::ExcludeDispatchKeyGuard guard{c10::autocast_dispatch_keyset};
};

/// The computations between products on the device of `x`.
inline const BlockOps& ops_of(const at::Tensor& x) { return *block_ops(x.device()); }

/// The dtype of a matrix product of `x`: autocast's dtype, or the dtype of `x`.
inline at::ScalarType compute_dtype(const at::Tensor& x) {
  const auto type = x.device().type();
  return at::autocast::is_autocast_enabled(type) ? at::autocast::get_autocast_dtype(type) : x.scalar_type();
}

/// A weight to compute with, and the tensor that its gradient goes to: a float32 weight gets
/// it in float32, cast or not. Without gradients it is in int8 if its half copy is.
struct Weight {
  Weight(const LinearParams& params, at::ScalarType dtype, bool may_be_int8 = true) : leaf(params.weight) {
    // Packed ones are for prediction: of changes between forward and backward autograd would not know.
    const bool has_half_copy = params.half_copy.defined() && params.half_copy.scalar_type() == dtype &&
                               !(at::GradMode::is_enabled() && is_packed_weight(params.half_copy));
    if (may_be_int8 && params.half_copy.defined() && is_int8_weight(params.half_copy) && !at::GradMode::is_enabled()) {
      value = params.half_copy;
    } else if (has_half_copy && (leaf.scalar_type() == at::kFloat || is_packed_weight(params.half_copy))) {
      value = params.half_copy;
    } else if (leaf.scalar_type() == dtype) {
      value = leaf.detach();
    } else {
      static const std::string name = "mezzo::linear";  // in logs
      const auto type = leaf.device().type();
      const TensorCaster caster(type, name, CastPolicy::kLowerPrecision, PolicyRegion::current_log(type));
      const auto cast = caster.cast(leaf, dtype);  // once in a region of autocast
      leaf = leaf.scalar_type() == at::kFloat ? leaf : cast;
      value = cast.detach();
    }
  }
  at::Tensor leaf, value;
};

/// x as products of `dtype` with a weight take it: those with int8 make integers of what there is.
inline at::Tensor input_of_products(const at::Tensor& x, const at::Tensor& weight, at::ScalarType dtype) {
  if (is_int8_weight(weight)) {
    return x;
  }
  const auto written = NextInput::of(x, dtype);
  return written.defined() ? written : x.to(dtype);
}

/// a b, of `dtype`, where nothing else can be computed meanwhile.
inline at::Tensor matrix_product(const at::Tensor& a, const at::Tensor& b, std::optional<at::ScalarType> dtype = {}) {
  Products products;
  const auto result = products.add(a, b, dtype);
  products.compute();
  return result;
}

/// The gradient of a linear layer's weight, of `dtype`, once `products` are computed, in a
/// SideStream; if it is wanted.
inline at::Tensor grad_weight(const AutogradContext* ctx,
                              size_t input,
                              Products& products,
                              const at::Tensor& grad,
                              const at::Tensor& x,
                              at::ScalarType dtype) {
  return ctx->needs_input_grad(input) ? products.add_aside(grad.t(), x, dtype) : at::Tensor();
}

/// A vector of sums as the gradient of `param`: to autograd a separate tensor, in the memory of `sums` if the dtypes
/// agree. In a SideStream, as the sums may be.
inline at::Tensor grad_vector(const at::Tensor& sums, const at::Tensor& param) {
  auto grad = sums;
  if (sums.scalar_type() != param.scalar_type()) {
    grad = at::empty(sums.sizes(), sums.options().dtype(param.scalar_type()));
    SideStream::run({grad, sums}, [&] { grad.copy_(sums); });
  }
  return split_rows(grad, 1).front();
}

inline at::Tensor grad_if_defined(const at::Tensor& sums, const at::Tensor& param) {
  return param.defined() ? grad_vector(sums, param) : param;
}

/// A node's settings, kept for backward beside its tensors.
template <class Settings>
struct Kept : torch::CustomClassHolder {
  explicit Kept(Settings given) : settings(std::move(given)) {}
  Settings settings;
};

template <class Settings>
void keep(AutogradContext* ctx, Settings settings) {
  ctx->saved_data["settings"] = at::IValue::make_capsule(c10::make_intrusive<Kept<Settings>>(std::move(settings)));
}

template <class Settings>
c10::intrusive_ptr<Kept<Settings>> kept(const AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<Kept<Settings>>(ctx->saved_data.at("settings").toCapsule());
}

/// Blocks have no second derivative; asking for one must not give a wrong first.
inline void check_once_differentiable(const char* block) {
  TORCH_CHECK_NOT_IMPLEMENTED(!at::GradMode::is_enabled(), "mezzo: the fused ", block,
                              " is differentiable once; create_graph cannot pass through it");
}

/// The first steps of a node's backward. While it lives, autocast casts nothing, and there is a SideStream.
template <class Settings>
struct Backward {
  /// @param block  its name in messages
  Backward(const AutogradContext* ctx, const char* block) : holder(kept<Settings>(ctx)) {
    check_once_differentiable(block);
  }

  const NoAutocast no_autocast = {};
  const SideStream aside = {};
  const c10::intrusive_ptr<Kept<Settings>> holder;
  const Settings& settings = holder->settings;
};

}  // namespace mezzo::encoder::fused
