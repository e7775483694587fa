#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>
#include <string>
#include <vector>

namespace mezzo::text {

/// The rate of matrix products in one precision, on the CPU with all threads, in operations per
/// second. A multiplication and an addition are two operations.
struct ProductRate {
  std::string precision;  ///< fp32, bf16, fp16, int8
  double measured = 0;    ///< the best of 1,024 x 768 times 768 x 3,072, as in a model's layers
  /// The best rate of its instruction on registers; `measured`, if 20 attempts stay below it. 0:
  /// the precision has no instruction, or mezzo does not choose the instruction.
  double peak = 0;
};

/// The properties of a machine that matter for training and prediction.
struct Examination {
  std::string processor;                       ///< the vendor's name
  std::vector<std::string> instructions = {};  ///< instruction sets of matrix products
  std::string kernels;                         ///< instruction set of mezzo's kernels
  std::string best_kernels;                    ///< best instruction set that they could use here
  int num_processors = 0;                      ///< of the machine
  int num_usable = 0;                          ///< see usable_processors()
  int num_threads = 0;                         ///< of LibTorch
  double quota = 0;                            ///< mean number of processors allowed for the container; 0: no limit
  /// The share of time in which `num_threads` busy threads compute; other programs and quotas take
  /// the rest.
  double processor_share = 1;
  int64_t memory_bytes = 0;                ///< of the machine, or the limit of the container
  int64_t available_bytes = 0;             ///< free memory
  int64_t shared_memory_bytes = 0;         ///< size of /dev/shm
  std::string memory_source;               ///< source of available_bytes
  double copied_bytes = 0;                 ///< per second, read and written
  std::vector<ProductRate> products = {};  ///< by precision
  std::string libtorch;                    ///< its version
  bool libtorch_has_cuda = false;          ///< whether LibTorch was built with CUDA
  bool has_nvidia_driver = false;          ///< whether an NVIDIA driver is loaded
  std::vector<std::string> gpus = {};      ///< by the names that runs use
  bool threads_are_set = false;            ///< by OMP_NUM_THREADS or MKL_NUM_THREADS
  bool is_optimized = true;                ///< whether this build is optimized
};

/// A finding about a machine, and what to do about it.
struct MachineProblem {
  std::string what;    ///< the finding
  std::string advice;  ///< the remedy
};

/// Recommendations for a machine.
struct MachineAdvice {
  std::string precision;                 ///< --precision for training on the CPU
  std::string reason;                    ///< reason of `precision`
  std::string prediction;                ///< --precision for prediction on the CPU
  std::string prediction_reason;         ///< reason of `prediction`
  std::vector<MachineProblem> problems;  ///< the findings
};

/// Measures this machine, in about two seconds.
Examination examine();

/// The recommendations for a machine.
MachineAdvice advice_of(const Examination& machine);

}  // namespace mezzo::text
