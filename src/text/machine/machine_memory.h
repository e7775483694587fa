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

/// For a CPU: the memory that the kernel reports as available. If the control groups of this process (version 2 or 1)
/// allow less, that. Of any other device: what its allocator says is free.
///
/// @param root  where proc/ and sys/ are, for tests.
/// @throws c10::ValueError  if the device does not tell; c10::Error where
///   /proc/meminfo cannot be read.
MachineMemory machine_memory(const c10::Device& device, const std::filesystem::path& root = "/");

/// The memory that the program has resident now, in bytes; 0 if the kernel does not tell.
int64_t resident_memory_bytes();

/// The most memory that the program has had resident, in bytes. It is the kernel's high-water mark.
/// getrusage would include the memory that a parent process held when it started this one.
int64_t peak_memory_bytes();

}  // namespace mezzo::text
