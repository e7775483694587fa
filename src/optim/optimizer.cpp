#include "mezzo/optim/optimizer.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <set>
#include <utility>

namespace mezzo {
namespace {

at::Tensor on_device(const at::Tensor& tensor, const at::Device& device) {
  return tensor.defined() ? tensor.to(device, tensor.scalar_type(), /*non_blocking=*/true) : tensor;
}

}  // namespace

Optimizer::Optimizer(std::vector<ParamGroup> groups, double lr) : groups_(std::move(groups)), lr_(lr) {
  std::set<std::string> names;
  std::set<const void*> tensors;
  for (const ParamGroup& group : groups_) {
    for (const auto& [name, tensor] : group.params) {
      TORCH_CHECK_VALUE(tensor.defined() && tensor.is_leaf() && tensor.requires_grad(), "Optimizer: parameter ", name,
                        " cannot be trained: it must be a leaf tensor that requires a gradient");
      TORCH_CHECK_VALUE(names.insert(name).second && tensors.insert(tensor.unsafeGetTensorImpl()).second,
                        "Optimizer: parameter ", name, " is listed twice");
    }
  }
  TORCH_CHECK_VALUE(!names.empty(), "Optimizer: no parameters to train");
}

void Optimizer::zero_grad() {
  for (ParamGroup& group : groups_) {
    for (NamedParameter& parameter : group.params) {
      parameter.tensor.mutable_grad().reset();
    }
  }
}

at::Tensor Optimizer::step(const Closure& closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode enable_grad(true);
    loss = closure();
  }
  apply(/*grad_scale=*/{}, /*found_inf=*/{});
  return loss;
}

at::Tensor Optimizer::step_scaled(const std::optional<at::Tensor>& grad_scale, const at::Tensor& found_inf) {
  apply(grad_scale.value_or(at::Tensor()), found_inf);
  return {};
}

void Optimizer::visit_parameters(const ParameterVisitor& visit) {
  for (ParamGroup& group : groups_) {
    for (NamedParameter& parameter : group.params) {
      visit(parameter.tensor);
    }
  }
}

std::string Optimizer::parameter_name(size_t index) const {
  for (const ParamGroup& group : groups_) {
    if (index < group.params.size()) {
      return group.params[index].name;
    }
    index -= group.params.size();
  }
  TORCH_INTERNAL_ASSERT(false, "Optimizer: there is no parameter ", index, " beyond the last");
}

void Optimizer::apply(const at::Tensor& grad_scale, const at::Tensor& found_inf) {
  at::NoGradGuard no_grad;
  const size_t num_slots = slot_names().size();
  for (ParamGroup& group : groups_) {
    std::map<std::pair<std::string, at::ScalarType>, Bucket> buckets;  // by device and dtype
    for (auto& [name, tensor] : group.params) {
      if (!tensor.grad().defined()) {
        continue;
      }
      TORCH_CHECK_VALUE(!tensor.grad().is_sparse(), "Optimizer: the gradient of parameter ", name,
                        " is sparse, which this optimizer does not take");
      auto& slots = state_[name];
      for (size_t slot = slots.size(); slot < num_slots; ++slot) {
        slots.push_back(initial_slot(slot, tensor));
      }
      Bucket& bucket = buckets[{tensor.device().str(), tensor.scalar_type()}];
      bucket.weight_decay = group.weight_decay;
      bucket.params.push_back(tensor);
      bucket.grads.push_back(tensor.grad());
      bucket.slots.resize(num_slots);
      for (size_t slot = 0; slot < num_slots; ++slot) {
        bucket.slots[slot].push_back(slots[slot]);
      }
    }
    for (auto& [key, bucket] : buckets) {
      const at::Device device = bucket.params.front().device();
      update(bucket, on_device(grad_scale, device), on_device(found_inf, device));
    }
  }
}

std::map<std::string, at::Tensor> Optimizer::state_dict() const {
  std::map<std::string, at::Tensor> entries;
  const auto slots = slot_names();
  for (const auto& [name, tensors] : state_) {
    for (size_t slot = 0; slot < tensors.size(); ++slot) {
      entries[std::string(slots[slot]) + "/" + name] = tensors[slot];
    }
  }
  return entries;
}

void Optimizer::load_state_dict(const std::map<std::string, at::Tensor>& entries) {
  const auto slots = slot_names();
  std::map<std::string, std::vector<at::Tensor>> loaded;
  size_t used = 0;
  for (const ParamGroup& group : groups_) {
    for (const auto& [name, tensor] : group.params) {
      for (size_t slot = 0; slot < slots.size(); ++slot) {
        const std::string key = std::string(slots[slot]) + "/" + name;
        const auto entry = entries.find(key);
        if (entry == entries.end()) {
          TORCH_CHECK_VALUE(loaded[name].empty(), "Optimizer: the state to load has no entry ", key);
          continue;
        }
        auto value = initial_slot(slot, tensor);
        TORCH_CHECK_VALUE(entry->second.sizes() == value.sizes() && loaded[name].size() == slot,
                          "Optimizer: state entry ", key, " is ", entry->second.sizes(), ", expected ", value.sizes(),
                          " and every slot of the parameter");
        loaded[name].push_back(value.copy_(entry->second));
        ++used;
      }
    }
  }
  TORCH_CHECK_VALUE(used == entries.size(), "Optimizer: the state to load has ", entries.size() - used,
                    " entries that belong to no parameter of this optimizer");
  std::erase_if(loaded, [](const auto& entry) { return entry.second.empty(); });
  state_ = std::move(loaded);
}

}  // namespace mezzo
