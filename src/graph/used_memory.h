#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace mezzo {

template <class State>
class ThreadObserver;

/// The memory from before a recording that its operators read or write, and so does each replay: memory of
/// accelerators, and pinned memory of the CPU.
class UsedMemory {
 public:
  /// A tensor whose memory was freed or replaced since, in words; empty if there is none. A few nanoseconds a tensor.
  std::string moved() const;

 private:
  friend class MemoryWatch;
  struct Storage {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    const void* data;
    std::string name;
  };
  /// One that outlives the recording: memory that it held may be alive when it has other memory.
  struct Tensor {
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    const c10::StorageImpl* storage;
    int64_t offset;
    std::string name;
  };
  static bool has_moved(const Storage& storage);
  static bool has_moved(const Tensor& tensor);

  std::vector<Storage> storages_;
  std::vector<Tensor> tensors_;
};

/// Notes the tensors that operators get while it lives, on this thread and on autograd's threads that work for it. Work
/// outside of LibTorch's dispatcher, such as a kernel that is launched by hand, is not seen.
class MemoryWatch {
 public:
  MemoryWatch();
  ~MemoryWatch();
  MemoryWatch(const MemoryWatch&) = delete;
  MemoryWatch& operator=(const MemoryWatch&) = delete;

  /// Ends the watch. Memory that operators allocated meanwhile is not part of the result.
  /// @param device_type  the accelerator that may read pinned memory
  /// @throws c10::Error  naming a tensor from before that was freed or got other memory meanwhile
  UsedMemory stop(c10::DeviceType device_type);

 private:
  struct Notes;

  std::shared_ptr<Notes> notes_;
  std::unique_ptr<ThreadObserver<Notes>> observer_;
};

}  // namespace mezzo
