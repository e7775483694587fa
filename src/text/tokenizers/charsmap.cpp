#include "text/tokenizers/charsmap.h"

#include <c10/util/Exception.h>

#include <algorithm>

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

/// Follows which characters of the result tokenizers takes for the text's first. The result's characters belong to the
/// text's in turn, whatever they are made of. Surplus characters of a replacement belong to the last character that it
/// replaces.
class FirstCharacter {
 public:
  explicit FirstCharacter(const NormalizedText& text) : text_(text) {}

  /// @param part  of the text, in whose place stands what `out` has from `begin` on.
  void add(std::string_view part, std::string_view out, size_t begin) {
    const bool is_behind = source_ >= text_.from_first;
    // A removed character is counted with the character before it, if there is one. If it was one more than it
    // replaced, it now belongs to the text's next.
    if (begin == out.size() && is_more_ && is_behind) from_first_ = last_begin_;
    if (begin == out.size() || is_behind) is_more_ = false;
    if (is_behind) return;
    size_t left = count(part);
    for (size_t end = begin; end < out.size();) {
      last_begin_ = end;
      end = character_end(out, end);
      is_more_ = left == 0;
      if (is_more_ ? source_ <= text_.from_first : source_ < text_.from_first) from_first_ = end;
      if (!is_more_) --left, source_ = character_end(text_.bytes, source_);
    }
    for (; left > 0 && !out.empty(); --left) source_ = character_end(text_.bytes, source_);
  }

  /// How many bytes of the result come from it.
  size_t bytes() const { return from_first_; }

 private:
  static size_t count(std::string_view text) {
    size_t found = 0;
    for (size_t i = 0; i < text.size(); i = character_end(text, i)) ++found;
    return found;
  }

  const NormalizedText& text_;
  size_t source_ = 0;  // the character of the text by which the next one of the result goes
  size_t from_first_ = 0;
  size_t last_begin_ = 0;  // of the result's last character
  bool is_more_ = false;   // whether that was one more than it replaced
};

/// Longer clusters are looked up by their code points.
constexpr size_t kLongestCluster = 5;

}  // namespace

Charsmap::Charsmap(std::string_view bytes, const std::string& where) {
  const uint64_t size = bytes.size() < 4 ? 0 : little_endian(bytes);
  TORCH_CHECK_VALUE(size >= 4 && size % 4 == 0 && size <= bytes.size() - 4, where, ": ", bytes.size(),
                    " bytes are not a charsmap of sentencepiece; fetch the file again");
  for (size_t i = 4; i < 4 + size; i += 4) units_.push_back(little_endian(bytes.substr(i)));
  replacements_ = bytes.substr(4 + size);
  TORCH_CHECK_VALUE(find_invalid_utf8(replacements_) == replacements_.size(), where,
                    ": the replacements of the charsmap are not UTF-8; fetch the file again");
  size_t longest = 0;
  for (size_t i = 0; i < replacements_.size();) {
    const size_t length = replacement(static_cast<int64_t>(i)).size();
    longest = std::max(longest, length);
    i += length + 1;
  }
  TORCH_CHECK_VALUE(longest <= kMaxReplacement, where, ": a replacement of the charsmap has ", longest,
                    " bytes; at most ", kMaxReplacement, " are read. Fetch the file again");
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

bool Charsmap::append_replacement(std::string_view part, std::string& out) const {
  const int64_t at = find(part);
  // A broken file may point behind the end, or into a character.
  const bool is_there = at >= 0 && static_cast<size_t>(at) <= replacements_.size() &&
                        (static_cast<size_t>(at) == replacements_.size() || (replacements_[at] & 0xC0) != 0x80);
  if (is_there) out.append(replacement(at));
  return is_there;
}

void Charsmap::normalize(NormalizedText& text) const {
  const std::string_view in = text.bytes;
  FirstCharacter first(text);
  std::string out;
  out.reserve(in.size() + in.size() / 8);
  const auto is_ascii = [&](size_t i) { return i >= in.size() || static_cast<unsigned char>(in[i]) < 0x80; };
  for (size_t i = 0; i < in.size() && out.size() <= text.most;) {
    const size_t begin = out.size();
    if (is_ascii(i) && is_ascii(i + 1) && in[i] != '\r') {  // a cluster by itself
      if (ascii_[static_cast<size_t>(in[i])] < 0 || !append_replacement(in.substr(i, 1), out)) out.push_back(in[i]);
      first.add(in.substr(i, 1), out, begin);
      ++i;
      continue;
    }
    const std::string_view cluster = in.substr(i, grapheme_length(in.substr(i)));
    i += cluster.size();
    if (cluster.size() <= kLongestCluster && append_replacement(cluster, out)) {
      first.add(cluster, out, begin);
      continue;
    }
    for (const char *p = cluster.data(), *next = p; p != cluster.data() + cluster.size(); p = next) {
      decode_utf8(next);
      const std::string_view c(p, static_cast<size_t>(next - p));
      const size_t begin_of_character = out.size();
      if (!append_replacement(c, out)) out.append(c);
      first.add(c, out, begin_of_character);
    }
  }
  text = {std::move(out), first.bytes(), text.most};
}

}  // namespace mezzo::text
