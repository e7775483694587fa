#include "text/machine/control_groups.h"

#include <fstream>
#include <string>

namespace mezzo::text {
namespace {

namespace fs = std::filesystem;
using Visit = std::function<void(const fs::path&, int)>;

void visit_outwards(const fs::path& top, fs::path group, int version, const Visit& visit) {
  for (;; group = group.parent_path()) {
    visit(top / group.relative_path(), version);
    if (group == group.root_path() || group.empty()) return;
  }
}

}  // namespace

void for_each_control_group(const fs::path& root, std::string_view controller, const Visit& visit) {
  const std::string name(controller);
  std::ifstream groups(root / "proc/self/cgroup");  // lines of number:controllers:path; 0:: is version 2
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const fs::path group = line.substr(second + 1);
    if (controllers == ",,") {
      visit_outwards(root / "sys/fs/cgroup", group, 2, visit);
    } else if (controllers.find("," + name + ",") != std::string::npos) {
      visit_outwards(root / "sys/fs/cgroup" / name, group, 1, visit);
    }
  }
}

}  // namespace mezzo::text
