#include "mezzo/amp/master_weights.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "kernels/dtypes.h"
#include "memory/converted.h"
#include "memory/device_copy.h"

namespace mezzo {
namespace {

void check_parameter(const NamedParameter& parameter) {
  const auto& [name, tensor, half_copy, norm] = parameter;
  TORCH_CHECK_VALUE(tensor.scalar_type() == at::kFloat, "MasterWeights: parameter ", name, " is ",
                    dtype_name(tensor.scalar_type()),
                    "; masters are made from float32 weights, before the model is cast");
  TORCH_CHECK_VALUE(!tensor.grad().defined(), "MasterWeights: parameter ", name,
                    " has a gradient already, of another dtype than its half copy; construct before the first backward "
                    "or drop the gradients");
}

/// Tells of all weights that were rounded whether one turned to inf, which would only
/// show in the loss.
class Rounding {
 public:
  explicit Rounding(c10::ScalarType dtype) : dtype_(dtype) {}

  void add(const std::string& name, const at::Tensor& values, const at::Tensor& half) {
    const auto lost = half.isfinite().logical_not().logical_and(values.detach().isfinite()).any();
    checked_.push_back({name, values});
    lost_.push_back(lost_.empty() ? lost : copy_to(lost, lost_.front().device()));
  }

  /// Syncs once.
  void check() const {
    if (lost_.empty()) {
      return;
    }
    const auto lost = at::stack(lost_).cpu();
    for (size_t i = 0; i < checked_.size(); ++i) {
      const auto& [name, values] = checked_[i];
      TORCH_CHECK_VALUE(!lost.const_data_ptr<bool>()[i], "MasterWeights: parameter ", name, " has values up to ",
                        values.detach().abs().max().item<float>(), ", which overflow ", dtype_name(dtype_),
                        "; keep this parameter in float32, or use bfloat16");
    }
  }

 private:
  c10::ScalarType dtype_;
  std::vector<std::pair<std::string, at::Tensor>> checked_;
  std::vector<at::Tensor> lost_;
};

}  // namespace

MasterWeights::MasterWeights(std::vector<NamedParameter> model, c10::ScalarType dtype, MasterWeightsOptions options)
    : dtype_(dtype) {
  TORCH_CHECK_VALUE(is_half(dtype), "MasterWeights: dtype must be float16 or bfloat16, got ", dtype_name(dtype));
  const at::NoGradGuard no_grad;
  std::vector<size_t> rounded;  // of weights_
  std::vector<at::Tensor> values;
  std::map<const void*, std::string> first_names;
  std::map<std::string, const void*> named;
  for (const NamedParameter& parameter : model) {
    check_parameter(parameter);
    const void* const identity = parameter.tensor.unsafeGetTensorImpl();
    const auto [one, is_new_name] = named.try_emplace(parameter.name, identity);
    TORCH_CHECK_VALUE(one->second == identity, "MasterWeights: two parameters are named ", parameter.name,
                      "; give each its own name");
    const auto [first, is_new] = first_names.try_emplace(identity, parameter.name);
    if (!is_new) {
      if (is_new_name) {
        first_name_of_[parameter.name] = first->second;
      }
      continue;
    }
    if (!options.stays_fp32(parameter)) {
      rounded.push_back(weights_.size());
      values.push_back(parameter.tensor.detach());
    }
    weights_.push_back({parameter.name, parameter.tensor, /*half_copy=*/{}, parameter.norm});
  }
  const auto halves = converted(values, dtype);
  values.clear();
  Rounding rounding(dtype);
  for (size_t i = 0; i < rounded.size(); ++i) {
    rounding.add(weights_[rounded[i]].name, weights_[rounded[i]].tensor, halves[i]);
  }
  rounding.check();
  for (size_t i = 0; i < rounded.size(); ++i) {
    auto& [name, tensor, half_copy, norm] = weights_[rounded[i]];
    half_copy = tensor;
    tensor = half_copy.detach().clone().requires_grad_(half_copy.requires_grad());
    half_copy.set_data(halves[i]);
  }
  std::ranges::copy_if(weights_, std::back_inserter(masters_),
                       [](const NamedParameter& weight) { return weight.tensor.requires_grad(); });
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
    if (!master.half_copy.defined() || !master.half_copy.grad().defined()) {
      continue;
    }
    at::Tensor& gradient = master.half_copy.mutable_grad();
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
  for (NamedParameter& weight : weights_) {
    if (weight.half_copy.defined()) {
      weight.half_copy.copy_(weight.tensor);
    }
  }
}

void MasterWeights::to_float32() {
  for (NamedParameter& weight : weights_) {
    if (weight.half_copy.defined()) {
      weight.half_copy.mutable_grad().reset();
      weight.tensor.mutable_grad().reset();
      weight.half_copy.set_data(weight.tensor.detach());
    }
  }
}

std::map<std::string, at::Tensor> MasterWeights::state_dict() const {
  std::map<std::string, at::Tensor> state;
  for (const NamedParameter& weight : weights_) {
    state[weight.name] = weight.tensor.detach();
  }
  for (const auto& [name, first] : first_name_of_) {
    state[name] = state.at(first);
  }
  return state;
}

void MasterWeights::load_state_dict(const std::map<std::string, at::Tensor>& state) {
  const at::NoGradGuard no_grad;
  size_t used = weights_.size();
  Rounding rounding(dtype_);
  for (const NamedParameter& weight : weights_) {
    const auto entry = state.find(weight.name);
    TORCH_CHECK_VALUE(entry != state.end(), "MasterWeights: the state to load has no entry ", weight.name);
    const at::Tensor& values = entry->second;
    TORCH_CHECK_VALUE(values.scalar_type() == at::kFloat && values.sizes() == weight.tensor.sizes(),
                      "MasterWeights: entry ", weight.name, " of the state to load is ",
                      dtype_name(values.scalar_type()), " of shape ", values.sizes(), ", expected float32 of shape ",
                      weight.tensor.sizes(), "; load a state saved from masters, or a float32 model");
    if (weight.half_copy.defined()) {
      rounding.add(weight.name, values, values.detach().to(dtype_));
    }
  }
  for (const auto& [name, first] : first_name_of_) {
    if (const auto entry = state.find(name); entry != state.end()) {
      const at::Tensor &same = state.at(first), &values = entry->second;
      TORCH_CHECK_VALUE(values.scalar_type() == same.scalar_type() && values.equal(same), "MasterWeights: entries ",
                        first, " and ", name,
                        " of the state to load differ, but belong to one parameter of this model");
      ++used;
    }
  }
  TORCH_CHECK_VALUE(state.size() == used, "MasterWeights: the state to load has ", state.size() - used,
                    " entries that belong to no parameter");
  rounding.check();
  for (NamedParameter& weight : weights_) {
    weight.tensor.copy_(state.at(weight.name));
  }
  copy_to_model();
}

torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive, const MasterWeights& masters) {
  std::vector<std::string> names;  // an entry's key may hold no dot, as names do
  for (const auto& [name, tensor] : masters.state_dict()) {
    archive.write(std::to_string(names.size()), tensor);
    names.push_back(name);
  }
  archive.write("names", c10::IValue(names));
  return archive;
}

torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, MasterWeights& masters) {
  c10::IValue names;
  const bool has_names = archive.try_read("names", names) && names.isList();
  TORCH_CHECK_VALUE(
      has_names,
      "MasterWeights: the archive to load has no list 'names'; pass one that torch::save made of a MasterWeights");
  std::map<std::string, at::Tensor> state;
  for (const c10::IValue& name : names.toListRef()) {
    const std::string key = std::to_string(state.size());
    at::Tensor& tensor = state[name.toStringRef()];
    TORCH_CHECK_VALUE(archive.try_read(key, tensor), "MasterWeights: the archive to load has no tensor of ",
                      name.toStringRef());
  }
  masters.load_state_dict(state);
  return archive;
}

}  // namespace mezzo
