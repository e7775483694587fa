#include "text/tokenizers/pre_tokenizer.h"

#include <algorithm>
#include <string>

#include "text/io/utf8.h"
#include "text/tokenizers/byte_level.h"
#include "text/tokenizers/normalizer.h"
#include "text/tokenizers/pattern.h"
#include "text/tokenizers/unicode.h"
#include "text/tokenizers/white_space.h"

namespace mezzo::text {
namespace {

/// Splits where characters differ in kind: words of kWord, words of a single character of kAlone;
/// kGap belongs to none.
enum class CharKind { kWord, kOtherWord, kAlone, kGap };

template <class KindOf>
void split_by_kind(std::string_view text, size_t from_first, const KindOf& kind_of, WordSink& out) {
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  const char* word = begin;  // the beginning of the word around p, or p
  CharKind last = CharKind::kGap;
  const auto end_word = [&](const char* p) {
    if (word != p) {
      out.add({word, static_cast<size_t>(p - word)}, bytes_behind(from_first, static_cast<size_t>(word - begin)));
    }
    word = p;
  };
  for (const char *p = begin, *next = p; p != end; p = next) {
    const CharKind kind = kind_of(decode_utf8(next));
    if (kind != last || kind == CharKind::kAlone) end_word(p);
    if (kind == CharKind::kGap) word = next;
    last = kind;
    if (out.full()) return;
  }
  end_word(end);
}

class KindPreTokenizer : public PreTokenizer {
 public:
  using KindOf = CharKind (*)(char32_t);
  explicit KindPreTokenizer(KindOf kind_of) : kind_of_(kind_of) {}
  void split(std::string_view text, size_t from_first, WordSink& out) const override {
    split_by_kind(text, from_first, kind_of_, out);
  }

 private:
  KindOf kind_of_;
};

uint16_t flags_of(char32_t c) { return unicode::properties(c).flags; }

CharKind white_space_kind(char32_t c) { return is_white_space(c) ? CharKind::kGap : CharKind::kWord; }

CharKind bert_kind(char32_t c) {
  const uint16_t flags = flags_of(c);
  return flags & unicode::kWhiteSpace    ? CharKind::kGap
         : flags & unicode::kPunctuation ? CharKind::kAlone
                                         : CharKind::kWord;
}

/// `\w+|[^\w\s]+`
CharKind word_kind(char32_t c) {
  const uint16_t flags = flags_of(c);
  return flags & unicode::kWhitespaceWord ? CharKind::kWord
         : flags & unicode::kWhiteSpace   ? CharKind::kGap
                                          : CharKind::kOtherWord;
}

CharKind digits_alone_kind(char32_t c) { return flags_of(c) & unicode::kDigit ? CharKind::kAlone : CharKind::kWord; }
CharKind digits_kind(char32_t c) { return flags_of(c) & unicode::kDigit ? CharKind::kOtherWord : CharKind::kWord; }

class ByteLevelPreTokenizer : public PreTokenizer {
 public:
  ByteLevelPreTokenizer(bool add_prefix_space, bool use_regex)
      : add_prefix_space_(add_prefix_space), use_regex_(use_regex) {}

  void leave_bytes() { leave_bytes_ = true; }

  void split(std::string_view text, size_t from_first, WordSink& out) const override {
    std::string prefixed;
    if (add_prefix_space_ && !text.starts_with(' ')) {
      prefixed.reserve(text.size() + 1);
      prefixed.append(1, ' ').append(text);
      text = prefixed;
      if (from_first > 0) ++from_first;
    }
    std::string characters;
    while (!text.empty() && !out.full()) {
      const std::string_view word = text.substr(0, use_regex_ ? gpt2_word_length(text) : text.size());
      text.remove_prefix(word.size());
      if (leave_bytes_) {
        out.add(word, from_first);
      } else {
        const size_t first = std::min(from_first, word.size());
        characters.clear();
        append_byte_characters(word.substr(0, first), characters);
        const size_t first_characters = characters.size();
        append_byte_characters(word.substr(first), characters);
        out.add(characters, first_characters);
      }
      from_first = bytes_behind(from_first, word.size());
    }
  }

 private:
  bool add_prefix_space_, use_regex_;
  bool leave_bytes_ = false;
};

enum class PrependScheme { kAlways, kNever, kFirstWord };

class MetaspacePreTokenizer : public PreTokenizer {
 public:
  MetaspacePreTokenizer(std::string replacement, PrependScheme scheme, bool splits)
      : replacement_(std::move(replacement)), scheme_(scheme), splits_(splits) {}

  void split(std::string_view text, size_t from_first, WordSink& out) const override {
    std::string replaced;
    replaced.reserve(text.size() + 2 * replacement_.size() + text.size() / 4);
    const bool has_prefix = text.starts_with(' ') || text.starts_with(replacement_);
    if (!has_prefix &&
        (scheme_ == PrependScheme::kAlways || (scheme_ == PrependScheme::kFirstWord && from_first > 0))) {
      replaced.append(replacement_);
    }
    const size_t first = std::min(from_first, text.size());
    append_replaced(text.substr(0, first), replaced);
    if (from_first > 0) from_first = replaced.size();
    append_replaced(text.substr(first), replaced);
    if (!splits_) {
      out.add(replaced, from_first);
      return;
    }
    for (std::string_view rest = replaced; !rest.empty() && !out.full();) {
      const size_t length = std::min(rest.find(replacement_, 1), rest.size());
      out.add(rest.substr(0, length), from_first);
      rest.remove_prefix(length);
      from_first = bytes_behind(from_first, length);
    }
  }

 private:
  void append_replaced(std::string_view text, std::string& out) const {
    while (true) {
      const size_t space = text.find(' ');
      out.append(text.substr(0, space));
      if (space == text.npos) break;
      out.append(replacement_);
      text.remove_prefix(space + 1);
    }
  }

  std::string replacement_;
  PrependScheme scheme_;
  bool splits_;
};

enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

/// Splits at matches of a pattern, into matches and the texts between them.
class SplitPreTokenizer : public PreTokenizer {
 public:
  SplitPreTokenizer(Pattern pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void split(std::string_view text, size_t from_first, WordSink& out) const override {
    const std::vector<Part> parts = merged(find_parts(text));
    for (const Part& part : parts) {
      if (out.full()) return;
      if (part.begin == part.end || (behavior_ == Behavior::kRemoved && part.is_match)) continue;
      out.add(text.substr(part.begin, part.end - part.begin), bytes_behind(from_first, part.begin));
    }
  }

 private:
  struct Part {
    size_t begin, end;
    bool is_match;
  };

  std::vector<Part> find_parts(std::string_view text) const {
    std::vector<Part> parts;
    size_t done = 0;
    pattern_.for_each_match(text, [&](size_t begin, size_t end) {
      if (done < begin) parts.push_back({done, begin, invert_});
      parts.push_back({begin, end, !invert_});
      done = end;
      return true;
    });
    if (done < text.size()) parts.push_back({done, text.size(), invert_});
    return parts;
  }

  std::vector<Part> merged(std::vector<Part> parts) const {
    if (behavior_ == Behavior::kRemoved || behavior_ == Behavior::kIsolated) return parts;
    const bool backwards = behavior_ == Behavior::kMergedWithNext;
    if (backwards) std::reverse(parts.begin(), parts.end());
    std::vector<Part> result;
    bool last_is_match = false;
    for (const Part& part : parts) {
      const bool joins =
          behavior_ == Behavior::kContiguous ? part.is_match == last_is_match : part.is_match && !last_is_match;
      last_is_match = part.is_match;
      if (!joins || result.empty()) {
        result.push_back(part);
      } else if (backwards) {
        result.back().begin = part.begin;
      } else {
        result.back().end = part.end;
      }
    }
    if (backwards) std::reverse(result.begin(), result.end());
    return result;
  }

  Pattern pattern_;
  Behavior behavior_;
  bool invert_;
};

Behavior read_behavior(const JsonField& field) {
  const std::string& name = field.as_string();
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  field.expect(name == "Contiguous", "one of Removed, Isolated, MergedWithPrevious, MergedWithNext and Contiguous");
  return Behavior::kContiguous;
}

size_t punctuation_length(std::string_view text) {
  const char* p = text.data();
  const bool is_punctuation = (flags_of(decode_utf8(p)) & unicode::kPunctuation) != 0;
  return is_punctuation ? static_cast<size_t>(p - text.data()) : 0;
}

std::unique_ptr<PreTokenizer> read_split(const JsonField& field) {
  field.allowed_keys({"type", "pattern", "behavior", "invert"});
  return std::make_unique<SplitPreTokenizer>(Pattern(field["pattern"]), read_behavior(field["behavior"]),
                                             field["invert"].as_bool());
}

std::unique_ptr<PreTokenizer> read_metaspace(const JsonField& field) {
  // "str_rep" is the replacement again, in older files.
  field.allowed_keys({"type", "replacement", "prepend_scheme", "add_prefix_space", "split", "str_rep"});
  const JsonField replacement = field["replacement"];
  const char* p = replacement.as_string().data();
  const bool is_character = !replacement.as_string().empty() &&
                            (decode_utf8(p), p) == replacement.as_string().data() + replacement.as_string().size();
  replacement.expect(is_character, "one character");
  PrependScheme scheme = PrependScheme::kAlways;
  if (field.has("prepend_scheme")) {
    const std::string& name = field["prepend_scheme"].as_string();
    field["prepend_scheme"].expect(name == "always" || name == "never" || name == "first", "always, never or first");
    scheme = name == "always"  ? PrependScheme::kAlways
             : name == "never" ? PrependScheme::kNever
                               : PrependScheme::kFirstWord;
    // An older file's setting beside it must say the same.
    if (!field["add_prefix_space"].is_null()) {
      field["add_prefix_space"].expect(field["add_prefix_space"].as_bool() || scheme == PrependScheme::kNever,
                                       "true, or prepend_scheme \"never\"");
    }
  } else if (!field.bool_unless_null("add_prefix_space", true)) {
    scheme = PrependScheme::kNever;
  }
  return std::make_unique<MetaspacePreTokenizer>(replacement.as_string(), scheme,
                                                 field.bool_unless_null("split", true));
}

}  // namespace

PreTokenizerSequence::PreTokenizerSequence(const JsonField& field) {
  if (!field.is_null()) add(field);
}

void PreTokenizerSequence::add(const JsonField& field) {
  constexpr size_t kMaxSteps = 32;  // each runs within the one before
  field.expect(steps_.size() < kMaxSteps, "one of at most " + std::to_string(kMaxSteps) + " steps");
  const std::string& type = field["type"].as_string();
  const auto by_kind = [&](KindPreTokenizer::KindOf kind) {
    if (type != "Digits") field.allowed_keys({"type"});
    steps_.push_back(std::make_unique<KindPreTokenizer>(kind));
  };
  if (type == "Sequence") {
    field.allowed_keys({"type", "pretokenizers"});
    const JsonField list = field["pretokenizers"];
    for (size_t i = 0; i < list.as_array().size(); ++i) add(list.element(i));
  } else if (type == "ByteLevel") {
    field.allowed_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    const auto writes_bytes = [](const auto& step) {
      return dynamic_cast<ByteLevelPreTokenizer*>(step.get()) != nullptr;
    };
    field.expect(std::ranges::none_of(steps_, writes_bytes), "the only ByteLevel");  // each doubles non-ASCII bytes
    steps_.push_back(
        std::make_unique<ByteLevelPreTokenizer>(field["add_prefix_space"].as_bool(), field.bool_or("use_regex", true)));
  } else if (type == "Metaspace") {
    steps_.push_back(read_metaspace(field));
  } else if (type == "Split") {
    steps_.push_back(read_split(field));
  } else if (type == "Punctuation") {
    field.allowed_keys({"type", "behavior"});
    const Behavior behavior = field.has("behavior") ? read_behavior(field["behavior"]) : Behavior::kIsolated;
    steps_.push_back(std::make_unique<SplitPreTokenizer>(Pattern(punctuation_length), behavior, /*invert=*/false));
  } else if (type == "Digits") {
    field.allowed_keys({"type", "individual_digits"});
    by_kind(field["individual_digits"].as_bool() ? digits_alone_kind : digits_kind);
  } else if (type == "BertPreTokenizer") {
    by_kind(bert_kind);
  } else if (type == "Whitespace") {
    by_kind(word_kind);
  } else if (type == "WhitespaceSplit") {
    by_kind(white_space_kind);
  } else {
    field.expect(false,
                 "one of BertPreTokenizer, ByteLevel, Whitespace, WhitespaceSplit, Metaspace, Punctuation, "
                 "Digits, Split and Sequence");
  }
}

bool PreTokenizerSequence::leave_bytes() {
  auto* byte_level = steps_.empty() ? nullptr : dynamic_cast<ByteLevelPreTokenizer*>(steps_.back().get());
  if (byte_level != nullptr) byte_level->leave_bytes();
  return byte_level != nullptr;
}

void PreTokenizerSequence::split_from(size_t step, std::string_view text, size_t from_first, WordSink& out) const {
  if (text.empty()) return;
  if (step == steps_.size()) {
    out.add(text, from_first);
    return;
  }
  if (step + 1 == steps_.size()) {
    steps_[step]->split(text, from_first, out);
    return;
  }
  struct Next : WordSink {
    Next(const PreTokenizerSequence& steps, size_t next, WordSink& sink)
        : sequence(steps), step_behind(next), out_behind(sink) {}
    void add(std::string_view word, size_t first) override {
      sequence.split_from(step_behind, word, first, out_behind);
    }
    bool full() const override { return out_behind.full(); }
    const PreTokenizerSequence& sequence;
    size_t step_behind;
    WordSink& out_behind;
  } next(*this, step + 1, out);
  steps_[step]->split(text, from_first, next);
}

}  // namespace mezzo::text
