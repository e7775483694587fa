#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <memory>
#include <vector>

#include "simulated/ordering.h"
#include "simulated/streams.h"

/// The devices' memory: pages that nobody may touch but a kernel that was given them, while it
/// runs. Fresh memory is poisoned, all bits set, which is NaN in every floating dtype. No
/// address is ever used twice.
namespace mezzo::simulated {

/// The memory of one allocation.
class Block {
 public:
  Block(c10::Device device, size_t bytes);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  /// Of memory that device_allocator() gave; null for any other.
  static std::shared_ptr<Block> of(const c10::DataPtr& data);
  /// The one that an address lies in; null if none does.
  static std::shared_ptr<Block> holding(const void* address);

  void* data() const { return data_; }
  c10::Device device() const { return device_; }
  /// Lets kernels read it, or write to it too, until `close` with the same.
  void open(bool writes);
  void close(bool writes);
  /// Sets all its bits, while it is open.
  void poison();

  AccessHistory accesses;                ///< guarded by order_mutex(), as are the next
  std::vector<size_t> recorded_streams;  ///< by record_stream
  bool is_freed = false;
  bool is_of_graph = false;  ///< allocated for a stream that was recorded (graph.h)

 private:
  void change(bool writes, int by);

  const c10::Device device_;
  void* data_;
  size_t bytes_;
  std::mutex mutex_;
  int readers_ = 0, writers_ = 0;
};

/// Memory of the current device, for its current stream.
c10::Allocator* device_allocator();
/// Of the host, which copies from and to a device need not wait for.
c10::Allocator* pinned_allocator();
bool is_pinned(const void* data);
/// Whose memory it is.
c10::Device device_of(const void* data);
/// Sets all bits of a CPU tensor, if it lies in one piece.
void poison(const at::Tensor& tensor);

}  // namespace mezzo::simulated
