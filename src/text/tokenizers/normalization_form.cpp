#include "text/tokenizers/normalization_form.h"

#include <algorithm>
#include <vector>

#include "text/io/utf8.h"
#include "text/tokenizers/unicode.h"

namespace mezzo::text {
namespace {

using unicode::Properties;

constexpr char32_t kHangulL = 0x1100, kHangulV = 0x1161, kHangulT = 0x11A7, kHangulS = 0xAC00;
constexpr char32_t kNumL = 19, kNumV = 21, kNumT = 28;

/// A code point with the canonical combining class it is sorted by.
struct Ranked {
  char32_t c;
  uint8_t combining_class;
};

bool is_compatible(NormalizationForm form) {
  return form == NormalizationForm::kNfkd || form == NormalizationForm::kNfkc;
}
bool is_composed(NormalizationForm form) { return form == NormalizationForm::kNfc || form == NormalizationForm::kNfkc; }

/// Below this every code point is in the form, in any context.
char32_t first_to_look_at(NormalizationForm form) {
  return is_compatible(form) ? 0xA0 : form == NormalizationForm::kNfc ? 0x300 : 0xC0;
}

/// Whether the form leaves a text of this code point alone as it is, and nothing before it either.
bool is_inert(char32_t c, NormalizationForm form) {
  if (c < first_to_look_at(form)) return true;
  const Properties& of = unicode::properties(c);
  if (of.combining_class != 0) return false;
  if (is_compatible(form) && of.nfkd_length > 0) return false;
  if (!is_composed(form)) return of.nfd_length == 0 && !(of.flags & unicode::kHangul);
  if (of.nfd_length > 0 || (c >= kHangulV && c <= kHangulT + kNumT)) return false;
  return !unicode::composes_with_previous(c);
}

void append_decomposed(char32_t c, bool compatible, std::vector<Ranked>& out) {
  const Properties& of = unicode::properties(c);
  if (of.flags & unicode::kHangul) {
    for (const char32_t jamo : unicode::decompose_hangul(c)) {
      if (jamo != 0) out.push_back({jamo, 0});
    }
  } else if (compatible && of.nfkd_length > 0) {
    for (const char32_t part : unicode::sequence(of.nfkd_offset, of.nfkd_length)) {
      out.push_back({part, unicode::properties(part).combining_class});
    }
  } else if (of.nfd_length > 0) {
    for (const char32_t part : unicode::sequence(of.nfd_offset, of.nfd_length)) {
      out.push_back({part, unicode::properties(part).combining_class});
    }
  } else {
    out.push_back({c, of.combining_class});
  }
}

/// Canonical ordering: each run of marks by their classes.
void reorder(std::vector<Ranked>& text) {
  for (auto run = text.begin(); run != text.end();) {
    run = std::find_if(run, text.end(), [](const Ranked& r) { return r.combining_class != 0; });
    const auto end = std::find_if(run, text.end(), [](const Ranked& r) { return r.combining_class == 0; });
    std::stable_sort(run, end, [](const Ranked& a, const Ranked& b) { return a.combining_class < b.combining_class; });
    run = end;
  }
}

/// Hangul by arithmetic, all else by the table.
char32_t compose_pair(char32_t first, char32_t second) {
  if (first >= kHangulL && first < kHangulL + kNumL && second >= kHangulV && second < kHangulV + kNumV) {
    return kHangulS + ((first - kHangulL) * kNumV + second - kHangulV) * kNumT;
  }
  const bool is_lv = first >= kHangulS && first < kHangulS + kNumL * kNumV * kNumT && (first - kHangulS) % kNumT == 0;
  if (is_lv && second > kHangulT && second < kHangulT + kNumT) return first + second - kHangulT;
  return unicode::compose(first, second);
}

/// Canonical composition (Unicode 3.11, D117) of a decomposed and ordered text.
void compose_all(std::vector<Ranked>& text) {
  size_t starter = text.size();  // position of the last starter in the output
  size_t size = 0;
  int last_class = -1;  // of the last character written after the starter; -1: none
  for (const Ranked& r : std::vector<Ranked>(text)) {
    const bool blocked = last_class >= 0 && last_class >= r.combining_class;
    const char32_t composed = starter < size && !blocked ? compose_pair(text[starter].c, r.c) : 0;
    if (composed != 0) {
      text[starter].c = composed;
      continue;
    }
    if (r.combining_class == 0) {
      starter = size;
      last_class = -1;
    } else {
      last_class = r.combining_class;
    }
    text[size++] = r;
  }
  text.resize(size);
}

}  // namespace

void to_normalization_form(std::string& text, NormalizationForm form) {
  const char* p = text.data();
  const char* const end = p + text.size();
  const char* last = p;  // the code point before p
  const auto skip_inert = [&] {
    while (p != end) {
      const char* next = p;
      if (!is_inert(decode_utf8(next), form)) break;
      last = p;
      p = next;
    }
  };
  skip_inert();
  if (p == end) return;

  std::string out;
  out.reserve(text.size() + text.size() / 8);
  const char* done = text.data();
  std::vector<Ranked> part;
  while (p != end) {
    // What is not inert, with the code point before it, which may compose with it.
    if (last < done) last = done;
    out.append(done, last);
    part.clear();
    const char* q = last;
    while (q < p) append_decomposed(decode_utf8(q), is_compatible(form), part);
    while (p != end) {
      const char* next = p;
      const char32_t c = decode_utf8(next);
      if (is_inert(c, form)) break;
      append_decomposed(c, is_compatible(form), part);
      p = next;
    }
    reorder(part);
    if (is_composed(form)) compose_all(part);
    for (const Ranked& r : part) append_utf8(out, r.c);
    done = last = p;
    skip_inert();
  }
  out.append(done, end);
  text = std::move(out);
}

}  // namespace mezzo::text
