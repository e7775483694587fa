// The modules that encoders are made of, with transformers' parameter names.
#pragma once

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "encoder/blocks.h"
#include "encoder/int8_weights.h"
#include "encoder/packed_weights.h"
#include "encoder/sequence_layout.h"
#include "mezzo/text/data/packed_batch.h"
#include "text/models/dropout_sites.h"

namespace mezzo::text {

/// A module that holds its parameters in members, too, for speed.
class Parametrized : public torch::nn::Module {
 public:
  /// Puts a tensor in the place of a parameter: the same tensor, not a copy, so its gradient and its hooks are used.
  /// @throws c10::ValueError  for another shape than the parameter has
  virtual void adopt(const std::string& name, const at::Tensor& tensor) {
    at::Tensor& parameter = parameters_[name];
    TORCH_CHECK_VALUE(tensor.sizes() == parameter.sizes(), name, " is ", tensor.sizes(), ", expected ",
                      parameter.sizes());
    for (at::Tensor* member : members()) {
      if (member->is_same(parameter)) *member = tensor;
    }
    parameter = tensor;
  }

 protected:
  virtual std::vector<at::Tensor*> members() = 0;
};

/// y = x weight^T + bias; with add_lora(), the weight has scale · lora_B lora_A added to it.
class Dense : public Parametrized {
 public:
  Dense(int64_t in, int64_t out, bool has_bias = true)
      : weight(register_parameter("weight", at::empty({out, in}))),
        bias(has_bias ? register_parameter("bias", at::empty({out})) : at::Tensor()) {}
  at::Tensor forward(const at::Tensor& x) const { return at::linear(x, merged(), bias); }

  /// Adds the factors of LoRA (Hu et al. 2021), not initialised.
  /// @param dropout  of their input while training, in params() alone
  /// @param site  that keys its masks
  void add_lora(int64_t rank, double scale, double dropout, uint32_t site) {
    lora_a = register_parameter("lora_A", at::empty({rank, weight.size(1)}, weight.options()));
    lora_b = register_parameter("lora_B", at::empty({weight.size(0), rank}, weight.options()));
    lora_scale_ = scale;
    lora_dropout = dropout;
    lora_site_ = site;
  }
  /// What takes the place of the weight; differentiable in the factors.
  at::Tensor merged() const {
    if (!lora_a.defined()) return weight;
    const c10::impl::ExcludeDispatchKeyGuard in_float32(c10::autocast_dispatch_keyset);
    auto sum = at::addmm(weight, lora_b, lora_a, 1, lora_scale_);
    if (release_weight) release_weight();
    return sum;
  }

  /// From now on keeps a copy of the weight in another dtype, which an optimizer may refresh when it updates the
  /// weight. Or keeps its packed_weight() or int8_weight(); none if undefined.
  void set_half_copy(at::Tensor half_copy) {
    half_copy_ = std::move(half_copy);
    lead_ = half_copy_.defined() ? lead() : 0;
  }

  void adopt(const std::string& name, const at::Tensor& tensor) override {
    Parametrized::adopt(name, tensor);
    set_half_copy({});
  }

  /// @param random  keys the dropout of LoRA's input
  encoder::LinearParams params(const DropoutSeed& random) {
    if (lora_a.defined() && lora_dropout > 0 && is_training()) {
      const auto site = dropout_site(lora_dropout, random, lora_site_);
      return {weight, bias, {}, encoder::LoraParams{lora_a, lora_b, lora_scale_, site}};
    }
    if (lora_a.defined()) return {merged(), bias, {}};
    if (half_copy_.defined() && lead() != lead_) {  // the weight changed, and its half copy did not
      if (encoder::is_int8_weight(half_copy_)) {
        half_copy_ = encoder::int8_weight(weight);
      } else if (encoder::is_packed_weight(half_copy_)) {
        half_copy_ = encoder::packed_weight(weight, half_copy_.scalar_type());
      } else {
        half_copy_.copy_(weight.detach());
      }
      lead_ = lead();
    }
    const bool may_use_half_copy = !(half_copy_.defined() && encoder::is_int8_weight(half_copy_) && is_training());
    return {weight, bias, may_use_half_copy ? half_copy_ : at::Tensor()};
  }

  at::Tensor weight, bias, lora_a, lora_b;
  double lora_dropout = 0;
  std::function<void()> release_weight;  ///< of a file: gives back the memory that reading it took

 protected:
  std::vector<at::Tensor*> members() override { return {&weight, &bias, &lora_a, &lora_b}; }

 private:
  /// By how many changes the weight is ahead. What updates both in step leaves it as it is.
  int64_t lead() const { return static_cast<int64_t>(weight._version()) - static_cast<int64_t>(half_copy_._version()); }

  at::Tensor half_copy_;
  int64_t lead_ = 0;
  double lora_scale_ = 1;
  uint32_t lora_site_ = 0;
};

/// The places of the texts in a batch.
inline encoder::SequenceLayoutPtr layout_of(const PackedBatch& batch) {
  const int64_t rows = batch.input_ids.size(0);
  return batch.sequence_table.defined()
             ? c10::make_intrusive<encoder::SequenceLayout>(batch.sequence_table, rows, batch.max_seqlen)
             : c10::make_intrusive<encoder::SequenceLayout>(batch.cu_seqlens, batch.seqlens, rows,
                                                            batch.input_ids.device());
}

/// A module with linear layers of the same input: one product, on GPUs, where their weights lie side
/// by side in memory, which ModelForTask sees to.
class SharesInput {
 public:
  virtual ~SharesInput() = default;
  virtual std::vector<at::Tensor> weights_of_one_input() const = 0;
};

class Embedding : public Parametrized {
 public:
  Embedding(int64_t rows, int64_t columns) : weight(register_parameter("weight", at::empty({rows, columns}))) {}
  at::Tensor weight;

 protected:
  std::vector<at::Tensor*> members() override { return {&weight}; }
};

class LayerNorm : public Parametrized {
 public:
  LayerNorm(int64_t size, double eps, bool has_bias = true)
      : weight_(register_parameter("weight", at::empty({size}))),
        bias_(has_bias ? register_parameter("bias", at::empty({size})) : at::Tensor()),
        eps_(eps) {}
  at::Tensor forward(const at::Tensor& x) const { return at::layer_norm(x, {x.size(-1)}, weight_, bias_, eps_); }
  encoder::LayerNormParams params() const { return {weight_, bias_, eps_}; }

 protected:
  std::vector<at::Tensor*> members() override { return {&weight_, &bias_}; }

 private:
  at::Tensor weight_, bias_;
  double eps_;
};

/// Registers a module at a place such as "attention.self.query"; missing modules on the path are
/// made, as plain containers.
template <class Registered>
std::shared_ptr<Registered> register_at(torch::nn::Module& root,
                                        std::string_view path,
                                        std::shared_ptr<Registered> module) {
  torch::nn::Module* parent = &root;
  for (size_t dot = path.find('.'); dot != std::string_view::npos; dot = path.find('.')) {
    const std::string name(path.substr(0, dot));
    const auto children = parent->named_children();
    const auto* const there = children.find(name);
    parent = (there ? *there : parent->register_module(name, std::make_shared<torch::nn::Module>())).get();
    path.remove_prefix(dot + 1);
  }
  return parent->register_module(std::string(path), std::move(module));
}

}  // namespace mezzo::text
