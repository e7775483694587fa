#include "text/tokenizers/pattern.h"

#include <c10/util/Exception.h>
#include <oniguruma.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <ctime>
#include <limits>
#include <optional>
#include <utility>

#include "text/io/utf8.h"
#include "text/tokenizers/normalizer.h"
#include "text/tokenizers/unicode.h"
#include "text/tokenizers/white_space.h"

namespace mezzo::text {

namespace {

enum class CharClass : uint8_t { kLetter, kNumber, kSpace, kOther };

CharClass table_class(char32_t c) {
  const uint16_t flags = unicode::properties(c).flags;
  return flags & unicode::kLetter       ? CharClass::kLetter
         : flags & unicode::kNumber     ? CharClass::kNumber
         : flags & unicode::kWhiteSpace ? CharClass::kSpace
                                        : CharClass::kOther;
}

const std::array<CharClass, 128>& ascii_classes() {
  static const std::array<CharClass, 128> kClasses = [] {
    std::array<CharClass, 128> classes{};
    for (char32_t c = 0; c < classes.size(); ++c) classes[c] = table_class(c);
    return classes;
  }();
  return kClasses;
}

/// The class of the character at `p`, which moves behind it.
CharClass take_class(const std::array<CharClass, 128>& ascii, const char*& p) {
  const auto byte = static_cast<unsigned char>(*p);
  if (byte < 0x80) {
    ++p;
    return ascii[byte];
  }
  return table_class(decode_utf8(p));
}

/// The length of one of 's 't 'm 'd 're 've 'll, or 0.
size_t contraction_length(std::string_view text) {
  if (text.size() < 2 || text[0] != '\'') return 0;
  const char first = text[1];
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  const char second = text.size() > 2 ? text[2] : '\0';
  const bool longer =
      (first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l');
  return longer ? 3 : 0;
}

}  // namespace

size_t gpt2_word_length(std::string_view text) {
  if (const size_t contraction = contraction_length(text)) return contraction;
  const auto& ascii = ascii_classes();
  const char* p = text.data();
  const char* const end = p + text.size();
  const auto length = [&](const char* at) { return static_cast<size_t>(at - text.data()); };
  CharClass run = take_class(ascii, p);
  if (text[0] == ' ' && p != end) {  // " ?" before a word
    const char* next = p;
    const CharClass second = take_class(ascii, next);
    if (second != CharClass::kSpace) {
      run = second;
      p = next;
    }
  }
  if (run != CharClass::kSpace) {
    for (const char* next = p; p != end && take_class(ascii, next) == run;) p = next;
    return length(p);
  }
  // White space at the end of the text is one word. Elsewhere all but the last character is, since the next word may
  // take the last; a single one is a word.
  const char* last = text.data();
  for (const char* next = p; p != end; p = next) {
    if (take_class(ascii, next) != CharClass::kSpace) return length(last == text.data() ? p : last);
    last = p;
  }
  return length(p);
}

namespace {

size_t white_space_length(std::string_view text) { return text.size() - trim_begin(text).size(); }

/// Two spaces or more.
size_t spaces_length(std::string_view text) {
  const size_t found = std::min(text.find_first_not_of(' '), text.size());
  return found >= 2 ? found : 0;
}

constexpr std::pair<std::string_view, Pattern::MatchAtStart> kFast[] = {
    {kGpt2Pattern, gpt2_word_length}, {"\\s+", white_space_length}, {" {2,}", spaces_length}};

const OnigUChar* bytes_of(std::string_view text) { return reinterpret_cast<const OnigUChar*>(text.data()); }

std::string message_of(int error, OnigErrorInfo* info) {
  std::array<OnigUChar, ONIG_MAX_ERROR_MESSAGE_LEN> message{};
  const int size = onig_error_code_to_str(message.data(), error, info);
  return quoted_json({reinterpret_cast<const char*>(message.data()), static_cast<size_t>(size)});
}

/// Whether it holds \G, outside of an escaped backslash.
bool has_search_begin(std::string_view regex) {
  for (size_t i = 0; (i = regex.find('\\', i)) != regex.npos; i += 2) {
    if (regex.substr(i).starts_with("\\G")) return true;
  }
  return false;
}

std::shared_ptr<const re_pattern_buffer> compile(const JsonField& field) {
  static const int kInitialized = [] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    return onig_initialize(encodings, 1);
  }();
  TORCH_CHECK(kInitialized == ONIG_NORMAL, "Oniguruma cannot be initialized: ", message_of(kInitialized, nullptr));
  constexpr size_t kMaxBytes = size_t{1} << 16;
  std::string regex = field.as_string();
  field.expect(regex.size() <= kMaxBytes, "a regular expression of at most " + std::to_string(kMaxBytes) + " bytes");
  field.expect(!has_search_begin(regex), "a regular expression without \\G, the start of a search");
  if (ONIGURUMA_VERSION_INT < 60909) {  // whose punctuation is without symbols, unlike that of later versions
    constexpr std::string_view kPunctuation = "[:punct:]";
    for (size_t i = 0; (i = regex.find(kPunctuation, i)) != regex.npos;) {
      regex.insert(i += kPunctuation.size(), R"(\p{S})");
    }
  }
  OnigRegex made = nullptr;
  OnigErrorInfo info{};
  const OnigUChar* const begin = bytes_of(regex);
  const int error =
      onig_new(&made, begin, begin + regex.size(), ONIG_OPTION_NONE, ONIG_ENCODING_UTF8, ONIG_SYNTAX_DEFAULT, &info);
  TORCH_CHECK_VALUE(error == ONIG_NORMAL, field.file(), ": ", field.name(),
                    " is not a regular expression of Oniguruma: ", message_of(error, &info), "; fetch the file again");
  return {made, onig_free};
}

/// Of the CPU, of this thread.
double thread_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

Pattern::Pattern(const JsonField& field) {
  field.expect(field.has("String") != field.has("Regex"), "{\"String\": …} or {\"Regex\": …}");
  field.allowed_keys({"String", "Regex"});
  if (field.has("String")) {
    string_ = field["String"].as_string();
    field["String"].expect(!string_.empty(), "a string that is not empty");
    return;
  }
  const JsonField regex = field["Regex"];
  const auto known = std::ranges::find(kFast, regex.as_string(), [](const auto& fast) { return fast.first; });
  if (known != std::end(kFast)) {
    match_ = known->second;
    return;
  }
  regex_ = compile(regex);
  where_ = regex.file() + ": " + regex.name();
}

void Pattern::for_each_match(std::string_view text, const std::function<bool(size_t begin, size_t end)>& use) const {
  if (match_ != nullptr) {
    for (size_t i = 0; i < text.size();) {
      const size_t length = match_(text.substr(i));
      if (length > 0 && !use(i, i + length)) return;
      i = length > 0 ? i + length : character_end(text, i);
    }
    return;
  }
  if (!string_.empty()) {
    for (size_t i = 0; (i = text.find(string_, i)) != text.npos; i += string_.size()) {
      if (!use(i, i + string_.size())) return;
    }
    return;
  }
  const auto check = [&](bool holds, const char* what) {
    TORCH_CHECK_VALUE(holds, where_, ": the regular expression ", what, " for a text of ", text.size(),
                      " bytes; shorten the text");
  };
  check(text.size() < std::numeric_limits<int>::max(), "has no positions");
  const std::unique_ptr<OnigMatchParam, decltype(&onig_free_match_param)> limits(onig_new_match_param(),
                                                                                 onig_free_match_param);
  const std::unique_ptr<OnigRegion, void (*)(OnigRegion*)> region(
      onig_region_new(), [](OnigRegion* made) { onig_region_free(made, /*free_self=*/1); });
  onig_initialize_match_param(limits.get());
  const auto most_steps = static_cast<unsigned long>(1'000'000 + 100 * text.size());
  onig_set_retry_limit_in_match_of_match_param(limits.get(), most_steps);
  onig_set_retry_limit_in_search_of_match_param(limits.get(), most_steps);
  auto* const regex = const_cast<re_pattern_buffer*>(regex_.get());  // which a search only reads
  const OnigUChar* const bytes = bytes_of(text);
  const OnigUChar* const bytes_end = bytes + text.size();
  std::optional<size_t> last_end;
  // Oniguruma limits the steps back, not the steps forward: each letter of a word may begin a walk to its end. A search
  // tries all positions and cannot be stopped, so it is for short texts.
  constexpr size_t kShort = size_t{16} << 10;
  const double most_seconds = 0.2 + 1e-5 * static_cast<double>(text.size());
  double deadline = 0;
  int64_t searches = 0;
  for (size_t from = 0; from <= text.size();) {
    if (++searches % 16 == 0) {  // not at each: asking takes as long as a search
      const double now = thread_seconds();
      if (deadline == 0) deadline = now + most_seconds;
      check(now < deadline, "takes too much time");
    }
    const bool is_short = text.size() - from <= kShort;
    const int found = is_short ? onig_search_with_param(regex, bytes, bytes_end, bytes + from, bytes_end, region.get(),
                                                        ONIG_OPTION_NONE, limits.get())
                               : onig_match_with_param(regex, bytes, bytes_end, bytes + from, region.get(),
                                                       ONIG_OPTION_NONE, limits.get());
    if (found == ONIG_MISMATCH && !is_short) {
      from = character_end(text, from);
      continue;
    }
    if (found == ONIG_MISMATCH) return;
    check(found >= 0, "takes too many steps");
    const auto begin = static_cast<size_t>(region->beg[0]), end = static_cast<size_t>(region->end[0]);
    if (begin == end && last_end == end) {
      from = from < text.size() ? character_end(text, from) : from + 1;
      continue;
    }
    last_end = from = end;
    if (!use(begin, end)) return;
  }
}

}  // namespace mezzo::text
