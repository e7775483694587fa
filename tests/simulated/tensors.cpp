#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "simulated/launch.h"
#include "simulated/memory.h"

/// Tensors on a device that hold nothing yet, and views of tensors. The host makes them without
/// reading the memory.
namespace mezzo::simulated {
namespace {

const c10::DispatchKeySet kKey(c10::DispatchKey::PrivateUse1);

void check_plain(std::optional<c10::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK(layout.value_or(c10::kStrided) == c10::kStrided, "simulated device: it has strided tensors only");
  TORCH_CHECK(!pin_memory.value_or(false), "simulated device: pinned memory is the CPU's");
}

at::Tensor empty(at::IntArrayRef sizes,
                 std::optional<c10::ScalarType> dtype,
                 std::optional<c10::Layout> layout,
                 std::optional<c10::Device> device,
                 std::optional<bool> pin_memory,
                 std::optional<c10::MemoryFormat> memory_format) {
  check_plain(layout, pin_memory);
  const c10::DeviceGuard guard(device.value_or(kType));
  return at::detail::empty_generic(sizes, device_allocator(), kKey, c10::dtype_or_default(dtype), memory_format);
}

at::Tensor empty_strided(at::IntArrayRef sizes,
                         at::IntArrayRef strides,
                         std::optional<c10::ScalarType> dtype,
                         std::optional<c10::Layout> layout,
                         std::optional<c10::Device> device,
                         std::optional<bool> pin_memory) {
  check_plain(layout, pin_memory);
  const c10::DeviceGuard guard(device.value_or(kType));
  return at::detail::empty_strided_generic(sizes, strides, device_allocator(), kKey, c10::dtype_or_default(dtype));
}

/// Larger memory is new memory, into which the device copies the old.
const at::Tensor& resize_(const at::Tensor& self,
                          at::IntArrayRef sizes,
                          std::optional<c10::MemoryFormat> memory_format) {
  TORCH_CHECK(!memory_format || *memory_format == c10::MemoryFormat::Contiguous,
              "simulated device: resize_ makes contiguous tensors only");
  const c10::DeviceGuard guard(self.device());
  auto* const impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(sizes);
  const size_t bytes =
      at::detail::computeStorageNbytesContiguous(sizes, impl->itemsize(), static_cast<size_t>(impl->storage_offset()));
  c10::StorageImpl& storage = *self.storage().unsafeGetStorageImpl();
  if (bytes > storage.nbytes()) {
    const auto as_bytes = self.options().dtype(c10::kByte);
    const auto larger = at::empty({static_cast<int64_t>(bytes)}, as_bytes);
    if (storage.nbytes() > 0) {
      const auto old = at::empty({0}, as_bytes).set_(self.storage());
      larger.narrow(0, 0, old.numel()).copy_(old);
    }
    storage.set_data_ptr(larger.storage().unsafeGetStorageImpl()->set_data_ptr(c10::DataPtr(nullptr, self.device())));
    storage.set_nbytes(bytes);
  }
  return self;
}

at::Tensor& set_nothing(at::Tensor& self) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, device_allocator(), /*resizable=*/true);
  return at::native::set_storage_cpu_(self, storage, 0, {0}, {});
}

at::Tensor& set_all_of(at::Tensor& self, c10::Storage source) {
  const auto count = static_cast<int64_t>(source.nbytes() / self.element_size());
  return at::native::set_storage_cpu_(self, source, 0, {count}, {});
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  c10::impl::getDeviceGuardImpl(kType)->recordDataPtrOnStream(self.storage().data_ptr(), stream);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("resize_", &resize_);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", TORCH_FN(static_cast<at::Tensor (*)(const at::Tensor&, at::IntArrayRef)>(&at::native::view)));
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("set_", &set_nothing);
  m.impl("set_.source_Storage", &set_all_of);
  m.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
  m.impl("record_stream", &record_stream);
}

}  // namespace
}  // namespace mezzo::simulated
