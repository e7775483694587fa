#include "text/tokenizers/charsmap.h"

#include <c10/util/Exception.h>

#include "text/io/utf8.h"
#include "text/tokenizers/graphemes.h"

namespace mezzo::text {
namespace {

// A unit of Darts-clone's double array.
bool has_leaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t label(uint32_t unit) { return unit & (uint32_t{1} << 31 | 0xFF); }
uint32_t offset(uint32_t unit) { return unit >> 10 << ((unit & 1 << 9) >> 6); }
int64_t value(uint32_t unit) { return unit & ~(uint32_t{1} << 31); }

uint32_t little_endian(std::string_view bytes) {
  uint32_t n = 0;
  for (size_t i = 4; i-- > 0;) n = n << 8 | static_cast<unsigned char>(bytes[i]);
  return n;
}

/// Longer clusters are looked up by their code points.
constexpr size_t kLongestCluster = 5;

}  // namespace

Charsmap::Charsmap(std::string_view bytes, const std::string& where) {
  const uint64_t size = bytes.size() < 4 ? 0 : little_endian(bytes);
  TORCH_CHECK_VALUE(size >= 4 && size % 4 == 0 && size <= bytes.size() - 4, where, ": ", bytes.size(),
                    " bytes are no charsmap of sentencepiece; fetch the file again");
  for (size_t i = 4; i < 4 + size; i += 4) units_.push_back(little_endian(bytes.substr(i)));
  replacements_ = bytes.substr(4 + size);
  TORCH_CHECK_VALUE(find_invalid_utf8(replacements_) == replacements_.size(), where,
                    ": the replacements of the charsmap are not UTF-8; fetch the file again");
  for (size_t i = 0; i < ascii_.size(); ++i) {
    const char c = static_cast<char>(i);
    ascii_[i] = find(std::string_view(&c, 1));
  }
}

int64_t Charsmap::find(std::string_view text) const {
  size_t place = offset(units_[0]);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    place ^= byte;
    if (byte == 0 || place >= units_.size()) break;
    const uint32_t unit = units_[place];
    if (label(unit) != byte) break;
    place ^= offset(unit);
    if (has_leaf(unit)) return place < units_.size() ? value(units_[place]) : -1;
  }
  return -1;
}

std::string_view Charsmap::replacement(int64_t at) const {
  const std::string_view rest = std::string_view(replacements_).substr(static_cast<size_t>(at));
  return rest.substr(0, rest.find('\0'));
}

bool Charsmap::append_replaced(std::string_view part, std::string& out) const {
  const int64_t at = find(part);
  // A broken file may point behind the end, or into a character.
  const bool is_there = at >= 0 && static_cast<size_t>(at) <= replacements_.size() &&
                        (static_cast<size_t>(at) == replacements_.size() || (replacements_[at] & 0xC0) != 0x80);
  if (is_there) out.append(replacement(at));
  return is_there;
}

void Charsmap::normalize(NormalizedText& text) const {
  const std::string_view in = text.bytes;
  std::string out;
  out.reserve(in.size() + in.size() / 8);
  const auto is_ascii = [&](size_t i) { return i >= in.size() || static_cast<unsigned char>(in[i]) < 0x80; };
  for (size_t i = 0; i < in.size();) {
    if (is_ascii(i) && is_ascii(i + 1) && in[i] != '\r') {  // a cluster by itself
      if (ascii_[static_cast<size_t>(in[i])] < 0 || !append_replaced(in.substr(i, 1), out)) out.push_back(in[i]);
      ++i;
      continue;
    }
    const std::string_view cluster = in.substr(i, grapheme_length(in.substr(i)));
    i += cluster.size();
    if (cluster.size() <= kLongestCluster && append_replaced(cluster, out)) continue;
    for (const char *p = cluster.data(), *next = p; p != cluster.data() + cluster.size(); p = next) {
      decode_utf8(next);
      const std::string_view c(p, static_cast<size_t>(next - p));
      if (!append_replaced(c, out)) out.append(c);
    }
  }
  text.bytes = std::move(out);
}

}  // namespace mezzo::text
