#include "text/tokenizers/bert_normalizer.h"

#include <c10/util/Exception.h>

namespace mezzo::text {

using unicode::Properties;

BertNormalizer::BertNormalizer(const BertNormalizerOptions& options)
    : clean_(options.clean_text),
      chinese_(options.handle_chinese_chars),
      strip_(options.strip_accents.value_or(options.lowercase)),
      lower_(options.lowercase) {
  // Code points with equal properties share their action. What differs between them (the value that
  // a kCopy, kSpace, kIsolate or kMark action writes) is the code point itself, which `run` knows.
  actions_.resize(unicode::num_properties());
  for (int i = 0; i < unicode::num_properties(); ++i) {
    actions_[i] = compile(unicode::properties_at(i), unicode::first_with(i));
  }
  for (char32_t c = 0; c < 128; ++c) {
    Action action = actions_[unicode::property_index(c)];
    if (action.kind == Kind::kReplace && action.length == 1 && elements_[action.value].kind == Kind::kCopy) {
      action = elements_[action.value];  // an upper-case letter
    } else if (action.kind != Kind::kReplace) {
      action.value = c;
    }
    ascii_[c] = action;
  }
}

BertNormalizer::Action BertNormalizer::compile(const Properties& of, char32_t c) {
  if (clean_ && (of.flags & unicode::kCleanDrop)) return {Kind::kDrop};
  if (clean_ && (of.flags & unicode::kCleanSpace)) return {Kind::kSpace};
  if (strip_ && (of.flags & unicode::kHangul)) return {Kind::kHangul};

  std::vector<Action> elements;
  const bool spaced = chinese_ && (of.flags & unicode::kChinese);
  if (spaced) elements.push_back({Kind::kSpace, 0, 0, U' '});
  if (strip_ && of.nfd_length > 0) {
    for (char32_t part : unicode::sequence(of.nfd_offset, of.nfd_length)) compile_decomposed(part, elements);
  } else {
    compile_decomposed(c, elements);
  }
  if (elements.empty()) return {Kind::kDrop};
  const bool unchanged = elements.size() == 1 && elements[0].value == c;
  if (unchanged || (elements.size() == 1 && elements[0].kind == Kind::kBreak)) return elements[0];
  if (spaced) elements.push_back({Kind::kSpace, 0, 0, U' '});
  if (spaced && elements.size() == 3 && elements[1].value == c) {
    TORCH_INTERNAL_ASSERT(elements[1].kind == Kind::kCopy);
    return {Kind::kChinese};  // one action for many characters, so it cannot be a list that names one of them
  }
  const Action action{Kind::kReplace, 0, static_cast<uint16_t>(elements.size()),
                      static_cast<char32_t>(elements_.size())};
  elements_.insert(elements_.end(), elements.begin(), elements.end());
  return action;
}

/// The rest of the way of a code point that NFD leaves as it is.
void BertNormalizer::compile_decomposed(char32_t c, std::vector<Action>& out) const {
  const Properties& of = unicode::properties(c);
  if (strip_ && (of.flags & unicode::kNonspacingMark)) {
    if (of.combining_class == 0) out.push_back({Kind::kBreak});
  } else if (strip_ && of.combining_class != 0) {
    out.push_back({Kind::kMark, of.combining_class, 0, c});
  } else if (lower_ && of.lower_length > 0) {
    for (char32_t lower : unicode::sequence(of.lower_offset, of.lower_length)) out.push_back(compile_final(lower));
  } else {
    out.push_back(compile_final(c));
  }
}

BertNormalizer::Action BertNormalizer::compile_final(char32_t c) {
  const uint16_t flags = unicode::properties(c).flags;
  const Kind kind = flags & unicode::kWhiteSpace    ? Kind::kSpace
                    : flags & unicode::kPunctuation ? Kind::kIsolate
                                                    : Kind::kCopy;
  return {kind, 0, 0, c};
}

std::string BertNormalizer::normalize(std::string_view text) const {
  struct {
    std::string out;
    void append(char c) { out.push_back(c); }
    void append(std::string_view bytes) { out.append(bytes); }
    void append(char32_t c) { append_utf8(out, c); }
    void space(char32_t c) { append_utf8(out, c); }
    void isolate(char32_t c) { append_utf8(out, c); }
    bool full() const { return false; }
  } sink;
  run(text, sink);
  return sink.out;
}

}  // namespace mezzo::text
