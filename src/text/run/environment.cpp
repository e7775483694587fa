#include "text/run/environment.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/utsname.h>
#include <torch/version.h>

#include "kernels/cpu/simd/instruction_set.h"
#include "kernels/describe_device.h"
#include "mezzo/version.h"
#include "text/machine/processor.h"

namespace mezzo::text {

std::vector<std::pair<std::string, std::string>> environment_of(const RunSetup& setup) {
  utsname system{};
  uname(&system);
  const std::string name = processor().name;
  return {{"mezzo", MEZZO_VERSION},
          {"LibTorch", TORCH_VERSION},
          {"compiler", __VERSION__},
          {"system", fmt::format("{} {} {}", system.sysname, system.release, system.machine)},
          {"processor", name.empty() ? "unknown" : name},
          {"instruction set", kernels::cpu::name_of(kernels::cpu::instruction_set())},
          {"threads", std::to_string(at::get_num_threads())},
          {"device", kernels::describe_device(setup.device)},
          {"precision", std::string(to_string(setup.precision))}};
}

std::string describe_move(const RunIdentity::Values& was, const RunIdentity::Values& is) {
  std::vector<std::string> different;
  for (const char* name : {"mezzo", "LibTorch", "compiler", "processor", "instruction set", "device"}) {
    const auto before = was.find(name), now = is.find(name);
    if (before != was.end() && now != is.end() && before->second != now->second) {
      different.push_back(fmt::format("{} was '{}', is now '{}'", name, before->second, now->second));
    }
  }
  return fmt::format("{}", fmt::join(different, "; "));
}

}  // namespace mezzo::text
