#include "distributed/group/compare_ranks.h"

#include <c10/util/hash.h>
#include <fmt/format.h>

#include <algorithm>

namespace mezzo::distributed {
namespace {

/// Each line behind its length, so that none can be taken for two.
std::string pack(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) {
    text += fmt::format("{}:{}", line.size(), line);
  }
  return text;
}

std::vector<std::string> unpack(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t colon = text.find(':', begin);
    lines.push_back(text.substr(colon + 1, std::stoull(text.substr(begin, colon - begin))));
    begin = colon + 1 + lines.back().size();
  }
  return lines;
}

}  // namespace

std::optional<RankDifference> compare_ranks(ProcessGroup& group, const std::vector<std::string>& lines) {
  const std::string text = pack(lines);
  const auto hashes = group.all_gather(c10::sha1(text).str());
  const auto other = std::find_if(hashes.begin(), hashes.end(), [&](const auto& hash) { return hash != hashes[0]; });
  if (other == hashes.end()) {
    return std::nullopt;
  }
  const auto rank = static_cast<int>(other - hashes.begin());
  const auto texts = group.all_gather(group.rank() == 0 || group.rank() == rank ? text : "");
  const auto here = unpack(texts[0]), there = unpack(texts[rank]);
  const auto [a, b] = std::mismatch(here.begin(), here.end(), there.begin(), there.end());
  return RankDifference{rank, a == here.end() ? std::nullopt : std::optional(*a),
                        b == there.end() ? std::nullopt : std::optional(*b)};
}

}  // namespace mezzo::distributed
