#include "parallel/replicas.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "amp/random_state_guard.h"

namespace mezzo {
namespace {

/// Whether no graph leads to its parameters, but those which somebody still
/// might run backward through.
bool is_free(const torch::nn::Module& replica) {
  const auto parameters = replica.parameters();
  return std::all_of(parameters.begin(), parameters.end(), [](const at::Tensor& parameter) {
    return parameter.grad_fn() == nullptr || parameter.grad_fn().use_count() == 1;
  });
}

/// Makes `copy` a function of `parameter`, as far as gradients are asked for now.
void follow(const at::Tensor& copy, const at::Tensor& parameter, c10::Device device) {
  const auto source = parameter.device() == device ? parameter.view_as(parameter) : parameter.to(device);
  copy.set_data(source.detach());
  const bool has_history = source.grad_fn() != nullptr;
  torch::autograd::impl::set_gradient_edge(
      copy, has_history ? torch::autograd::Edge(source.grad_fn(), source.output_nr()) : torch::autograd::Edge());
  if (!has_history) {
    copy.set_requires_grad(parameter.requires_grad());
  }
}

void check_device(const std::string& kind, const std::string& name, const at::Tensor& tensor, c10::Device first) {
  TORCH_CHECK_VALUE(tensor.device() == first, "DataParallel: ", kind, " ", name, " is on ", tensor.device(),
                    ", but the first device is ", first, "; move the module there, or name another device first");
}

}  // namespace

Replicas::Replicas(std::shared_ptr<torch::nn::Module> module, std::vector<c10::Device> devices, Replicate replicate)
    : module_(std::move(module)),
      devices_(std::move(devices)),
      replicate_(std::move(replicate)),
      made_(devices_.size()) {
  for (const auto& item : module_->named_parameters()) {
    check_device("parameter", item.key(), item.value(), devices_[0]);
  }
  for (const auto& item : module_->named_buffers()) {
    check_device("buffer", item.key(), item.value(), devices_[0]);
  }
}

std::vector<std::shared_ptr<torch::nn::Module>> Replicas::take(size_t count) {
  std::vector<std::shared_ptr<torch::nn::Module>> taken{module_};
  for (size_t i = 1; i < count; ++i) {
    auto& made = made_[i];
    auto found = std::find_if(made.begin(), made.end(), [](const auto& replica) { return is_free(*replica); });
    if (found == made.end()) {
      found = made.insert(made.end(), make(devices_[i]));
    }
    refresh(**found, devices_[i]);
    taken.push_back(*found);
  }
  return taken;
}

void Replicas::clear() {
  for (auto& made : made_) {
    made.clear();
  }
}

std::shared_ptr<torch::nn::Module> Replicas::make(c10::Device device) const {
  const at::NoGradGuard no_grad;
  // A copy draws initial weights, which are then overwritten; the program's random
  // numbers are to stay the same.
  const RandomStateGuard random_state(device.type());
  auto replica = replicate_(device);
  TORCH_CHECK_VALUE(replica != nullptr && replica != module_, "DataParallel: a replica of ", module_->name(),
                    " must be another module of its type");
  const auto parameters = module_->named_parameters(), copies = replica->named_parameters();
  TORCH_CHECK_VALUE(parameters.keys() == copies.keys() &&
                        module_->named_buffers().keys() == replica->named_buffers().keys() &&
                        module_->modules().size() == replica->modules().size(),
                    "DataParallel: a replica of ", module_->name(), " has other parameters, buffers or submodules");
  return replica;
}

void Replicas::refresh(torch::nn::Module& replica, c10::Device device) const {
  const auto modules = module_->modules(), copied_modules = replica.modules();
  for (size_t i = 0; i < modules.size(); ++i) {  // parents first: each sets its children too
    if (copied_modules[i]->is_training() != modules[i]->is_training()) {
      copied_modules[i]->train(modules[i]->is_training());
    }
  }
  const auto parameters = module_->parameters(), copies = replica.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    follow(copies[i], parameters[i], device);
  }
  const at::NoGradGuard no_grad;
  const auto buffers = module_->buffers(), copied_buffers = replica.buffers();
  for (size_t i = 0; i < buffers.size(); ++i) {
    copied_buffers[i].set_data(buffers[i].to(device, buffers[i].scalar_type(), /*non_blocking=*/false, /*copy=*/true));
  }
}

}  // namespace mezzo
