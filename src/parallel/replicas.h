#pragma once

#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <vector>

namespace mezzo {

/// Copies of a module, one for each device but the first, whose parameters are functions of the
/// module's own: gradients flow from them to it. Not thread-safe.
class Replicas {
 public:
  using Replicate = std::function<std::shared_ptr<torch::nn::Module>(c10::Device)>;

  /// @throws c10::ValueError  where a parameter or buffer of the module is not on the first device.
  Replicas(std::shared_ptr<torch::nn::Module> module, std::vector<c10::Device> devices, Replicate replicate);

  /// The module itself for the first device, and copies as it is now: weights, buffers, training
  /// mode. A copy is used again once no graph needs it any more. Parameters on the same device
  /// share the module's memory.
  std::vector<std::shared_ptr<torch::nn::Module>> take(size_t count);

  void clear();

 private:
  std::shared_ptr<torch::nn::Module> make(c10::Device device) const;
  void refresh(torch::nn::Module& replica, c10::Device device) const;

  std::shared_ptr<torch::nn::Module> module_;
  std::vector<c10::Device> devices_;
  Replicate replicate_;
  std::vector<std::vector<std::shared_ptr<torch::nn::Module>>> made_;  // by device
};

}  // namespace mezzo
