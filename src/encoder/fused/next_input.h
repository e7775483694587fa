#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <utility>

namespace mezzo::encoder::fused {

/// Rows that a block's output carries to the next block: the same rows in the dtype of the next products, written by
/// the same kernel. So no cast reads the output. In-place changes of the output through `data()` are not seen,
/// because autograd does not count them.
class NextInput : public c10::BackendMeta {
 public:
  /// An inference tensor carries none, as it does not count its changes.
  static void attach(const at::Tensor& output, at::Tensor copy) {
    if (copy.defined() && !output.is_inference()) {
      output.unsafeGetTensorImpl()->set_backend_meta(c10::make_intrusive<NextInput>(output, std::move(copy)));
    }
  }

  /// Undefined if `x` carries none of `dtype`, has changed since, or another stream is current.
  static at::Tensor of(const at::Tensor& x, at::ScalarType dtype) {
    const auto* next = dynamic_cast<const NextInput*>(x.unsafeGetTensorImpl()->get_backend_meta());
    const bool is_same = next != nullptr && next->copy_.scalar_type() == dtype && !x.is_inference() &&
                         next->version_ == x._version() && next->data_ == x.const_data_ptr() &&
                         next->copy_.sizes() == x.sizes() && next->stream_ == stream_of(x);
    return is_same ? next->copy_ : at::Tensor();
  }

  NextInput(const at::Tensor& output, at::Tensor copy)
      : copy_(std::move(copy)),
        data_(output.const_data_ptr()),
        version_(output._version()),
        stream_(stream_of(output)) {}

 private:
  static c10::Stream stream_of(const at::Tensor& x) {
    return c10::impl::VirtualGuardImpl(x.device().type()).getStream(x.device());
  }

  at::Tensor copy_;
  const void* data_;
  int64_t version_;
  c10::Stream stream_;
};

}  // namespace mezzo::encoder::fused
