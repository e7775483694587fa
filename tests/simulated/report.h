#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

/// The work of the simulated devices, and its faults.
namespace mezzo::simulated {

class Queue;

/// The host waited for the stream's device, for the sake of `what`, which it may not while it records.
void note_host_sync(const std::string& what, const Queue* queue);
void note_kernel();
void note_replay();
/// A fault of the program, to be thrown at the next host sync. Call with order_mutex() held.
void note_fault(const std::string& fault);
/// Notes a kernel's exception, to be thrown at the next host sync.
void note_error(std::exception_ptr error);
/// Throws the faults noted since the last call. They arrive late, like a device's assertions.
void throw_noted();

/// The faults noted since its construction. Thread-safe.
class Watch {
 public:
  Watch();
  std::vector<std::string> host_syncs() const;
  std::vector<std::string> faults() const;
  int64_t kernels() const;
  int64_t replays() const;  ///< of graphs

 private:
  size_t first_sync_, first_fault_;
  int64_t first_kernel_, first_replay_;
};

}  // namespace mezzo::simulated
