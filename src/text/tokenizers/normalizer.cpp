#include "text/tokenizers/normalizer.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "text/io/utf8.h"
#include "text/tokenizers/base64.h"
#include "text/tokenizers/charsmap.h"
#include "text/tokenizers/normalization_form.h"
#include "text/tokenizers/pattern.h"
#include "text/tokenizers/unicode.h"
#include "text/tokenizers/white_space.h"

namespace mezzo::text {
namespace {

/// Returns the end of the text's first characters, which come from its first one alone. The last of them may have been
/// composed with the next.
size_t end_of_first(std::string_view text, std::string_view first) {
  return first.empty() ? 0 : character_end(text, first.size() - 1);
}

/// Normalizes characters one by one.
/// @param append  appends the result for a text to the string.
template <class Append>
void normalize_each(NormalizedText& text, const Append& append) {
  const std::string_view in = text.bytes;
  std::string out;
  out.reserve(in.size());
  append(in.substr(0, text.from_first), out);
  const size_t from_first = out.size();
  append(in.substr(text.from_first), out);
  text = {std::move(out), from_first, text.most};
}

class FormNormalizer : public Normalizer {
 public:
  explicit FormNormalizer(NormalizationForm form) : form_(form) {}
  void normalize(NormalizedText& text) const override {
    std::string first = text.bytes.substr(0, text.from_first);
    to_normalization_form(first, form_);
    to_normalization_form(text.bytes, form_);
    text.from_first = end_of_first(text.bytes, first);
  }

 private:
  NormalizationForm form_;
};

class LowercaseNormalizer : public Normalizer {
 public:
  void normalize(NormalizedText& text) const override { normalize_each(text, append_lower); }

 private:
  static void append_lower(std::string_view text, std::string& out) {
    for (const char *p = text.data(), *end = p + text.size(); p != end;) {
      if (static_cast<unsigned char>(*p) < 0x80) {
        const char c = *p++;
        out.push_back(c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c);
        continue;
      }
      const char* const start = p;
      const unicode::Properties& of = unicode::properties(decode_utf8(p));
      if (of.lower_length == 0) out.append(start, p);
      for (const char32_t c : unicode::sequence(of.lower_offset, of.lower_length)) append_utf8(out, c);
    }
  }
};

class StripNormalizer : public Normalizer {
 public:
  StripNormalizer(bool left, bool right) : left_(left), right_(right) {}
  void normalize(NormalizedText& text) const override {
    if (right_) text.bytes.resize(trim_end(text.bytes).size());
    const size_t before = left_ ? text.bytes.size() - trim_begin(text.bytes).size() : 0;
    text.bytes.erase(0, before);
    text.from_first = bytes_behind(std::min(text.from_first, text.bytes.size() + before), before);
  }

 private:
  bool left_, right_;
};

class StripAccentsNormalizer : public Normalizer {
 public:
  void normalize(NormalizedText& text) const override { normalize_each(text, append_bare); }

 private:
  static void append_bare(std::string_view text, std::string& out) {
    for (const char *p = text.data(), *end = p + text.size(); p != end;) {
      const char* const start = p;
      if (!(unicode::properties(decode_utf8(p)).flags & unicode::kCombiningMark)) out.append(start, p);
    }
  }
};

class PrependNormalizer : public Normalizer {
 public:
  explicit PrependNormalizer(std::string prefix) : prefix_(std::move(prefix)) {}
  void normalize(NormalizedText& text) const override {
    if (text.bytes.empty()) return;
    text.bytes.insert(0, prefix_);
    if (text.from_first > 0) text.from_first += prefix_.size();
  }

 private:
  std::string prefix_;
};

/// Replaces the matches of a pattern.
class ReplaceNormalizer : public Normalizer {
 public:
  ReplaceNormalizer(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void normalize(NormalizedText& text) const override {
    const std::string_view in = text.bytes;
    std::string out;
    out.reserve(in.size());
    size_t done = 0, from_first = 0;
    const auto keep = [&](size_t end) {
      if (done < text.from_first) from_first = out.size() + std::min(end, text.from_first) - done;
      out.append(in.substr(done, end - done));
      done = end;
    };
    pattern_.for_each_match(in, [&](size_t begin, size_t end) {
      keep(begin);
      out.append(content_);
      if (end <= text.from_first) from_first = out.size();  // the content belongs to the last character of its match
      done = end;
      return out.size() <= text.most;
    });
    keep(in.size());
    text = {std::move(out), from_first, text.most};
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class BertTextNormalizer : public Normalizer {
 public:
  explicit BertTextNormalizer(const BertNormalizerOptions& options) : normalizer_(options) {}
  void normalize(NormalizedText& text) const override {
    const std::string first = normalizer_.normalize(std::string_view(text.bytes).substr(0, text.from_first));
    text.bytes = normalizer_.normalize(text.bytes);
    text.from_first = end_of_first(text.bytes, first);
  }

 private:
  BertNormalizer normalizer_;
};

const std::string& read_inserted(const JsonField& field) {
  field.expect(field.as_string().size() <= kMaxReplacement,
               "a string of at most " + std::to_string(kMaxReplacement) + " bytes");
  return field.as_string();
}

std::unique_ptr<const Normalizer> read_replace(const JsonField& field) {
  field.allowed_keys({"type", "pattern", "content"});
  return std::make_unique<ReplaceNormalizer>(Pattern(field["pattern"]), read_inserted(field["content"]));
}

std::unique_ptr<const Normalizer> read_charsmap(const JsonField& field) {
  field.allowed_keys({"type", "precompiled_charsmap"});
  const JsonField charsmap = field["precompiled_charsmap"];
  const auto bytes = decode_base64(charsmap.as_string());
  TORCH_CHECK_VALUE(bytes, charsmap.file(), ": ", charsmap.name(), " is not base64; fetch the file again");
  return std::make_unique<Charsmap>(*bytes, charsmap.file() + ": " + charsmap.name());
}

}  // namespace

BertNormalizerOptions read_bert_normalizer(const JsonField& field) {
  field.allowed_keys({"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
  BertNormalizerOptions options{.lowercase = field["lowercase"].as_bool(),
                                .handle_chinese_chars = field["handle_chinese_chars"].as_bool(),
                                .clean_text = field["clean_text"].as_bool()};
  const JsonField strip = field["strip_accents"];
  if (!strip.is_null()) options.strip_accents = strip.as_bool();
  return options;
}

NormalizerSequence::NormalizerSequence(const JsonField& field) : file_(field.file()) {
  if (!field.is_null()) add(field);
}

void NormalizerSequence::normalize(NormalizedText& text) const {
  constexpr size_t kMaxGrowth = 16, kRoom = size_t{1} << 16;  // of a character NFKD makes eleven times as many bytes
  const size_t size = text.bytes.size();
  text.most = kMaxGrowth * size + kRoom;
  for (const auto& step : steps_) {
    step->normalize(text);
    TORCH_CHECK_VALUE(text.bytes.size() <= text.most, file_, ": normalizer makes more than ", text.most,
                      " bytes of a text of ", size, "; take out steps that lengthen texts");
  }
}

void NormalizerSequence::add(const JsonField& field) {
  constexpr size_t kMaxSteps = 32;
  field.expect(steps_.size() < kMaxSteps, "one of at most " + std::to_string(kMaxSteps) + " steps");
  const std::string& type = field["type"].as_string();
  const auto form = [&](NormalizationForm f) {
    field.allowed_keys({"type"});
    steps_.push_back(std::make_unique<FormNormalizer>(f));
  };
  if (type == "Sequence") {
    field.allowed_keys({"type", "normalizers"});
    const JsonField list = field["normalizers"];
    for (size_t i = 0; i < list.as_array().size(); ++i) add(list.element(i));
  } else if (type == "NFC") {
    form(NormalizationForm::kNfc);
  } else if (type == "NFD") {
    form(NormalizationForm::kNfd);
  } else if (type == "NFKC") {
    form(NormalizationForm::kNfkc);
  } else if (type == "NFKD") {
    form(NormalizationForm::kNfkd);
  } else if (type == "Lowercase") {
    field.allowed_keys({"type"});
    steps_.push_back(std::make_unique<LowercaseNormalizer>());
  } else if (type == "Strip") {
    field.allowed_keys({"type", "strip_left", "strip_right"});
    steps_.push_back(std::make_unique<StripNormalizer>(field["strip_left"].as_bool(), field["strip_right"].as_bool()));
  } else if (type == "StripAccents") {
    field.allowed_keys({"type"});
    steps_.push_back(std::make_unique<StripAccentsNormalizer>());
  } else if (type == "Prepend") {
    field.allowed_keys({"type", "prepend"});
    steps_.push_back(std::make_unique<PrependNormalizer>(read_inserted(field["prepend"])));
  } else if (type == "Replace") {
    steps_.push_back(read_replace(field));
  } else if (type == "Precompiled") {
    steps_.push_back(read_charsmap(field));
  } else if (type == "BertNormalizer") {
    steps_.push_back(std::make_unique<BertTextNormalizer>(read_bert_normalizer(field)));
  } else {
    field.expect(false,
                 "one of NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Prepend, Replace, Precompiled, "
                 "BertNormalizer and Sequence");
  }
}

}  // namespace mezzo::text
