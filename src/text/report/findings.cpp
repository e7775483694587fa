#include "text/report/findings.h"

#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace mezzo::text {
namespace {

std::string_view first_line(std::string_view text) { return text.substr(0, text.find('\n')); }

}  // namespace

Finding::Finding(DiagnoseRecord record)
    : first(std::move(record)), last_step(first.step), last_scale(first.loss_scale) {}

bool Finding::take_in(const DiagnoseRecord& next) {
  // Which gradients overflow, and by how much, changes from step to step; the first op to overflow hardly changes.
  const bool is_alike = next.kind == first.kind && next.step == last_step + 1 &&
                        (next.kind != "first_op" || first_line(next.text) == first_line(first.text));
  if (is_alike) {
    last_step = next.step;
    last_scale = next.loss_scale;
  }
  return is_alike;
}

std::vector<Finding> findings_of(const std::vector<DiagnoseRecord>& diagnoses) {
  std::vector<Finding> findings;
  std::map<std::string, size_t> latest;  // by kind
  for (const DiagnoseRecord& record : diagnoses) {
    if (record.kind == "gradients") {
      continue;
    }
    const auto found = latest.find(record.kind);
    if (found == latest.end() || !findings[found->second].take_in(record)) {
      latest[record.kind] = findings.size();
      findings.emplace_back(record);
    }
  }
  return findings;
}

}  // namespace mezzo::text
