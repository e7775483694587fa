#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

/// The work of a device: launches, the bytes that they move, and the FLOP of matrix products.
namespace mezzo::simulated {

/// Each element that is read or written counts once, however often a kernel may come back to it.
struct Traffic {
  int64_t bytes_read = 0, bytes_written = 0;
  double flop = 0;  ///< of matrix products that are LibTorch's operators
};

/// Of an operator of LibTorch's: its inputs and outputs. Of a table from which rows are chosen, or
/// to which rows are added, those rows.
Traffic traffic_of(const c10::OperatorHandle& op, const torch::jit::Stack& arguments, const torch::jit::Stack& results);
/// Of a tensor; elements that an expanded one repeats count once.
int64_t bytes_of(const at::Tensor& tensor);

struct LaunchCount {
  enum class Kind {
    kMezzo,  ///< a kernel of mezzo's
    kAten,   ///< an operator of LibTorch's, except views and other work of the host alone
    kCopy,   ///< from the host or to it
  };
  Kind kind;
  std::string name;
  Traffic traffic;
};

/// While it lives, all that goes to devices is written down, from all threads; one at a time.
class LaunchLog {
 public:
  LaunchLog();
  ~LaunchLog();
  LaunchLog(const LaunchLog&) = delete;
  LaunchLog& operator=(const LaunchLog&) = delete;

  /// All since it was made, or since this was called last.
  std::vector<LaunchCount> take();
};

/// Called for each launch, when it is queued; of a graph, when it is replayed.
void note_launch(const LaunchCount& launch);

/// Whether kernels do their work. If not, they are still queued, counted and put in order, which is
/// fast at any size. All results are then nonsense. Initially true.
void set_computes(bool computes);
bool computes();

}  // namespace mezzo::simulated
