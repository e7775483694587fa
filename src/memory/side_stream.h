#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include <optional>
#include <vector>

namespace mezzo {

/// Work of a thread on an accelerator beside its current stream, for results that nothing waits for. Small kernels
/// leave most of the device idle each, so two streams get more done. A caller that wants side work keeps a SideStream
/// alive during its calls. When it is gone, the results are there for the stream that was current.
class SideStream {
 public:
  SideStream();
  ~SideStream();
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

  /// Calls `body`. If this thread has a SideStream, that stream is then the current one, ordered after the work of the
  /// previous current stream. Nobody may write to `tensors` of the body before the SideStream is gone; tensors that it
  /// writes to should be allocated outside of it.
  /// @param tensors  of one device
  template <class Body>
  static void run(const std::vector<at::Tensor>& tensors, const Body& body) {
    const c10::OptionalStreamGuard guard(fork(tensors));
    body();
  }

  /// The stream of `run`, after the current stream's work so far; nullopt to stay on the current one.
  static std::optional<c10::Stream> fork(const std::vector<at::Tensor>& tensors);

 private:
  SideStream* const outer_;
  std::optional<c10::Stream> main_, side_;
  std::vector<at::Tensor> tensors_;  // alive as long as its work
};

}  // namespace mezzo
