#include "mezzo/amp/master_weights.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <cctype>
#include <utility>

namespace mezzo {
namespace {

void check_parameter(const NamedParameter& parameter) {
  const auto& [name, tensor, shadow] = parameter;
  TORCH_CHECK_VALUE(tensor.scalar_type() == at::kFloat, "MasterWeights: parameter ", name, " is ", tensor.scalar_type(),
                    "; masters are made from float32 weights, before the model is cast");
  TORCH_CHECK_VALUE(!tensor.grad().defined(), "MasterWeights: parameter ", name,
                    " has a gradient already, of another dtype than its half copy; construct before the first backward "
                    "or drop the gradients");
}

/// Syncs: a weight that turned to inf would only show in the loss.
at::Tensor rounded(const std::string& name, const at::Tensor& values, c10::ScalarType dtype) {
  auto half = values.detach().to(dtype);
  const auto lost = half.isfinite().logical_not().logical_and(values.detach().isfinite());
  TORCH_CHECK_VALUE(!lost.any().item<bool>(), "MasterWeights: parameter ", name, " has values up to ",
                    values.detach().abs().max().item<float>(), ", which overflow ", dtype,
                    "; keep this parameter in float32, or use bfloat16");
  return half;
}

}  // namespace

bool is_norm_parameter(const NamedParameter& parameter) {
  const std::string& name = parameter.name;
  const size_t end = name.rfind('.');
  if (parameter.tensor.dim() != 1 || end == std::string::npos) {
    return false;
  }
  const size_t dot = name.rfind('.', end - 1);  // npos + 1 is 0
  std::string module = name.substr(dot + 1, end - dot - 1);
  for (char& c : module) {
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  const std::string letters = module.substr(0, 2);
  const bool is_short = (letters == "ln" || letters == "bn" || letters == "gn") &&
                        (module.size() == 2 || module[2] == '_' || std::isdigit(static_cast<unsigned char>(module[2])));
  return module.find("norm") != std::string::npos || is_short;
}

MasterWeights::MasterWeights(std::vector<NamedParameter> model, c10::ScalarType dtype, MasterWeightsOptions options)
    : dtype_(dtype) {
  TORCH_CHECK_VALUE(dtype == at::kHalf || dtype == at::kBFloat16,
                    "MasterWeights: dtype must be kHalf or kBFloat16, got ", dtype);
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> halves;
  for (const NamedParameter& parameter : model) {
    check_parameter(parameter);
    const bool stays = options.keep_norms_fp32() && options.is_norm()(parameter);
    halves.push_back(stays ? at::Tensor() : rounded(parameter.name, parameter.tensor, dtype));
  }
  for (size_t i = 0; i < model.size(); ++i) {
    auto& [name, tensor, shadow] = model[i];
    if (!halves[i].defined()) {
      masters_.push_back({name, tensor});
      continue;
    }
    if (!options.keeps() || options.keeps()(model[i])) {
      masters_.push_back({name, tensor.detach().clone().requires_grad_(tensor.requires_grad()), tensor});
    } else {
      masters_.push_back({name, tensor});
    }
    tensor.set_data(halves[i]);
  }
}

bool MasterWeights::is_elsewhere(const NamedParameter& master) const {
  return !master.shadow.defined() && master.tensor.scalar_type() == dtype_;
}

std::vector<at::Tensor> MasterWeights::parameters() const {
  std::vector<at::Tensor> tensors;
  for (const NamedParameter& master : masters_) {
    tensors.push_back(master.tensor);
  }
  return tensors;
}

void MasterWeights::accumulate_gradients() {
  const at::NoGradGuard no_grad;
  for (NamedParameter& master : masters_) {
    if (is_elsewhere(master)) {
      master.tensor.mutable_grad().reset();
    }
    if (!master.shadow.defined() || !master.shadow.grad().defined()) {
      continue;
    }
    at::Tensor& gradient = master.shadow.mutable_grad();
    at::Tensor& sum = master.tensor.mutable_grad();
    if (sum.defined()) {
      sum.add_(gradient);
    } else {
      sum = gradient.to(at::kFloat);
    }
    gradient.reset();
  }
}

void MasterWeights::copy_to_model() {
  const at::NoGradGuard no_grad;
  for (NamedParameter& master : masters_) {
    if (master.shadow.defined()) {
      master.shadow.copy_(master.tensor);
    }
  }
}

void MasterWeights::to_float32() {
  for (const NamedParameter& master : masters_) {
    TORCH_CHECK(!is_elsewhere(master), "MasterWeights: to_float32() needs all masters, but that of ", master.name,
                " is in another process; collect them, and load them into a float32 model");
  }
  for (NamedParameter& master : masters_) {
    if (master.shadow.defined()) {
      master.shadow.mutable_grad().reset();
      master.tensor.mutable_grad().reset();
      master.shadow.set_data(master.tensor.detach());
    }
  }
}

std::map<std::string, at::Tensor> MasterWeights::state_dict() const {
  std::map<std::string, at::Tensor> state;
  for (const NamedParameter& master : masters_) {
    if (!is_elsewhere(master)) {
      state[master.name] = master.tensor.detach();
    }
  }
  return state;
}

void MasterWeights::load_state_dict(const std::map<std::string, at::Tensor>& state) {
  const at::NoGradGuard no_grad;
  for (const NamedParameter& master : masters_) {
    const auto entry = state.find(master.name);
    TORCH_CHECK_VALUE(entry != state.end(), "MasterWeights: the state to load has no entry ", master.name);
    const at::Tensor& values = entry->second;
    TORCH_CHECK_VALUE(values.scalar_type() == at::kFloat && values.sizes() == master.tensor.sizes(),
                      "MasterWeights: entry ", master.name, " of the state to load is ", values.scalar_type(),
                      " of shape ", values.sizes(), ", expected Float of shape ", master.tensor.sizes(),
                      "; load a state saved from masters, or a float32 model");
    if (master.shadow.defined() || is_elsewhere(master)) {
      rounded(master.name, values, dtype_);
    }
  }
  TORCH_CHECK_VALUE(state.size() == masters_.size(), "MasterWeights: the state to load has ",
                    state.size() - masters_.size(), " entries that belong to no parameter");
  for (NamedParameter& master : masters_) {
    master.tensor.copy_(state.at(master.name));
  }
  copy_to_model();
}

}  // namespace mezzo
