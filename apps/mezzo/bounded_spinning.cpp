#ifdef __linux__
#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <string_view>
#include <vector>

/// Bounds how long OpenMP's threads spin at a barrier. By default they spin for milliseconds. If another program holds
/// the processor of one thread, the others spin on the processors that this thread could have.
///
/// libgomp reads the bound once, when it is loaded. So the program starts itself again with the bound set, before
/// any library is initialised. The process stays the same.
namespace {

constexpr char kBound[] = "GOMP_SPINCOUNT=1000";  // some 10 us

void bound_spinning(int /*argc*/, char** argv, char** environment) {
  if (::getauxval(AT_BASE) == 0) {
    return;  // started by way of ld.so, which /proc/self/exe names then
  }
  std::vector<char*> variables;
  for (char** entry = environment; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (text.starts_with("GOMP_SPINCOUNT=") || text.starts_with("OMP_WAIT_POLICY=")) {
      return;
    }
    variables.push_back(*entry);
  }
  std::array<char, sizeof kBound> bound{};
  std::ranges::copy(kBound, bound.begin());
  variables.push_back(bound.data());
  variables.push_back(nullptr);
  std::array<char, PATH_MAX> program{};  // its path and not /proc/self/exe, which would become the name of the process
  if (::readlink("/proc/self/exe", program.data(), program.size() - 1) > 0) {
    ::execve(program.data(), argv, variables.data());  // returns only if it fails; then the default holds
  }
}

[[gnu::section(".preinit_array"), gnu::used]] void (*const run_before_libraries)(int, char**, char**) = bound_spinning;

}  // namespace
#endif
