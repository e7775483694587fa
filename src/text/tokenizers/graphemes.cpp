#include "text/tokenizers/graphemes.h"

#include "text/io/utf8.h"
#include "text/tokenizers/unicode.h"

namespace mezzo::text {
namespace {

using unicode::Grapheme;

Grapheme grapheme_of(char32_t c) { return unicode::properties(c).grapheme; }

/// Whether a Hangul syllable has no final consonant.
bool is_lv(char32_t c) { return (c - 0xAC00) % 28 == 0; }

bool is_attached(Grapheme g) { return g >= Grapheme::kAttached && g <= Grapheme::kZeroWidthJoiner; }

/// The state of a cluster that decides which characters belong to it.
class Cluster {
 public:
  explicit Cluster(char32_t c) { add(c, grapheme_of(c)); }

  /// Whether `c` belongs to the cluster, of which it is a part from then on.
  bool take(char32_t c) {
    const Grapheme g = grapheme_of(c);
    if (!belongs(c, g)) return false;
    add(c, g);
    return true;
  }

 private:
  bool belongs(char32_t c, Grapheme g) const {
    if (last_ == Grapheme::kControl) return last_c_ == U'\r' && c == U'\n';  // GB3, GB4
    if (g == Grapheme::kControl) return false;                               // GB5
    if (is_attached(g) || last_ == Grapheme::kPrepend) return true;          // GB9, GB9a, GB9b
    switch (last_) {
      case Grapheme::kHangulL:
        return g == Grapheme::kHangulL || g == Grapheme::kHangulV || g == Grapheme::kHangulSyllable;
      case Grapheme::kHangulV: return g == Grapheme::kHangulV || g == Grapheme::kHangulT;
      case Grapheme::kHangulSyllable: return g == Grapheme::kHangulT || (g == Grapheme::kHangulV && is_lv(last_c_));
      case Grapheme::kHangulT: return g == Grapheme::kHangulT;
      case Grapheme::kRegionalIndicator: return g == Grapheme::kRegionalIndicator && odd_indicators_;
      default: break;
    }
    if (g == Grapheme::kConsonant && in_conjunct_ && linked_) return true;                                  // GB9c
    return g == Grapheme::kPictograph && last_ == Grapheme::kZeroWidthJoiner && pictograph_before_joiner_;  // GB11
  }

  void add(char32_t c, Grapheme g) {
    if (g == Grapheme::kZeroWidthJoiner) {
      pictograph_before_joiner_ = pictograph_;
      pictograph_ = false;
    } else if (g == Grapheme::kPictograph) {
      pictograph_ = true;
    } else if (g < Grapheme::kExtend || g > Grapheme::kConjunctLinker) {
      pictograph_ = false;
    }
    if (g == Grapheme::kConsonant) {
      in_conjunct_ = true;
      linked_ = false;
    } else if (g == Grapheme::kConjunctLinker) {
      linked_ = true;
    } else if (g != Grapheme::kConjunctExtend && g != Grapheme::kZeroWidthJoiner) {
      in_conjunct_ = false;
    }
    odd_indicators_ = g == Grapheme::kRegionalIndicator && !odd_indicators_;
    last_ = g;
    last_c_ = c;
  }

  Grapheme last_ = Grapheme::kOther;
  char32_t last_c_ = 0;
  bool pictograph_ = false;                // one, and since then nothing but kExtend
  bool pictograph_before_joiner_ = false;  // `pictograph_` before the last joiner
  bool in_conjunct_ = false;               // a consonant, and since then only characters of a conjunct
  bool linked_ = false;                    // a linker among that
  bool odd_indicators_ = false;
};

}  // namespace

size_t grapheme_length(std::string_view text) {
  const char* p = text.data();
  const char* const end = p + text.size();
  Cluster cluster(decode_utf8(p));
  while (p != end) {
    const char* next = p;
    if (!cluster.take(decode_utf8(next))) break;
    p = next;
  }
  return static_cast<size_t>(p - text.data());
}

}  // namespace mezzo::text
