// What makes the text that a tokenizer's model reads: the section "normalizer" of tokenizer.json.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizers/bert_normalizer.h"
#include "text/tokenizers/json_field.h"

namespace mezzo::text {

/// A text that is being normalized: valid UTF-8.
struct NormalizedText {
  std::string bytes;
  size_t from_first = 0;   // how many bytes, from its start on, come from the first character of the text to encode
  size_t most = SIZE_MAX;  // bytes; a step may stop once it has made more
};

/// The end of the character that byte `i` belongs to; the text's end for a byte behind it.
inline size_t character_end(std::string_view text, size_t i) {
  const auto continues = [&] { return i < text.size() && (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80; };
  for (++i; continues();) ++i;
  return i < text.size() ? i : text.size();
}

/// The rest of the bytes from the first character behind the first `offset` bytes.
inline size_t bytes_behind(size_t from_first, size_t offset) { return from_first > offset ? from_first - offset : 0; }

/// Bytes with which one step replaces a part of a text, at most; the longest of NFKC has 33.
constexpr size_t kMaxReplacement = 64;

/// `{"type": "BertNormalizer", ...}`
/// @throws c10::ValueError  naming file and key
BertNormalizerOptions read_bert_normalizer(const JsonField& field);

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void normalize(NormalizedText& text) const = 0;
};

/// Normalizers one after the other.
class NormalizerSequence : public Normalizer {
 public:
  NormalizerSequence() = default;

  /// @throws c10::ValueError  naming file and key of an unknown value.
  explicit NormalizerSequence(const JsonField& field);

  bool empty() const { return steps_.empty(); }
  /// @throws c10::ValueError  if it makes the text more than 16 times as long, and 64 KiB more.
  void normalize(NormalizedText& text) const override;
  std::string operator()(std::string_view text) const {
    NormalizedText normalized{std::string(text)};
    normalize(normalized);
    return std::move(normalized.bytes);
  }

 private:
  void add(const JsonField& field);

  std::string file_;
  std::vector<std::unique_ptr<const Normalizer>> steps_;
};

}  // namespace mezzo::text
