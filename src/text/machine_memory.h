#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <string>

namespace mezzo::text {

/// The memory of a device, in bytes.
struct MachineMemory {
  int64_t total = 0;      ///< that this process may ever have
  int64_t available = 0;  ///< more than it has now
  std::string source;     ///< what says so, for messages: "the machine", "the control group", "cuda:0"
};

/// Of a CPU: what the kernel calls available, or what the control groups of this process (version 2 or 1) still allow,
/// if that is less. Of any other device: what its allocator says is free.
///
/// @param root  where proc/ and sys/ are, for tests.
/// @throws c10::ValueError  where the device does not tell; c10::Error where /proc/meminfo cannot be read.
MachineMemory machine_memory(const c10::Device& device, const std::filesystem::path& root = "/");

}  // namespace mezzo::text
