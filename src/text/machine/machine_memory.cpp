#include "text/machine/machine_memory.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/util/Exception.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <string_view>

#include "text/machine/control_groups.h"

namespace mezzo::text {
namespace {

namespace fs = std::filesystem;

/// The number that a file holds; nullopt if the file is missing or holds no number, such as "max".
std::optional<int64_t> read_number(const fs::path& path) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

/// The number in the line of a file that begins with `key`.
std::optional<int64_t> read_field(const fs::path& path, std::string_view key) {
  std::ifstream file(path);
  std::string word;
  int64_t number = 0;
  while (file >> word) {
    if (word == key && file >> number) {
      return number;
    }
    std::getline(file, word);
  }
  return std::nullopt;
}

/// The file names of a version of control groups.
struct GroupFiles {
  const char *limit, *usage, *inactive;
};
constexpr GroupFiles kVersion2 = {"memory.max", "memory.current", "inactive_file"};
constexpr GroupFiles kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};

/// Lowers `memory` to a group's limits.
void apply_limits(MachineMemory& memory, const fs::path& folder, const GroupFiles& files) {
  const auto limit = read_number(folder / files.limit), usage = read_number(folder / files.usage);
  if (!limit || !usage) {
    return;
  }
  memory.total = std::min(memory.total, *limit);
  // Pages of files that nobody uses are given back before memory runs out.
  const int64_t in_use = *usage - read_field(folder / "memory.stat", files.inactive).value_or(0);
  const int64_t left = std::max<int64_t>(*limit - std::max<int64_t>(in_use, 0), 0);
  if (left < memory.available) {
    memory.available = left;
    memory.source = "the control group";
  }
}

MachineMemory cpu_memory(const fs::path& root) {
  const fs::path meminfo = root / "proc/meminfo";
  const auto total = read_field(meminfo, "MemTotal:"), available = read_field(meminfo, "MemAvailable:");
  TORCH_CHECK(total && available, meminfo.string(),
              ": does not say how much memory is available; pass a number as --batch-size");
  MachineMemory memory{*total * 1024, *available * 1024, "the machine"};
  for_each_control_group(root, "memory", [&](const fs::path& folder, int version) {
    apply_limits(memory, folder, version == 2 ? kVersion2 : kVersion1);
  });
  return memory;
}

}  // namespace

MachineMemory machine_memory(const c10::Device& device, const fs::path& root) {
  if (device.is_cpu()) {
    return cpu_memory(root);
  }
  try {
    const auto [available, total] =
        at::getDeviceAllocator(device.type())->getMemoryInfo(std::max<c10::DeviceIndex>(device.index(), 0));
    return {static_cast<int64_t>(total), static_cast<int64_t>(available), device.str()};
  } catch (const c10::Error&) {
    TORCH_CHECK_VALUE(false, "LibTorch does not report the free memory of ", device.str(),
                      "; pass a number as --batch-size");
  }
}

int64_t resident_memory_bytes() { return read_field("/proc/self/status", "VmRSS:").value_or(0) * 1024; }

int64_t peak_memory_bytes() {
  if (const auto high_water = read_field("/proc/self/status", "VmHWM:")) {
    return *high_water * 1024;
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

}  // namespace mezzo::text
