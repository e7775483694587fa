#include "memory/side_stream.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <map>
#include <utility>

#include "memory/stream_order.h"

namespace mezzo {
namespace {

thread_local SideStream* of_thread = nullptr;

/// This thread's of a device, the same for ever: each has its own memory within cuBLAS.
c10::Stream side_of(c10::Device device, const c10::impl::VirtualGuardImpl& devices) {
  static thread_local std::map<c10::DeviceIndex, c10::Stream> streams;
  const auto found = streams.find(device.index());
  return found != streams.end()
             ? found->second
             : streams.emplace(device.index(), devices.getStreamFromGlobalPool(device)).first->second;
}

}  // namespace

SideStream::SideStream() : outer_(std::exchange(of_thread, this)) {}

SideStream::~SideStream() {
  of_thread = outer_;
  try {
    if (main_) {
      put_in_order(*side_, *main_);
    }
  } catch (const c10::Error&) {  // of a device that is lost, which says so again
  }
}

std::optional<c10::Stream> SideStream::fork(const std::vector<at::Tensor>& tensors) {
  const auto device = tensors.front().device();
  if (of_thread == nullptr || device.is_cpu()) {
    return std::nullopt;
  }
  SideStream& self = *of_thread;
  const c10::impl::VirtualGuardImpl devices(device.type());
  const auto current = devices.getStream(device);
  TORCH_INTERNAL_ASSERT(!self.main_ || *self.main_ == current, "SideStream: work of two streams");
  self.main_ = current;
  self.side_ = side_of(device, devices);
  put_in_order(*self.main_, *self.side_);
  self.tensors_.insert(self.tensors_.end(), tensors.begin(), tensors.end());
  return self.side_;
}

}  // namespace mezzo
