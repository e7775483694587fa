#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <vector>

namespace mezzo {

/// Gradients of one device and dtype, which one foreach kernel can take.
struct GradientGroup {
  c10::Device device;
  c10::ScalarType dtype;
  std::vector<at::Tensor> gradients;
};

/// Gradients sorted by device and dtype; groups in order of first appearance.
class GradientGroups {
 public:
  void add(const at::Tensor& gradient) {
    const auto device = gradient.device();
    const auto dtype = gradient.scalar_type();
    auto group = std::find_if(groups_.begin(), groups_.end(),
                              [&](const auto& seen) { return seen.device == device && seen.dtype == dtype; });
    if (group == groups_.end()) {
      group = groups_.insert(group, {device, dtype, {}});
    }
    group->gradients.push_back(gradient);
  }

  bool empty() const { return groups_.empty(); }
  auto begin() const { return groups_.begin(); }
  auto end() const { return groups_.end(); }

 private:
  std::vector<GradientGroup> groups_;
};

}  // namespace mezzo
