#include "mezzo/optim/detail/amp_scaling_optimizer.h"

#include <c10/util/Exception.h>
#include <c10/util/Type.h>

#include <typeinfo>

namespace mezzo::detail {

std::vector<GradientOwner> gradient_owners(torch::optim::Optimizer& optimizer) {
  const auto* amp = dynamic_cast<AmpScalingOptimizer*>(&optimizer);
  std::vector<GradientOwner> owners;
  for (const at::Tensor& parameter : all_parameters(optimizer)) {
    const auto half_copy = amp != nullptr ? amp->half_copy_of(parameter) : at::Tensor();
    const bool on_half_copy = half_copy.defined() && half_copy.grad().defined();
    TORCH_CHECK_VALUE(!on_half_copy || !parameter.grad().defined(),
                      "Optimizer: ", labelled_parameter(optimizer, parameter),
                      " and its half copy both have a gradient; call accumulate_gradients() after every "
                      "backward, or after none");
    owners.push_back(on_half_copy ? GradientOwner{half_copy, parameter} : GradientOwner{parameter, {}});
  }
  return owners;
}

std::vector<at::Tensor> all_parameters(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer.param_groups()) {
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  }
  return parameters;
}

size_t num_parameters(const torch::optim::Optimizer& optimizer) {
  size_t count = 0;
  for (const auto& group : optimizer.param_groups()) {
    count += group.params().size();
  }
  return count;
}

std::string name_of(const torch::optim::Optimizer& optimizer) {
  const auto* amp = dynamic_cast<const AmpScalingOptimizer*>(&optimizer);
  const auto name = amp != nullptr ? amp->class_name() : std::string();
  return name.empty() ? c10::demangle(typeid(optimizer).name()) : name;
}

std::string parameter_name(const torch::optim::Optimizer& optimizer, size_t index) {
  size_t number = index, group = 0;
  for (const auto& param_group : optimizer.param_groups()) {
    if (number < param_group.params().size()) {
      const auto* amp = dynamic_cast<const AmpScalingOptimizer*>(&optimizer);
      const auto name = amp != nullptr ? amp->name_of(param_group.params()[number]) : std::string();
      return name.empty() ? c10::str("parameter ", number, " of group ", group) : name;
    }
    number -= param_group.params().size();
    ++group;
  }
  TORCH_INTERNAL_ASSERT(false, "Optimizer: there is no parameter ", index, " beyond the last");
}

std::string labelled_parameter(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  const auto parameters = all_parameters(optimizer);
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].is_same(parameter)) {
      const auto name = parameter_name(optimizer, i);
      return name.starts_with("parameter ") ? name : "parameter " + name;
    }
  }
  return "a parameter of no group";
}

}  // namespace mezzo::detail
