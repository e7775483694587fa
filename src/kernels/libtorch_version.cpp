#include <c10/util/Exception.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/version.h>

#include <cstdint>
#include <string>

#include "mezzo/version.h"

namespace mezzo {
namespace {

constexpr uint64_t kMajorShift = 56, kMinorShift = 48;  // of TORCH_ABI_VERSION

std::string minor_version(uint64_t abi_version) {
  return c10::str(abi_version >> kMajorShift, '.', abi_version >> kMinorShift & 0xFF);
}

}  // namespace

void check_libtorch_version() {
  const auto compiled = minor_version(TORCH_ABI_VERSION), loaded = minor_version(aoti_torch_abi_version());
  TORCH_CHECK(loaded == compiled, "mezzo was built with LibTorch ", compiled, ", and this process has loaded LibTorch ",
              loaded, ". Run it with LibTorch ", compiled, ", or build mezzo with LibTorch ", loaded, ".");
}

}  // namespace mezzo
