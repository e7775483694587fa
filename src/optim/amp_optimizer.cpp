#include "mezzo/optim/amp_optimizer.h"

#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/optim/lbfgs.h>

#include <memory>
#include <typeinfo>

namespace mezzo {
namespace {

at::Tensor clone_if_defined(const at::Tensor& tensor) { return tensor.defined() ? tensor.clone() : tensor; }

template <class Tensors>
Tensors clone_all(Tensors tensors) {
  for (at::Tensor& tensor : tensors) {
    tensor = clone_if_defined(tensor);
  }
  return tensors;
}

/// `clone()` shares the tensors; LBFGS changes some of them in place.
std::unique_ptr<torch::optim::OptimizerParamState> deep_copy(const torch::optim::OptimizerParamState& state) {
  auto copy = state.clone();
  if (auto* lbfgs = dynamic_cast<torch::optim::LBFGSParamState*>(copy.get())) {
    lbfgs->d(clone_if_defined(lbfgs->d()));
    lbfgs->H_diag(clone_if_defined(lbfgs->H_diag()));
    lbfgs->prev_flat_grad(clone_if_defined(lbfgs->prev_flat_grad()));
    lbfgs->old_dirs(clone_all(lbfgs->old_dirs()));
    lbfgs->old_stps(clone_all(lbfgs->old_stps()));
    lbfgs->ro(clone_all(lbfgs->ro()));
    if (lbfgs->al()) {
      lbfgs->al(clone_all(*lbfgs->al()));
    }
  }
  return copy;
}

}  // namespace

std::string AmpOptimizer::parameter_name(size_t index) const { return "parameter " + std::to_string(index); }

std::optional<at::Tensor> AmpOptimizer::check_gradients(const std::optional<at::Tensor>& /*scale*/) {
  return std::nullopt;
}

at::Tensor AmpOptimizer::master_of(size_t /*index*/) const { return {}; }

at::Tensor AmpOptimizer::step_scaled(const std::optional<at::Tensor>& /*grad_scale*/, const at::Tensor& /*found_inf*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, name(), " says that it applies the scale itself, but has no step_scaled().");
}

std::string TorchOptimizerAdapter::name() const { return c10::demangle(typeid(optimizer_).name()); }

std::string TorchOptimizerAdapter::parameter_name(size_t index) const {
  size_t group = 0;
  for (const auto& param_group : optimizer_.param_groups()) {
    if (index < param_group.params().size()) {
      break;
    }
    index -= param_group.params().size();
    ++group;
  }
  return AmpOptimizer::parameter_name(index) + " of group " + std::to_string(group);
}

void TorchOptimizerAdapter::visit_parameters(const ParameterVisitor& visit) {
  for (auto& group : optimizer_.param_groups()) {
    for (at::Tensor& parameter : group.params()) {
      visit(parameter);
    }
  }
}

std::function<void()> TorchOptimizerAdapter::save_state() {
  using State = std::remove_reference_t<decltype(optimizer_.state())>;
  auto saved = std::make_shared<State>();
  for (const auto& [key, state] : optimizer_.state()) {
    saved->emplace(key, deep_copy(*state));
  }
  return [this, saved] { optimizer_.state() = std::move(*saved); };
}

AmpOptimizerRef::AmpOptimizerRef(torch::optim::Optimizer& optimizer)
    : optimizer_(dynamic_cast<AmpOptimizer*>(&optimizer)) {
  if (optimizer_ == nullptr) {
    optimizer_ = &adapter_.emplace(optimizer);
  }
}

}  // namespace mezzo
