// What makes the text that a tokenizer's model reads: the section "normalizer" of tokenizer.json.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizers/json_field.h"

namespace mezzo::text {

/// A text that is being normalized: valid UTF-8.
struct NormalizedText {
  std::string bytes;
  bool at_start = true;  // whether its first character comes from the first of the text that was given
};

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void normalize(NormalizedText& text) const = 0;
};

/// Normalizers one after the other.
class NormalizerSequence : public Normalizer {
 public:
  NormalizerSequence() = default;

  /// @throws c10::ValueError  naming file and key of what is not known.
  explicit NormalizerSequence(const JsonField& field);

  bool empty() const { return steps_.empty(); }
  void normalize(NormalizedText& text) const override {
    for (const auto& step : steps_) step->normalize(text);
  }
  std::string operator()(std::string_view text) const {
    NormalizedText normalized{std::string(text)};
    normalize(normalized);
    return std::move(normalized.bytes);
  }

 private:
  void add(const JsonField& field);

  std::vector<std::unique_ptr<const Normalizer>> steps_;
};

}  // namespace mezzo::text
