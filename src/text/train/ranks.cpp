#include "text/train/ranks.h"

#include <c10/core/GradMode.h>

#include <torch/csrc/distributed/c10d/comm.hpp>

namespace mezzo::text {
namespace {

constexpr size_t kBroadcastBucketBytes = 250 << 20;  // as PyTorch's DistributedDataParallel

}  // namespace

void Ranks::sum(at::Tensor& tensor) const {
  if (group_ != nullptr) {
    group_->all_reduce(tensor);
  }
}

std::vector<std::string> Ranks::all_gather(const std::string& text) const {
  return group_ != nullptr ? group_->all_gather(text) : std::vector<std::string>{text};
}

void Ranks::check_same(const std::map<std::string, std::string>& values) const {
  if (group_ != nullptr) {
    group_->check_same(values);
  }
}

void Ranks::all_or_none(const std::function<void()>& work) const {
  group_ != nullptr ? group_->all_or_none(work) : work();
}

void Ranks::guard(const std::function<void()>& work) const { group_ != nullptr ? group_->guard(work) : work(); }

at::Tensor Ranks::wait(HostCopy& copy) const {
  if (group_ != nullptr) {
    group_->wait([&] { return copy.has_arrived(); });
  }
  return copy.wait();
}

void Ranks::broadcast(const std::vector<at::Tensor>& tensors) const {
  if (group_ != nullptr) {
    const at::NoGradGuard no_grad;
    group_->guard([&] { c10d::broadcast_coalesced(group_->c10d(), tensors, kBroadcastBucketBytes); });
  }
}

}  // namespace mezzo::text
