#include "simulated/launch.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>

#include <utility>

#include "simulated/graph.h"
#include "simulated/report.h"

namespace mezzo::simulated {
namespace {

c10::Storage storage_on_cpu(const at::Tensor& tensor, const std::shared_ptr<Block>& block) {
  auto* const keeper = new std::shared_ptr<Block>(block);
  c10::DataPtr data(
      block->data(), keeper, [](void* context) { delete static_cast<std::shared_ptr<Block>*>(context); },
      c10::Device(c10::kCPU));
  return {c10::Storage::use_byte_size_t(), tensor.storage().nbytes(), std::move(data)};
}

/// Lets a kernel at its memory while this lives.
class OpenBlocks {
 public:
  explicit OpenBlocks(const std::vector<Kernel::Use>& uses) : uses_(uses) {
    for (const auto& use : uses_) {
      use.block->open(use.writes);
    }
  }
  ~OpenBlocks() {
    for (const auto& use : uses_) {
      use.block->close(use.writes);
    }
  }
  OpenBlocks(const OpenBlocks&) = delete;
  OpenBlocks& operator=(const OpenBlocks&) = delete;

 private:
  const std::vector<Kernel::Use>& uses_;
};

}  // namespace

Launch::Launch(std::string kernel)
    : count_{LaunchCount::Kind::kAten, std::move(kernel), {}},
      device_(kType, current_device()),
      queue_(Queue::of(current_stream(device_.index()))) {}

Launch::Launch(std::string kernel, Queue& queue)
    : count_{LaunchCount::Kind::kMezzo, std::move(kernel), {}}, device_(queue.stream().device()), queue_(queue) {
  TORCH_CHECK(device_.index() == current_device(), "simulated device: ", count_.name, " was launched on a stream of ",
              device_, " while the current device is ", int{current_device()}, "; a device guard is missing");
}

void Launch::use(const void* address, bool writes) {
  const auto block = Block::holding(address);
  TORCH_CHECK(block, "simulated device: ", kernel(), " was given an address where no device has memory");
  TORCH_CHECK(block->device() == device_, "simulated device: ", kernel(), " was launched on ", device_,
              ", but memory of it is on ", block->device(), "; a device guard is missing, or devices are mixed");
  {
    const std::lock_guard order(order_mutex());
    TORCH_CHECK(!block->is_freed, "simulated device: ", kernel(), " was given memory that was freed");
  }
  auto& used = uses_.try_emplace(block.get(), Use{block, {}, false}).first->second;
  used.writes = used.writes || writes;
}

at::Tensor Launch::use(const at::Tensor& tensor, bool writes, c10::Device device) {
  TORCH_CHECK(tensor.device() == device, "simulated device: ", kernel(), " was launched on ", device,
              ", but a tensor of it is on ", tensor.device(), "; a device guard is missing, or devices are mixed");
  (writes ? count_.traffic.bytes_written : count_.traffic.bytes_read) += bytes_of(tensor);
  c10::Storage storage;
  if (const auto block = Block::of(tensor.storage().data_ptr())) {
    auto& used = uses_.try_emplace(block.get(), Use{block, {}, false}).first->second;
    if (!used.storage) {
      used.storage = storage_on_cpu(tensor, block);
    }
    used.writes = used.writes || writes;
    storage = used.storage;
  } else {
    storage = c10::Storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, c10::Device(c10::kCPU)));
  }
  auto seen = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                       tensor.dtype());
  seen.unsafeGetTensorImpl()->set_storage_offset(tensor.storage_offset());
  seen.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  return seen;
}

Ticket Kernel::enqueue(Queue& queue) const {
  note_kernel();
  if (count) {
    note_launch(*count);
  }
  const auto work = [body = body, uses = uses] {
    if (!computes()) {
      return;
    }
    const OpenBlocks open(uses);
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    body();
  };
  const auto ticket = queue.push(work, [&](const Clock& clock) {
    const Access access{queue.number(), clock[queue.number()], name};
    for (const Use& use : uses) {
      use.block->accesses.add(access, clock, use.writes);
    }
  });
  if (queued) {
    queued(queue, ticket);
  }
  return ticket;
}

Ticket Launch::run(std::function<void()> body, std::function<void(Queue&, Ticket)> queued) {
  Kernel kernel{count_.name, std::move(body), {}, {}, count_, std::move(queued)};
  for (const auto& [key, used] : uses_) {
    kernel.uses.push_back({used.block, used.writes});
  }
  uses_.clear();
  if (Recording* recording = recording_of(queue_)) {
    kernel.draws = std::exchange(recording->draws, {});
    recording->steps.push_back({Recording::Step::Kind::kKernel, &queue_, 0, std::move(kernel)});
    return queue_.last();
  }
  return kernel.enqueue(queue_);
}

void Launch::run_and_wait(std::function<void()> body) {
  run(std::move(body));
  host_sync(queue_, kernel());
}

}  // namespace mezzo::simulated
