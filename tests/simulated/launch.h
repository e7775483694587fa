#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "simulated/counts.h"
#include "simulated/memory.h"
#include "simulated/streams.h"

namespace mezzo::simulated {

/// A generator of the CPU that a kernel draws from, to be seeded by one of a device (generator.h).
struct Draw {
  at::Generator seeded_by, numbers;
};

/// A kernel and the memory it uses.
struct Kernel {
  struct Use {
    std::shared_ptr<Block> block;
    bool writes;
  };

  std::string name;
  std::function<void()> body;
  std::vector<Use> uses;
  std::vector<Draw> draws;                          ///< that are not seeded yet
  std::optional<LaunchCount> count;                 ///< nullopt: a device would not be given it
  std::function<void(Queue&, Ticket)> queued = {};  ///< told each time that it is; null: nobody asks

  /// Puts a copy of it, as it is now, at the end of a stream's work.
  Ticket enqueue(Queue& queue) const;
};

/// A kernel on its way to the current stream of the current device, as `<<<...>>>` launches
/// one. The caller makes sure that its tensors are on that device. If they are not, a device guard
/// is missing.
class Launch {
 public:
  explicit Launch(std::string kernel);
  /// On its way to a stream that the caller names, as kernels do that know addresses alone.
  Launch(std::string kernel, Queue& queue);

  /// The kind under which it counts. Otherwise it is an operator, which moves the tensors among its
  /// arguments.
  void count_as(LaunchCount::Kind kind) { count_.kind = kind; }
  void count_as(const Traffic& traffic) { count_.traffic = traffic; }

  /// The tensor as the kernel sees it: on the CPU, in the same memory, which is
  /// there while the kernel runs.
  /// @throws c10::Error  for a tensor of another device.
  at::Tensor read(const at::Tensor& tensor) { return use(tensor, /*writes=*/false, device_); }
  at::Tensor write(const at::Tensor& tensor) { return use(tensor, /*writes=*/true, device_); }
  /// The same, of any device: what copies between devices.
  at::Tensor write_on_peer(const at::Tensor& tensor) { return use(tensor, /*writes=*/true, tensor.device()); }
  /// The memory that an address is part of, which is there while the kernel runs.
  /// @throws c10::Error  for memory of another device, of none, or that was freed.
  void use(const void* address, bool writes);

  const std::string& kernel() const { return count_.name; }
  Queue& queue() const { return queue_; }
  /// Queues it, or records it if the stream is recorded. The host does not wait.
  /// @param queued  as Kernel's
  Ticket run(std::function<void()> body, std::function<void(Queue&, Ticket)> queued = {});
  /// Queues it and waits for the stream, a host sync.
  void run_and_wait(std::function<void()> body);

 private:
  struct Use {
    std::shared_ptr<Block> block;
    c10::Storage storage;  // on the CPU
    bool writes;
  };
  at::Tensor use(const at::Tensor& tensor, bool writes, c10::Device device);

  LaunchCount count_;
  const c10::Device device_;
  Queue& queue_;
  std::map<Block*, Use> uses_;
};

}  // namespace mezzo::simulated
