#include "mezzo/amp/cast_log.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "amp/dry_run.h"
#include "amp/text_table.h"
#include "kernels/dtypes.h"
#include "mezzo/amp/module_scope.h"

namespace mezzo {
namespace {

/// `text` as a JSON string. Names of ops and modules hold nothing else that needs escaping.
std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += '\\';
    }
    result += c;
  }
  return result + '"';
}

std::string megabytes(int64_t bytes) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(3) << static_cast<double>(bytes) / 1e6;
  return text.str();
}

}  // namespace

void CastLog::record(const std::string& op,
                     CastPolicy policy,
                     c10::ScalarType from,
                     c10::ScalarType to,
                     int64_t bytes,
                     bool from_cache) {
  Key key{op, policy, from, to, ModuleScope::current_path()};
  const std::lock_guard lock(mutex_);
  Totals& totals = totals_[std::move(key)];
  if (from_cache) {
    totals.cached += 1;
  } else {
    totals.count += 1;
    totals.bytes += bytes;
  }
}

std::vector<CastLog::Entry> CastLog::entries() const {
  std::vector<Entry> entries;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, totals] : totals_) {
      const auto& [op, policy, from, to, module] = key;
      entries.push_back({op, policy, from, to, module, totals.count, totals.bytes, totals.cached});
    }
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(b.bytes, a.op, a.module, a.from, a.to) < std::tie(a.bytes, b.op, b.module, b.from, b.to);
  });
  return entries;
}

std::string CastLog::to_table() const {
  std::vector<std::vector<std::string>> rows = {{"op", "policy", "from", "to", "module", "casts", "cached", "MB"}};
  Totals sum;
  for (const Entry& e : entries()) {
    rows.push_back({e.op, std::string(to_string(e.policy)), dtype_name(e.from), dtype_name(e.to), e.module,
                    std::to_string(e.count), std::to_string(e.cached), megabytes(e.bytes)});
    sum.count += e.count;
    sum.cached += e.cached;
    sum.bytes += e.bytes;
  }
  rows.push_back({"all", "", "", "", "", std::to_string(sum.count), std::to_string(sum.cached), megabytes(sum.bytes)});
  return text_table(rows, /*left=*/5);
}

std::string CastLog::to_json() const {
  std::ostringstream json;
  json << '[';
  const char* separator = "\n";
  for (const Entry& e : entries()) {
    json << separator << "  {\"op\": " << quoted(e.op) << ", \"policy\": " << quoted(to_string(e.policy))
         << ", \"from\": " << quoted(dtype_name(e.from)) << ", \"to\": " << quoted(dtype_name(e.to))
         << ", \"module\": " << quoted(e.module) << ", \"count\": " << e.count << ", \"bytes\": " << e.bytes
         << ", \"cached\": " << e.cached << '}';
    separator = ",\n";
  }
  json << "\n]\n";
  return json.str();
}

void CastLog::clear() {
  const std::lock_guard lock(mutex_);
  totals_.clear();
}

void CastLog::dry_run(c10::Device device,
                      c10::ScalarType dtype,
                      const std::function<void()>& function,
                      const std::optional<OpPolicy>& policy) {
  const DryRun dry_run(*this, device, dtype, policy);
  function();
}

}  // namespace mezzo
