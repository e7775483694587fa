#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "memory/device_copy.h"
#include "mezzo/distributed/group/process_group.h"

namespace mezzo::text {

/// The ranks of a run, of which there may be just one: then nothing is sent, and
/// everything is as this process says.
class Ranks {
 public:
  /// @param group  nullptr: one process. Must outlive this.
  explicit Ranks(distributed::ProcessGroup* group) : group_(group) {}

  int rank() const { return group_ != nullptr ? group_->rank() : 0; }
  int size() const { return group_ != nullptr ? group_->size() : 1; }
  /// Whether this rank writes, prints and decides.
  bool is_main() const { return rank() == 0; }
  distributed::ProcessGroup* group() const { return group_; }

  // As of ProcessGroup.
  void sum(at::Tensor& tensor) const;
  bool any(bool here) const { return group_ != nullptr ? group_->any(here) : here; }
  std::vector<std::string> all_gather(const std::string& text) const;
  void check_same(const std::map<std::string, std::string>& values) const;
  void all_or_none(const std::function<void()>& work) const;
  /// What `make` returns, on every rank or on none.
  template <class Make>
  auto together(const Make& make) const {
    std::optional<decltype(make())> made;
    all_or_none([&] { made.emplace(make()); });
    return *std::move(made);
  }
  void guard(const std::function<void()>& work) const;
  /// Waits for the copy.
  /// @throws c10::Error  that names a rank for which the device waits in vain
  at::Tensor wait(HostCopy& copy) const;

  /// Copies rank 0's tensors to the other ranks, in place.
  void broadcast(const std::vector<at::Tensor>& tensors) const;

 private:
  distributed::ProcessGroup* group_;
};

}  // namespace mezzo::text
