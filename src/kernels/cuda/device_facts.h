#pragma once

#include <cstdint>
#include <string>

#include "kernels/cuda/namespace.h"

namespace mezzo::kernels::MEZZO_CUDA {

struct DeviceFacts {
  std::string name;
  int major, minor;      ///< compute capability
  int64_t memory_bytes;  ///< total
  int driver_version;    ///< the newest CUDA that the driver knows, as 1000 major + 10 minor
};

/// @throws std::runtime_error  with CUDA's own words, if CUDA cannot tell.
DeviceFacts device_facts(int device);

/// Why no kernel of mezzo's runs on the device: a driver that is too old, or its compute capability and CUDA's words;
/// empty if they run.
/// @throws std::runtime_error  with CUDA's own words, if the cause is another one
std::string why_no_image(int device);

}  // namespace mezzo::kernels::MEZZO_CUDA
