#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "simulated/launch.h"
#include "simulated/memory.h"
#include "simulated/report.h"

/// Copies between devices, and from and to the CPU, which wait where CUDA's would, or may.
namespace mezzo::simulated {
namespace {

void copy_on_device(const at::Tensor& to, const at::Tensor& from) {
  const c10::DeviceGuard guard(from.device());
  Launch launch("copy_");
  const auto source = launch.read(from);
  const auto target = launch.write(to);
  launch.run([=] { target.copy_(source); });
}

/// On the source's stream, in order with the target stream's work before and after.
void copy_to_peer(const at::Tensor& to, const at::Tensor& from) {
  auto& target_queue = Queue::of(current_stream(to.device().index()));
  const c10::DeviceGuard guard(from.device());
  Launch launch("copy_");
  Event is_free, has_arrived;
  is_free.record(target_queue);
  is_free.block(launch.queue());
  const auto source = launch.read(from);
  const auto target = launch.write_on_peer(to);
  launch.run([=] { target.copy_(source); });
  has_arrived.record(launch.queue());
  has_arrived.block(target_queue);
}

/// Pageable memory is read at once; that of pinned memory is read when the stream gets there.
void copy_from_cpu(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  const c10::DeviceGuard guard(to.device());
  Launch launch("copy_ from the CPU");
  launch.count_as(LaunchCount::Kind::kCopy);
  const auto target = launch.write(to);
  if (!is_pinned(from.const_data_ptr())) {
    const auto staged = from.clone();
    const auto copy = [=] { target.copy_(staged); };
    if (non_blocking) {
      note_host_sync("copy_ from pageable memory", &launch.queue());  // CUDA may wait here, and need not
      launch.run(copy);
    } else {
      launch.run_and_wait(copy);
    }
  } else if (non_blocking) {
    launch.run([=] { target.copy_(from); });
  } else {
    launch.run_and_wait([=] { target.copy_(from); });
  }
}

void copy_to_cpu(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  const c10::DeviceGuard guard(from.device());
  Launch launch("copy_ to the CPU");
  launch.count_as(LaunchCount::Kind::kCopy);
  const auto source = launch.read(from);
  const auto copy = [=] { to.copy_(source); };
  if (non_blocking && is_pinned(to.const_data_ptr())) {
    poison(to);  // who reads too early is to see it
    launch.run(copy);
  } else {
    launch.run_and_wait(copy);
  }
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& src, bool non_blocking) {
  const auto from = src.expand_as(self);
  if (self.numel() == 0) {
    return self;
  }
  if (src.is_cpu()) {
    copy_from_cpu(self, from, non_blocking);
  } else if (self.is_cpu()) {
    copy_to_cpu(self, from, non_blocking);
  } else if (self.device() == src.device()) {
    copy_on_device(self, from);
  } else {
    copy_to_peer(self, from);
  }
  return self;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& target, bool non_blocking) {
  auto to = target;
  return copy_(to, self, non_blocking);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("copy_", &copy_);
  m.impl("_copy_from", &copy_from);
}

}  // namespace
}  // namespace mezzo::simulated
