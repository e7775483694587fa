// One target under libFuzzer: that of the environment variable MEZZO_FUZZ_TARGET, or of the program's own name,
// fuzz_NAME.
#include <c10/util/Logging.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "fuzz/targets.h"

namespace {

std::unique_ptr<mezzo::fuzz::Folder> folder;

std::string target_of(const char* program) {
  constexpr std::string_view kPrefix = "fuzz_";
  if (const char* named = std::getenv("MEZZO_FUZZ_TARGET")) return named;
  const std::string name = std::filesystem::path(program).filename().string();
  return name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* /*count*/, char*** arguments) {
  c10::SetStackTraceFetcher(std::function<std::string()>([] { return std::string(); }));  // most of an error's time
  folder = std::make_unique<mezzo::fuzz::Folder>(mezzo::fuzz::find_target(target_of((*arguments)[0])));
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  folder->read_once({reinterpret_cast<const char*>(data), size});
  return 0;
}
