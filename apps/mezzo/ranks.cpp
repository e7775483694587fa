#include "ranks.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <memory>

#include "mezzo/text/models/precision.h"

namespace mezzo::app {
namespace {

std::unique_ptr<distributed::ProcessGroup> join_ranks(std::string& device, std::chrono::milliseconds timeout) {
  const auto environment = distributed::RankEnvironment::detect();
  if (!environment) {
    return nullptr;
  }
  const bool is_cuda = text::parse_device(device).is_cuda();
  TORCH_CHECK_VALUE(!is_cuda || !device.starts_with("cuda:") || environment->local_world_size == 1, "--device ", device,
                    ": all ranks of this host would use the same device; pass --device cuda for one each");
  if (is_cuda && !device.starts_with("cuda:")) {
    const int64_t gpus = text::cuda_device_count();
    TORCH_CHECK_VALUE(environment->local_world_size <= gpus, "--device cuda: ", environment->local_world_size,
                      " ranks of this host take a GPU each, and it has ", gpus, "; start ", gpus,
                      gpus == 1 ? " rank" : " ranks", " on it");
    device = fmt::format("cuda:{}", environment->local_rank);
  }
  const auto options = distributed::ProcessGroupOptions().timeout(timeout).device(text::parse_device(device));
  return std::make_unique<distributed::ProcessGroup>(*environment, options);
}

}  // namespace

int with_ranks(std::string& device,
               std::chrono::milliseconds timeout,
               const std::function<int(distributed::ProcessGroup*)>& work) {
  const auto group = join_ranks(device, timeout);
  if (!group) {
    return work(nullptr);
  }
  int status = 0;
  group->guard([&] { status = work(group.get()); });
  group->shutdown();
  return status;
}

bool is_main(const distributed::ProcessGroup* group) { return group == nullptr || group->rank() == 0; }

}  // namespace mezzo::app
