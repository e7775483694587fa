#include "text/machine/processor.h"

#include <ATen/Parallel.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>

#include "mezzo/text/machine/threads.h"
#include "text/machine/control_groups.h"

namespace mezzo::text {
namespace {

namespace fs = std::filesystem;

/// Of x86 and of ARM, in the order in which they are shown.
constexpr const char* kInstructions[] = {"avx2",        "fma",         "f16c",        "avx_vnni", "avx512f",
                                         "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8",
                                         "asimd",       "asimddp",     "i8mm",        "bf16",     "sve"};

/// The text behind the colon in the first line of /proc/cpuinfo that begins with one of `keys`.
std::string field_of(const fs::path& cpuinfo, std::initializer_list<std::string_view> keys) {
  std::ifstream file(cpuinfo);
  for (std::string line; std::getline(file, line);) {
    const bool is_one = std::ranges::any_of(keys, [&](std::string_view key) { return line.starts_with(key); });
    const size_t colon = line.find(':');
    if (is_one && colon != std::string::npos)
      return line.substr(std::min(line.find_first_not_of(" \t", colon + 1), line.size()));
  }
  return "";
}

/// How many processors a group lets work at a time; 0 for no limit.
double quota_of(const fs::path& folder, int version) {
  double quota = 0, period = 0;
  if (version == 2) {
    std::ifstream file(folder / "cpu.max");  // "max 100000", or microseconds of how many
    return file >> quota >> period && quota > 0 && period > 0 ? quota / period : 0;
  }
  std::ifstream quota_file(folder / "cpu.cfs_quota_us"), period_file(folder / "cpu.cfs_period_us");  // -1: no limit
  return quota_file >> quota && period_file >> period && quota > 0 && period > 0 ? quota / period : 0;
}

int processors_of_affinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                     : static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
}

}  // namespace

Processor processor(const fs::path& root) {
  const fs::path cpuinfo = root / "proc/cpuinfo";
  Processor found{.name = field_of(cpuinfo, {"model name"}),
                  .online = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)),
                  .usable = processors_of_affinity()};
  std::istringstream flags(field_of(cpuinfo, {"flags", "Features"}));
  std::set<std::string> has;
  for (std::string flag; flags >> flag;) has.insert(std::move(flag));
  for (const char* name : kInstructions) {
    if (has.contains(name)) found.instructions.emplace_back(name);
  }
  for_each_control_group(root, "cpu", [&](const fs::path& folder, int version) {
    const double quota = quota_of(folder, version);
    if (quota > 0 && (found.quota == 0 || quota < found.quota)) found.quota = quota;
  });
  return found;
}

int64_t usable_processors() {
  const Processor found = processor();
  const double most = found.quota > 0 ? std::min<double>(found.quota, found.usable) : found.usable;
  return std::max<int64_t>(1, static_cast<int64_t>(most));
}

void set_threads(int64_t threads) {
  const bool is_set = std::getenv("OMP_NUM_THREADS") != nullptr || std::getenv("MKL_NUM_THREADS") != nullptr;
  if (threads > 0) {
    at::set_num_threads(static_cast<int>(threads));
  } else if (!is_set && usable_processors() < at::get_num_threads()) {
    at::set_num_threads(static_cast<int>(usable_processors()));
  }
}

}  // namespace mezzo::text
