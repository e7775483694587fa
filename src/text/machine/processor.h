#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace mezzo::text {

/// The processors that this process may use.
struct Processor {
  std::string name;                            ///< the maker's name for it; "" if the kernel does not tell
  std::vector<std::string> instructions = {};  ///< of the kernel's list, those for matrix products
  int online = 0;                              ///< of the machine
  int usable = 0;                              ///< by this process: taskset, sets of processors of containers
  double quota = 0;  ///< how many the control group lets work at a time, on average; 0: as many as there are
};

/// @param root  where proc/ and sys/ are, for tests; `online` and `usable` are this machine's
Processor processor(const std::filesystem::path& root = "/");

}  // namespace mezzo::text
