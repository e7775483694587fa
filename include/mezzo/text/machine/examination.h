#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>
#include <string>
#include <vector>

namespace mezzo::text {

/// Matrix products in one precision, on the CPU with all threads: operations a second, a multiplication and an addition
/// being two.
struct ProductRate {
  std::string precision;  ///< fp32, bf16, fp16, int8
  double measured = 0;    ///< the best of 1,024 x 768 times 768 x 3,072, as a model's layers have them
  /// The best rate of its instruction on registers alone; `measured`, if 20 attempts stay below that. 0: it has no
  /// instruction of its own, or mezzo does not choose the instruction.
  double peak = 0;
};

/// What a machine is, as far as training and prediction ask.
struct Examination {
  std::string processor;                       ///< its maker's name
  std::vector<std::string> instructions = {};  ///< that products are made of
  std::string kernels, best_kernels;           ///< the instruction sets that mezzo's run in, and could run in
  int num_processors = 0, num_usable = 0, num_threads = 0;
  double quota = 0;  ///< processors that the container may use on average; 0: no limit
  /// Of the time of `num_threads` threads that never wait, the share that they compute; other programs and quotas take
  /// the rest.
  double processor_share = 1;
  int64_t memory_bytes = 0, available_bytes = 0, shared_memory_bytes = 0;  ///< the last: all of /dev/shm
  std::string memory_source;                                               ///< of available_bytes
  double copied_bytes = 0;                                                 ///< a second, read and written
  std::vector<ProductRate> products = {};
  std::string libtorch;  ///< its version
  bool libtorch_has_cuda = false;
  bool has_nvidia_driver = false;
  std::vector<std::string> gpus = {};  ///< as runs name them
  bool threads_are_set = false;        ///< by OMP_NUM_THREADS or MKL_NUM_THREADS
  bool is_optimized = true;            ///< this build
};

/// A finding about a machine, and what to do about it.
struct MachineProblem {
  std::string what, advice;
};

/// What follows from it.
struct MachineAdvice {
  std::string precision, reason;              ///< for --precision, of training on the CPU
  std::string prediction, prediction_reason;  ///< of prediction there
  std::vector<MachineProblem> problems;
};

/// Measures this machine, for some two seconds.
Examination examine();

MachineAdvice advice_of(const Examination& machine);

}  // namespace mezzo::text
